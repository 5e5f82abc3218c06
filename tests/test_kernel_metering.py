"""What calls cost, by the whole kernel: live, and from the records of an earlier life."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from kernel_helpers import client, running, short_folder

from isovist.storage.memory import MemoryStore
from isovist.syscalls.errors import Errno, IsovistError
from isovist.syscalls.messages import Record
from isovist.syscalls.records import Barrier, Timings

EVER = "1970-01-01T00:00Z"


async def test_the_records_tell_the_same_as_the_life_that_made_them() -> None:
    with short_folder() as folder:
        async with running(Path(folder)) as kernel, client(kernel, "one", operator=True) as k:
            for user, tokens in (("ana", 3), ("bob", 5), ("ana", 2)):
                await k.chat(f"!script tokens={tokens}", user=user)
            with pytest.raises(IsovistError) as e:
                await k.chat("!script fail=EIO", user="bob")
            assert e.value.errno is Errno.EIO
            live = await k.metering("user")
            # Calls count at once, though their records wait for company on their way to disk.
            assert await k.metering("user", since=EVER) == live
            (one,) = await k.metering("agent")
            (model,) = (await k.models()).models
        assert [(u.name, u.calls, u.failed, u.output_tokens) for u in live] == [
            ("ana", 2, 0, 5), ("bob", 2, 1, 5),
        ]  # fmt: skip
        assert (one.name, one.calls, one.output_tokens) == ("one", 4, 10)
        assert model.load is not None
        async with running(Path(folder)) as kernel, client(kernel, "two", operator=True) as k:
            assert await k.metering("user") == ()
            assert await k.metering("user", since=EVER) == live
            assert await k.metering("model", since=EVER, until=EVER) == ()
            assert await k.metering("agent", since="2200-01-01T00:00Z") == ()


def test_records_are_added_up_by_name_and_time() -> None:
    store = MemoryStore("hash", 256)
    one = Record(
        call="c1", syscall="chat", agent="mail", user="ana", rule="request", at=10,
        barrier=Barrier(state="ready"), model="small", prompt_tokens=7, output_tokens=2,
        injected_tokens=3, cached_tokens=4, timings=Timings(queue=1.5, prefill=2.0, decode=4.0),
    )  # fmt: skip
    change = msgspec.structs.replace
    store.save_records(
        [one, change(one, call="c2", at=20, errno=5), change(one, call="c3", user="bob", at=30),
         change(one, call="c4", syscall="search"), change(one, call="c5", at=40)]
    )  # fmt: skip
    ana, bob = store.usage("user", 10, 40)
    assert (ana.name, ana.calls, ana.failed, bob.calls) == ("ana", 2, 1, 1)
    assert (ana.prompt_tokens, ana.cached_tokens, ana.output_tokens) == (14, 8, 4)
    assert (ana.injected_tokens, ana.queue, ana.prefill, ana.decode) == (6, 3.0, 4.0, 8.0)
    (late,) = store.usage("agent", 20, None)
    assert (late.name, late.calls) == ("mail", 3)
