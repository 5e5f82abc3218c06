"""A plain model of files with versions: dictionaries, and the rules in a few lines.

It knows nothing of stores, transactions or indexes. What a step comes to, the reply or the error
number, is said before a kernel is asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from isovist.syscalls.errors import Errno
from isovist.syscalls.records import Partition, partition_of

SCOPES = ("pair", "user", "agent", "global")
EXPOSED = ("agent", "global")
"""Scopes that reach other users: for the reusable stream alone. All agents hold the grants."""


@dataclass(frozen=True)
class Version:
    number: int
    body: bytes
    agent: str
    action: str
    reason: str
    source: int = 0


@dataclass
class File:
    user: str
    agent: str
    stream: str
    writable: bool
    versions: list[Version] = field(default_factory=list)

    @property
    def current(self) -> Version:
        return self.versions[-1]

    def copy(self) -> File:
        return File(self.user, self.agent, self.stream, self.writable, list(self.versions))


Key = tuple[Partition, str]


@dataclass(frozen=True)
class Step:
    """One request of (``user``, ``agent``). ``what`` is write, put, rollback, move or delete."""

    what: str
    user: str
    agent: str
    scope: str
    path: str
    body: bytes = b""
    stream: str = "reusable"
    writable: bool | None = None
    expect: int | None = None
    reason: str = ""
    version: int = 0
    to_scope: str = ""
    to_path: str = ""


class Model:
    """``files`` by space and path; ``most`` versions of each are kept."""

    def __init__(self, most: int) -> None:
        self.files: dict[Key, File] = {}
        self._most = most

    def copy(self) -> Model:
        other = Model(self._most)
        other.files = {key: file.copy() for key, file in self.files.items()}
        return other

    def take(self, step: Step) -> Errno | Version | None:
        """Do it: the error that it meets, the version that is current then, or (deleted) nothing.
        A refused step changes nothing."""
        space = partition_of(step.scope, step.user, step.agent)
        if step.what in ("write", "put") and step.scope in EXPOSED and step.stream == "protected":
            space = partition_of("pair", step.user, step.agent)
        file = self.files.get((space, step.path))
        if step.what in ("rollback", "move", "delete") and file is None:
            return Errno.ENOENT
        old = None
        if step.what == "rollback" and file is not None:
            old = next((v for v in file.versions if v.number == step.version), None)
            if old is None:
                return Errno.ENOENT
        if wrong := _expected(step, file):
            return wrong
        if step.what == "move" and file is not None:
            return self._move(step, space, file)
        own = file is None or (file.user, file.agent) == (step.user, step.agent)
        if step.what == "delete":
            if not own:
                return Errno.EPERM
            del self.files[space, step.path]
            return None
        if file is not None and not own and not (file.writable and file.user == step.user):
            return Errno.EPERM
        if file is None:
            if self._taken(space, step.path, None):
                return Errno.EEXIST
            file = File(step.user, step.agent, step.stream, bool(step.writable))
            self.files[space, step.path] = file
        elif old is None:
            if "protected" in (step.stream, file.stream):
                file.stream = "protected"
            if own and step.writable is not None:
                file.writable = step.writable
        number = file.current.number + 1 if file.versions else 1
        body, source = (old.body, old.number) if old else (step.body, 0)
        file.versions.append(Version(number, body, step.agent, step.what, step.reason, source))
        del file.versions[: -self._most]
        return file.current

    def _move(self, step: Step, space: Partition, file: File) -> Errno | Version:
        scope = step.to_scope or step.scope
        to = partition_of(scope, step.user, step.agent)
        path = step.to_path or step.path
        if (file.user, file.agent) != (step.user, step.agent):
            return Errno.EPERM
        if (to, path) == (space, step.path):
            if step.writable in (None, file.writable):
                return Errno.EINVAL
        else:
            if scope in EXPOSED and file.stream == "protected":
                return Errno.EPERM
            if self._taken(to, path, (space, step.path)):
                return Errno.EEXIST
        if step.writable is not None:
            file.writable = step.writable
        del self.files[space, step.path]
        self.files[to, path] = file
        return file.current

    def _taken(self, space: Partition, path: str, but: Key | None) -> bool:
        return any(
            key != but
            and key[0] == space
            and (f"{path}/".startswith(f"{key[1]}/") or key[1].startswith(f"{path}/"))
            for key in self.files
        )

    def seen_by(self, user: str, agent: str) -> dict[tuple[str, str], File]:
        """Everything in the view of a pair, by scope and path."""
        return {
            (scope, path): file
            for scope in SCOPES
            for (space, path), file in self.files.items()
            if space == partition_of(scope, user, agent)
        }


def _expected(step: Step, file: File | None) -> Errno | None:
    if step.expect is None:
        return None
    if file is None:
        return Errno.ENOENT if step.expect else None
    if not step.expect:
        return Errno.EEXIST
    return Errno.ESTALE if step.expect != file.current.number else None
