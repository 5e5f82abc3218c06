"""The chronicle: whatever is done to its file is found, and what a crash leaves is mended."""

from __future__ import annotations

import errno
import os
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from isovist.storage import chronicle as module
from isovist.storage.chronicle import Chronicle, Noted, TablesOnly, Verdict, read, seal
from isovist.storage.schema import CHRONICLE
from isovist.syscalls.errors import Errno, WorldError

GENUINE = 12


class Keeper(TablesOnly):
    def __init__(self) -> None:
        self.db = sqlite3.connect(":memory:", isolation_level=None)
        for statement in CHRONICLE:
            self.db.execute(statement)
        super().__init__(self.db)

    def heads(self) -> dict[int, str]:
        return module.heads(self.db)


def noted(kind: str, *users: str, **detail: str) -> Noted:
    return Noted(at=7, kind=kind, actor="operator", subject="mail", users=users, detail=detail)


class Log:
    """A chronicle of :data:`GENUINE` lines, two an append."""

    def __init__(self, folder: Path) -> None:
        self.path, self.keeper = folder / "chronicle.log", Keeper()
        self.file = Chronicle(self.path, self.keeper)
        assert self.file.open() == {}
        for n in range(0, GENUINE, 2):
            self.file.append([noted("grant", "ana", n=str(n)), noted("kill", n=str(n + 1))])

    def lines(self) -> list[bytes]:
        return self.path.read_bytes().splitlines(keepends=True)

    def write(self, lines: list[bytes]) -> None:
        self.path.write_bytes(b"".join(lines))

    def verdict(self, head: str = "") -> Verdict:
        return module.verify(read(self.path), self.keeper.heads(), head)

    def again(self) -> dict[str, str]:
        """Another life of the kernel."""
        self.file = Chronicle(self.path, self.keeper)
        return self.file.open()


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def forged(lines: list[bytes], place: int) -> list[bytes]:
    """The lines with another deed at ``place`` (from 0), and all hashes after it made anew."""
    made, before = lines[:place], module.FIRST
    if place:
        line = module.parsed(lines[place - 1][:-1])
        assert line is not None
        before = line.hash
    for n, raw in enumerate(lines[place:], place + 1):
        old = module.parsed(raw[:-1])
        assert old is not None
        kind = "forged" if n == place + 1 else old.kind
        entry = Noted(at=old.at, kind=kind, actor=old.actor, subject=old.subject,
                      users=old.users, detail=old.detail)  # fmt: skip
        line = seal(entry, n, before, {})
        made.append(module._encode(line) + b"\n")
        before = line.hash
    return made


def test_what_was_left_alone_is_sound(log: Log) -> None:
    verdict = log.verdict()
    assert (verdict.lines, verdict.faults, verdict.ahead) == (GENUINE, (), 0)
    assert log.verdict(head=verdict.head).faults == ()
    assert log.again() == {}
    log.file.append([noted("revoke")])
    assert log.verdict().lines == GENUINE + 1
    assert log.verdict(head=verdict.head).faults == ()


def test_every_flipped_bit_is_found_in_its_line(log: Log) -> None:
    whole, rng = log.path.read_bytes(), random.Random(1)
    ends = [at for at, byte in enumerate(whole) if byte == ord("\n")]
    for _ in range(400):
        at = rng.randrange(len(whole))
        torn = bytearray(whole)
        torn[at] ^= 1 << rng.randrange(8)
        log.path.write_bytes(torn)
        place = 1 + sum(end < at for end in ends)
        faults = log.verdict().faults
        assert faults, at
        assert faults[0].startswith(f"line {place}: "), (at, faults)


@pytest.mark.parametrize("place", [0, 5, GENUINE - 1])
def test_a_line_that_was_dropped_is_named(log: Log, place: int) -> None:
    lines = log.lines()
    log.write(lines[:place] + lines[place + 1 :])
    (fault,) = log.verdict().faults
    assert fault.startswith(f"line {place + 1}: ")
    assert f"{place + 1}" in fault.partition(": ")[2]
    assert "missing" in fault


def test_a_line_that_was_inserted_is_named(log: Log) -> None:
    lines = log.lines()
    log.write([*lines[:5], lines[3], *lines[5:]])
    (fault,) = log.verdict().faults
    assert fault.startswith("line 6: has number 4")
    stranger = module._encode(seal(noted("grant"), 6, module.FIRST, {})) + b"\n"
    log.write([*lines[:5], stranger, *lines[5:]])
    assert any(fault.startswith("line 6: ") for fault in log.verdict().faults)


def test_lines_that_changed_places_are_named(log: Log) -> None:
    lines = log.lines()
    log.write([*lines[:4], lines[5], lines[4], *lines[6:]])
    faults = log.verdict().faults
    assert [fault.partition(":")[0] for fault in faults] == ["line 5", "line 6"]


@pytest.mark.parametrize("left", [0, 1, 7, GENUINE - 1])
def test_a_log_that_was_cut_short_is_found(log: Log, left: int) -> None:
    log.write(log.lines()[:left])
    (fault,) = log.verdict().faults
    assert fault.startswith(f"line {left + 1}: number ")
    assert "missing at the end" in fault


def test_a_log_that_was_removed_is_found(log: Log) -> None:
    log.path.unlink()
    assert log.verdict().faults == (f"line 1: number 1 to {GENUINE} are missing at the end",)
    # The next life goes on with the next number: the gap is seen for ever.
    assert log.again() == {"missing": f"1 to {GENUINE}"}
    log.file.append([noted("recovered")])
    assert log.verdict().faults[0].startswith(f"line 1: has number {GENUINE + 1}")


@pytest.mark.parametrize("place", [0, 6, GENUINE - 1])
def test_a_tail_with_hashes_made_anew_is_found_by_the_store(log: Log, place: int) -> None:
    log.write(forged(log.lines(), place))
    faults = log.verdict().faults
    assert faults
    # The store knows the last line of each append of two.
    first = place + 2 - place % 2
    assert faults[0].startswith(f"line {first}: is not the line {first} that the store knows")


def test_a_chain_made_anew_in_both_places_is_found_by_a_hash_noted_elsewhere(log: Log) -> None:
    head = log.verdict().head
    log.write(forged(log.lines(), 6))
    log.keeper.db.execute("DELETE FROM heads")
    assert log.verdict().faults == ()
    assert len(log.verdict(head=head).faults) == 1


def test_a_store_that_forgot_its_heads_leaves_the_chain_sound(log: Log) -> None:
    log.keeper.db.execute("DELETE FROM heads WHERE number > 6")
    assert (log.verdict().faults, log.verdict().ahead) == ((), GENUINE - 6)
    assert log.again() == {"unknown": f"7 to {GENUINE}"}
    log.file.append([noted("grant")])
    assert (log.verdict().faults, log.verdict().ahead) == ((), 0)


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_torn_last_line_is_cut_off_and_the_chain_goes_on(log: Log, cut: int) -> None:
    whole = log.path.read_bytes()
    (_, line), before = list(enumerate(log.lines()))[-1], log.lines()[:-1]
    log.keeper.db.execute("DELETE FROM heads WHERE number > ?", (GENUINE - 2,))
    log.path.write_bytes(whole[:-cut])
    assert (log.verdict().faults, log.verdict().torn) == ((), len(line) - cut)
    unknown = f"{GENUINE - 1} to {GENUINE - 1}"
    assert log.again() == {"torn": str(len(line) - cut), "unknown": unknown}
    assert log.lines() == before
    log.file.append([noted("grant")])
    assert (log.verdict().faults, log.verdict().lines) == ((), GENUINE)


def test_what_was_torn_of_lines_that_the_store_knows_is_no_crash(log: Log) -> None:
    log.path.write_bytes(log.path.read_bytes()[:-9])
    assert log.verdict().faults
    assert log.again() == {"missing": f"{GENUINE} to {GENUINE}"}
    log.file.append([noted("recovered")])
    faults = log.verdict().faults
    assert next(fault.partition(":")[0] for fault in faults) == f"line {GENUINE}"


def test_what_follows_a_change_goes_on_and_the_change_stays_seen(log: Log) -> None:
    lines = log.lines()
    log.write([*lines[:-1], lines[-1].replace(b"kill", b"laud")])
    assert log.again() == {"broken": str(GENUINE)}
    log.file.append([noted("recovered"), noted("grant")])
    faults = log.verdict().faults
    assert [fault.partition(":")[0] for fault in faults] == [f"line {GENUINE}"]


def test_a_disk_that_is_full_leaves_no_half_of_an_append(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real = log.path.read_bytes(), os.write

    def half(fd: int, data: Any) -> int:
        real(fd, bytes(data)[: len(data) // 2])
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(WorldError) as refused:
        log.file.append([noted("grant"), noted("kill")])
    monkeypatch.undo()
    assert refused.value.errno is Errno.ENOSPC
    assert log.path.read_bytes() == before
    log.file.append([noted("grant")])
    assert (log.verdict().faults, log.verdict().lines) == ((), GENUINE + 1)


@pytest.mark.promise("erase.complete")
def test_a_forgotten_user_is_in_no_line_and_the_chain_stays_sound(log: Log) -> None:
    log.file.append([noted("grant", "ana", "bob", "*"), noted("kill", "ana")])
    whole = log.path.read_bytes()
    assert b"ana" not in whole
    assert b"bob" not in whole
    users = module.names(log.keeper.db)
    assert sorted(users.values()) == ["ana", "bob"]
    last = list(read(log.path))[-2][2]
    assert last is not None
    assert [users.get(name, name) for name in last.users] == ["ana", "bob", "*"]
    module.forget_user(log.keeper.db, "ana")
    assert list(module.names(log.keeper.db).values()) == ["bob"]
    assert log.path.read_bytes() == whole
    assert log.verdict().faults == ()
    # Whoever has that name later is somebody else.
    assert log.keeper.pseudonyms({"ana"})["ana"] not in users


def test_a_part_may_begin_anywhere_but_is_a_chain(log: Log) -> None:
    lines = log.lines()
    log.write(lines[4:])
    assert module.verify(read(log.path), {}, part=True).faults == ()
    log.write([*lines[4:6], *lines[7:]])
    assert len(module.verify(read(log.path), {}, part=True).faults) == 1
