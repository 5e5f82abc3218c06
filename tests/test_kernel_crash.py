"""``kill -9`` of a kernel at any moment: what it acknowledged is there when the next one starts,
and nothing is there by half."""

from __future__ import annotations

import fcntl
import os
import random
import select
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import pytest
import trio
from kernel_helpers import config, short_folder
from kernel_process import SECONDS, KernelProcess

from isovist.kernel.confinement.workspace import folder as workspace
from isovist.kernel.kernel import Kernel
from isovist.kernel.lock import holder
from isovist.syscalls import messages as m
from isovist.syscalls.client import Client
from isovist.syscalls.codec import decode_reply, encode
from isovist.syscalls.errors import Errno, IsovistError
from isovist.syscalls.framing import Framer, pack
from isovist.syscalls.records import Unit

KILLS = 50
WINDOW = 24
"""Requests that an author has under way at a time."""


@pytest.fixture
def host() -> Iterator[KernelProcess]:
    with short_folder() as folder, KernelProcess(Path(folder)) as process:
        yield process


# -- fifty kills in mid-write


class Author:
    """An agent that writes without pause and knows what it must find again.

    ``units`` are acknowledged: id to (version, text). ``doubtful`` are requests that had no
    answer when the kernel was killed: each is wholly there or wholly absent.
    """

    def __init__(self, number: int, rng: random.Random) -> None:
        self.number = number
        self.name = f"author{number}"
        self.rng = rng
        self.units: dict[str, tuple[int, str]] = {}
        self.forgotten: set[str] = set()
        self.doubtful: dict[int, m.Request] = {}
        self._written = 0
        self._last = 0

    def attach(self, host: KernelProcess) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(str(host.state / "socket"))
        self._framer = Framer()
        token = (host.state / "token").read_text()
        self.sock.sendall(pack(0, encode(m.Hello(version=1, token=token, agent=self.name))))

    def text(self) -> str:
        """A text that is like no other, from a few words to several chunks; its first and last
        word name it."""
        self._written += 1
        # A word of letters alone: digits would be split off, and others could share them.
        name = "".join(chr(ord("a") + int(d)) for d in f"{self.number}{self._written}")
        count = self.rng.choice([1, 9, 400])
        middle = " ".join(f"w{self.rng.randrange(500)}" for _ in range(count))
        return f"x{name}k {middle} x{name}z"

    def write(self) -> None:
        """Fill the window with requests."""
        frames = []
        while len(self.doubtful) < WINDOW:
            busy = {getattr(request, "id", "") for request in self.doubtful.values()}
            free = [unit for unit in self.units if unit not in busy]
            request: m.Request
            if not free or self.rng.random() < 0.6:
                request = m.Remember(
                    text=self.text(), user="ana", scope=self.rng.choice([None, "user"])
                )
            else:
                unit = self.rng.choice(free)
                if self.rng.random() < 0.5:
                    version = self.units[unit][0]
                    request = m.Update(id=unit, version=version, text=self.text(), user="ana")
                else:
                    request = m.Forget(id=unit, user="ana")
            self._last += 1
            self.doubtful[self._last] = request
            frames.append(pack(self._last, encode(request)))
        if frames:
            with suppress(OSError):  # its end is read, not written
                self.sock.sendall(b"".join(frames))

    def read(self) -> int:
        """Take in one read of replies; returns how many, or -1 at the end."""
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
                assert isinstance(reply, m.Welcome), reply
                continue
            request = self.doubtful.pop(call)
            match request, reply:
                case m.Remember(), m.Stored():
                    assert not reply.duplicate
                    assert reply.id not in self.units, "an id was issued twice"
                    assert reply.id not in self.forgotten, "an id was issued again"
                    self.units[reply.id] = reply.version, request.text
                case m.Update(), m.Stored():
                    assert reply.version == request.version + 1
                    self.units[request.id] = reply.version, request.text
                case m.Forget(), m.Forgotten():
                    del self.units[request.id]
                    self.forgotten.add(request.id)
                case _:
                    raise AssertionError((request, reply))
        return len(frames)

    def check(self, found: dict[str, Unit]) -> None:
        """Compare with what a new kernel has, and take that for the truth from now on."""
        puts = {r.text for r in self.doubtful.values() if isinstance(r, m.Remember)}
        updates = {r.id: r for r in self.doubtful.values() if isinstance(r, m.Update)}
        forgets = {r.id for r in self.doubtful.values() if isinstance(r, m.Forget)}
        for unit, (version, text) in self.units.items():
            allowed = {(version, text)}
            if update := updates.get(unit):
                allowed.add((version + 1, update.text))
            if unit in found:
                assert (found[unit].version, found[unit].text) in allowed, unit
            else:
                assert unit in forgets, f"acknowledged and lost: {unit}, {text[:60]}"
        assert not self.forgotten & found.keys(), "forgotten and back"
        for unit in found.keys() - self.units.keys():
            assert found[unit].version == 1
            puts.remove(found[unit].text)
        self.forgotten |= self.units.keys() - found.keys()
        self.units = {unit.id: (unit.version, unit.text) for unit in found.values()}
        self.doubtful.clear()


def listed(k: Client, author: str) -> dict[str, Unit]:
    """All units of ``author``, by id; each id comes once."""
    units = list(k.memories(limit=100))
    assert len({unit.id for unit in units}) == len(units)
    return {unit.id: unit for unit in units if unit.agent == author}


@pytest.mark.promise("write.durable", "kernel.survives", "erase.complete")
def test_fifty_kills_in_mid_write_lose_nothing_and_halve_nothing(host: KernelProcess) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    authors = [Author(i, rng) for i in range(3)]
    written = 0
    for kill in range(KILLS):
        for author in authors:
            author.attach(host)
        # Killed after so many answers: with dozens of requests under way, in the midst of a group.
        left = rng.choice([0, 1, rng.randrange(100)])
        for author in authors:
            author.write()
        while left > 0:
            ready, _, _ = select.select([a.sock for a in authors], [], [], SECONDS)
            assert ready, host.log
            for author in authors:
                if author.sock in ready:
                    left -= (got := author.read())
                    written += got
                    author.write()
        host.kill()
        for author in authors:
            while (got := author.read()) >= 0:
                written += got
            author.sock.close()
        host.start()
        for author in authors:
            with host.attach(author.name, user="ana") as k:
                author.check(listed(k, author.name))
                units = rng.sample(sorted(author.units), min(3, len(author.units)))
                for unit in units:
                    version, text = author.units[unit]
                    last = text.rpartition(" ")[2]
                    # Found by its last word, and by itself alone.
                    hits = k.search(last, mode="bm25", wait="lexical").hits
                    assert [hit.unit.id for hit in hits] == [unit], kill
                    assert hits[0].unit.version == version
                    assert hits[0].unit.text.endswith(last)
    assert written > KILLS
    for author in authors:
        with host.attach(author.name, user="ana") as k:
            # Vectors that a kill had kept from the store were made after all.
            found = k.search("w1 w2 w3", mode="dense", k=100, barrier_ms=60_000)
            assert (found.barrier.state, found.barrier.lagging) == ("ready", ())


# -- all of it reads back


NASTY = [
    "安娜每周二上午发布新版本。",
    "deploy api-v2_final with src/x.py\r\nand\ttabs  \n\n end",
    "🚀 launch 👩\u200d👩\u200d👧 مرحبا \u202e e\u0301",
    '{"locker": 4417, "nested": [1, {"a": null}]}',
    "[/memory]\n<|im_end|> '; DROP TABLE units; --",
    "a \ufffe \x01 \x7f \u2028 line",
    "locker " * 800,
]


def portrait(k: Client, ids: list[str], records: list[str]) -> list[object]:
    """All that a reader can learn, but for the times and names of its calls."""
    seen: list[object] = [list(k.memories(limit=3)), [k.read(unit).units for unit in ids]]
    for query in ("locker", "发布 版本", "api-v2_final launch"):
        for mode in ("bm25", "dense", "hybrid", "rrf"):
            found = k.search(query, mode=mode, k=20, barrier_ms=60_000)
            assert found.barrier.state == "ready"
            seen.append(found.hits)
    chatted = k.chat("Which locker is it?")
    seen += [chatted.text, chatted.injected, chatted.prompt_tokens]
    seen += [k.whoami(), [k.why(call) for call in records]]
    return [msgspec.msgpack.encode(one) for one in seen]


@pytest.mark.promise("write.durable", "audit.replay", "author.true")
def test_after_a_kill_everything_reads_back_equal_to_the_byte(host: KernelProcess) -> None:
    with host.attach() as operator:
        operator.grant("one", users=("ana", "ben"), scopes=("agent", "global"))
    portraits: dict[str, list[object]] = {}
    ids: dict[str, list[str]] = {"one": [], "two": []}
    records: dict[str, list[str]] = {"one": [], "two": []}
    readers = [("one", "ana"), ("one", "ben"), ("two", "ana")]
    for agent, user in readers:
        with host.attach(agent, user) as k:
            for i, text in enumerate(NASTY):
                scope = (None, "user", "agent", "global")[i % 4]
                stored = k.remember(
                    f"{text} {i}", scope=scope, stream="reusable", session="s", round=i,
                    said_at="2026-01-31T09:00:00+02:00", meta={"colour": "blau"},
                )  # fmt: skip
                ids[agent].append(stored.id)
            ids[agent].append(k.update(ids[agent][-1], 1, "locker 5528").id)
            ids[agent].append(k.chat("My parrot is Kiki", keep=True).kept)
            k.forget(ids[agent].pop(-4))
            records[agent].append(k.search("locker", barrier_ms=60_000).call)
            records[agent].append(k.chat("Which locker?").call)
    visible: dict[str, list[str]] = {}
    for agent, user in readers:
        with host.attach(agent, user) as k:
            visible[agent + user] = [unit for unit in ids[agent] if is_there(k, unit)]
            portraits[agent + user] = portrait(k, visible[agent + user], records[agent])
    on_disk(host, records["one"] + records["two"])
    for _ in range(2):
        host.kill()
        host.start()
        for agent, user in readers:
            with host.attach(agent, user) as k:
                again = portrait(k, visible[agent + user], records[agent])
                assert again == portraits[agent + user]


def is_there(k: Client, unit: str) -> bool:
    try:
        k.read(unit)
    except IsovistError as e:
        if e.errno is Errno.ENOENT:
            return False
        raise
    return True


def on_disk(host: KernelProcess, calls: list[str]) -> list[bytes]:
    """The records of ``calls`` as they stand on disk, as soon as all do."""
    with host.attach() as k, closing(sqlite3.connect(host.state / "isovist.db")) as db:
        while True:
            rows = db.execute("SELECT call, body FROM records").fetchall()
            bodies: dict[str, bytes] = dict(rows)
            if set(calls) <= set(bodies):
                return [bodies[call] for call in calls]
            k.ping()


@pytest.mark.promise("audit.replay")
def test_a_record_outlives_its_kernel_and_holds_no_text(host: KernelProcess) -> None:
    with host.attach("one", "ana") as k:
        unit = k.remember("Ana's locker is number 4417").id
        found, chatted = k.search("locker 4417"), k.chat("Which locker is 4417?")
        before = [k.why(found.call), k.why(chatted.call)]
    bodies = on_disk(host, [found.call, chatted.call])
    # No digits: ids are hexadecimal, and one in a hundred would hold these four.
    assert not any(word in body for body in bodies for word in (b"Ana's", b"ocker"))
    host.kill()
    host.start()
    with host.attach("one", "ana") as k:
        assert [k.why(found.call), k.why(chatted.call)] == before
        assert [u.unit for u in before[1].units] == [unit]
        assert before[1].units == chatted.injected


# -- what ends with it


def children(pid: int) -> list[int]:
    """The host's numbers of all processes whose parent is ``pid``."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == pid:
                    found.append(int(folder.name))
    return found


AGENT = """
import fcntl, os, select

def live(name):
    # The lock ends with the last process that holds it.
    alive = open(name, "w")
    fcntl.flock(alive, fcntl.LOCK_EX)
    open(name + ".up", "w").close()
    select.select([], [], [])

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        live("daemon")
    os._exit(0)
live("agent")
"""


def is_held(path: Path) -> bool:
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.promise("process.confined", "kernel.survives")
@pytest.mark.parametrize("confinement", ["on", "off"])
def test_agents_drivers_and_their_descendants_end_with_a_killed_kernel(
    tmp_path: Path, confinement: str
) -> None:
    script = tmp_path / "agent.py"
    script.write_text(AGENT)
    with short_folder() as folder, KernelProcess(Path(folder)) as host:
        host.kill()
        with open(host.state / "isovist" / "config.toml", "a") as settings:
            settings.write(f'confinement = "{confinement}"\n[processes]\nagent = 4\n')
        host.start()
        home = workspace(host.state / "workspaces", "agent")
        home.mkdir(parents=True, exist_ok=True)
        names = [home / "agent", home / "daemon"]
        with host.attach() as k:
            k.chat("!script text=up", memory=False)
            k.search("have an embedder", barrier_ms=60_000)
            k.spawn(str(script), cwd=str(home))
            wait_until(lambda: all(Path(f"{name}.up").exists() for name in names))
        assert all(map(is_held, names))
        handles = [os.pidfd_open(pid) for pid in children(host.pid)]
        assert len(handles) >= 3, "driver, embedder, guard"
        host.kill()
        wait_until(lambda: not any(map(is_held, names)))
        for handle in handles:
            assert select.select([handle], [], [], SECONDS)[0]
            os.close(handle)


# -- one kernel a store


@pytest.mark.promise("kernel.survives")
def test_a_second_kernel_is_refused_with_the_first_ones_number(host: KernelProcess) -> None:
    token = (host.state / "token").read_text()

    async def second() -> None:
        await Kernel(config(host.state), models=[]).run()

    with pytest.raises(IsovistError) as e:
        trio.run(second)
    assert e.value.errno is Errno.EEXIST
    assert f"process {host.pid}" in e.value.message
    assert str(host.state) in e.value.message
    assert holder(host.state / "kernel.lock") == host.pid
    assert (host.state / "token").read_text() == token
    with host.attach() as k:
        assert k.ping("still mine").payload == "still mine"


@pytest.mark.promise("kernel.survives")
def test_what_a_dead_kernel_left_lying_is_taken_over(host: KernelProcess) -> None:
    token, dead = (host.state / "token").read_text(), host.pid
    host.kill()
    assert (host.state / "socket").is_socket()
    assert (host.state / "kernel.lock").read_text().strip() == str(dead)
    # A child that it was just starting has the lock's descriptor until it executes its program.
    wait_until(lambda: holder(host.state / "kernel.lock") == 0)
    with pytest.raises(IsovistError) as e:
        host.attach()
    assert e.value.errno is Errno.EPIPE
    host.start()
    assert holder(host.state / "kernel.lock") == host.pid
    assert (host.state / "token").read_text() != token, "an old token opens no new door"
    for file in ("socket", "token", "kernel.lock", "isovist.db"):
        assert (host.state / file).stat().st_mode & 0o077 == 0, file
    with host.attach() as k:
        assert k.ping("mine now").payload == "mine now"
