"""A whole kernel inside a test: real store, real processes, channels over real pipes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from isovist.kernel.channels import Pipes
from isovist.kernel.config import Config, Settings
from isovist.kernel.kernel import Kernel
from isovist.kernel.learning.pipeline import Roles
from isovist.kernel.models import SCRIPTED, ModelSpec
from isovist.kernel.state.learning import Learning
from isovist.syscalls.aio import AsyncClient, serve
from isovist.syscalls.locate import Line


def config(state: Path, **settings: object) -> Config:
    """A kernel's configuration with everything below ``state``; the quick test embedder."""
    values: dict[str, object] = {"embedder": "hash", **settings}
    return Config(
        name="test",
        state=state,
        runtime=state,
        models=state,
        settings=Settings(**values),  # type: ignore[arg-type] # a test passes what the field takes
    )


def short_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder with a short path: the path of a socket has at most 107 bytes."""
    return tempfile.TemporaryDirectory(prefix="iso-", dir="/tmp")


@asynccontextmanager
async def running(
    state: Path,
    *,
    models: list[ModelSpec] | None = None,
    door: bool = False,
    roles: Roles | None = None,
    learn: dict[str, Any] | None = None,
    **settings: object,
) -> AsyncIterator[Kernel]:
    """A kernel that serves until the block ends; its invariants are checked then."""
    settings["learn"] = Learning(**(learn or {}))
    kernel = Kernel(config(state, **settings), models=models or [SCRIPTED], door=door, roles=roles)
    async with trio.open_nursery() as nursery:
        await nursery.start(kernel.run)
        try:
            yield kernel
            kernel.state.validate()
        finally:
            kernel.stop()


def pipes(kernel: Kernel, agent: str, *, operator: bool = False) -> tuple[int, int]:
    """Attach a bare peer; returns its (read, write) descriptors, blocking."""
    theirs_in, ours_out = os.pipe2(os.O_CLOEXEC)
    ours_in, theirs_out = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(ours_in, False)
    os.set_blocking(ours_out, False)
    kernel.attach(Pipes(ours_in, ours_out), agent, operator=operator)
    return theirs_in, theirs_out


@asynccontextmanager
async def client(
    kernel: Kernel, agent: str, *, user: str | None = None, operator: bool = False
) -> AsyncIterator[AsyncClient]:
    """A client that the kernel takes for ``agent``; ``user`` is named in each of its calls."""
    reader, writer = pipes(kernel, agent, operator=operator)
    async with serve(Line(reader, writer), user) as k:
        await k.shake_hands()
        yield k
