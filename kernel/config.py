"""Where things live and what they default to (design §3.2)."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import msgspec

from isovist.syscalls.errors import CallerError
from isovist.syscalls.names import check_name


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``config.toml`` may say. An unknown key is an error, not a silence."""

    model: str = ""
    """The default model; empty: the first installed one."""
    context: int = 2048
    """Tokens of context that a local model is given."""
    embedder: str = "universal"
    """What makes the vectors; see :func:`isovist.storage.embedder.make_embedder`."""
    models: str = ""
    """The folder of local models; empty: the user's cache."""
    room: int = 256 << 20
    """Bytes of memory in which the partitions asked last are held whole."""
    graphs: bool = True
    """Whether a large partition gets a graph (with the extra ``ann``); without it is scanned."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel: its name, its folders, its settings."""

    name: str
    state: Path
    runtime: Path
    models: Path
    settings: Settings

    @property
    def database(self) -> Path:
        return self.state / "isovist.db"

    @property
    def lock(self) -> Path:
        return self.state / "kernel.lock"

    @property
    def log(self) -> Path:
        return self.state / "kernel.log"

    @property
    def socket(self) -> Path:
        return self.runtime / "socket"

    @property
    def token(self) -> Path:
        return self.runtime / "token"


def load(name: str = "", state: Path | None = None) -> Config:
    """The configuration of kernel ``name`` (default: ``$ISOVIST_KERNEL``, else ``default``).

    Raises ``EINVAL`` that names the file and the key where ``config.toml`` is wrong.
    """
    name = check_name(name or os.environ.get("ISOVIST_KERNEL", "") or "default", "name")
    if name in (".", ".."):
        raise CallerError("name must be a name, not a path", field="name")
    folder = state or xdg("XDG_STATE_HOME", ".local/state") / "isovist" / name
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    file = xdg("XDG_CONFIG_HOME", ".config") / "isovist" / "config.toml"
    try:
        settings = msgspec.convert(tomllib.loads(file.read_text()), Settings)
    except FileNotFoundError:
        settings = Settings()
    except (msgspec.ValidationError, tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise CallerError(f"{file}: {e}", field="config") from None
    if not 256 <= settings.context <= 1 << 20:
        raise CallerError(f"{file}: context must be 256 to {1 << 20}", field="context")
    if not 0 <= settings.room <= 1 << 40:
        raise CallerError(f"{file}: room must be 0 to {1 << 40} bytes", field="room")
    return Config(
        name=name,
        state=folder.resolve(),
        # A kernel with a state folder of its own has its door there too, so that two kernels of
        # one name never share one.
        runtime=Path(runtime) / "isovist" / name if runtime and state is None else folder.resolve(),
        models=Path(settings.models or default_models()),
        settings=settings,
    )


def default_models() -> Path:
    return xdg("XDG_CACHE_HOME", ".cache") / "isovist" / "models"


def xdg(variable: str, default: str) -> Path:
    """A base folder; the specification says that a relative one is to be ignored."""
    value = os.environ.get(variable, "")
    return Path(value) if value.startswith("/") else Path.home() / default
