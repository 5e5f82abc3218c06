"""The kernel's side of the zygote: what counts as silence."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import trio
import trio.testing

from isovist.kernel import zygote
from isovist.kernel.programs import Resolved
from isovist.kernel.zygote_client import SPAWN_SECONDS, Request, ZygoteClient
from isovist.syscalls.errors import Errno, WorldError

BUSY = SPAWN_SECONDS * 0.8


@pytest.fixture
def client() -> Iterator[ZygoteClient]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ZygoteClient(ours, mock.create_autospec(subprocess.Popen, instance=True))


def job(pid: int) -> zygote.Job:
    return zygote.Job(pid=pid, program=Resolved("script", "/a.py", str(Path("/"))))


def refused(pid: int) -> zygote.Refused:
    return zygote.Refused(pid, Errno.EAGAIN, "no more processes")


async def test_whoever_waits_behind_many_waits_as_long_as_the_zygote_answers(
    client: ZygoteClient, autojump_clock: trio.testing.MockClock
) -> None:
    for pid in (1, 2, 3):
        client.requests[pid] = Request()
    last = client.requests[3]

    async def answers() -> None:
        for pid in (1, 2, 3):
            await trio.sleep(BUSY)
            client._take(refused(pid), [])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answers)
        with pytest.raises(WorldError, match="no more processes"):
            await client.result(job(3), last)


async def test_a_silent_zygote_is_killed(
    client: ZygoteClient, autojump_clock: trio.testing.MockClock
) -> None:
    client.requests[1] = Request()
    with mock.patch.object(client, "kill") as kill, pytest.raises(WorldError, match="not answered"):
        await client.result(job(1), client.requests[1])
    kill.assert_called_once()
    assert trio.current_time() >= SPAWN_SECONDS
    assert not client.requests
