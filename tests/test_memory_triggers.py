"""What has broken other memory systems, as their trackers tell it, put to a whole kernel.

Each test says in its first sentence what went wrong elsewhere.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from kernel_helpers import client, pipes, running, short_folder
from raw_helpers import HELLO, Raw, frame

from isovist.kernel.kernel import Kernel
from isovist.syscalls import messages as m
from isovist.syscalls.aio import AsyncClient
from isovist.syscalls.codec import encode
from isovist.syscalls.errors import Errno, IsovistError
from isovist.syscalls.framing import pack
from isovist.syscalls.names import MAX_TEXT
from isovist.syscalls.records import Mode

MODES: tuple[Mode, ...] = ("bm25", "dense", "hybrid", "rrf")


@pytest.fixture
async def kernel() -> AsyncIterator[Kernel]:
    with short_folder() as folder:
        async with running(Path(folder)) as running_kernel:
            yield running_kernel


async def texts(asker: AsyncClient, query: str, **options: Any) -> list[str]:
    found = await asker.search(query, **options)
    return [hit.unit.text for hit in found.hits]


async def refused(errno: Errno, call: Any) -> IsovistError:
    with pytest.raises(IsovistError) as e:
        await call
    assert e.value.errno is errno, e.value
    return e.value


# -- k is filled after everything that takes a result away


@pytest.mark.parametrize("mode", MODES)
async def test_one_noisy_session_does_not_fill_the_window(kernel: Kernel, mode: Mode) -> None:
    """Elsewhere the first N hits were taken and repeats dropped afterwards, so that one session
    saying one thing over and over left two results of the ten that were asked for."""
    async with client(kernel, "one", operator=True, user="ana") as k:
        for n in range(60):
            # Other labels: the store keeps each, and all say the same.
            await k.remember("the parrot eats seeds", session="noise", round=n, meta={"n": str(n)})
        quiet = [f"the parrot eats seeds at {n} in the morning, of course" for n in range(5)]
        for text in quiet:
            await k.remember(text)
        assert sorted(await texts(k, "parrot eats seeds", k=6, mode=mode)) == sorted(
            ["the parrot eats seeds", *quiet]
        )


@pytest.mark.parametrize("mode", MODES)
async def test_what_is_superseded_or_expired_takes_no_place(kernel: Kernel, mode: Mode) -> None:
    """Elsewhere outdated statements were filtered out of the first k, so that a fact with a long
    history hid all others."""
    async with client(kernel, "one", operator=True, user="ana") as k:
        last = ""
        for n in range(30):
            text = f"the locker code is {4000 + n}"
            last = (await k.remember(text, supersedes=last)).id
        for n in range(30):
            await k.remember(f"the locker code was {n}", expires_at="2020-01-01T00:00Z")
        for n in range(3):
            await k.remember(f"a locker with a code of {n} digits stands in the old hall")
        found = await texts(k, "locker code", k=4, mode=mode)
    assert len(found) == 4
    assert "the locker code is 4029" in found
    assert sum("old hall" in text for text in found) == 3


async def test_copies_in_several_scopes_come_once_and_the_rest_keep_their_places(
    kernel: Kernel,
) -> None:
    """Elsewhere the same sentence, learned by several agents, took every place of the prompt."""
    async with client(kernel, "reader", operator=True, user="ana") as reader:
        for n in range(10):
            async with client(kernel, f"writer{n}", operator=True, user="ana") as k:
                await k.remember("Ana's ferry leaves at nine", scope="user")
        await reader.remember("Ana's ferry leaves from the north pier")
        for mode in MODES:
            found = await texts(reader, "Ana's ferry leaves", k=2, mode=mode)
            assert len(set(found)) == 2
        reply = await reader.prefetch("When does Ana's ferry leave, and from where?")
        shown = [(await reader.read(unit.unit)).units[0].text for unit in reply.injected]
        assert len(set(shown)) == len(shown)
        assert "Ana's ferry leaves at nine" in shown


async def test_near_duplicates_do_not_spend_the_prompt(kernel: Kernel) -> None:
    """Elsewhere one sentence in five spellings was five memories, and the budget was gone; or what
    differs in a number alone was merged with it."""
    async with client(kernel, "one", operator=True, user="ana") as k:
        for text in (
            "Ana's ferry leaves at nine.",
            "ana's ferry leaves at nine",
            "Ana's ferry leaves at nine!",
            "Ana's  FERRY leaves at nine...",
            "Ana's ferry leaves at ten.",
            "Ana's ferry never leaves at nine.",
        ):
            await k.remember(text)
        for n in range(5):
            await k.remember(f"Ben's ticket {n} is in the drawer.")
        reply = await k.prefetch("When does Ana's ferry leave?", units=3)
        said = [(await k.read(unit.unit)).units[0].text for unit in reply.injected]
    words = sorted(" ".join(text.casefold().strip(".!").split()) for text in said)
    assert words == [
        "ana's ferry leaves at nine",
        "ana's ferry leaves at ten",
        "ana's ferry never leaves at nine",
    ]


# -- names


NAMES = ("a", "an", "ana", "ana ", "ana-1", "ana-11", "ana:1", "ana*", "ana%", "ana_", "An", "ä")
"""Each is a prefix, a pattern or a look-alike of another."""


@pytest.mark.promise("view.choke")
async def test_names_that_are_prefixes_of_each_other_are_different(kernel: Kernel) -> None:
    """Elsewhere scopes were keys matched by prefix or LIKE, so that ``ana`` read ``ana-1``."""
    for name in NAMES:
        async with client(kernel, "one", operator=True, user=name) as k:
            await k.remember(f"the pin of <{name}>", scope="user")
    for name in NAMES:
        async with client(kernel, name, operator=True, user="zoe") as k:
            await k.remember(f"the pin of agent <{name}>")
    for name in NAMES:
        async with client(kernel, "one", operator=True, user=name) as k:
            assert await texts(k, "pin", k=50) == [f"the pin of <{name}>"]
        async with client(kernel, name, operator=True, user="zoe") as k:
            assert await texts(k, "pin", k=50) == [f"the pin of agent <{name}>"]
            assert [u.text async for u in k.memories()] == [f"the pin of agent <{name}>"]


@pytest.mark.promise("view.choke")
async def test_groups_that_are_prefixes_of_each_other_are_different(kernel: Kernel) -> None:
    """Elsewhere the team ``ops`` read what was meant for ``ops-leads``; nor is a group a user or
    an agent of its name. (A group's name may not end with a space.)"""
    names = [name for name in NAMES if name == name.strip()]
    async with (
        client(kernel, "boss", operator=True) as boss,
        client(kernel, "one") as one,
    ):
        for name in names:
            await boss.group_change(name, "users", add=(f"of {name}",))
            await boss.group_change(name, "agents", add=(f"agent of {name}", "one"))
        await boss.grant("one", users=("*",), scopes=tuple(f"@{name}" for name in names))
        for name in names:
            member = f"of {name}"
            for scope in (f"@{name}/all", f"own/@{name}"):
                text = f"the pin for {scope}"
                stored = await one.remember(text, user=member, scope=scope, stream="reusable")
                assert stored.scope == scope
        for name in names:
            async with client(kernel, f"agent of {name}", operator=True, user=f"of {name}") as k:
                both = {f"the pin for @{name}/all", f"the pin for own/@{name}"}
                assert set(await texts(k, "pin", k=50)) == both
            async with client(kernel, "two", operator=True, user=f"of {name}") as k:
                assert await texts(k, "pin", k=50) == [f"the pin for @{name}/all"]
            async with client(kernel, name, operator=True, user=name) as k:
                assert await texts(k, "pin", k=50) == []


# -- texts


@pytest.mark.parametrize("field", ["text", "query", "kind", "session", "user"])
async def test_a_lone_surrogate_is_refused_before_and_behind_the_wire(
    kernel: Kernel, field: str
) -> None:
    """Elsewhere half an emoji killed the server's loop, or went into the store and made every
    later list fail."""
    kind: Any = m.Search if field == "query" else m.Remember
    fields: dict[str, str] = {"query": "a"} if field == "query" else {"text": "a"}
    request = kind(**(fields | {field: "a\ud800b"}))
    async with client(kernel, "one", operator=True, user="ana") as k:
        e = await refused(Errno.EINVAL, k.call(request))
        assert "surrogate" in e.message
    # A peer that encodes it all the same sends bytes that are no UTF-8.
    mark = "a??b"
    sound = encode(kind(**(fields | {field: mark})))
    for broken in (b"a\xed\xa0\x80b", b"a\xff\xffb"):
        body = sound.replace(b"\xa4a??b", bytes([0xA0 + len(broken)]) + broken)
        assert body != sound
        peer = Raw(*pipes(kernel, "one", operator=True))
        await peer.send(frame(1, HELLO))
        assert isinstance(await peer.reply(), m.Welcome)
        await peer.send(pack(2, body))
        reply = await peer.reply()
        assert isinstance(reply, m.Failed)
        assert reply.errno in (Errno.EINVAL, Errno.EPROTO)
    async with client(kernel, "one", operator=True, user="ana") as k:
        assert [u async for u in k.memories()] == []


async def test_a_nul_cuts_nothing_off(kernel: Kernel) -> None:
    """Elsewhere C code ended the text at its first NUL, in one index and not in the other."""
    async with client(kernel, "one", operator=True, user="ana") as k:
        stored = await k.remember("before\0 the parrot is called Kiki\0")
        unit = stored.id
        assert stored.note == "2 NUL characters were dropped from the text"
        again = await k.update(unit, 1, "before\0 the parrot is called Kiki")
        assert again.note == "1 NUL character was dropped from the text"
        assert (await k.read(unit)).units[0].text == "before the parrot is called Kiki"
        for mode in MODES:
            assert len(await texts(k, "par\0rot Kiki", mode=mode)) == 1
        for name in ("session", "user"):
            fields: dict[str, Any] = {name: "a\0b"}
            e = await refused(Errno.EINVAL, k.remember("x", **fields))
            assert "control character" in e.message
        e = await refused(Errno.EINVAL, k.remember("\0\0"))
        assert (e.field, "empty" in e.message) == ("text", True)


async def test_a_megabyte_of_text_is_refused_with_both_numbers(kernel: Kernel) -> None:
    """Elsewhere a pasted log was stored, and every later prompt that it was part of failed."""
    async with client(kernel, "one", operator=True, user="ana") as k:
        most = MAX_TEXT
        for call in (
            lambda text: k.remember(text),
            lambda text: k.update("u1", 1, text),
        ):
            e = await refused(Errno.EMSGSIZE, call("ü" * (most // 2) + "x"))
            assert (e.field, str(most) in e.message, str(most + 1) in e.message) == (
                "text", True, True,
            )  # fmt: skip
            await refused(Errno.EMSGSIZE, call("x" * 1_000_000))
        e = await refused(Errno.EMSGSIZE, k.search("x " * 5000))
        assert (e.field, "8192" in e.message, "10000" in e.message) == ("query", True, True)
        # Above a whole frame nothing leaves the client.
        await refused(Errno.EMSGSIZE, k.remember("x" * 2_000_000))
        stored = await k.remember("ü" * (most // 2))
        assert len((await k.read(stored.id)).units[0].text) == most // 2


@pytest.mark.parametrize("mode", MODES)
async def test_a_question_of_two_hundred_words_finds_its_answer(kernel: Kernel, mode: Mode) -> None:
    """Elsewhere a long question became an AND of all its words, or too many clauses, and found
    nothing."""
    async with client(kernel, "one", operator=True, user="ana") as k:
        await k.remember("The parrot is called Kiki.")
        for n in range(10):
            await k.remember(f"The minutes of meeting {n} are in folder {n}.")
        words = " ".join(f"word{n} and so on" for n in range(48))
        question = f"Well, {words}: what, I ask you, is the parrot called, is it Kiki?"
        assert len(question.split()) > 200
        assert (await texts(k, question, mode=mode))[0] == "The parrot is called Kiki."


ODD = {
    "identifier": ("deploy api-v2_final with src/x.py", ("api-v2_final", "x.py", "API v2 final")),
    "emoji": ("🚀🚀🚀🚀 launch 👩‍👩‍👧‍👦 today", ("launch", "🚀", "👩‍👩‍👧‍👦", "👦")),
    "emoji alone": ("🎉👍🏽🇩🇪", ("🎉", "👍", "🇩🇪")),
    "right to left": ("رقم الخزانة هو 4417", ("الخزانة", "رقم الخزانة؟")),
    "hebrew": ("מספר הארון הוא 5528", ("הארון",)),
    "mixed": ("安娜的Kubernetes集群在周二升级", ("集群升级", "kubernetes 集群", "Kubernetes")),
    "full width": ("the code is ＡＢＣ１２３", ("abc123",)),
    "combining": ("the cafe\u0301 on the corner", ("café corner",)),
}


@pytest.mark.parametrize("name", ODD)
async def test_what_is_no_plain_english_is_found_and_comes_back_as_it_was(
    kernel: Kernel, name: str
) -> None:
    """Elsewhere a tokenizer for English dropped the word that mattered, and the query matched
    nothing or everything."""
    text, queries = ODD[name]
    async with client(kernel, "one", operator=True, user="ana") as k:
        unit = (await k.remember(text)).id
        for n in range(5):
            await k.remember(f"another thing, number {n}")
        assert (await k.read(unit)).units[0].text == text
        for query in queries:
            assert (await texts(k, query, mode="bm25")) == [text], query
            assert (await texts(k, query))[0] == text, query
        reply = await k.prefetch(queries[-1])
        assert unit in [u.unit for u in reply.injected]


async def test_a_query_without_any_word_is_answered(kernel: Kernel) -> None:
    """Elsewhere a query of emoji or punctuation was an empty query: an exception, or the whole
    store."""
    async with client(kernel, "one", operator=True, user="ana") as k:
        await k.remember("The parrot is called Kiki.")
        for query in ("🚀🚀🚀", "?!", "…", "\u200f\u202e", "---", "()"):
            assert await texts(k, query, mode="bm25") == []
            await texts(k, query)
        e = await refused(Errno.EINVAL, k.search("  "))
        assert e.field == "query"


SYNTAX = (
    "title:foo", '"', '"parrot', "*", "parrot*", "AND NOT", "parrot AND NOT Kiki", "parrot^2",
    "-parrot", "+parrot +zebra", "parrot~1", "(parrot", "parrot)", "[a TO z]", "parrot OR",
    "NEAR(parrot kiki)", "/parrot/", "{parrot}", "\\", "parrot\\", "text:parrot",
    "pid:1 OR 1=1", "'; DROP TABLE units; --", "%", "_", "$parrot", "parrot && zebra", "!parrot",
)  # fmt: skip
"""Of Lucene's kind, of SQLite's full-text search, of SQL."""


async def test_query_syntax_is_words(kernel: Kernel) -> None:
    """Elsewhere a quotation mark in a question was a syntax error, a hyphen excluded what was
    asked for, and ``title:foo`` named a field."""
    async with client(kernel, "one", operator=True, user="ana") as k:
        await k.remember("The parrot is called Kiki.")
        await k.remember("The zebra is nameless.")
        plain = await texts(k, "parrot", mode="bm25")
        assert plain == ["The parrot is called Kiki."]
        for query in SYNTAX:
            found = await texts(k, query, mode="bm25")
            for word, text in (("parrot", plain[0]), ("zebra", "The zebra is nameless.")):
                assert (text in found) == (word in query), query
            await texts(k, query)


# -- times


@pytest.mark.parametrize("field", ["since", "until"])
async def test_times_of_a_filter_need_a_zone(kernel: Kernel, field: str) -> None:
    """Elsewhere a naive time was taken for local time by one process and for UTC by the next; on
    the days when clocks change it names no instant or two."""
    spring, autumn = "2026-03-29T02:30:00", "2026-10-25T02:30:00"
    async with client(kernel, "one", operator=True, user="ana") as k:
        for when in (spring, autumn, "2026-06-01", "2026-06-01T12:00", "yesterday", "", "0"):
            calls: list[Callable[[Any], Any]] = [
                lambda o: k.search("x", **o),
                lambda o: k.memory_search("x", **o),
                lambda o: k.forget_matching("x", **o),
            ]
            for call in calls:
                e = await refused(Errno.EINVAL, call({field: when}))
                assert e.field == field
        unit = (await k.remember("x")).id
        for when in (spring, autumn):
            e = await refused(Errno.EINVAL, k.expire(unit, 1, when))
            assert e.field == "at"


async def test_days_when_clocks_change_keep_their_order(kernel: Kernel) -> None:
    """Elsewhere the hour that comes twice in autumn was one hour, and the one that spring leaves
    out put events before their cause."""
    said = {
        "first half past two": "2026-10-25T02:30:00+02:00",
        "second half past two": "2026-10-25T02:30:00+01:00",
        "before the jump": "2026-03-29T01:59:59+01:00",
        "after the jump": "2026-03-29T03:00:00+02:00",
    }
    async with client(kernel, "one", operator=True, user="ana") as k:
        for text, when in said.items():
            await k.remember(f"news from the {text}", said_at=when)

        async def within(since: str, until: str) -> list[str]:
            found = await texts(k, "news", since=since, until=until)
            return sorted(text.removeprefix("news from the ") for text in found)

        autumn = ["first half past two", "second half past two"]
        assert await within("2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z") == autumn[:1]
        assert await within("2026-10-25T02:30:00+01:00", "2026-10-25T03:00:00+01:00") == autumn[1:]
        # From half past two to half past two, an hour later.
        assert await within("2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00") == autumn[:1]
        assert await within("2026-03-29T00:59:59Z", "2026-03-29T01:00:00Z") == ["before the jump"]
        assert await within("2026-03-29T01:59:59+01:00", "2026-03-29T03:00:00.000001+02:00") == [
            "after the jump",
            "before the jump",
        ]
        e = await refused(
            Errno.EINVAL,
            k.search("news", since="2026-10-25T02:30:00+01:00", until="2026-10-25T02:30:00+02:00"),
        )
        assert e.field == "since"


# -- two at once


async def test_two_writers_of_one_fact_make_one_unit(kernel: Kernel) -> None:
    """Elsewhere each looked whether the fact was there, neither saw the other's, and both wrote
    it: over channels of their own, with other writes between."""
    stored: list[m.Stored] = []

    async def write(other: int) -> None:
        async with client(kernel, "one", operator=True, user="ana") as k:
            for n in range(10):
                await k.remember(f"noise {other} {n}")
                stored.append(await k.remember(f"Ana's locker is {n}", scope="user"))

    async with trio.open_nursery() as nursery:
        for other in range(4):
            nursery.start_soon(write, other)
    assert len({s.id for s in stored}) == 10
    assert sum(not s.duplicate for s in stored) == 10
    async with client(kernel, "one", operator=True, user="ana") as k:
        listed = [u.text async for u in k.memories(limit=500)]
        assert sorted(t for t in listed if "locker" in t) == sorted(
            f"Ana's locker is {n}" for n in range(10)
        )


CHANGES: dict[str, Callable[[AsyncClient, str, int], Any]] = {
    "update": lambda k, unit, version: k.update(unit, version, "as the reviewer saw it"),
    "expire": lambda k, unit, version: k.expire(unit, version, "2000-01-01T00:00Z"),
    "rescope": lambda k, unit, version: k.rescope(unit, version, "user"),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_reviewer_does_not_overwrite_a_newer_row(kernel: Kernel, change: str) -> None:
    """Elsewhere a slow review wrote back what it had read minutes ago, and what the user had
    corrected meanwhile was lost."""
    async with client(kernel, "one", operator=True, user="ana") as k:
        unit = (await k.remember("the locker is 4417")).id
        seen = (await k.read(unit)).units[0]
        await k.update(unit, seen.version, "the locker is 5528")
        e = await refused(Errno.ESTALE, CHANGES[change](k, unit, seen.version))
        assert all(number in e.message for number in ("1", "2"))
        now = (await k.read(unit)).units[0]
        assert (now.text, now.version, now.scope) == ("the locker is 5528", 2, "pair")
        assert now.expires_at is None
        # What has not been read yet cannot be reviewed either.
        await refused(Errno.ESTALE, CHANGES[change](k, unit, 3))
        # Having read it again, the reviewer may.
        await CHANGES[change](k, unit, 2)


async def test_of_many_reviewers_at_once_one_wins(kernel: Kernel) -> None:
    """Elsewhere the last one won, and the others were told that they had."""
    outcomes: list[Errno | str] = []
    async with client(kernel, "one", operator=True, user="ana") as k:
        unit = (await k.remember("the locker is 4417")).id

        async def review(change: str) -> None:
            async with client(kernel, "one", operator=True, user="ana") as other:
                try:
                    await CHANGES[change](other, unit, 1)
                    outcomes.append(change)
                except IsovistError as e:
                    outcomes.append(e.errno)

        async with trio.open_nursery() as nursery:
            for change in ("update", "rescope", "update"):
                nursery.start_soon(review, change)
        assert sorted(map(str, outcomes)).count(str(Errno.ESTALE)) == 2
        now = (await k.read(unit)).units[0]
        assert now.version == 2
        assert (now.text == "as the reviewer saw it") != (now.scope == "user")


@pytest.mark.promise("erase.complete")
async def test_what_moves_while_it_is_to_be_forgotten_does_not_pass_for_gone(
    kernel: Kernel,
) -> None:
    """Elsewhere a removal that met nothing where it looked was reported as done: whichever of the
    two comes first, the unit is either gone or the caller knows that it is not."""
    async with (
        client(kernel, "one", operator=True, user="ana") as k,
        client(kernel, "one", operator=True, user="ana") as other,
    ):
        for first, second in ((k, other), (other, k)):
            unit = (await k.remember("the locker is 4417")).id
            # Both are under way before either is in the store.
            move = await first.submit(m.Rescope(id=unit, version=1, scope="user", user="ana"))
            forget = await second.submit(m.Forget(id=unit, user="ana"))
            outcomes: list[Errno | None] = []
            for call in (move, forget):
                try:
                    await call.result()
                    outcomes.append(None)
                except IsovistError as e:
                    outcomes.append(e.errno)
            left = [u.id async for u in k.memories()]
            if outcomes[1] is None:
                assert left == []
            else:
                assert (outcomes, left) == ([None, Errno.ESTALE], [unit])
                await k.forget(unit)


async def test_a_unit_that_is_updated_while_it_is_searched_is_whole(kernel: Kernel) -> None:
    """Elsewhere a search met the new row with the old vector, or the unit in neither version:
    every answer has it once, one version whole, and never an older one than before."""
    words = ("amber", "blue", "coral", "dun", "ecru", "fawn", "green", "hazel")
    seen: list[tuple[int, str]] = []
    async with (
        client(kernel, "one", operator=True, user="ana") as k,
        client(kernel, "one", operator=True, user="ana") as other,
    ):
        unit = (await k.remember(f"the locker is {words[0]} and {words[0]} again")).id
        done = trio.Event()

        async def search() -> None:
            while not done.is_set():
                found = await other.search("which colour has the locker", wait="lexical")
                assert [hit.unit.id for hit in found.hits] == [unit]
                hit = found.hits[0]
                assert hit.chunk == hit.unit.text
                seen.append((hit.unit.version, hit.unit.text))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(search)
            for version, word in enumerate(words[1:] * 4, start=1):
                await k.update(unit, version, f"the locker is {word} and {word} again")
            done.set()
    every = (words[0], *words[1:] * 4)
    assert seen == sorted(seen, key=lambda entry: entry[0])
    for version, text in seen:
        assert text == f"the locker is {every[version - 1]} and {every[version - 1]} again"


@pytest.mark.promise("erase.complete")
async def test_forgetting_during_a_walk_of_pages_skips_and_repeats_nothing(
    kernel: Kernel,
) -> None:
    """Elsewhere pages were counted by offset, so that each unit forgotten meanwhile let one be
    passed over; or the cursor was the unit that had just gone."""
    async with client(kernel, "one", operator=True, user="ana") as k:
        ids = [(await k.remember(f"note {n}")).id for n in range(30)]
        walked: list[str] = []
        gone: set[str] = set()
        after, pages = "", 0
        while True:
            page = await k.call(m.MemoryList(limit=4, after=after, user="ana"))
            walked += [unit.id for unit in page.units]
            pages += 1
            # The last of this page, which the cursor may stand on, and one of the next.
            for victim in (page.units[-1].id, ids[max(0, 30 - len(walked) - 2)]):
                if victim not in gone:
                    await k.forget(victim)
                    gone.add(victim)
            after = page.next
            if not after:
                break
        assert pages > 3
        assert len(set(walked)) == len(walked)
        passed_over = set(ids) - set(walked)
        assert passed_over <= gone
        left = {u.id async for u in k.memories(limit=500)}
        assert left == set(ids) - gone
        e = await refused(Errno.EINVAL, k.call(m.MemoryList(after="nonsense", user="ana")))
        assert e.field == "after"


# -- filters


BAD: dict[str, tuple[Any, str]] = {
    "unknown kind": (m.Search(query="x", kinds=("notes",)), "kinds"),
    "empty kind": (m.Search(query="x", kinds=("",)), "kinds"),
    "one of two kinds": (m.Search(query="x", kinds=("note", "secret")), "kinds"),
    "kind of a list": (m.MemoryList(kinds=("",)), "kinds"),
    "kind of a chat": (m.Prefetch(query="x", kinds=("Note",)), "kinds"),
    "kind to forget by": (m.ForgetMatching(query="x", kinds=("nothing",)), "kinds"),
    "no results": (m.Search(query="x", k=0), "k"),
    "fewer than none": (m.Search(query="x", k=-1), "k"),
    "too many": (m.Search(query="x", k=101), "k"),
    "too many rounds": (m.MemorySearch(query="x", k=101), "k"),
    "too many sessions": (m.SessionSearch(query="x", k=21), "k"),
    "no page": (m.MemoryList(limit=0), "limit"),
    "too long a page": (m.MemoryList(limit=501), "limit"),
    "an empty span": (
        m.Search(query="x", since="2026-01-01T00:00Z", until="2026-01-01T01:00+01:00"), "since",
    ),
    "a span backwards": (
        m.MemorySearch(query="x", since="2026-01-02T00:00Z", until="2026-01-01T00:00Z"), "since",
    ),
    "a wait below zero": (m.Search(query="x", barrier_ms=-1), "barrier_ms"),
    "a wait for ever": (m.Search(query="x", barrier_ms=60_001), "barrier_ms"),
}  # fmt: skip


async def test_a_filter_that_is_not_supported_is_an_error(kernel: Kernel) -> None:
    """Elsewhere an unknown filter was ignored, and the caller took all that came for what had
    been asked."""
    async with client(kernel, "one", operator=True, user="ana") as k:
        await k.remember("x marks the spot")
        for what, (request, field) in BAD.items():
            e = await refused(Errno.EINVAL, k.call(request))
            assert (what, e.field, field in e.message) == (what, field, True)


OF_ANOTHER_TYPE: tuple[tuple[str, object], ...] = (
    ("mode", "semantic"), ("mode", ""), ("mode", "BM25"), ("mode", None),
    ("k", "8"), ("k", 8.5), ("k", None), ("k", (1 << 64) - 1),
    ("kinds", "note"), ("kinds", None), ("kinds", [["note"]]), ("kinds", [1]),
    ("since", 1767225600), ("until", False), ("wait", "dense"), ("on_stale", "ignore"),
)  # fmt: skip


async def test_a_value_of_another_type_is_no_filter_that_matches_all(kernel: Kernel) -> None:
    """Elsewhere ``k="8"`` or ``kinds="note"`` came through unchecked and meant the default, or
    each letter."""
    request = m.Search(query="x", user="ana")
    places = {name: at for at, name in enumerate(request.__struct_fields__, start=1)}
    for field, value in OF_ANOTHER_TYPE:
        fields: list[object] = msgspec.msgpack.decode(encode(request))
        fields[places[field]] = value
        peer = Raw(*pipes(kernel, "one", operator=True))
        await peer.send(frame(1, HELLO))
        assert isinstance(await peer.reply(), m.Welcome)
        await peer.send(pack(2, msgspec.msgpack.encode(fields)))
        reply = await peer.reply()
        assert isinstance(reply, m.Failed), (field, value)
        assert (reply.errno, reply.field.partition("[")[0]) == (Errno.EINVAL, field), value


async def test_a_filter_that_the_interface_does_not_have_cannot_be_sent(kernel: Kernel) -> None:
    """Elsewhere a misspelt option vanished among the keywords."""
    async with client(kernel, "one", operator=True, user="ana") as k:
        for name in ("kind", "filter", "where", "top_k", "agent", "scope", "User"):
            options: dict[str, Any] = {name: "x"}
            with pytest.raises(TypeError, match=name):
                await k.search("x", **options)
            with pytest.raises(TypeError, match=name):
                m.Prefetch(query="x", **options)
        # Nor is it taken from metadata, or from a scope that there is not.
        e = await refused(Errno.EINVAL, k.rescope((await k.remember("x")).id, 1, "team"))
        assert e.field == "scope"
