"""What the ``learn`` commands do."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from isovist.kernel.cli.common import Common, Problem, attach
from isovist.kernel.cli.show import brief, emit, fields, moment, note, plain, safe, say, table
from isovist.syscalls.errors import IsovistError

if TYPE_CHECKING:
    from isovist.syscalls.client import Client
    from isovist.syscalls.records import Entry, Submission

WIDER = {"pair": "user", "user": "global", "agent": "global"}
NARROWER = {"global": "agent", "user": "pair", "agent": "pair"}
SCOPES = ("pair", "user", "agent", "global")
_AXIS = "(?:own|all|@.+)"
HEAD = b"# Learned memory: "
"""How the files begin that ``files`` writes."""
_WRITTEN = re.compile(rf"(?:{'|'.join(SCOPES)}|{_AXIS} {_AXIS})\.md")
"""Names of the files that ``files`` writes."""


def ls(common: Common, *, user: str | None, scope: str, limit: int) -> int:
    with attach(common, user=user) as kernel:
        found = (one for one in _entries(kernel) if not scope or one.scope == scope)
        entries = list(islice(found, limit or None))
    if common.json:
        emit(entries)
    elif entries:
        table(
            ("ENTRY", "SCOPE", "STREAM", "READERS", "SITUATION", "LESSON"),
            (
                (e.id, e.scope, e.stream, e.readers, brief(e.situation, 40), brief(e.lesson))
                for e in entries
            ),
        )
    else:
        say("nothing was learned yet" + (f" of {safe(user)}" if user else ""))
    return 0


def show(common: Common, id: str, *, trace: bool) -> int:
    with attach(common) as kernel:
        entry = _entry(kernel, id)
    if common.json:
        emit(entry)
        return 0
    if not trace:
        fields(
            (
                ("entry", f"{entry.id}, version {entry.version}"),
                ("when", entry.situation),
                ("lesson", entry.lesson),
                ("scope", f"{entry.scope}, of the {entry.stream} stream"),
                ("readers", entry.readers),
                ("written by", entry.writer),
                ("stored", moment(entry.stored_at)),
                ("from", f"{len(entry.origins)} attempts; isovist learn trace {entry.id}"),
            )
        )
    elif entry.origins:
        table(
            ("SUBMISSION", "USER", "AGENT", "OUTCOME", "AT"),
            ((o.submission, o.user, o.agent, o.outcome, moment(o.at)) for o in entry.origins),
        )
    else:
        say("nothing is known of where it comes from: its users were forgotten")
    return 0


def edit(common: Common, id: str, *, situation: str, lesson: str) -> int:
    with attach(common) as kernel:
        entry = _entry(kernel, id)
        stored = kernel.learn_edit(id, entry.version, situation=situation, lesson=lesson)
    if common.json:
        emit(stored)
    else:
        say(f"changed: {safe(id)}, now version {stored.version}")
    return 0


def delete(common: Common, ids: tuple[str, ...]) -> int:
    """What fails stops nothing else: it is named, and ends with 1."""
    failed: dict[str, IsovistError] = {}
    receipts: dict[str, str] = {}
    with attach(common) as kernel:
        for entry in dict.fromkeys(ids):
            try:
                receipts[entry] = kernel.learn_delete(entry).receipt
            except IsovistError as e:
                failed[entry] = e
    if failed and len(failed) == 1 and not receipts:
        raise failed.popitem()[1]
    if common.json:
        emit({"deleted": receipts, "failed": {one: str(why) for one, why in failed.items()}})
    else:
        say(f"deleted: {len(receipts)}")
        for one, why in failed.items():
            note(f"not deleted: {safe(one)}: {why}")
    return 1 if failed else 0


def move(
    common: Common, id: str, *, to: str, wider: bool, user: str | None, agent: str | None
) -> int:
    word = "promote" if wider else "demote"
    with attach(common) as kernel:
        entry = _entry(kernel, id)
        steps = WIDER if wider else NARROWER
        target = to or steps.get(entry.scope, "")
        if not target:
            raise Problem(
                f"an entry of {entry.scope} scope has no step that is "
                f"{'wider' if wider else 'narrower'}",
                f"isovist learn {word} {id} --to SCOPE",
                status=2,
            )
        # The scope of a group is neither wider nor narrower than another.
        wrong = entry.scope in SCOPES and (
            (SCOPES.index(target) > SCOPES.index(entry.scope)) != wider
        )
        if wrong:
            other = "demote" if wider else "promote"
            raise Problem(
                f"{target} is not {'wider' if wider else 'narrower'} than {entry.scope}",
                f"isovist learn {other} {id} --to {target}",
                status=2,
            )
        if target in ("pair", "user") and not entry.scope.startswith(("pair", "user", "own/")):
            user = user or _only({o.user for o in entry.origins}, "user", target)
        if target in ("pair", "agent") and not entry.scope.endswith(("pair", "agent", "/own")):
            agent = agent or _only({o.agent for o in entry.origins}, "agent", target)
        stored = kernel.learn_edit(id, entry.version, scope=target, agent=agent or "", user=user)
    if common.json:
        emit(stored)
    else:
        say(f"{safe(id)}: {entry.scope} is now {stored.scope}")
    return 0


def _only(names: set[str], what: str, scope: str) -> str:
    """The one of ``names``: an entry that becomes a single user's or agent's must be somebody's."""
    if len(names) != 1:
        raise Problem(
            f"it comes from {len(names)} {what}s: whose is it to be in {scope} scope?",
            f"name one by --{what}",
            status=2,
        )
    return names.pop()


def export(common: Common, *, user: str | None) -> int:
    import sys

    import msgspec

    with attach(common, user=user) as kernel:
        for entry in _entries(kernel):
            sys.stdout.write(msgspec.json.encode(plain(entry)).decode() + "\n")
    sys.stdout.flush()
    return 0


def consent(common: Common, choice: Literal["", "nothing", "own", "share"], *, user: str) -> int:
    with attach(common, user=user) as kernel:
        found = kernel.learn_consent(choice)
    if common.json:
        emit(found)
    else:
        words = {
            "nothing": "nothing is learned from attempts for",
            "own": "only what serves this user is learned from attempts for",
            "share": "reusable lessons for others too are learned from attempts for",
        }
        say(f"{words[found.choice]} {safe(found.user)}")
    return 0


def status(common: Common, id: str, *, user: str | None, limit: int, retry: bool) -> int:
    with attach(common, user=user) as kernel:
        found = kernel.learn_status(id, limit=limit, retry=retry)
    if common.json:
        emit(found)
    elif id:
        _show(found.submissions[0])
    elif found.submissions:
        table(
            ("SUBMISSION", "STATE", "USER", "AGENT", "OUTCOME", ">NEW", ">CHANGED", ">CUT", "AT"),
            (
                (s.id, s.state, s.user, s.agent, s.outcome, s.added, s.revised + s.deleted, s.cut,
                 moment(s.submitted_at))
                for s in found.submissions
            ),
        )  # fmt: skip
        note(f"{found.waiting} not at their end")
    else:
        say("no attempt was handed in yet")
    return 0


def _show(one: Submission) -> None:
    fields(
        (
            ("submission", one.id),
            ("state", one.state),
            ("of", f"{one.user} and {one.agent}"),
            ("outcome", one.outcome),
            ("handed in", moment(one.submitted_at)),
            ("ended", moment(one.ended_at) if one.ended_at else ""),
            ("learned by", one.writer),
            ("entries", f"{one.added} new, {one.revised} changed, {one.deleted} deleted"),
            ("which", " ".join(one.entries)),
            ("cut", f"{one.cut} from the reusable stream" if one.cut else ""),
            ("denied", f"{one.denied}: {'; '.join(one.reasons)}" if one.denied else ""),
            ("secrets", ", ".join(f"{n} {type_}" for type_, n in one.secrets.items())),
            ("error", one.error),
        )
    )


def review(common: Common, *, dry_run: bool) -> int:
    with attach(common) as kernel:
        found = kernel.learn_review(dry_run, deadline_ms=3_600_000)
    if common.json:
        emit(found)
        return 0
    if found.changes:
        table(
            ("WHAT", "ENTRIES", "SCOPE", "DONE", "WHY", "LESSON"),
            (
                (c.what, " ".join(c.entries), c.scope, "yes" if c.done else "no", c.why,
                 brief(c.lesson))
                for c in found.changes
            ),
        )  # fmt: skip
    made = [change for change in found.changes if (dry_run and not change.why) or change.done]
    say(
        f"{found.changed} entries were new or changed, {found.looked_at} were compared; "
        f"{len(made)} changes {'would be' if dry_run else 'were'} made (judge: {found.judge})"
    )
    return 0


def files(common: Common, folder: Path, task: str, *, user: str, agent: str, budget: int) -> int:
    with attach(common, agent, user) as kernel:
        found = kernel.learn_lessons(task, budget=budget)
    folder.mkdir(parents=True, exist_ok=True)
    # Those of a group that this reader has left go as well.
    ours = [path for path in folder.iterdir() if _WRITTEN.fullmatch(path.name)]
    for path in ours:
        if not path.read_bytes().startswith(HEAD):
            raise Problem(
                f"{safe(str(path))} holds no lessons, and would be replaced",
                "give a folder of their own",
                status=2,
            )
    for path in ours:
        path.unlink()
    written: list[str] = []
    for file in found.files:
        path = folder / file.name.replace("/", " ")  # a scope of groups has a slash
        with open(
            os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o444), "w", encoding="utf-8"
        ) as out:
            out.write(file.text)
        written.append(str(path))
    if common.json:
        emit({"files": written, "entries": found.entries})
    else:
        say("\n".join(map(safe, written)) or "there is no lesson for this task yet")
    return 0


def _entry(kernel: Client, id: str) -> Entry:
    if not id:
        raise Problem("an entry's id is empty", "isovist learn ls lists them", status=2)
    return kernel.learn_list(id=id).entries[0]


def _entries(kernel: Client) -> Iterator[Entry]:
    after = ""
    while True:
        page = kernel.learn_list(limit=100, after=after)
        yield from page.entries
        after = page.next
        if not after:
            return
