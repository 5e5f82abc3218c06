"""Records are held against the store: what agrees, what cannot be told any more, what is wrong."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from kernel_helpers import client, running, short_folder

from isovist.storage import registers, schema
from isovist.storage.replay import Replayed, replay
from isovist.syscalls.messages import Record


def replayed(state: Path, record: Record, question: str | None = None) -> Replayed:
    with closing(schema.connect(state / "isovist.db", read_only=True)) as db:
        (key,) = db.execute("SELECT value FROM meta WHERE name = 'key'").fetchone()
        return replay(db, record, key, question)


def states(state: Path, record: Record) -> list[str]:
    return [unit.state for unit in replayed(state, record).units]


@pytest.mark.promise("audit.replay")
async def test_a_record_is_held_against_the_store() -> None:
    with short_folder() as folder:
        state = Path(folder)
        async with (
            running(state) as kernel,
            client(kernel, "operator", operator=True) as boss,
            client(kernel, "mail") as mail,
        ):
            await boss.grant("mail", ("ana", "bob"), ("global",))
            units = [
                await mail.remember("the door code is blue", user="ana"),
                await mail.remember("the door code was red", user="ana"),
                await mail.remember("a door is a door", user="ana", scope="global",
                                    stream="reusable"),
            ]  # fmt: skip
            foreign = await mail.remember("the door of bob", user="bob")
            found = await mail.search("door code", user="ana")
            assert {hit.unit.id for hit in found.hits} == {unit.id for unit in units}
            record = await boss.why(found.call)
            assert states(state, record) == ["as recorded"] * 3
            assert replayed(state, record, "door code").question is True
            assert not replayed(state, record, "other words").holds

            def with_first(**fields: object) -> Record:
                shown = msgspec.structs.replace(record.units[0], **fields)
                return msgspec.structs.replace(record, units=(shown,))

            # Whatever a record says that is not so is found.
            for lie in (
                with_first(hash="0" * 32),
                with_first(version=7),
                with_first(owner="plan"),
                with_first(scope="user"),
                msgspec.structs.replace(with_first(), at=1),
                msgspec.structs.replace(with_first(), user="bob"),
                msgspec.structs.replace(with_first(), agent="plan"),
                msgspec.structs.replace(
                    with_first(), sequences=tuple(s for s in record.sequences if s[0] == "user")
                ),
                with_first(unit=foreign.id),
            ):
                seen = replayed(state, lie)
                assert [unit.state for unit in seen.units] == ["wrong"], lie
                assert not seen.holds
            # What happens to a unit later is no fault of the record, and is told.
            by_id = {shown.unit: n for n, shown in enumerate(record.units)}
            await mail.update(units[0].id, 1, "the door code is green", user="ana")
            await mail.forget(units[1].id, user="ana")
            expected = ["as recorded"] * 3
            expected[by_id[units[0].id]] = "changed since"
            expected[by_id[units[1].id]] = "erased since"
            assert states(state, record) == expected
            assert replayed(state, record).holds
        # The record itself is in the file, and tells the same.
        with closing(sqlite3.connect(state / "isovist.db")) as db:
            kept = registers.record(db, found.call)
        assert kept is not None
        assert states(state, kept) == expected
