"""Tasks: what is asked in words, the files that are laid out, and a verifier over what comes back.

A task is an *errand* of one of five families. Its input has one trap that the prompt does not tell:
who does the plain thing fails, and who has learned better passes. What the trap is stands in the
verifier's last words when it has snapped, and in ``handbook.txt`` among much else. Three things may
come on top: a *long* input, of which each part matters; *strict* files, checked byte by byte; and
the table *layout of the house*, which is the user's own and no prompt says.

Expected results are computed from what an input was drawn from, by no code of a solver's.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bench.text import words_of

Family = Literal["tables", "texts", "programs", "formats", "logs"]
HANDBOOK, SAMPLE = "handbook.txt", "previous.csv"
LONG = 90
"""Lines that a long input has at least."""
SECONDS = 10
"""What a program may take at most."""

SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
HEADERS = {
    "plain": "",
    "capitals": " and the column names are in capitals",
    "none": " and there is no header line",
}


@dataclass(frozen=True)
class House:
    """How one user's tables are laid out."""

    separator: str = ","
    header: str = "plain"

    @property
    def words(self) -> str:
        return f"columns are separated by {SEPARATORS[self.separator]}{HEADERS[self.header]}"

    def lay_out(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
        head = [name.upper() if self.header == "capitals" else name for name in header]
        lines = rows if self.header == "none" else [head, *rows]
        return "".join(self.separator.join(line) + "\n" for line in lines)


def draw_house(rng: random.Random) -> House:
    return House(rng.choice(list(SEPARATORS)), rng.choice(list(HEADERS)))


# -- what must come out


@dataclass(frozen=True)
class Table:
    """Of a table both content and layout count, one after the other."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def differs(self, text: str) -> str:
        found = self._read(text)
        for row in self.rows:
            if row in found:
                continue
            same = next((f for f in found if f[:1] == row[:1]), None)
            if same is None:
                return f"there is no row for {row[0]}"
            return f"for {row[0]} found {', '.join(same[1:])}, expected {', '.join(row[1:])}"
        extra = next((f for f in found if f not in self.rows), None)
        if extra:
            return f"there is a row for {extra[0]} that should not be there"
        return "" if found == list(self.rows) else "the rows are not in the order asked for"

    def layout_differs(self, text: str, house: House) -> bool:
        return text.strip("\n") != house.lay_out(self.header, self.rows).strip("\n")

    def _read(self, text: str) -> list[tuple[str, ...]]:
        """The rows, whatever the layout."""
        lines = [line for line in text.lstrip("\ufeff").splitlines() if line.strip()]
        separator = max([",", *SEPARATORS], key=lambda s: sum(s in line for line in lines))
        rows = [tuple(cell.strip() for cell in line.split(separator)) for line in lines]
        named = rows and tuple(c.lower() for c in rows[0]) == tuple(c.lower() for c in self.header)
        return rows[1:] if named else rows


@dataclass(frozen=True)
class Text:
    lines: tuple[str, ...]

    def differs(self, text: str) -> str:
        found = text.lstrip("\ufeff").splitlines()
        for n, (have, want) in enumerate(zip(found, self.lines, strict=False), 1):
            if have != want:
                return f"line {n} is {have[:60]!r}, expected {want[:60]!r}"
        if len(found) != len(self.lines):
            return f"there are {len(found)} lines, expected {len(self.lines)}"
        return ""


@dataclass(frozen=True)
class Json:
    value: object

    def differs(self, text: str) -> str:
        try:
            found = json.loads(text.lstrip("\ufeff"))
        except ValueError:
            return "it is not JSON"
        return _first_difference(found, self.value, "")


def _first_difference(found: object, wanted: object, where: str) -> str:
    if isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        pairs = [
            (f, w, f"{where}[{n}]") for n, (f, w) in enumerate(zip(found, wanted, strict=True))
        ]
    elif isinstance(found, dict) and isinstance(wanted, dict) and found.keys() == wanted.keys():
        pairs = [(found[key], wanted[key], f"{where}.{key}") for key in wanted]
    else:
        same = type(found) is type(wanted) and found == wanted
        show = f"{json.dumps(found)[:60]}, expected {json.dumps(wanted)[:60]}"
        return "" if same else f"at {where or 'the top'} found {show}"
    return next(filter(None, (_first_difference(*pair) for pair in pairs)), "")


_EACH = """
import contextlib, io, json, sys
source, cases = json.load(sys.stdin)
found = []
for given in cases:
    sys.stdin, printed = io.StringIO(given), io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(source, "program.py", "exec"), {"__name__": "__main__"})
        except SystemExit:
            pass
        except BaseException as e:
            print(type(e).__name__)
    found.append(printed.getvalue())
sys.stdout.write(json.dumps(found))
"""
"""Runs a program once a case; all in one process, as its start is most of the time."""


@dataclass(frozen=True)
class Program:
    """``cases``: what it reads on standard input, and what it must print."""

    cases: tuple[tuple[str, str], ...]

    def differs(self, text: str) -> str:
        asked = json.dumps((text.lstrip("\ufeff"), [given for given, _ in self.cases]))
        try:
            ran = subprocess.run(
                [sys.executable, "-I", "-S", "-c", _EACH], input=asked, capture_output=True,
                text=True, timeout=SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "it does not end"
        if ran.returncode:
            return "it does not run"
        for (given, wanted), printed in zip(self.cases, json.loads(ran.stdout), strict=True):
            if printed.split() != wanted.split():
                shown = printed.strip()[:60] or "nothing"
                return f"for the input {given[:60]!r} found {shown!r}, expected {wanted[:60]!r}"
        return ""


Wanted = Table | Text | Json | Program


# -- errands


@dataclass(frozen=True)
class Made:
    """One drawn instance. ``prompt`` says all but the trap; ``out`` is the file asked for.
    ``encoding`` is that of the files laid out."""

    prompt: str
    files: Mapping[str, str]
    out: str
    wanted: Wanted
    encoding: str = "utf-8"


Maker = Callable[[random.Random, bool, str], Made]
"""Makes an instance: with a long input or not, about one place."""


@dataclass(frozen=True)
class Template:
    """``trap`` is the sentence that says what is special; ``make`` draws an instance."""

    family: Family
    subject: str
    trap: str
    make: Maker


@dataclass(frozen=True)
class Errand:
    id: str
    family: str
    made: Made
    trap: str
    handbook: str
    long: bool = False
    strict: bool = False
    housed: bool = False

    @property
    def prompt(self) -> str:
        said = self.made.prompt
        if self.housed:
            said += f" Write {self.made.out} in our usual table layout."
        if self.strict:
            said += f" Another program reads {self.made.out}, so it must be a clean text file."
        return said

    def lay(self, workspace: Path, house: House) -> None:
        for name, text in self.made.files.items():
            (workspace / name).write_bytes(text.encode(self.made.encoding))
        (workspace / HANDBOOK).write_text(self.handbook, "utf-8")
        if self.housed:
            sample = house.lay_out(("name", "value"), (("alpha", "1"), ("beta", "2")))
            (workspace / SAMPLE).write_text(sample, "utf-8")

    def verify(self, workspace: Path, house: House) -> tuple[bool, str]:
        """Whether it passes, and the verifier's last words."""
        made, path = self.made, workspace / self.made.out
        if not path.is_file():
            return False, f"{made.out} was not written."
        raw = path.read_bytes()
        text = raw.decode("utf-8", "replace").replace("\r\n", "\n")
        if differs := made.wanted.differs(text):
            return False, f"{made.out}: {differs}. {self.trap}"
        table = made.wanted if self.housed and isinstance(made.wanted, Table) else None
        if table and table.layout_differs(text.lstrip("\ufeff"), house):
            usual = f"in this user's tables {house.words}"
            return False, f"{made.out} is not in the usual layout: {usual}."
        if self.strict and (unclean := _unclean(raw)):
            return False, f"{made.out} {unclean}."
        return True, "All checks passed."


def _unclean(raw: bytes) -> str:
    if raw.startswith(b"\xef\xbb\xbf"):
        return "starts with a byte order mark"
    if b"\r" in raw:
        return "has Windows line ends"
    if not raw.endswith(b"\n"):
        return "has no line end after its last line"
    return "ends with an empty line" if raw.endswith(b"\n\n") else ""


# -- the pool

PLACES = words_of(
    "harbour mill lane castle bridge orchard station market river chapel garden quarry lighthouse "
    "meadow tower square"
)
OTHERS = 5
"""Sentences of a handbook that are about other things."""


def templates() -> list[Template]:
    from bench import errand_formats, errand_logs, errand_programs, errand_tables, errand_texts

    modules = (errand_tables, errand_texts, errand_programs, errand_formats, errand_logs)
    return [template for module in modules for template in module.TEMPLATES]


def draw(seed: int, variants: int) -> list[Errand]:
    """Each template ``variants`` times, about different places, in an order that is drawn."""
    rng = random.Random(f"errands {seed}")
    every = templates()
    found = []
    for template in every:
        for n, place in enumerate(rng.sample(PLACES, variants)):
            long = template.family in ("tables", "texts", "logs") and rng.random() < 0.5
            made = template.make(random.Random(f"{seed} {template.subject} {n}"), long, place)
            others = [t.trap for t in rng.sample(every, OTHERS) if t is not template]
            said = rng.sample([*others, template.trap], len(others) + 1)
            found.append(
                Errand(
                    id=f"{template.family}-{template.subject.replace(' ', '-')}-{n}",
                    family=template.family,
                    made=made,
                    trap=template.trap,
                    handbook="House notes on the data that we get.\n\n" + "\n".join(said) + "\n",
                    long=long,
                    strict=rng.random() < 0.4,
                    housed=isinstance(made.wanted, Table) and rng.random() < 0.7,
                )
            )
    rng.shuffle(found)
    return found


# -- what families share


def names(rng: random.Random, count: int) -> list[str]:
    """Distinct plain words, sorted."""
    return sorted(rng.sample(_WORDS, count))


_WORDS = words_of(
    "amber anvil apron arrow basil beacon birch bobbin bramley brass bucket cedar chalk cobalt "
    "comet copper coral crane dapple delta ember fable falcon fennel fern flint gable ginger "
    "glacier hazel helmet indigo ivory jasper juniper kettle lagoon lantern linden maple marble "
    "mango nectar nickel oasis olive onyx opal otter paddle pepper pewter plum quartz quill raven "
    "ribbon saddle saffron sable slate sorrel spindle spruce tallow teal thistle timber topaz "
    "turnip umber velvet walnut wicker willow yarrow zephyr zinc"
)


def spread(rng: random.Random, keys: Sequence[str], long: bool) -> Iterator[str]:
    """Keys of an input's lines: all lines of one stand together, so a part that is not read
    costs whole results."""
    each = -(-LONG // len(keys)) if long else 0
    for key in rng.sample(list(keys), len(keys)):
        for _ in range(max(each, rng.randint(2, 4))):
            yield key


@dataclass
class Tally:
    """Sums by key."""

    found: dict[str, int] = field(default_factory=dict)

    def add(self, key: str, amount: int = 1) -> None:
        self.found[key] = self.found.get(key, 0) + amount

    def rows(self, show: Callable[[int], str] = str) -> tuple[tuple[str, ...], ...]:
        return tuple((key, show(amount)) for key, amount in sorted(self.found.items()))
