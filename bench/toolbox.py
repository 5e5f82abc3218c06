"""What the scripted solver can do with files: plain operations, each with switches.

With no switch turned an operation does the plain thing. ``switches`` finds in a text which ones it
speaks for; ``operate`` does what a prompt asks for. Both go by words alone.
"""

from __future__ import annotations

import csv
import datetime
import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

SWITCHES: dict[str, tuple[str, str]] = {
    # how cells of tables are read
    "decimal comma": (
        r"decimal commas?|commas? (?:as|for) (?:the )?decimal",
        "amounts have a decimal comma, so the comma is not a thousands mark",
    ),
    "thousands apostrophe": (
        r"apostrophes?\b.*thousand|thousand.*apostrophe",
        "the apostrophe in an amount only separates thousands",
    ),
    "negative brackets": (
        r"(?:parenthes|bracket)\w*\b.*negative|negative.*parenthes",
        "amounts in parentheses are negative ones",
    ),
    "negative trailing": (
        r"trailing minus|minus\b.*(?:after|end)",
        "a trailing minus makes an amount negative",
    ),
    "cents": (r"in cents|by 100\b", "amounts are given in cents and have to be divided by 100"),
    "day first": (r"day (?:comes )?first|day-first", "dates are day first, not month first"),
    "short years": (r"two-digit year", "a two-digit year above 50 is one of the last century"),
    "missing 999": (r"\b999\b", "a value of 999 is a missing one and is skipped"),
    # which lines of tables count
    "no total line": (
        r"grand total|total line",
        "the grand total in the last line must not be counted",
    ),
    "preamble": (r"preamble", "there is a preamble before the header that must be skipped"),
    "once an id": (
        r"(?:each|every|an?|per|same) id\b|\bid\b.*\bonce",
        "some rows come twice, so I count every id once",
    ),
    "same spelled": (r"case and blanks", "spellings differ, so I ignore case and blanks"),
    "no void": (r"status V\b|\bvoid\b", "void rows are left out"),
    "no comments": (r"hash\b|comment", "lines that start with a hash are only comments"),
    "latin-1": (r"latin-?1", "the file must be read as latin-1"),
    # lines of texts
    "by version": (r"by version|version number", "the order is by version number, not by letters"),
    "no case": (
        r"(?:without regard to|ignor\w+|regardless of) case|case[- ]insensitive",
        "it has to be done regardless of case",
    ),
    "no article": (r"leading article", "a leading article is ignored when sorting"),
    "no repeats": (
        r"repeated lines|kept once|duplicate lines",
        "repeated lines have to be dropped",
    ),
    "by number": (r"by the (?:last )?number", "the lines go by the number at their end"),
    "by last word": (r"by the last word", "the lines go by the last word"),
    "by size": (r"XS\b.*XL", "the sizes go from XS up to XL"),
    "whole words": (r"whole words?", "only whole words are replaced"),
    "no code": (r"code blocks?", "code blocks are left as they are"),
    "keep capital": (
        r"keep\w* the capital|capitalised",
        "the capitalised word is replaced as well",
    ),
    "no quotes": (r"quoted lines?", "quoted lines are left as they are"),
    "rejoin": (
        r"hyphen at the end|rejoin",
        "a word broken by a hyphen at the end of a line has to be joined again",
    ),
    "keep lists": (r"list items?", "list items stay on their own lines"),
    "no front matter": (r"front matter", "the front matter is not part of the text"),
    "no numbers": (
        r"numbers are not words|numbers\b.*leave them out",
        "numbers are not words and must not be counted",
    ),
    # programs
    "half up": (r"half up", "the mean has to be rounded half up"),
    "lower middle": (
        r"lower of the two",
        "the median is the lower of the two values in the middle",
    ),
    "none": (r"prints? none", "with no input it prints none"),
    "towards zero": (r"towards? zero", "the division has to go towards zero"),
    "both ends": (
        r"both the first and the last|inclusive",
        "the days are counted inclusive of both ends",
    ),
    "from one": (r"counted from one|from 1\b", "positions are counted from one"),
    "restart": (r"starts? again at zero|restart", "the sum has to restart after an empty line"),
    "round down": (r"rounded down", "percentages have to be rounded down"),
    "hexadecimal": (r"hexadecimal|0x", "inputs can be hexadecimal as well"),
    "no wrap": (r"24 hours in full|not wrap", "the sum of hours must not wrap at a day"),
    "dense ranks": (r"share a rank", "equal scores share a rank without a gap after it"),
    # formats
    "codes": (r"leading zeros?", "codes with leading zeros stay strings"),
    "null": (r"\bnull\b", "an empty cell becomes null"),
    "booleans": (r"true and false", "yes and no turn into true and false"),
    "no mark": (
        r"part of a key",
        "the mark at the beginning of the file must not become part of a key",
    ),
    "serial dates": (r"serial numbers?", "dates are serial numbers counted from 1899-12-30"),
    "lists": (r"values of a list", "semicolons separate the values of a list"),
    "fractions": (r"fraction of one", "a percentage becomes a fraction of one"),
    "remarks": (r"inline remark", "what follows a semicolon is an inline remark"),
    "first holds": (r"first value holds", "when a key comes again the first value holds"),
    "continued": (r"backslash", "a backslash continues a line on the next one"),
    "nested": (r"nested object|level deeper", "the column can lie in a nested object"),
    "joined by blanks": (r"joined with a blank", "a list is joined with a blank"),
    "milliseconds": (r"milliseconds", "times are milliseconds, not seconds"),
    "since 2000": (r"year 2000", "seconds are counted from the year 2000"),
    # logs
    "utc": (r"\bUTC\b", "times have to be converted to UTC first"),
    "twelve": (r"twelve-hour|AM and PM", "the clock has AM and PM"),
    "repeats count": (
        r"message repeated",
        "a line that says last message repeated counts as often as it says",
    ),
    "short levels": (r"\bE or ERR\b", "the level is also written E or ERR"),
    "no selftest": (r"selftest", "selftest lines do not count"),
    "level column": (r"level column", "only the level column tells an error"),
    "slow clock": (r"add one hour|hour slow", "the clock is slow, so I add one hour"),
    "midnight": (r"midnight", "a job can run past midnight"),
    "no unfinished": (r"unfinished", "unfinished jobs are left out"),
    "last start": (r"last start", "a job counts from its last start"),
    "no pauses": (r"pause and resume", "the time between pause and resume is not counted"),
}
"""By switch: the words that speak for it (a regular expression, any case), and how someone says it
in his own words who has found it out."""

Switches = frozenset[str]


def switches(text: str) -> Switches:
    """Those that ``text`` speaks for."""
    return frozenset(s for s, (words, _) in SWITCHES.items() if re.search(words, text, re.I | re.S))


@dataclass(frozen=True)
class Output:
    """A file to be written: a table, or a text as it is."""

    name: str
    text: str = ""
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


Read = Callable[[str], str]
"""The text of a file of the workspace."""


def operate(prompt: str, read: Read, on: Switches) -> Output | None:
    """What the prompt asks for; ``None`` where no operation is recognised in it."""
    for pattern, operation in _OPERATIONS:
        if asked := re.search(pattern, prompt, re.S):
            return operation(prompt, asked, read, on)
    return None


def _input(prompt: str) -> str:
    """The first file that the prompt names."""
    named = re.search(r"\b[Ii]n ([\w-]+\.\w+)", prompt)
    return named[1] if named else ""


# -- tables


def _cells(text: str, on: Switches) -> list[dict[str, str]]:
    lines = text.splitlines()
    if "preamble" in on:
        # The header is the first line after the last empty one near the top.
        at = max((n for n, line in enumerate(lines[:8]) if not line.strip()), default=-1)
        lines = lines[at + 1 :]
    if "no comments" in on:
        lines = [line for line in lines if not line.startswith("#")]
    rows = list(csv.DictReader(io.StringIO("\n".join(lines)), restval=""))
    found = [{k: v for k, v in row.items() if isinstance(k, str)} for row in rows]
    if "no total line" in on and found and "total" in str(next(iter(found[-1].values()))).lower():
        del found[-1]
    if "once an id" in on:
        found = list({row.get("id", str(n)): row for n, row in enumerate(found)}.values())
    if "no void" in on:
        found = [row for row in found if row.get("status") != "V"]
    return found


def _cents(cell: str, on: Switches) -> int:
    """An amount in hundredths; what cannot be read as one is nothing."""
    text, negative = cell.strip(), False
    if "negative brackets" in on and re.fullmatch(r"\(.*\)", text):
        text, negative = text[1:-1], True
    if "negative trailing" in on and text.endswith("-"):
        text, negative = text[:-1], True
    if "thousands apostrophe" in on:
        text = text.replace("'", "")
    if "decimal comma" in on:
        text = text.replace(".", "").replace(",", ".")
    found = re.search(r"-?\d+(?:\.\d+)?", text.replace(",", ""))
    amount = round(float(found[0]) * 100) if found else 0
    if "cents" in on:
        amount = round(amount / 100)
    return -amount if negative else amount


def _money(cents: int) -> str:
    return f"{'-' if cents < 0 else ''}{abs(cents) // 100}.{abs(cents) % 100:02}"


def _key(row: dict[str, str], key: str, on: Switches) -> str:
    value = row.get(key, "")
    return value.strip().lower() if "same spelled" in on else value


def _total(prompt: str, asked: re.Match[str], read: Read, on: Switches) -> Output:
    column, key, _, out = asked.groups()
    sums: Counter[str] = Counter()
    for row in _cells(read(_input(prompt)), on):
        sums[_key(row, key, on)] += _cents(row.get(column, ""), on)
    rows = tuple((k, _money(v)) for k, v in sorted(sums.items()))
    return Output(out, header=(key, "total"), rows=rows)


def _count(prompt: str, asked: re.Match[str], read: Read, on: Switches) -> Output:
    key, out = asked.groups()
    found = Counter(_key(row, key, on) for row in _cells(read(_input(prompt)), on))
    rows = tuple((k, str(n)) for k, n in sorted(found.items()))
    return Output(out, header=(key, "count"), rows=rows)


def _mean(prompt: str, asked: re.Match[str], read: Read, on: Switches) -> Output:
    column, key, out = asked.groups()
    values: dict[str, list[float]] = {}
    for row in _cells(read(_input(prompt)), on):
        cell = row.get(column, "")
        if cell and not ("missing 999" in on and cell == "999"):
            values.setdefault(row.get(key, ""), []).append(float(cell))
    rows = tuple((k, f"{sum(v) / len(v):.1f}") for k, v in sorted(values.items()))
    return Output(out, header=(key, "mean"), rows=rows)


def _latest(prompt: str, asked: re.Match[str], read: Read, on: Switches) -> Output:
    key, out = asked.groups()
    best: dict[str, tuple[int, int, int]] = {}
    for row in _cells(read(_input(prompt)), on):
        name, date = row.get(key, ""), _date(row.get("date", ""), on)
        best[name] = max(best.get(name, date), date)
    rows = tuple((k, f"{d[0]:04}-{d[1]:02}-{d[2]:02}") for k, d in sorted(best.items()))
    return Output(out, header=(key, "date"), rows=rows)


def _date(cell: str, on: Switches) -> tuple[int, int, int]:
    parts = [int(n) for n in re.findall(r"\d+", cell)]
    if len(parts) != 3:
        return (0, 0, 0)
    if "/" in cell:
        one, two, year = parts
        return (year, two, one) if "day first" in on else (year, one, two)
    year, month, day = parts
    if year < 100:
        year += 1900 if "short years" in on and year > 50 else 2000
    return year, month, day


# -- texts


_SIZES = {"XS": 0, "S": 1, "M": 2, "L": 3, "XL": 4}
_KEYS: dict[str, Callable[[str], object]] = {
    "by version": lambda line: [int(n) for n in re.findall(r"\d+", line)],
    "no case": str.lower,
    "no article": lambda line: re.sub(r"^(?:The|A|An) ", "", line),
    "by number": lambda line: int((re.findall(r"\d+", line) or ["0"])[-1]),
    "by last word": lambda line: line.split()[-1],
    "by size": lambda line: (_SIZES.get(line.split()[0], 9), line.split()[1:]),
}
"""By switch, the first that is on: what lines are sorted by."""


def _sort(prompt: str, asked: re.Match[str], read: Read, on: Switches) -> Output:
    lines = [line for line in read(_input(prompt)).splitlines() if line]
    if "no repeats" in on:
        lines = list(dict.fromkeys(lines))
    key = next((way for switch, way in _KEYS.items() if switch in on), str)
    return Output(asked[1], _lines(sorted(lines, key=key)))  # type: ignore[arg-type] # one type each


def _lines(lines: Iterable[object]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _replace(prompt: str, asked: re.Match[str], read: Read, on: Switches) -> Output:
    old, new, out = asked.groups()
    found, code = [], False
    for line in read(_input(prompt)).splitlines():
        code ^= line.startswith("```")
        if ("no code" in on and code) or ("no quotes" in on and line.startswith(">")):
            found.append(line)
            continue
        line = re.sub(rf"\b{old}\b", new, line) if "whole words" in on else line.replace(old, new)
        if "keep capital" in on:
            line = line.replace(old.capitalize(), new.capitalize())
        found.append(line)
    return Output(out, _lines(found))


def _join(prompt: str, asked: re.Match[str], read: Read, on: Switches) -> Output:
    found: list[str] = []
    for paragraph in read(_input(prompt)).strip("\n").split("\n\n"):
        lines: list[str] = []
        for line in paragraph.splitlines():
            if "keep lists" in on and line.startswith("- "):
                lines.append(line)
            elif not lines:
                lines = [line]
            elif "rejoin" in on and lines[-1].endswith("-"):
                lines[-1] = lines[-1][:-1] + line
            else:
                lines[-1] += f" {line}"
        found += ["", *lines] if found else lines
    return Output(asked[1], _lines(found))


def _words(prompt: str, asked: re.Match[str], read: Read, on: Switches) -> Output:
    text = read(_input(prompt))
    if "no front matter" in on:
        text = re.sub(r"\A---\n.*?^---\n", "", text, flags=re.S | re.M)
    words = text.split()
    if "no case" in on:
        words = [word.lower() for word in words]
    if "no numbers" in on:
        words = [word for word in words if not word.isdigit()]
    rows = tuple((word, str(n)) for word, n in sorted(Counter(words).items()))
    return Output(asked[1], header=("word", "count"), rows=rows)


# -- programs


def _program(prompt: str, asked: re.Match[str], read: Read, on: Switches) -> Output | None:
    task = prompt[asked.start() :]
    for words, write in _PROGRAMS:
        if words in task:
            return Output("program.py", write(on))
    return None


def _on(on: Switches, switch: str, yes: str, no: str) -> str:
    return yes if switch in on else no


_PROGRAMS: list[tuple[str, Callable[[Switches], str]]] = [
    ("their mean", lambda on: _numbers(on) + "mean = sum(values) / len(values)\n" + _on(
        on, "half up", "import math\nprint(math.floor(mean + 0.5))\n", "print(int(mean))\n")),
    ("their median", lambda on: _numbers(on) + "values.sort()\nhalf = len(values) // 2\n" + _on(
        on, "lower middle", "print(values[half if len(values) % 2 else half - 1])\n",
        "import statistics\nprint(statistics.median(values))\n")),
    ("position of the largest", lambda on: _numbers(on) + "print(values.index(max(values))"
        + _on(on, "from one", " + 1", "") + ")\n"),
    ("the quotient", lambda on: "import sys\nfor line in sys.stdin:\n"
        "    a, b = map(int, line.split())\n    print(" + _on(
        on, "towards zero", "int(a / b)", "a // b") + ")\n"),
    ("number of days", lambda on: "import datetime, sys\n"
        "one, two = map(datetime.date.fromisoformat, sys.stdin.read().split())\n"
        "print((two - one).days" + _on(on, "both ends", " + 1", "") + ")\n"),
    ("prints them sorted", lambda on: "import sys\nlines = sys.stdin.read().splitlines()\n"
        "print(*sorted(lines" + _on(on, "no case", ", key=str.lower", "") + '), sep="\\n")\n'),
    ("the sum so far", lambda on: "import sys\ntotal = 0\nfor line in sys.stdin:\n"
        "    if not line.strip():\n        " + _on(on, "restart", "total = 0\n        ", "")
        + "continue\n    total += int(line)\n    print(total)\n"),
    ("which percentage", lambda on: "import sys\nfor line in sys.stdin:\n"
        "    a, b = map(int, line.split())\n    print(" + _on(
        on, "round down", "100 * a // b", "round(100 * a / b)") + ")\n"),
    ("their sum in the same form", lambda on: "import sys\nminutes = 0\n"
        'for line in sys.stdin:\n    h, m = map(int, line.split(":"))\n    minutes += 60 * h + m\n'
        'print(f"{minutes // 60' + _on(on, "no wrap", "", " % 24") + '}:{minutes % 60:02}")\n'),
    ("their sum", lambda on: "import sys\nvalues = sys.stdin.read().split()\nprint(sum(" + _on(
        on, "hexadecimal", "int(v, 0)", 'int(v.split("x")[0])') + " for v in values))\n"),
    ("its rank", lambda on: _numbers(on) + "order = sorted(" + _on(
        on, "dense ranks", "set(values)", "values")
        + ", reverse=True)\nfor v in values:\n    print(order.index(v) + 1)\n"),
    ("the largest", lambda on: _numbers(on) + _on(
        on, "none", 'print(max(values) if values else "none")\n', "print(max(values))\n")),
]  # fmt: skip
"""By words of the task: the source."""


def _numbers(on: Switches) -> str:
    return "import sys\nvalues = [int(v) for v in sys.stdin.read().split()]\n"


# -- formats


def _to_json(prompt: str, asked: re.Match[str], read: Read, on: Switches) -> Output:
    text = read(_input(prompt))
    if "no mark" in on:
        text = text.lstrip("\ufeff")
    rows = csv.DictReader(io.StringIO(text))
    found = [{key: _value(cell or "", on) for key, cell in row.items()} for row in rows]
    return Output(asked[1], json.dumps(found, indent=1) + "\n")


def _value(cell: str, on: Switches) -> object:
    if not cell and "null" in on:
        return None
    if "booleans" in on and cell in ("yes", "no"):
        return cell == "yes"
    if "codes" in on and re.fullmatch(r"0\d+", cell):
        return cell
    if "lists" in on and ";" in cell:
        return cell.split(";")
    if "fractions" in on and re.fullmatch(r"\d+%", cell):
        return int(cell[:-1]) / 100
    if re.fullmatch(r"-?\d+", cell):
        number = int(cell)
        if "serial dates" in on and number > 20_000:
            return str(datetime.date(1899, 12, 30) + datetime.timedelta(days=number))
        return number
    return cell


def _settings(prompt: str, asked: re.Match[str], read: Read, on: Switches) -> Output:
    text = read(_input(prompt))
    if "continued" in on:
        text = re.sub(r"[ \t]*\\\n[ \t]*", " ", text)
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if not equals:
            continue
        if "remarks" in on:
            value = value.partition(";")[0]
        if not ("first holds" in on and key.strip() in found):
            found[key.strip()] = value.strip()
    return Output(asked[1], json.dumps(found, indent=1) + "\n")


def _records(prompt: str, asked: re.Match[str], read: Read, on: Switches) -> Output:
    out, columns = asked[1], asked[2].split(",")
    records = [json.loads(line) for line in read(_input(prompt)).splitlines() if line.strip()]
    rows = tuple(tuple(_field(record, c, on) for c in columns) for record in records)
    return Output(out, header=tuple(columns), rows=rows)


def _field(record: dict[str, object], column: str, on: Switches) -> str:
    value = record.get(column)
    if value is None and "nested" in on:
        inside = [v for v in record.values() if isinstance(v, dict)]
        value = next((v[column] for v in inside if column in v), None)
    if isinstance(value, list):
        return " ".join(value) if "joined by blanks" in on else json.dumps(value)
    if column == "date" and isinstance(value, int):
        seconds = value // 1000 if "milliseconds" in on else value
        since = datetime.date(2000 if "since 2000" in on else 1970, 1, 1)
        days = seconds // 86_400
        return str(since + datetime.timedelta(days=days)) if days < 100_000 else str(value)
    return "" if value is None else str(value)


# -- logs


def _hours(prompt: str, asked: re.Match[str], read: Read, on: Switches) -> Output:
    found: Counter[str] = Counter()
    lines = read(_input(prompt)).splitlines()
    if "once an id" in on:
        lines = list(dict.fromkeys(line for line in lines))
    last = ""
    for line in lines:
        again = re.search(r"last message repeated (\d+) times", line)
        if again and "repeats count" in on and last:
            found[last] += int(again[1])
        if not _is_error(line, on):
            continue
        last = _hour(line, on)
        found[last] += 1
    rows = tuple((hour, str(n)) for hour, n in sorted(found.items()))
    return Output(asked[1], header=("hour", "count"), rows=rows)


def _is_error(line: str, on: Switches) -> bool:
    if "no selftest" in on and "selftest" in line:
        return False
    if "level column" in on:
        level = re.match(r"[\d: +-]+(?:[AP]M )?([A-Z]+)\b", line)
        return level is not None and level[1] == "ERROR"
    return re.search(r"\b(?:ERROR|ERR|E)\b" if "short levels" in on else "ERROR", line) is not None


def _hour(line: str, on: Switches) -> str:
    found = re.search(r"(\d\d):\d\d:\d\d(?: ([+-]\d\d):\d\d)?(?: ([AP]M))?", line)
    if not found:
        return ""
    hour = int(found[1])
    if "utc" in on and found[2]:
        hour -= int(found[2])
    if "twelve" in on and found[3]:
        hour = hour % 12 + (12 if found[3] == "PM" else 0)
    if "slow clock" in on:
        hour += 1
    return f"{hour % 24:02}"


def _durations(prompt: str, asked: re.Match[str], read: Read, on: Switches) -> Output:
    started: dict[str, int] = {}
    paused: dict[str, int] = {}
    took: dict[str, int] = {}
    for line in read(_input(prompt)).splitlines():
        clock, word, job = line.split(" ", 2)
        at = _seconds(clock, on)
        if word == "start":
            if "last start" in on:
                started[job] = at
            started.setdefault(job, at)
            took.setdefault(job, 0)
        elif word == "pause":
            paused[job] = at
        elif word == "resume" and "no pauses" in on:
            started[job] = started.get(job, at) + at - paused.get(job, at)
        elif word == "stop":
            span = at - started.get(job, at)
            took[job] = span + 86_400 if span < 0 and "midnight" in on else span
            paused.pop(job, None)
            started[job] = -1
    if "no unfinished" in on:
        took = {job: span for job, span in took.items() if started.get(job) == -1}
    rows = tuple((job, str(span)) for job, span in sorted(took.items()))
    return Output(asked[1], header=("job", "seconds"), rows=rows)


def _seconds(clock: str, on: Switches) -> int:
    if ":" in clock:
        hours, minutes, seconds = map(int, clock.split(":"))
        return hours * 3600 + minutes * 60 + seconds
    return int(clock) // 1000 if "milliseconds" in on else int(clock)


_OPERATIONS: list[tuple[str, Callable[[str, re.Match[str], Read, Switches], Output | None]]] = [
    (r"Add up the column (\S+) for each (\S+) and write (\S+) to ([\w.-]+),", _total),
    (r"Count the rows for each (\S+) and write \S+ to ([\w.-]+),", _count),
    (r"mean of the column (\S+) for each (\S+) and write \S+ to ([\w.-]+),", _mean),
    (r"Keep for each (\S+) the latest date and write \S+ to ([\w.-]+),", _latest),
    (r"Sort its lines and write them to ([\w-]+\.\w+)", _sort),
    (r"Replace (\S+) by (\S+) in it and write the result to ([\w-]+\.\w+)", _replace),
    (r"Join the lines of each paragraph .* write the result to ([\w-]+\.\w+)", _join),
    (r"how often each word occurs in it and write \S+ to ([\w.-]+),", _words),
    (r"Write program\.py that ", _program),
    (r"Convert it to ([\w.-]+): a JSON list", _to_json),
    (r"Convert it to ([\w.-]+): one JSON object", _settings),
    (r"Convert it to ([\w.-]+) with the columns ([\w,]+),", _records),
    (r"Count the ERROR lines for each hour and write \S+ to ([\w.-]+),", _hours),
    (r"how many seconds each job took .* write \S+ to ([\w.-]+),", _durations),
]
"""By words of a prompt: the operation."""
