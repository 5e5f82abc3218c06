"""Where things live and what they default to (design §3.2)."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Literal

import msgspec

from isovist.kernel import endpoints
from isovist.kernel.state.learning import Learning
from isovist.kernel.state.scheduling import Clients, Scheduling
from isovist.kernel.tools.config import ToolSettings
from isovist.kernel.tools.config import check as check_tools
from isovist.scheduler.choice import DEFAULT, POLICIES
from isovist.scheduler.policy import PRIORITIES
from isovist.scheduler.quota import FIGURES, OF_MODELS, Limit
from isovist.syscalls.errors import CallerError
from isovist.syscalls.file_operations import USUAL, Bounds
from isovist.syscalls.names import check_name
from isovist.syscalls.records import SCOPES


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``config.toml`` may say. An unknown key is an error, not a silence."""

    model: str = ""
    """The default model; empty: the first installed one."""
    context: int = 2048
    """Tokens of context that a local model is given."""
    endpoints: dict[str, endpoints.Endpoint] = {}
    """Remote models by the names that they have here."""
    defaults: dict[str, str] = {}
    """Models of agents that name none, by agent; of all others it is ``model``."""
    fallbacks: dict[str, tuple[str, ...]] = {}
    """By model: who answers in its place, in this order, while it is down or has too much to do."""
    embedder: str = "universal"
    """What makes the vectors; see :func:`isovist.storage.embedder.make_embedder`."""
    models: str = ""
    """The folder of local models; empty: the user's cache."""
    room: int = 256 << 20
    """Bytes of memory in which the partitions asked last are held whole."""
    states: int = 2 << 30
    """Bytes of files that hold models' states of saved contexts; 0: none is kept."""
    graphs: bool = True
    """Whether a large partition gets a graph (with the extra ``ann``); without it is scanned."""
    scheduler: str = DEFAULT
    """The policy of the queue before each model: fifo, round_robin, priority, fair, deadline."""
    clients: Clients = "agent"
    """Between whom it is fair: agents, users, or pairs of both."""
    weights: dict[Literal["agent", "user"], dict[str, float]] = {}
    """Shares by axis and name, above 0; 1 where nothing is said."""
    priorities: dict[Literal["agent", "user"], dict[str, int]] = {}
    """Levels by axis and name, 0 (where nothing is said) to 9."""
    quotas: dict[Literal["agent", "user", "model"], dict[str, Limit]] = {}
    """Limits by axis and name; ``*`` for each that is not named."""

    confinement: Literal["required", "on", "off"] = "on"
    """Whether agents are confined: to their workspace, without network (docs/confinement.md).
    ``required``: the kernel does not start where this system cannot enforce it."""
    processes: dict[str, int] = {}
    """How many processes an agent may have beside itself, by agent; ``*`` for each that is not
    named; 0 (it can neither fork nor execute) where nothing is said."""

    learn: Learning = Learning()
    """How lessons are made of finished attempts."""
    files: Bounds = USUAL
    """How much is kept of files."""
    tools: dict[str, ToolSettings] = {}
    """Tool servers by the names that they have here."""

    @property
    def scheduling(self) -> Scheduling:
        return Scheduling(
            policy=self.scheduler,
            clients=self.clients,
            weights={str(axis): named for axis, named in self.weights.items()},
            priorities={str(axis): named for axis, named in self.priorities.items()},
            quotas={str(axis): named for axis, named in self.quotas.items()},
        )


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
    def chronicle(self) -> Path:
        """The hash-chained log of who was granted and did what."""
        return self.state / "chronicle.log"

    @property
    def snapshots(self) -> Path:
        """Where models' states of conversations lie; a scrub empties it, as they may hold all."""
        return self.state / "snapshots"

    @property
    def outputs(self) -> Path:
        """Where long answers of tools lie, for as long as the kernel runs."""
        return self.state / "outputs"

    @property
    def files(self) -> Path:
        """Where longer versions of files lie, beside the store as they do beside a backup. The
        kernel alone reads it."""
        return self.database.with_name(f"{self.database.name}.files")

    @property
    def workspaces(self) -> Path:
        """Where agents have a folder each, from which and into which files are copied."""
        return self.state / "workspaces"

    @property
    def lock(self) -> Path:
        return self.state / "kernel.lock"

    @property
    def log(self) -> Path:
        return self.state / "kernel.log"

    @property
    def private(self) -> tuple[str, ...]:
        """What no agent reaches, whatever it mounts: resolved folders."""
        folders = (self.state, self.runtime, self.models, file().parent)
        return tuple(sorted({str(folder.resolve()) for folder in folders}))

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
    where = file()
    try:
        settings = msgspec.convert(tomllib.loads(where.read_text()), Settings)
    except FileNotFoundError:
        settings = Settings()
    except (msgspec.ValidationError, tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise CallerError(f"{where}: {e}", field="config") from None
    if not 256 <= settings.context <= 1 << 20:
        raise CallerError(f"{where}: context must be 256 to {1 << 20}", field="context")
    if not 0 <= settings.room <= 1 << 40:
        raise CallerError(f"{where}: room must be 0 to {1 << 40} bytes", field="room")
    if not 0 <= settings.states <= 1 << 50:
        raise CallerError(f"{where}: states must be 0 to {1 << 50} bytes", field="states")
    for agent, most in settings.processes.items():
        if most < 0:
            raise CallerError(f"{where}: processes.{agent} must be 0 or more", field="processes")
    for model, endpoint in settings.endpoints.items():
        try:
            endpoints.check(model, endpoint)
        except CallerError as e:
            raise CallerError(f"{where}: {e.message}", field=e.field) from None
    for server, tool in settings.tools.items():
        try:
            check_tools(server, tool)
        except CallerError as e:
            raise CallerError(f"{where}: {e.message}", field=e.field) from None
    _check_scheduling(settings, str(where))
    _check_learning(settings.learn, str(where))
    _check_files(settings.files, str(where))
    return Config(
        name=name,
        state=folder.resolve(),
        # A kernel with a state folder of its own has its door there too, so that two kernels of
        # one name never share one.
        runtime=Path(runtime) / "isovist" / name if runtime and state is None else folder.resolve(),
        models=Path(settings.models or default_models()),
        settings=settings,
    )


def _check_scheduling(settings: Settings, file: str) -> None:
    def refuse(rule: str, field: str) -> CallerError:
        return CallerError(f"{file}: {rule}", field=field)

    if settings.scheduler not in POLICIES:
        raise refuse(f"scheduler must be one of {', '.join(POLICIES)}", "scheduler")
    for axis, weights in settings.weights.items():
        for name, weight in weights.items():
            if not 1e-3 <= weight <= 1e3:
                raise refuse(f"weights.{axis}.{name} must be 0.001 to 1000", "weights")
    for of, levels in settings.priorities.items():
        for name, level in levels.items():
            if level not in PRIORITIES:
                raise refuse(f"priorities.{of}.{name} must be 0 to 9", "priorities")
    for which, limits in settings.quotas.items():
        for name, limit in limits.items():
            figures = {figure: getattr(limit, figure) for figure in FIGURES}
            if min(figures.values()) < 0:
                raise refuse(f"quotas.{which}.{name} has a figure below 0", "quotas")
            others = [figure for figure in figures if figures[figure] and figure not in OF_MODELS]
            if which == "model" and others:
                raise refuse(f"quotas.model.{name}: a model has no {others[0]}", "quotas")


def _check_learning(learn: Learning, file: str) -> None:
    if unknown := set(learn.scopes) - set(SCOPES):
        raise CallerError(
            f"{file}: learn.scopes must be among {', '.join(SCOPES)}, not {min(unknown)!r}",
            field="learn",
        )
    if learn.review_after < 0:
        raise CallerError(f"{file}: learn.review_after must be 0 or more", field="learn")


def _check_files(bounds: Bounds, file: str) -> None:
    for name in ("versions", "space", "owner", "files"):
        if not 1 <= getattr(bounds, name) <= 1 << 50:
            raise CallerError(f"{file}: files.{name} must be 1 to {1 << 50}", field="files")


def default_models() -> Path:
    return xdg("XDG_CACHE_HOME", ".cache") / "isovist" / "models"


def file() -> Path:
    """Where the settings are read from."""
    return xdg("XDG_CONFIG_HOME", ".config") / "isovist" / "config.toml"


def xdg(variable: str, default: str) -> Path:
    """A base folder; the specification says that a relative one is to be ignored."""
    value = os.environ.get(variable, "")
    return Path(value) if value.startswith("/") else Path.home() / default
