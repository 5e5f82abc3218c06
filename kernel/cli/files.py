"""``files``: the commands by which people see and change the files of a user and an agent."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from isovist.kernel.cli.common import Common, Problem, attach
from isovist.kernel.cli.show import emit, moment, note, safe, say, table

if TYPE_CHECKING:
    from isovist.syscalls.abi.files import FileInfo, FileStored
    from isovist.syscalls.client import Client
    from isovist.syscalls.records import Stream

DEFAULTS = Common()
Name = Annotated[str, Parameter()]
Given = Annotated[str, Parameter(show_default=False)]
Version = Annotated[int | None, Parameter(show_default=False)]

files = App(name="files", help="The files of a user and an agent, and all their versions.")
COMMANDS = frozenset(
    {"files", *(f"files {word}" for word in
                ("ls", "cat", "put", "get", "log", "rollback", "share", "rm", "search"))}
)  # fmt: skip


@files.command(name="ls")
def ls(
    folder: Given = "",
    /,
    *,
    user: Name,
    agent: Name = "operator",
    scope: Given = "",
    common: Common = DEFAULTS,
) -> int:
    """List the files in view, by space and path.

    Parameters
    ----------
    folder
        Only what lies in it.
    user
        Whose files.
    agent
        As which agent sees them.
    scope
        Of one space alone: pair, user, agent, global, or two axes.
    """
    found: list[FileInfo] = []
    with attach(common, agent, user) as kernel:
        after = ""
        while True:
            page = kernel.file_list(scope=scope, prefix=folder, limit=500, after=after)
            found += page.files
            after = page.next
            if not after:
                break
    if common.json:
        emit(found)
    elif found:
        table(
            ("SCOPE", "PATH", ">VERSION", ">BYTES", "AGENT", "WRITTEN"),
            (
                (one.scope, one.path, str(one.version), str(one.size), one.agent,
                 moment(one.written_at))
                for one in found
            ),
        )  # fmt: skip
    else:
        say(f"{safe(user)} and {safe(agent)} see no file")
    return 0


@files.command(name="cat")
def cat(
    path: Name,
    /,
    *,
    user: Name,
    agent: Name = "operator",
    scope: Name = "pair",
    version: int = 0,
    common: Common = DEFAULTS,
) -> int:
    """Write a file's bytes to standard output, as they are.

    Parameters
    ----------
    path
        Which file.
    user
        Whose.
    agent
        As which agent sees it.
    scope
        In which space.
    version
        An older version; 0 is the current one.
    """
    with attach(common, agent, user) as kernel:
        for body in _pieces(kernel, path, scope, version):
            sys.stdout.buffer.write(body)
    sys.stdout.flush()
    return 0


@files.command(name="put")
def put(
    source: Path,
    path: Given = "",
    /,
    *,
    user: Name,
    agent: Name = "operator",
    scope: Name = "pair",
    reason: Given = "",
    expect: Version = None,
    reusable: Annotated[bool, Parameter(negative="")] = False,
    common: Common = DEFAULTS,
) -> int:
    """Store a file of this machine as a new version.

    Parameters
    ----------
    source
        The file.
    path
        Under which path; its own name where none is given.
    user
        Whose it becomes.
    agent
        As which agent.
    scope
        In which space.
    reason
        Why, to be kept with the version.
    expect
        The version that it must follow; 0: there must be none.
    reusable
        It may reach other users, where a grant lets it.
    """
    from isovist.kernel.confinement.workspace import prepare
    from isovist.syscalls.abi.files import MAX_CONTENT

    path = path or source.name
    with attach(common, agent, user) as kernel, source.open("rb") as file:
        body = file.read(MAX_CONTENT + 1)
        stream: Stream = "reusable" if reusable else "protected"
        if len(body) <= MAX_CONTENT:
            stored = kernel.file_write(
                path, body, scope=scope, reason=reason, expect=expect, stream=stream
            )
        else:
            # Longer ones go by the agent's workspace, and not through the pipe.
            part = prepare(common.config.workspaces, agent) / f".put-{os.urandom(8).hex()}"
            try:
                with part.open("xb") as out:
                    while body:
                        out.write(body)
                        body = file.read(1 << 20)
                stored = kernel.file_put(
                    path, part.name, scope=scope, reason=reason, expect=expect, stream=stream,
                    deadline_ms=3_600_000,
                )  # fmt: skip
            finally:
                part.unlink(missing_ok=True)
    return _stored(common, stored)


@files.command(name="get")
def get(
    path: Name,
    target: Given = "",
    /,
    *,
    user: Name,
    agent: Name = "operator",
    scope: Name = "pair",
    version: int = 0,
    common: Common = DEFAULTS,
) -> int:
    """Write a version to a new file of this machine.

    Parameters
    ----------
    path
        Which file.
    target
        Where to; its own name where none is given. It must not be there yet.
    user
        Whose.
    agent
        As which agent sees it.
    scope
        In which space.
    version
        An older version; 0 is the current one.
    """
    place = Path(target or path.rpartition("/")[2])
    if os.path.lexists(place):
        raise Problem(f"{place}: is there already", "name another file", errno="EEXIST")
    part = place.with_name(f".{place.name}.{os.urandom(4).hex()}")
    size = 0
    try:
        with attach(common, agent, user) as kernel, part.open("xb") as out:
            for body in _pieces(kernel, path, scope, version):
                size += out.write(body)
        os.link(part, place)
    finally:
        part.unlink(missing_ok=True)
    if common.json:
        emit({"path": str(place), "bytes": size})
    else:
        say(f"{size:,} bytes in {place}")
    return 0


@files.command(name="log")
def log(
    path: Name,
    /,
    *,
    user: Name,
    agent: Name = "operator",
    scope: Name = "pair",
    common: Common = DEFAULTS,
) -> int:
    """List the versions of a file, newest first: who made them, when and why.

    Parameters
    ----------
    path
        Which file.
    user
        Whose.
    agent
        As which agent sees it.
    scope
        In which space.
    """
    with attach(common, agent, user) as kernel:
        versions = kernel.file_log(path, scope=scope).versions
    if common.json:
        emit(versions)
    else:
        table(
            (">VERSION", ">BYTES", "BY", "AGENT", "WHEN", "WHY"),
            (
                (str(one.version), str(one.size),
                 one.action + (f" of {one.source}" if one.source else ""), one.agent,
                 moment(one.at), one.reason)
                for one in versions
            ),
        )  # fmt: skip
    return 0


@files.command(name="rollback")
def rollback(
    path: Name,
    version: int,
    /,
    *,
    user: Name,
    agent: Name = "operator",
    scope: Name = "pair",
    reason: Given = "",
    common: Common = DEFAULTS,
) -> int:
    """Make a new version with the bytes of an older one.

    Parameters
    ----------
    path
        Which file.
    version
        Which of its versions.
    user
        Whose.
    agent
        As which agent.
    scope
        In which space.
    reason
        Why, to be kept with the version.
    """
    with attach(common, agent, user) as kernel:
        stored = kernel.file_rollback(path, version, scope=scope, reason=reason)
    return _stored(common, stored)


@files.command(name="share")
def share(
    path: Name,
    to: Name,
    /,
    *,
    user: Name,
    agent: Name = "operator",
    scope: Name = "pair",
    common: Common = DEFAULTS,
) -> int:
    """Give a file, with all its versions, another audience.

    Parameters
    ----------
    path
        Which file.
    to
        The scope where it goes: pair, user, agent, global, or two axes.
    user
        Whose it is.
    agent
        Which agent's it is.
    scope
        In which space it is now.
    """
    with attach(common, agent, user) as kernel:
        stored = kernel.file_share(path, to, scope)
    return _stored(common, stored)


@files.command(name="rm")
def rm(
    path: Name,
    /,
    *,
    user: Name,
    agent: Name = "operator",
    scope: Name = "pair",
    common: Common = DEFAULTS,
) -> int:
    """Delete a file with all its versions.

    Parameters
    ----------
    path
        Which file.
    user
        Whose it is.
    agent
        Which agent's it is.
    scope
        In which space.
    """
    with attach(common, agent, user) as kernel:
        gone = kernel.file_delete(path, scope=scope)
    if common.json:
        emit(gone)
    else:
        say(f"deleted: {gone.versions} versions, {gone.size:,} bytes; receipt {gone.receipt}")
    return 0


@files.command(name="search")
def search(
    query: Name,
    /,
    *,
    user: Name,
    agent: Name = "operator",
    k: int = 8,
    common: Common = DEFAULTS,
) -> int:
    """Find files in view by name, words and meaning.

    Parameters
    ----------
    query
        What to look for.
    user
        Whose files.
    agent
        As which agent sees them.
    k
        At most so many.
    """
    with attach(common, agent, user) as kernel:
        hits = kernel.file_search(query, k=k).files
    if common.json:
        emit(hits)
    for hit in hits if not common.json else ():
        say(f"{safe(hit.scope)}  {safe(hit.path)}  version {hit.version}", "bold")
        say("  " + safe(" ".join(hit.chunk.partition("\n\n")[2].split())[:200]))
    if not hits and not common.json:
        say("nothing in view")
    return 0


def _pieces(kernel: Client, path: str, scope: str, version: int) -> Iterator[bytes]:
    """The bytes of one version, whatever is written meanwhile."""
    offset = 0
    while True:
        data = kernel.file_read(path, scope=scope, version=version, offset=offset)
        version = data.version
        yield data.body
        offset += len(data.body)
        if offset >= data.size:
            return


def _stored(common: Common, stored: FileStored) -> int:
    if common.json:
        emit(stored)
        return 0
    where = f"{safe(stored.scope)}  {safe(stored.path)}"
    say(f"{where}  version {stored.version}, {stored.size:,} bytes")
    if stored.note:
        note(stored.note)
    return 0
