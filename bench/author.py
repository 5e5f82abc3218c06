"""An agent that works without pause, for benches that kill the kernel under it."""

from __future__ import annotations

import contextlib
import random
import socket
from dataclasses import dataclass
from typing import Any

import msgspec

from bench.kernels import SECONDS, Kernels
from isovist.syscalls import messages as m
from isovist.syscalls.client import Client
from isovist.syscalls.codec import decode_reply, encode
from isovist.syscalls.errors import Errno, IsovistError
from isovist.syscalls.framing import Framer, pack
from isovist.syscalls.records import Mode, Unit

USER = "ana"
WINDOW = 16
"""Requests that an author has under way at a time."""
MOST = 220
"""Units an author keeps; from there on it forgets more than it writes."""
FAR = "2199-01-01T00:00:00Z"


@dataclass
class Truth:
    """A unit as acknowledged."""

    version: int
    text: str
    scope: str

    @property
    def word(self) -> str:
        return self.text.split(" ", 1)[0]


class Author:
    """An agent that works without pause, and knows what it must find again.

    ``doubtful`` are requests without an answer: when the kernel dies, each has happened in whole
    or not at all.
    """

    def __init__(self, number: int, rng: random.Random) -> None:
        self.name = f"author{number}"
        self.rng = rng
        self.units: dict[str, Truth] = {}
        self.gone: set[str] = set()
        self.words_gone: list[str] = []
        self.doubtful: dict[int, m.Request] = {}
        self.answered = 0
        self.problems: list[str] = []
        self.receipts: list[str] = []
        """Asked for; the last of them perhaps not issued."""
        self.issued: set[str] = set()
        self._sure: dict[int, tuple[str, ...]] = {}
        self._last = 0

    # -- while a kernel lives

    def attach(self, kernels: Kernels) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(str(kernels.state / "socket"))
        self._framer = Framer()
        token = (kernels.state / "token").read_text()
        self.sock.sendall(pack(0, encode(m.Hello(version=1, token=token, agent=self.name))))
        self.touched: list[str] = []

    def ask(self) -> None:
        """Fill the window."""
        frames = []
        while len(self.doubtful) < WINDOW:
            frames.append(self._frame(self._request()))
        if frames:
            with contextlib.suppress(OSError):  # its end is read, not written
                self.sock.sendall(b"".join(frames))

    def _frame(self, request: m.Request, units: tuple[str, ...] = ()) -> bytes:
        self._last += 1
        self.doubtful[self._last] = request
        if units:
            self._sure[self._last] = units
        return pack(self._last, encode(request))

    def _request(self) -> m.Request:
        busy = {getattr(request, "id", "") for request in self.doubtful.values()}
        busy.update(unit for units in self._sure.values() for unit in units)
        free = [unit for unit in self.units if unit not in busy]
        chance = self.rng.random()
        if not free or chance < (0.4 if len(self.units) < MOST else 0.15):
            scope = self.rng.choice((None, "user"))
            return m.Remember(text=self._text(), user=USER, scope=scope, meta={"mark": "m"})
        id_ = self.rng.choice(free)
        unit = self.units[id_]
        what: dict[str, Any] = {"id": id_, "version": unit.version, "user": USER}
        if chance < 0.55:
            return m.Update(**what, text=self._text())
        if chance < 0.62:
            return m.Expire(**what, at=self.rng.choice((None, FAR)))
        if chance < 0.7:
            # One's own unit, from the one audience to the other, needs a grant to widen.
            return m.Rescope(**what, scope="pair" if unit.scope == "user" else "user")
        if chance < 0.9:
            return m.Forget(id=id_, user=USER)
        if chance < 0.91 and self.receipts:
            return m.ReceiptOf(receipt=self.rng.choice(self.receipts), wait=True)
        if chance < 0.94:
            return m.ForgetMatching(query=unit.word, limit=100, user=USER, barrier_ms=0)
        mode: Mode = self.rng.choice(("bm25", "dense", "hybrid"))
        return m.Search(query=unit.word, mode=mode, user=USER, barrier_ms=0)

    def take(self) -> int:
        """Take in one read of replies; how many, or -1 at the end."""
        try:
            data = self.sock.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            return -1
        frames = self._framer.feed(data)
        for call, body in frames:
            reply = decode_reply(body)
            if call == 0:
                continue
            request = self.doubtful.pop(call)
            units = self._sure.pop(call, ())
            self.answered += 1
            self._note(request, reply, units)
        return len(frames)

    def _note(self, request: m.Request, reply: m.AnyReply, sure: tuple[str, ...]) -> None:
        match request, reply:
            case m.Remember(), m.Stored():
                if reply.id in self.units or reply.id in self.gone:
                    self.problems.append(f"{reply.id} was issued twice")
                self.units[reply.id] = Truth(reply.version, request.text, reply.scope)
                self.touched.append(reply.id)
            case m.Update(), m.Stored():
                self._past(request.id)
                old = self.units[request.id]
                self.units[request.id] = Truth(reply.version, request.text, old.scope)
                self.touched.append(request.id)
            case m.Expire(), m.Stored():
                self.units[request.id].version = reply.version
            case m.Rescope(), m.Stored():
                self.units[request.id].version = reply.version
                self.units[request.id].scope = reply.scope
                self.touched.append(request.id)
            case m.Forget(), m.Forgotten():
                self._forget(request.id)
                self.receipts.append(reply.receipt)
            case m.ReceiptOf(), m.ReceiptShown():
                if not reply.issued_at:
                    self.problems.append(f"a receipt that was waited for is not issued: {reply}")
                self.issued.add(request.receipt)
            case m.ForgetMatching(), m.Matched():
                # First it shows what would go; then, with its word, that goes, but what was changed
                # meanwhile. A word stands in one unit alone.
                if not reply.confirm:
                    for unit in sure if reply.count else ():
                        self._forget(unit)
                elif not self._busy({unit.id for unit in reply.units}):
                    again = msgspec.structs.replace(request, confirm=reply.confirm)
                    ids = tuple(unit.id for unit in reply.units)
                    with contextlib.suppress(OSError):
                        self.sock.sendall(self._frame(again, ids))
            case m.Search(), m.Found():
                if ghosts := {hit.unit.id for hit in reply.hits} & self.gone:
                    self.problems.append(f"a search found what was forgotten before: {ghosts}")
            case (m.ForgetMatching(), m.Failed()) if reply.errno == Errno.ESTALE:
                pass  # others write meanwhile
            case _:
                self.problems.append(f"{type(request).__name__} ended as {reply}")

    def _busy(self, ids: set[str]) -> bool:
        under_way = {getattr(request, "id", "") for request in self.doubtful.values()}
        return bool(ids & under_way) or not ids <= self.units.keys()

    def _forget(self, id_: str) -> None:
        self._past(id_)
        self.units.pop(id_, None)
        self.gone.add(id_)

    def _past(self, id_: str) -> None:
        if id_ in self.units:
            self.words_gone.append(self.units[id_].word)

    # -- after it was killed

    def settle(self, found: dict[str, Unit]) -> list[str]:
        """Compare with what a new kernel has; that is the truth from now on."""
        told, self.problems = self.problems, []
        puts = {r.text: r for r in self.doubtful.values() if isinstance(r, m.Remember)}
        changes = {r.id: r for r in self.doubtful.values()
                   if isinstance(r, (m.Update, m.Expire, m.Rescope))}  # fmt: skip
        forgets = {r.id for r in self.doubtful.values() if isinstance(r, m.Forget)}
        forgets.update(unit for units in self._sure.values() for unit in units)
        for id_, unit in self.units.items():
            is_ = found.get(id_)
            if is_ is None:
                if id_ not in forgets:
                    told.append(f"lost: {id_}, acknowledged as {unit.text[:40]!r}")
                continue
            allowed = {(unit.version, unit.text, unit.scope)}
            change = changes.get(id_)
            if change is not None:
                allowed.add((
                    unit.version + 1,
                    change.text if isinstance(change, m.Update) else unit.text,
                    change.scope if isinstance(change, m.Rescope) else unit.scope,
                ))  # fmt: skip
            if (is_.version, is_.text, is_.scope) not in allowed:
                told.append(f"by half: {id_} is {(is_.version, is_.text[:40], is_.scope)}")
        if ghosts := self.gone & found.keys():
            told.append(f"ghosts: {sorted(ghosts)}")
        for id_ in found.keys() - self.units.keys() - self.gone:
            if puts.pop(found[id_].text, None) is None or found[id_].version != 1:
                told.append(f"nobody asked for {id_}, or twice: {found[id_].text[:40]!r}")
        for id_ in self.units.keys() - found.keys():
            self._past(id_)
            self.gone.add(id_)
        self.units = {u.id: Truth(u.version, u.text, u.scope) for u in found.values()}
        self.doubtful.clear()
        self._sure.clear()
        return told

    def probe(self, k: Client, count: int) -> list[str]:
        """Look for ``count`` units in both legs, for some that are gone in the lexical one."""
        told = []
        last = [unit for unit in dict.fromkeys(reversed(self.touched)) if unit in self.units]
        rest = [unit for unit in self.units if unit not in set(last)]
        self.rng.shuffle(rest)
        for id_ in [*last, *rest][:count]:
            unit = self.units[id_]
            found = k.search(unit.word, mode="bm25", wait="lexical").hits
            if [hit.unit.id for hit in found] != [id_]:
                told.append(f"lexical: {id_} as {unit.word}: {[hit.unit.id for hit in found]}")
            near = k.search(unit.text[:600], mode="dense", k=8, barrier_ms=SECONDS * 1000)
            ids = [hit.unit.id for hit in near.hits]
            if near.barrier.state != "ready" or id_ not in ids:
                told.append(f"dense: {id_} as {unit.text[:40]!r}: {near.barrier.state}, {ids}")
            if ghosts := self.gone & set(ids):
                told.append(f"dense: ghosts {ghosts}")
        told += [
            f"lexical: {word} is gone, and found"
            for word in self.rng.sample(self.words_gone, min(count, len(self.words_gone)))
            if k.search(word, mode="bm25", wait="lexical").hits
        ]
        for receipt in self.rng.sample(self.receipts, min(2, len(self.receipts))):
            shown = k.receipt(receipt)
            if receipt in self.issued and not shown.issued_at:
                told.append(f"receipt {receipt} was issued, and is not any more")
        for id_ in self.rng.sample(sorted(self.gone), min(3, len(self.gone))):
            try:
                k.read(id_)
            except IsovistError as e:
                if e.errno != Errno.ENOENT:
                    told.append(f"read: {id_}: {e}")
            else:
                told.append(f"read: {id_} is gone, and read")
        return told

    def _text(self) -> str:
        word = "zq" + "".join(self.rng.choices("bcdfghjklmnp", k=12))
        count = self.rng.choice((2, 6, 6, 6, 300))
        return f"{word} {' '.join(f'common{self.rng.randrange(400)}' for _ in range(count))}"
