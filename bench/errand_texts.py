"""Text wrangling: lines to be sorted, words to be replaced and counted, paragraphs to be joined."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence

from bench.errands import LONG, Made, Maker, Table, Template, Text, names

Lines = Callable[[random.Random, int], list[str]]
"""Draws about so many lines, in the right order."""
FEW = 14


def sort(subject: str, draw: Lines, repeat: bool = False) -> Maker:
    """``repeat``: some lines stand twice in the file and must come out once."""

    def make(rng: random.Random, long: bool, place: str) -> Made:
        lines = draw(rng, LONG if long else FEW)
        given = [*lines, *(rng.sample(lines, 4) if repeat else ())]
        rng.shuffle(given)
        file, out = f"{subject.split()[0]}.txt", "sorted.txt"
        prompt = (
            f"In {file} there is the {subject} of the {place} office. Sort its lines and write "
            f"them to {out}."
        )
        return Made(prompt, {file: _joined(given)}, out, Text(tuple(lines)))

    return make


def _joined(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _versions(rng: random.Random, count: int) -> list[str]:
    found = {(rng.randint(1, 12), rng.randint(0, 14), rng.randint(0, 20)) for _ in range(count)}
    found |= {(2, 9, 1), (2, 10, 0), (10, 0, 3)}
    return ["release-" + ".".join(map(str, v)) for v in sorted(found)]


def _cased(rng: random.Random, count: int) -> list[str]:
    words = _phrases(rng, count)
    words = [w.capitalize() if n % 2 else w for n, w in enumerate(words)]
    return sorted(words, key=str.lower)


def _articled(rng: random.Random, count: int) -> list[str]:
    words = [w.title() for w in _phrases(rng, count)]
    fronts = ("", "The ", "A ", "An ")
    titled = [(w, fronts[n % 4] + w) for n, w in enumerate(words)]
    return [title for _, title in sorted(titled)]


def _plain(rng: random.Random, count: int) -> list[str]:
    return sorted(_phrases(rng, count))


def _numbered(rng: random.Random, count: int) -> list[str]:
    ends = sorted(rng.sample(range(3, 400), count))
    return [f"{rng.choice(['chair', 'desk', 'lamp', 'shelf'])} no {n}" for n in ends]


def _surnamed(rng: random.Random, count: int) -> list[str]:
    lasts = _phrases(rng, count)
    return [
        f"{rng.choice(names(rng, 5))} {last.replace(' ', '')}"
        for last in sorted(lasts, key=lambda p: p.replace(" ", ""))
    ]


def _sized(rng: random.Random, count: int) -> list[str]:
    order = ("XS", "S", "M", "L", "XL")
    found = sorted((rng.randrange(5), phrase) for phrase in _phrases(rng, count))
    return [f"{order[size]} {phrase}" for size, phrase in found]


def _phrases(rng: random.Random, count: int) -> list[str]:
    """Distinct pairs of plain words."""
    words = names(rng, 40)
    found: set[str] = set()
    while len(found) < count:
        found.add(" ".join(rng.sample(words, 2)))
    return sorted(found)


# -- replacing


def replace(
    subject: str,
    text: Callable[[random.Random, str, int], list[str]],
    new: Callable[[list[str], str, str], list[str]],
) -> Maker:
    """``text`` draws lines that hold a word; ``new`` writes them with another."""

    def make(rng: random.Random, long: bool, place: str) -> Made:
        old, other = rng.sample(["port", "cart", "form", "pack", "mark", "plan"], 2)
        lines = text(rng, old, LONG if long else FEW)
        file, out = f"{subject.split()[0]}.txt", "replaced.txt"
        prompt = (
            f"In {file} there is the {subject} of the {place} office. Replace {old} by {other} in "
            f"it and write the result to {out}."
        )
        return Made(prompt, {file: _joined(lines)}, out, Text(tuple(new(lines, old, other))))

    return make


def _inside(rng: random.Random, old: str, count: int) -> list[str]:
    """The word alone, and inside others."""
    forms = (old, f"re{old}ed", f"{old}er", old)
    return [f"{p} {forms[n % 4]} {q}" for n, (p, q) in enumerate(_pairs(rng, count))]


def _fenced(rng: random.Random, old: str, count: int) -> list[str]:
    lines = [f"{p} {old} {q}" for p, q in _pairs(rng, count)]
    lines[4:4] = ["```", f"{old} = open()", "```"]
    return lines


def _mixed(rng: random.Random, old: str, count: int) -> list[str]:
    return [
        f"{(old, old.capitalize())[n % 2]} {p} {q}" for n, (p, q) in enumerate(_pairs(rng, count))
    ]


def _quoted(rng: random.Random, old: str, count: int) -> list[str]:
    return [
        f"{'> ' if n % 3 == 1 else ''}{p} {old} {q}" for n, (p, q) in enumerate(_pairs(rng, count))
    ]


def _pairs(rng: random.Random, count: int) -> list[tuple[str, str]]:
    words = names(rng, 30)
    return [(rng.choice(words), rng.choice(words)) for _ in range(count)]


def _whole(lines: list[str], old: str, new: str) -> list[str]:
    return [re.sub(rf"\b{old}\b", new, line) for line in lines]


def _outside_code(lines: list[str], old: str, new: str) -> list[str]:
    found, code = [], False
    for line in lines:
        code ^= line.startswith("```")
        found.append(line if code else line.replace(old, new))
    return found


def _keeping_case(lines: list[str], old: str, new: str) -> list[str]:
    return [one.replace(old, new).replace(old.capitalize(), new.capitalize()) for one in lines]


def _outside_quotes(lines: list[str], old: str, new: str) -> list[str]:
    return [line if line.startswith(">") else line.replace(old, new) for line in lines]


# -- joining


def join(subject: str, hyphens: bool) -> Maker:
    """Paragraphs of several lines; words may be broken at a line's end, or lists stand between."""

    def make(rng: random.Random, long: bool, place: str) -> Made:
        given, wanted = [], []
        for n in range(24 if long else 5):
            words = [rng.choice(names(rng, 20)) for _ in range(12)]
            if n:
                given.append("")
                wanted.append("")
            if hyphens:
                broken = f"{words[5][:2]}-"
                given += [" ".join([*words[:5], broken]), " ".join([words[5][2:], *words[6:]])]
                wanted.append(" ".join(words))
            elif n % 2:
                items = [f"- {word}" for word in words[:3]]
                given += items
                wanted += items
            else:
                given += [" ".join(words[:6]), " ".join(words[6:])]
                wanted.append(" ".join(words))
        file, out = f"{subject.split()[0]}.txt", "joined.txt"
        prompt = (
            f"In {file} there is the {subject} of the {place} office. Join the lines of each "
            f"paragraph into one, keep the empty lines between, and write the result to {out}."
        )
        return Made(prompt, {file: _joined(given)}, out, Text(tuple(wanted)))

    return make


# -- counting words


def words(
    subject: str, spell: Callable[[random.Random, str, int], str], head: bool = False
) -> Maker:
    """``head``: a block between two lines of three hyphens stands before the text."""

    def make(rng: random.Random, long: bool, place: str) -> Made:
        known = names(rng, 8)
        drawn = [rng.choice(known) for _ in range((LONG if long else FEW) * 4)]
        drawn = sorted(drawn) if long else drawn
        given = [spell(rng, word, n) for n, word in enumerate(drawn)]
        lines = [" ".join(given[n : n + 4]) for n in range(0, len(given), 4)]
        if head:
            lines[:0] = ["---", f"title {known[0]} {known[1]}", "status draft", "---"]
        counted = Counter(drawn if head else [_kept(word) for word in given])
        rows = tuple((word, str(n)) for word, n in sorted(counted.items()) if word)
        file, out = f"{subject.split()[0]}.txt", "words.csv"
        prompt = (
            f"In {file} there is the {subject} of the {place} office. Count how often each word "
            f"occurs in it and write word,count to {out}, sorted by word."
        )
        return Made(prompt, {file: _joined(lines)}, out, Table(("word", "count"), rows))

    return make


def _kept(word: str) -> str:
    """As it counts where case does not, and numbers are no words."""
    return "" if word.isdigit() else word.lower()


TEMPLATES = [
    Template(
        "texts",
        "release list",
        "Sort the release list by version number, 2.10 comes after 2.9.",
        sort("release list", _versions),
    ),
    Template(
        "texts",
        "keyword index",
        "Sort the keyword index without regard to case.",
        sort("keyword index", _cased),
    ),
    Template(
        "texts",
        "film catalogue",
        "In the film catalogue a leading article (The, A, An) is ignored in sorting.",
        sort("film catalogue", _articled),
    ),
    Template(
        "texts",
        "mailing list",
        "Each line of the mailing list must be kept once only: drop repeated lines.",
        sort("mailing list", _plain, repeat=True),
    ),
    Template(
        "texts",
        "furniture inventory",
        "Sort the furniture inventory by the number at the end of each line.",
        sort("furniture inventory", _numbered),
    ),
    Template(
        "texts",
        "author register",
        "Sort the author register by the last word of each line.",
        sort("author register", _surnamed),
    ),
    Template(
        "texts",
        "garment list",
        "Sort the garment list by size from XS to XL first.",
        sort("garment list", _sized),
    ),
    Template(
        "texts",
        "style guide",
        "In the style guide replace whole words only.",
        replace("style guide", _inside, _whole),
    ),
    Template(
        "texts",
        "install manual",
        "In the install manual leave the code blocks as they are.",
        replace("install manual", _fenced, _outside_code),
    ),
    Template(
        "texts",
        "press release",
        "In the press release a word may be capitalised: replace it too and keep the capital.",
        replace("press release", _mixed, _keeping_case),
    ),
    Template(
        "texts",
        "letter thread",
        "In the letter thread quoted lines (they begin with >) must not be touched.",
        replace("letter thread", _quoted, _outside_quotes),
    ),
    Template(
        "texts",
        "scanned essay",
        "In the scanned essay a hyphen at the end of a line is a broken word: rejoin it.",
        join("scanned essay", hyphens=True),
    ),
    Template(
        "texts",
        "meeting minutes",
        "In the meeting minutes list items (they begin with a hyphen) keep a line of their own.",
        join("meeting minutes", hyphens=False),
    ),
    Template(
        "texts",
        "survey answers",
        "In survey answers words are counted without regard to case.",
        words("survey answers", lambda rng, w, n: (w, w.capitalize(), w.upper())[n % 3]),
    ),
    Template(
        "texts",
        "wiki page",
        "The block between lines of three hyphens at the top of the wiki page is front matter, "
        "not text.",
        words("wiki page", lambda rng, w, n: w, head=True),
    ),
    Template(
        "texts",
        "radio transcript",
        "In the radio transcript numbers are not words, leave them out.",
        words("radio transcript", lambda rng, w, n: str(rng.randint(1, 60)) if n % 5 == 1 else w),
    ),
]
