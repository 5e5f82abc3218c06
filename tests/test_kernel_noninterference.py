"""Two whole kernels, one of which never got what others keep to themselves: to the byte the same
replies for a reader, from every door of memory."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from kernel_helpers import client, running, short_folder

from isovist.kernel.kernel import Kernel
from isovist.syscalls.aio import AsyncClient
from isovist.syscalls.errors import IsovistError
from isovist.syscalls.records import Message

_PASSING = {"call", "timings", "barrier", "stored_at", "asked_at"}
"""Fields that name a call or a moment: documented to differ from one call to the next."""
Write = tuple[str, str, str, dict[str, Any]]
"""Agent, user, text, and what else the write says."""

SEEN: list[Write] = [
    ("mail", "ana", "Ana deploys the release on Tuesdays", {}),
    ("plan", "ana", "Ana drinks green tea", {"scope": "user"}),
    ("mail", "ana", "User: when?\nAssistant: on Tuesday", {"session": "trip", "round": 1}),
    ("mail", "ana", "User: where?\nAssistant: in Oslo", {"session": "trip", "round": 2}),
    (
        "mail",
        "bob",
        "The mail server restarts on Tuesdays",
        {"scope": "agent", "stream": "reusable"},
    ),
    ("plan", "bob", "Tea is at four for all", {"scope": "global", "stream": "reusable"}),
]
FOREIGN: list[Write] = [
    ("mail", "bob", "Ana deploys the release on Tuesdays", {}),
    ("plan", "ana", "Tuesday Tuesday release tea Oslo", {}),
    ("plan", "bob", "the release on Tuesdays is off", {"scope": "user"}),
    ("plan", "ana", "User: when?\nAssistant: never", {"session": "trip", "round": 3}),
    ("plan", "bob", "tea deploys the Oslo release", {"scope": "agent", "stream": "reusable"}),
]


def as_bytes(reply: Any) -> bytes:
    return msgspec.msgpack.encode(_still(reply))


def _still(value: Any) -> Any:
    """``value`` without the fields that pass, by the names of its fields."""
    if isinstance(value, msgspec.Struct):
        value = {"": type(value).__name__, **msgspec.structs.asdict(value)}
    if isinstance(value, dict):
        return {k: _still(v) for k, v in value.items() if k not in _PASSING}
    return [_still(v) for v in value] if isinstance(value, list | tuple) else value


async def write(kernel: Kernel, writes: list[Write]) -> list[bytes]:
    replies = []
    for agent, user, text, more in writes:
        async with client(kernel, agent, user=user) as k:
            said = {"said_at": "2026-03-01T09:00Z", **more}
            replies.append(as_bytes(await k.remember(text, **said)))
    return replies


async def listed(k: AsyncClient) -> list[Any]:
    return [unit async for unit in k.memories(limit=2)]


async def asked(k: AsyncClient, foreign: list[str]) -> list[bytes]:
    """Every door of memory; ``foreign`` are ids outside the view."""
    found = await k.memory_search("when is the release?", k=5)
    doors: list[Callable[[], Awaitable[Any]]] = [
        *(lambda mode=mode: k.search("release on Tuesdays, tea", mode=mode)
          for mode in ("bm25", "dense", "rrf", "hybrid")),
        lambda: k.search("tea", since="2026-02-01T00:00Z", until="2026-04-01T00:00Z"),
        lambda: listed(k),
        lambda: k.view(),
        lambda: k.chat([Message("user", "when is the release, and who drinks tea?")]),
        lambda: k.memory_search("release Oslo", k=8),
        *(lambda r=r: k.memory_read(r.session, r.round, window=5) for r in found.rounds),
        lambda: k.session_search("when?"),
        lambda: k.full_context(),
        lambda: k.memory_files(),
        lambda: k.prefetch("when is the release, and who drinks tea?"),
        *(lambda id_=id_: k.read(id_) for id_ in foreign),
    ]  # fmt: skip
    replies = []
    for door in doors:
        try:
            replies.append(as_bytes(await door()))
        except IsovistError as e:
            replies.append(re.sub(rb"[0-9a-f]{20,}", b"?", f"{e.errno} {e.field}".encode()))
    return replies


async def one_side(state: Path, key: bytes, others: bool) -> tuple[list[bytes], list[bytes]]:
    """What the writes and the questions of ana's mail agent are answered."""
    async with running(state):
        pass
    # Ids are made with a key that is drawn once a store: the same one here for both.
    with closing(sqlite3.connect(state / "isovist.db")) as db:
        db.execute("UPDATE meta SET value = ? WHERE name = 'key'", (key,))
        db.commit()
    async with running(state) as kernel:
        async with client(kernel, "operator", operator=True) as k:
            for agent in ("mail", "plan"):
                await k.grant(agent, users=["ana", "bob"], scopes=["user", "agent", "global"])
        wrote: list[bytes] = []
        for seen, foreign in zip(SEEN, [*FOREIGN, FOREIGN[0]], strict=True):
            if others:
                await write(kernel, [foreign])
            wrote += await write(kernel, [seen])
        async with client(kernel, "mail", user="ana") as k:
            first = await asked(k, ["u" + "0" * 20])
        if others:
            await write(kernel, FOREIGN)
        async with client(kernel, "mail", user="ana") as k:
            assert await asked(k, ["u" + "0" * 20]) == first
        return wrote, first


@pytest.mark.promise("view.noninterference")
async def test_two_kernels_answer_alike_with_and_without_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Ids differ from one life of a kernel to the next: these two are as one.
    monkeypatch.setattr("isovist.kernel.kernel._word_of_this_life", lambda: b"one life")
    sides: list[tuple[list[bytes], list[bytes]]] = []
    for others in (True, False):
        with short_folder() as folder:
            with trio.fail_after(60):
                sides.append(await one_side(Path(folder), bytes(range(16)), others))
    (wrote, replies), (wrote_alone, replies_alone) = sides
    assert wrote == wrote_alone
    assert any(b"Tuesday" in reply for reply in replies)
    assert not any(b"Oslo release" in reply for reply in replies)
    assert replies == replies_alone
