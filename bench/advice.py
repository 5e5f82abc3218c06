"""How the scripted solver reads words: which switches they turn for it, and what they ask of it.

It goes by the text that it is shown and by the task's prompt, and by nothing else. A lesson about
data is followed only where it speaks of what the task is about; one that names other agents or
their harnesses, and not one's own, is not; of two that contradict each other the first shown holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from bench import toolbox

QUIRKS: dict[str, str] = {
    "parts": r"\bin parts\b|from_line|(?:first|last) \d+ lines|lines? of a long file",
    "line end": r"(?:no|without an?|leaves? off the|drops? the|missing) (?:last |final )?line end",
    "unix": r"windows line ends|line_ends",
    "no mark": r"(?:starts? with|puts) a byte order mark",
}
"""Ways round a tool's quirk, by the words that speak for them."""
SEPARATORS = {"semicolon": ";", "tab": "\t", "vertical bar": "|"}

TITLES = {
    "capital letters": "{upper}",
    "equals signs": "{title}\n{rule:=}",
    "tildes": "{title}\n{rule:~}",
    "double asterisks": "**{title}**",
    "percent signs": "% {title} %",
    "colons": ": {title} :",
}
BULLETS = {
    "stars": "* ",
    "plus signs": "+ ",
    "running numbers": "{n}. ",
    "small letters": "{letter}) ",
    "arrows": "-> ",
    "round dots": "• ",
}
FILES = {
    "double quotes": '"{}"',
    "backticks": "`{}`",
    "angle brackets": "<{}>",
    "square brackets": "[{}]",
    "curly braces": "{{{}}}",
    "underscores": "_{}_",
}
DATES = (
    (r"\b\d\d\.\d\d\.\d{4}\b|with dots", "%d.%m.%Y"),
    (r"\b\d{4}/\d\d/\d\d\b|year first", "%Y/%m/%d"),
    (r"\b\d\d/\d\d/\d{4}\b|with slashes", "%d/%m/%Y"),
    (r"\b[A-Z][a-z]+ \d\d, \d{4}\b|month in words", "%B %d, %Y"),
    (r"\b\d\d-[A-Z][a-z]{2}-\d{4}\b|short month", "%d-%b-%Y"),
    (r"\b\d\d [A-Z][a-z]+ \d{4}\b|day before the month", "%d %B %Y"),
    (r"\b[A-Z][a-z]+day \d{4}-\d\d-\d\d\b|weekday", "%A %Y-%m-%d"),
    (r"\b\d{8}\b|without any separators", "%Y%m%d"),
)


FEWEST, LIKE = 6, 0.85
"""Words that a situation must have, and which share of them a task, to be taken for alike."""


@dataclass
class Style:
    """How a report is written; empty: as it comes."""

    title: str = ""
    bullets: str = ""
    opening: str = ""
    files: str = ""
    date: str = ""

    def read(self, text: str) -> None:
        """Take what ``text`` asks for, sentence by sentence, where nothing has been asked yet."""
        for sentence in re.split(r"(?<=[.!?;])\s+|\n", text):
            low = sentence.lower()
            if not self.title and re.search(r"\b(?:title|heading)\b", low):
                self.title = _chosen(TITLES, low)
            if not self.bullets and "bullet" in low:
                self.bullets = _chosen(BULLETS, low)
            if not self.files and re.search(r"\bfile ?names?\b", low):
                self.files = _chosen(FILES, low)
            if not self.opening and re.search(r"\b(?:begins?|starts?|open(?:s|ing)?)\b", low):
                quoted = re.search(r"[\"'“]([A-Z][a-z]+(?: [a-z]+)?:)[\"'”]", sentence)
                self.opening = quoted[1] if quoted else ""
            if not self.date and re.search(r"\bsign(?:ed|ing)?[ -]?off\b|\bdate\b", low):
                self.date = next((f for words, f in DATES if re.search(words, sentence)), "")


def _chosen(options: dict[str, str], text: str) -> str:
    return next((style for words, style in options.items() if words in text), "")


@dataclass(frozen=True)
class Entry:
    """An entry as it is shown; where its situation ends is for the reader to see."""

    scope: str
    text: str

    def situations(self) -> Iterator[str]:
        for colon in re.finditer(r":\s", self.text):
            yield self.text[: colon.start()]


def entries(memory: str) -> list[Entry]:
    """Of a shown memory: a header a scope, then ``- When <situation>: <lesson>`` each."""
    found: list[Entry] = []
    scope = ""
    for line in memory.splitlines():
        if header := re.match(r"#+ Learned memory: (\S+)", line):
            scope = header[1]
        elif item := re.match(r"- (?:When )?(.*)", line):
            found.append(Entry(scope, item[1]))
        elif line.strip() and found:
            last = found.pop()
            found.append(Entry(last.scope, f"{last.text}\n{line.strip()}"))
    return found


@dataclass
class Advice:
    """What has been taken from what was read. ``because`` are the words that data switches,
    quirks and the layout were taken from."""

    on: set[str] = field(default_factory=set)
    quirks: set[str] = field(default_factory=set)
    separator: str = ""
    header: str = "plain"
    because: list[str] = field(default_factory=list)

    def data(self, text: str) -> None:
        fresh = toolbox.switches(text) - self.on
        if fresh:
            self.on |= fresh
            self.because.append(text)

    def tool(self, text: str) -> None:
        fresh = {q for q, words in QUIRKS.items() if re.search(words, text, re.I)} - self.quirks
        if fresh:
            self.quirks |= fresh
            self.because.append(text)

    def layout(self, text: str) -> None:
        separated = re.search(r"separated by (?:a )?(semicolon|tab|vertical bar)", text, re.I)
        if separated and not self.separator:
            self.separator = SEPARATORS[separated[1].lower()]
            if re.search(r"\bcapitals?\b", text):
                self.header = "capitals"
            if re.search(r"\b(?:no|without a) header", text):
                self.header = "none"
            self.because.append(text)


def subject(prompt: str) -> str:
    """What a task is about, as its prompt has it."""
    found = re.search(r"\b(?:have|is|needs) the ([a-z ]+?)(?: in [\w-]+\.| of the |\. )", prompt)
    return found[1] if found else ""


def fits(text: str, about: str) -> bool:
    """Whether ``text`` speaks of what the task is about."""
    stems = _stems(text)
    return bool(about) and all(_stem(word) in stems for word in about.split())


def is_like(situation: str, prompt: str) -> bool:
    """Whether a situation is that of the task, in nearly all of its words. A lesson may have been
    generalised until it no longer names what it was about."""
    said = _stems(re.sub(r"<\w+>", " ", situation))
    return len(said) >= FEWEST and len(said & _stems(prompt)) >= LIKE * len(said)


def _stems(text: str) -> set[str]:
    return {_stem(word) for word in re.findall(r"[a-z]+", text.lower())}


def _stem(word: str) -> str:
    return word[:-1] if word.endswith("s") and len(word) > 3 else word


def take(
    memory: str, prompt: str, own: Iterable[str], others: Iterable[str]
) -> tuple[Advice, Style]:
    """What the memory shown and the prompt ask for. ``own`` are this agent's and its harness's
    names, ``others`` those of all others."""
    advice, style = Advice(), Style()
    style.read(prompt)
    about = subject(prompt)
    for entry in _for_me(entries(memory), set(own), set(others)):
        style.read(entry.text)
        if fits(entry.text, about) or any(is_like(s, prompt) for s in entry.situations()):
            advice.data(entry.text)
        if "usual table layout" in prompt:
            advice.layout(entry.text)
        advice.tool(entry.text)
    return advice, style


def _for_me(found: Iterable[Entry], own: set[str], others: set[str]) -> Iterator[Entry]:
    for entry in found:
        words = set(re.findall(r"\w+", entry.text.lower()))
        if not words & others or words & own:
            yield entry
