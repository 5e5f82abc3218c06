"""The reference page of all syscalls, made from the Structs: ``docs/syscalls.md``.

    python -m isovist.syscalls.reference           # write the page
    python -m isovist.syscalls.reference --check   # exit 1 if the page is not up to date

The text is the Structs' own docstrings. A sentence that begins with a field stands beside
the fields that it names, all others stand above the table.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import types
from pathlib import Path
from typing import Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from isovist.syscalls import errors, manifest, records
from isovist.syscalls import messages as m
from isovist.syscalls.abi import effects, files, mail, quotas, supervision, timers, tools
from isovist.syscalls.names import MAX_FRAME, MAX_NAME, MAX_TEXT

PAGE = Path(__file__).resolve().parent.parent / "docs" / "syscalls.md"

SHOWN = (
    records.Message,
    records.Tool,
    records.ToolCall,
    records.Logprob,
    records.Unit,
    records.Hit,
    records.Injected,
    records.Barrier,
    records.Timings,
    records.Process,
    records.Model,
    records.Group,
    records.Seen,
    records.Round,
    records.MemoryFile,
    records.SavedContext,
    records.Origin,
    records.Entry,
    records.Submission,
    records.Change,
    mail.Mail,
    mail.MailBox,
    effects.Body,
    effects.Effect,
    timers.Timer,
    quotas.Quota,
    records.ToolRule,
    records.ToolMade,
    tools.ToolUse,
    tools.ToolInfo,
    tools.ToolResult,
    tools.Approval,
    tools.ToolServer,
    manifest.Manifest,
    manifest.Mount,
    manifest.Restart,
    supervision.Hidden,
    supervision.Installed,
    files.FileInfo,
    files.FileVersion,
    files.FileHit,
)
"""The records that requests and replies hold."""

HEAD = f"""\
# Syscalls

Made from `syscalls/messages.py` by `python -m isovist.syscalls.reference`; do not edit.

ABI version {m.ABI_VERSION}. A frame is `u32 length | u32 id | body`, little endian; `length`
counts the body, at most {MAX_FRAME:,} bytes. The id is the caller's choice, never 0 and never
that of a call still outstanding; the reply carries it, and replies may come in any order. The body
is a MessagePack array: the tag, then the fields in the order of the tables. Fields are only ever
appended and new ones have defaults, so a shorter array is an older peer's, and further elements
are ignored. The first request on a channel is `hello`. A failure under id 0 is the kernel's last
word on the channel.

Names have 1 to {MAX_NAME} bytes of UTF-8, in Unicode form NFC, without control characters and `/`.
Texts of units have at most {MAX_TEXT:,} bytes. Times are ISO 8601 with a zone in requests, and
nanoseconds since 1970 UTC in replies and records.
"""


RECORDS = """\
## Records

These travel as maps with the names of their fields as keys; one whose fields are numbered, as an
array.
"""


def page() -> str:
    """The whole page, as Markdown."""
    base = {name: _describe(m.Call).get(name, "") for name in m.Call.__struct_fields__}
    parts = [HEAD, "## What every request carries\n", _table(m.Call, base, 1)]
    parts.append("## Requests\n")
    for kind, name in m.NAMES.items():
        parts += [f"### {name}\n", _section(kind, skip=len(m.Call.__struct_fields__))]
        parts.append(_answer(kind))
    parts.append("## Replies\n")
    for reply in get_args(m.AnyReply):
        parts += [f"### {reply.__name__}\n", _section(reply)]
    parts.append(RECORDS)
    for record in SHOWN:
        parts += [f"### {record.__name__}\n", _section(record)]
    parts += ["## Errors\n", _errors()]
    return "\n".join(parts)


def _section(kind: type[msgspec.Struct], skip: int = 0) -> str:
    """Tag, prose and fields of one Struct, without its first ``skip`` fields."""
    told = _describe(kind)
    tag = kind.__struct_config__.tag
    head = f"`{kind.__name__}`, tag {tag}. " if tag is not None else ""
    lines = [f"{head}{told['']}".strip() + "\n"] if head or told[""] else []
    if kind.__struct_fields__[skip:]:
        listed = tag is not None or kind.__struct_config__.array_like
        first = skip + (tag is not None) if listed else None
        lines.append(_table(kind, told, first, skip))
    return "\n".join(lines)


def _table(
    kind: type[msgspec.Struct], told: dict[str, str], first: int | None, skip: int = 0
) -> str:
    """One row a field; ``first`` is the place of the first one in the array, if it is one."""
    hints = get_type_hints(kind)
    place = first is not None
    rows = [
        "| # | field | type | default | |" if place else "| field | type | default | |",
        "|---|---|---|---|---|" if place else "|---|---|---|---|",
    ]
    for at, field in enumerate(msgspec.structs.fields(kind)[skip:]):
        default = "required" if field.required else f"`{_value(_default(field))}`"
        cells = [f"`{field.name}`", _type(hints[field.name]), default, told.get(field.name, "")]
        if first is not None:
            cells.insert(0, str(first + at))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def _answer(kind: type[m.Call]) -> str:
    hints = get_type_hints(kind)
    streams = bool in (hints.get("stream"), hints.get("follow"))
    parts = ", after any number of [`Part`](#part)" if streams else ""
    reply = m.REPLY_OF[kind].__name__
    return f"Answers [`{reply}`](#{reply.lower()}){parts}; or [`Failed`](#failed).\n"


def _describe(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The docstring by field; under the empty name what belongs to none.

    A sentence that begins with a field belongs to all the fields that it names.
    """
    told: dict[str, list[str]] = {"": []}
    doc = " ".join((kind.__dict__.get("__doc__") or "").split())
    for sentence in re.split(r"(?<=[.])\s+(?=[A-Z`\"])", doc):
        named = [name for name in kind.__struct_fields__ if f"``{name}``" in sentence]
        led = any(re.match(f"(With )?``{name}``", sentence) for name in named)
        for name in named if led else [""]:
            told.setdefault(name, []).append(sentence)
    return {name: _markdown(" ".join(sentences)) for name, sentences in told.items()}


def _markdown(text: str) -> str:
    text = re.sub(r":\w+:`~?([\w.]+)`", lambda found: f"`{found[1].rpartition('.')[2]}`", text)
    return text.replace("``None``", "``null``").replace("``", "`")


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    assert callable(field.default_factory)  # what is not required has one or the other
    return field.default_factory()


def _value(value: object) -> str:
    """A default as JSON, or the name of a record."""
    if isinstance(value, msgspec.Struct):
        return type(value).__name__
    return msgspec.json.encode(value).decode()


def _type(hint: object) -> str:
    """A type in the words of the wire."""
    plain = {str: "text", bytes: "bytes", int: "integer", float: "number", bool: "boolean",
             type(None): "null"}  # fmt: skip
    if isinstance(hint, type) and hint in plain:
        return plain[hint]
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " | ".join(f'`"{value}"`' for value in inner)
    if origin in (Union, types.UnionType):
        return " | ".join(map(_type, inner))
    if origin is tuple and inner[-1:] == (...,):
        return f"list of {_type(inner[0])}"
    if origin is tuple:
        return f"[{', '.join(map(_type, inner))}]"
    if origin is dict:
        return f"map of {_type(inner[0])} to {_type(inner[1])}"
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    raise TypeError(f"the reference has no words for {hint}")


def _errors() -> str:
    """The error numbers with the texts that stand below them in the source."""
    (tree,) = ast.parse(inspect.getsource(errors.Errno)).body
    assert isinstance(tree, ast.ClassDef)  # it is a class
    told: dict[str, str] = {}
    name = ""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and name:
            told[name] = _markdown(" ".join(str(node.value.value).split()))
    rows = [
        "| number | name | raised as | |",
        "|---|---|---|---|",
        *(
            f"| {e.value} | `{e.name}` | `{type(errors.error(e, '')).__name__}` | {told[e.name]} |"
            for e in sorted(errors.Errno)
        ),
    ]
    return "\n".join(rows) + "\n"


def main(args: list[str]) -> int:
    """Write the page, or with ``--check`` compare it; 1 if it differs, 2 for a wrong argument."""
    if args not in ([], ["--check"]):
        print("usage: python -m isovist.syscalls.reference [--check]", file=sys.stderr)
        return 2
    made = page()
    if not args:
        PAGE.write_text(made)
        return 0
    if PAGE.exists() and PAGE.read_text() == made:
        return 0
    print(f"{PAGE.name} is not up to date: python -m isovist.syscalls.reference", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
