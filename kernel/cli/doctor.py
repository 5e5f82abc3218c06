"""``doctor``: what Isovist needs on this machine, one line a check.

A check is ``ok``, ``warn`` (something serves less well) or ``fail`` (something will not serve).
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from isovist.kernel.cli.common import Common, Problem, attach, suggest
from isovist.kernel.cli.show import console, emit, safe
from isovist.syscalls.errors import IsovistError

if TYPE_CHECKING:
    from isovist.kernel.config import Config
    from isovist.kernel.models import ModelSpec

ROOM_FAIL, ROOM_WARN = 100 << 20, 1 << 30
"""Free bytes below which the store's disk is a failure, or a worry."""


class Check(msgspec.Struct, frozen=True):
    """One finding; ``hint`` says what to do where it is not ``ok``."""

    name: str
    state: Literal["ok", "warn", "fail"]
    detail: str
    hint: str = ""


Checks = Iterator[Check]


def doctor(common: Common, embedder: str = "") -> int:
    checks = list(examine(common, embedder))
    failed = any(check.state == "fail" for check in checks)
    if common.json:
        emit(checks)
        return int(failed)
    from rich.text import Text

    out = console()
    style = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    wide = max(len(check.name) for check in checks)
    for check in checks:
        line = Text.assemble(
            (f"{check.state:<4}", style[check.state]), f"  {check.name:<{wide}}  ",
            safe(check.detail),
        )  # fmt: skip
        out.print(line)
        if check.hint:
            out.print(Text(f"{'':<6}{'':<{wide}}  {check.hint}", style="dim"))
    return int(failed)


def examine(common: Common, embedder: str = "") -> Checks:
    """All checks, of ``embedder`` or else the one that is configured. One that goes wrong itself
    fails, and the rest go on."""
    yield from _tried("python", _python)
    yield from _tried("platform", _platform)
    yield from _tried("processes", _processes)
    yield from _tried("extras", _extras)
    try:
        config = common.config
    except IsovistError as e:
        yield Check("config", "fail", e.message, "mend or remove config.toml")
        return
    yield from _tried("config", lambda: _config(config))
    yield from _tried("confinement", lambda: _confinement(config))
    yield from _tried("models", lambda: _models(config, common))
    yield from _tried("embedder", lambda: _embedder(embedder, common))
    yield from _tried("store", lambda: _store(config))
    yield from _tried("index", lambda: _index(config))
    yield from _tried("disk", lambda: _disk(config))
    yield from _tried("kernel", lambda: _kernel(common))


def _tried(name: str, checks: Callable[[], Checks]) -> Checks:
    try:
        yield from checks()
    except Exception as e:
        yield Check(
            name, "fail", f"{type(e).__name__}: {e}", "the check itself failed; please report it"
        )


def _python() -> Checks:
    yield Check("python", "ok", f"{platform.python_version()} ({sys.executable})")


def _platform() -> Checks:
    detail = f"{platform.system()} {platform.release()} {platform.machine()}"
    if sys.platform != "linux":
        yield Check("platform", "fail", detail, "the kernel needs Linux")
    else:
        yield Check("platform", "ok", f"{detail}, {os.cpu_count()} processors")


def _processes() -> Checks:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as e:
        yield Check("pidfd", "fail", str(e), "the host's kernel must be Linux 5.4 or newer")
        return
    yield Check("pidfd", "ok", "deaths of agents are seen at once")
    if _isolation() == "pid-namespace":
        yield Check("pid namespace", "ok", "agents end with the kernel, with all they started")
    else:
        yield Check(
            "pid namespace",
            "warn",
            "not allowed here; an agent that detaches itself can outlive the kernel",
            "allow user namespaces (sysctl user.max_user_namespaces) or run as root",
        )


def _isolation() -> str:
    """How a zygote holds its agents here; found by starting one."""
    import trio

    from isovist.kernel.spawner import Spawner

    async def probe() -> str:
        async with trio.open_nursery() as nursery:
            spawner = Spawner(nursery, lambda gone: None)
            isolation = await spawner.start()
            await spawner.aclose()
        return isolation

    return trio.run(probe)


def _extras() -> Checks:
    if find_spec("llama_cpp"):
        yield Check("llama", "ok", "local models can run")
    else:
        hint = "pip install 'isovist[llama]' (it compiles for some minutes)"
        yield Check("llama", "warn", "not installed: only the scripted model runs", hint)
    if find_spec("hnswlib"):
        yield Check("ann", "ok", "hnswlib is installed: large partitions can have graphs")
    else:
        yield Check("ann", "ok", "not installed: no graphs, exact scan serves")


def _config(config: Config) -> Checks:
    from isovist.kernel.door import MAX_PATH

    length = len(os.fsencode(config.socket))
    if length > MAX_PATH:
        hint = "choose a shorter state folder"
        yield Check("socket", "fail", f"its path has {length} bytes, the limit is {MAX_PATH}", hint)
    else:
        yield Check("socket", "ok", str(config.socket))


def _confinement(config: Config) -> Checks:
    """What holds agents, found by confining a process here. In a kernel's own cgroup a little
    more may hold: its log says so."""
    from isovist.kernel.confinement import policy, report

    if config.settings.confinement == "off":
        hint = "remove `confinement` from config.toml"
        yield Check("confinement", "warn", "agents can do all that this user can", hint)
        return
    policy.check_private(config.private)
    enforced = report.here()
    for matter, promise in report.MATTERS.items():
        name = f"confined {matter}"
        if by := enforced.get(matter):
            yield Check(name, "ok", f"{promise} ({by})")
        elif matter in report.OPTIONAL:
            yield Check(name, "ok", f"not by itself: {promise}", report.HINTS[matter])
        else:
            yield Check(name, "warn", f"not enforced: {promise}", report.HINTS[matter])


def _models(config: Config, common: Common) -> Checks:
    from isovist.kernel import models

    specs = models.available(config)
    for spec in specs:
        yield _model(spec)
    if all(spec.driver == "scripted" for spec in specs):
        hint = f"{suggest(common, 'model', 'add', 'smollm2')} fetches a small one (98 MB)"
        yield Check("models", "warn", f"no local model in {config.models}", hint)
    if config.settings.model and config.settings.model not in {s.name for s in specs}:
        hint = "config.toml names it as the default model; add it or name another"
        yield Check("models", "fail", f"no model {config.settings.model!r} is installed", hint)


def _model(spec: ModelSpec) -> Check:
    name = f"model {spec.name}"
    if spec.endpoint is not None:
        key = spec.endpoint.key
        if key and not os.environ.get(key):
            return Check(
                name, "warn", f"{key} is not set here", "the kernel needs it to hold a key"
            )
        return Check(name, "ok", f"{spec.endpoint.url}, not asked")
    if not spec.path:
        return Check(name, "ok", "built in")
    path = Path(spec.path)
    if not path.is_file():
        return Check(name, "fail", f"{path} is gone", "add the model again from where it lies now")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if spec.sha256 and found != spec.sha256:
        hint = f"it was changed since it was added; isovist model add {spec.name} mends a known one"
        return Check(name, "fail", f"{path} has another SHA-256: {found}", hint)
    return Check(name, "ok", f"{path}, SHA-256 {found[:12]}… as expected")


def _embedder(tried: str, common: Common) -> Checks:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from isovist.storage.embedder import make_embedder

    try:
        embedder = make_embedder(tried or common.config.settings.embedder)
    except IsovistError as e:
        yield Check("embedder", "fail", e.message, "config.toml or --embedder chooses another one")
        return
    shape = embedder.embed("What does the doctor say?").shape
    if shape == (embedder.dim,):
        yield Check("embedder", "ok", f"{embedder.name}, {embedder.dim} dimensions")
    else:
        yield Check("embedder", "fail", f"{embedder.name} gave {shape}", "reinstall its package")
        return
    if other := _other_space(common.config.database, (embedder.name, embedder.dim)):
        again = suggest(common, "memory", "reembed", *(("--embedder", tried) if tried else ()))
        yield Check(
            "vectors",
            "fail",
            f"the store's are of {other[0]!r} ({other[1]} dimensions), not of {embedder.name!r}",
            f"{again} makes them anew; or configure the embedder that made them",
        )


def _other_space(database: Path, asked: tuple[str, int]) -> tuple[str, int] | None:
    """Whose vectors a start with this embedder would refuse; what is no sound store says
    :func:`_store`."""
    if not database.exists():
        return None
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=5)) as db:
            spaces = dict(
                db.execute("SELECT name, value FROM meta WHERE name IN ('embedder', 'next')")
            )
            held = db.execute("SELECT 1 FROM vectors LIMIT 1").fetchone()
        known = {n: msgspec.msgpack.decode(v, type=tuple[str, int]) for n, v in spaces.items()}
    except (sqlite3.Error, msgspec.MsgspecError):
        return None
    return known.get("embedder") if held and asked not in known.values() else None


def _store(config: Config) -> Checks:
    from isovist.storage import schema

    if not config.database.exists():
        yield Check("store", "ok", f"none yet at {config.database}")
        return
    if not os.access(config.database, os.R_OK | os.W_OK):
        yield Check("store", "fail", f"{config.database} is not ours to write", "mend its rights")
        return
    uri = f"{config.database.as_uri()}?mode=ro"
    db = sqlite3.connect(uri, uri=True, timeout=5)
    try:
        application = db.execute("PRAGMA application_id").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
        found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as e:
        hint = "restore it from a backup"
        yield Check("store", "fail", f"{config.database}: {e}", hint)
        return
    finally:
        db.close()
    size = f"{config.database.stat().st_size / 1e6:.1f} MB"
    if application != schema.APPLICATION:
        yield Check("store", "fail", f"{config.database} is no store of Isovist", "move it away")
    elif version > schema.VERSION:
        detail = f"schema version {version}, this Isovist knows up to {schema.VERSION}"
        yield Check("store", "fail", detail, "use the newer Isovist that wrote it")
    elif found != "ok":
        yield Check("store", "fail", f"damaged: {found}", "restore it from a backup")
    else:
        yield Check("store", "ok", f"{config.database}, schema version {version}, {size}, sound")


def _index(config: Config) -> Checks:
    """What is derived from the store: all of it can be made anew, so nothing here is a failure."""
    folder = config.database.with_name(f"{config.database.name}.index")
    if not folder.is_dir():
        yield Check("index", "ok", "none yet; a start makes it of the store")
        return
    sizes = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    graphs = [size for path, size in sizes.items() if path.suffix == ".graph"]
    words = sum(sizes.values()) - sum(graphs)
    kept = f"{len(graphs)} graphs {sum(graphs) / 1e6:.1f} MB"
    if not config.settings.graphs:
        kept = "graphs are switched off"
    elif not find_spec("hnswlib"):
        kept = "no graphs without the extra ann"
    detail = f"indexed engine: words {words / 1e6:.1f} MB, {kept}"
    yield Check("index", "ok", f"{detail}, room {config.settings.room / 1e6:.0f} MB")


def _disk(config: Config) -> Checks:
    folder = config.state
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        yield Check("disk", "fail", f"{folder} is not ours to write", "mend its rights, or --state")
        return
    free = shutil.disk_usage(folder).free
    state: Literal["ok", "warn", "fail"] = (
        "fail" if free < ROOM_FAIL else "warn" if free < ROOM_WARN else "ok"
    )
    hint = "" if state == "ok" else "make room, or choose another disk with --state"
    yield Check("disk", state, f"{free / 1e9:.1f} GB free at {folder}", hint)


def _kernel(common: Common) -> Checks:
    from isovist.kernel.lock import holder

    pid = holder(common.config.lock)
    try:
        with attach(common) as kernel:
            kernel.ping()
            count = len(kernel.processes().processes)
            figures = kernel.statistics()
    except (Problem, IsovistError) as e:
        if pid:
            hint = f"it may be starting or stalled; {suggest(common, 'log')} shows what it does"
            yield Check("kernel", "fail", f"process {pid} holds the store: {e}", hint)
        else:
            hint = f"start it with: {suggest(common, 'up', '-d')}"
            yield Check("kernel", "ok", f"{common.config.name!r} is not running", hint)
        return
    yield Check("kernel", "ok", f"{common.config.name!r} runs as process {pid}, {count} agents")
    held = {
        what: figures.get(f"store_{name}", 0)
        for name, what in (
            ("chunks", "chunks"),
            ("partitions", "partitions"),
            ("delta", "not yet in the shared index"),
            ("graphs", "with a graph"),
            ("resident", "held whole in memory"),
        )
    }
    yield Check("memory", "ok", ", ".join(f"{n} {what}" for what, n in held.items()))
