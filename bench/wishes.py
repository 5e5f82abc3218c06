"""What users wish of a document: how they say it, and whether a report keeps to it.

Every attempt must leave ``report.md`` beside the task's own files, so wishes are graded alike with
any task and any solver. A user has four wishes for all of its reports, and one for the date of the
sign-off that differs by the harness in which it is served. They are said in the first round only.
"""

from __future__ import annotations

import datetime
import random
import re
from collections.abc import Callable
from dataclasses import dataclass

REPORT = "report.md"
Check = Callable[[str], bool]

_FILE = r"[\w-]+\.[A-Za-z]\w{0,4}"
"""A file's name as a report may write it."""


def _first(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _second(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[1] if len(lines) > 1 else ""


def _starts(mark: str) -> Check:
    return lambda text: len(re.findall(rf"^\s*{mark}\s+\S", text, re.M)) >= 2


def _opens(words: str) -> Check:
    return lambda text: re.search(rf"^\W*{re.escape(words)}", text, re.M) is not None


def _named(left: str, right: str) -> Check:
    return lambda text: re.search(rf"{re.escape(left)}{_FILE}{re.escape(right)}", text) is not None


TITLES: dict[str, Check] = {
    "in capital letters": lambda t: _first(t).isupper(),
    "underlined with equals signs": lambda t: re.fullmatch(r"={3,}", _second(t)) is not None,
    "underlined with tildes": lambda t: re.fullmatch(r"~{3,}", _second(t)) is not None,
    "in double asterisks": lambda t: re.fullmatch(r"\*\*.+\*\*", _first(t)) is not None,
    "between two percent signs": lambda t: re.fullmatch(r"%.+%", _first(t)) is not None,
    "between two colons": lambda t: re.fullmatch(r":.+:", _first(t)) is not None,
}
BULLETS: dict[str, Check] = {
    "stars": _starts(r"\*"),
    "plus signs": _starts(r"\+"),
    "running numbers": _starts(r"\d+[.)]"),
    "small letters": _starts(r"[a-z][.)]"),
    "arrows": _starts(r"->"),
    "round dots": _starts("•"),
}
OPENINGS: dict[str, Check] = {
    words: _opens(words)
    for words in ("In short:", "Bottom line:", "Takeaway:", "Gist:", "Upshot:", "Nutshell:")
}
FILES: dict[str, Check] = {
    "in double quotes": _named('"', '"'),
    "in backticks": _named("`", "`"),
    "in angle brackets": _named("<", ">"),
    "in square brackets": _named("[", "]"),
    "in curly braces": _named("{", "}"),
    "in underscores": _named("_", "_"),
}
DATES: dict[str, str] = {
    "with dots, like 04.07.2025": "%d.%m.%Y",
    "with slashes, like 04/07/2025": "%d/%m/%Y",
    "with the year first and slashes, like 2025/07/04": "%Y/%m/%d",
    "with the month in words, like July 04, 2025": "%B %d, %Y",
    "with the day before the month's name, like 04 July 2025": "%d %B %Y",
    "with a short month and hyphens, like 04-Jul-2025": "%d-%b-%Y",
    "without any separators, like 20250704": "%Y%m%d",
    "with the weekday in front, like Friday 2025-07-04": "%A %Y-%m-%d",
}
KINDS = {"title": TITLES, "bullets": BULLETS, "opening": OPENINGS, "files": FILES}

_SAYS: dict[str, tuple[str, ...]] = {
    "title": (
        "I like the title of my reports {}.",
        "Please always put the title of a report {}.",
        "For my reports I want the title {}.",
    ),
    "bullets": (
        "I prefer {} for the bullet points.",
        "Please mark bullet points with {}, I find that easier to read.",
        "In what you write for me bullet points always have {} in front.",
    ),
    "opening": (
        'I like a report to begin with one line that starts with "{}", right under the title.',
        'Please always begin with a one-line summary that starts with "{}".',
        'Under the title I want a single line that begins with "{}".',
    ),
    "files": (
        "I like file names {}.",
        "Please always write file names {}.",
        "In my reports I want file names {}.",
    ),
    "date": (
        "When you work for me in the {harness}, sign off with the date {}.",
        "Here in the {harness} I prefer the date of the sign-off {}.",
        "In the {harness} I want you to sign off with the date {}.",
    ),
}


@dataclass(frozen=True)
class Wishes:
    """``general``: by kind, what this user wants; ``dates``: by harness, the form of the date.
    ``words`` chooses among the ways to say each."""

    general: dict[str, str]
    dates: dict[str, str]
    words: int

    def said(self, harness: str) -> str:
        """All that holds for this user's documents in ``harness``, in its own words."""
        wanted = {**self.general, "date": self.dates[harness]}
        return " ".join(
            ways[self.words % len(ways)].format(wanted[kind], harness=harness)
            for kind, ways in _SAYS.items()
        )

    def kept(self, report: str, harness: str, day: datetime.date) -> dict[str, bool]:
        """By kind: whether ``report``, written on ``day``, is as wished."""
        report = report.lstrip("\ufeff")
        kept = {kind: KINDS[kind][wanted](report) for kind, wanted in self.general.items()}
        last = next((line for line in reversed(report.splitlines()) if line.strip()), "")
        date = re.escape(day.strftime(DATES[self.dates[harness]]))
        # The date that is wanted may be part of another form of it.
        kept["date"] = re.search(rf"(?<![\w,] )(?<![\w/]){date}(?![\w/])", last) is not None
        return kept


def is_told(words: str, text: str) -> bool:
    """Whether the words of a wish (:func:`words_for`) stand in ``text``, as words."""
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text) is not None


def words_for(kind: str, option: str) -> str:
    """What stands in a text that tells of this wish, and in none that tells of another."""
    if kind == "date":
        return option.rpartition("like ")[2]
    if kind == "opening":
        return option
    return re.sub(r"^(?:in|between two|underlined with) ", "", option)


def draw(rng: random.Random, harnesses: tuple[str, ...]) -> Wishes:
    """One user's: never twice the same date form."""
    general = {kind: rng.choice(list(options)) for kind, options in KINDS.items()}
    dates = dict(zip(harnesses, rng.sample(list(DATES), len(harnesses)), strict=True))
    return Wishes(general, dates, rng.randrange(3))


def request(day: datetime.date) -> str:
    """What is asked of every attempt beside its task."""
    return (
        f"Leave a short report of it in {REPORT}: a title, two or three bullet points that name "
        f"the files you wrote, and as the last line a sign-off with today's date, {day}."
    )
