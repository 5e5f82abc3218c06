"""Data wrangling: tables to be summed, counted and thinned out."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from bench.errands import Made, Maker, Table, Tally, Template, names, spread


class Row(NamedTuple):
    """A row of the truth: a key, an amount in hundredths, and a date."""

    key: str
    cents: int
    date: tuple[int, int, int]


Show = Callable[[int], str]
Render = Callable[[random.Random, list[Row], str, str, Show], str]
"""Writes the rows as CSV, given the names of the two columns and how an amount is written."""


def plain(cents: int) -> str:
    return f"{'-' if cents < 0 else ''}{abs(cents) // 100}.{abs(cents) % 100:02}"


def _rows(rng: random.Random, long: bool, low: int = 120, high: int = 480_000) -> list[Row]:
    keys = names(rng, rng.randint(4, 6))
    return [
        Row(
            key,
            rng.randint(low, high),
            (rng.randint(2019, 2024), rng.randint(1, 12), rng.randint(1, 12)),
        )
        for key in spread(rng, keys, long)
    ]


def _csv(rng: random.Random, rows: list[Row], key: str, column: str, show: Show) -> str:
    return "".join([f"{key},{column}\n", *(f"{row.key},{show(row.cents)}\n" for row in rows)])


def _asked(place: str, subject: str, file: str) -> str:
    return f"For the {place} branch we have the {subject} in {file}. "


def total(
    subject: str,
    key: str,
    column: str,
    show: Show = plain,
    render: Render = _csv,
    *,
    negative: bool = False,
    encoding: str = "utf-8",
    spell: Callable[[str], str] = str,
) -> Maker:
    def make(rng: random.Random, long: bool, place: str) -> Made:
        rows = [row._replace(key=spell(row.key)) for row in _rows(rng, long)]
        if negative:
            rows = [r._replace(cents=-r.cents if rng.random() < 0.4 else r.cents) for r in rows]
        tally = Tally()
        for row in rows:
            tally.add(row.key, row.cents)
        file, out = f"{subject.split()[0]}.csv", "totals.csv"
        prompt = _asked(place, subject, file) + (
            f"Add up the column {column} for each {key} and write {key},total to {out}, "
            f"sorted by {key}, with two decimals."
        )
        text = render(rng, rows, key, column, show)
        return Made(prompt, {file: text}, out, Table((key, "total"), tally.rows(plain)), encoding)

    return make


def count(subject: str, key: str, column: str, render: Render) -> Maker:
    def make(rng: random.Random, long: bool, place: str) -> Made:
        rows = _rows(rng, long)
        tally = Tally()
        for row in rows:
            tally.add(row.key)
        file, out = f"{subject.split()[0]}.csv", "counts.csv"
        prompt = _asked(place, subject, file) + (
            f"Count the rows for each {key} and write {key},count to {out}, sorted by {key}."
        )
        text = render(rng, rows, key, column, plain)
        return Made(prompt, {file: text}, out, Table((key, "count"), tally.rows()))

    return make


def mean(subject: str, key: str, column: str, missing: str) -> Maker:
    def make(rng: random.Random, long: bool, place: str) -> Made:
        rows = [row._replace(cents=row.cents % 90 + 5) for row in _rows(rng, long)]
        values: dict[str, list[int]] = {}
        lines = [f"{key},{column}\n"]
        for n, row in enumerate(rows):
            values.setdefault(row.key, [])
            if values[row.key] and (n % 3 == 0 or n == len(rows) - 1):
                lines.append(f"{row.key},{missing}\n")
                continue
            values[row.key].append(row.cents)
            lines.append(f"{row.key},{row.cents}\n")
        lines.append(f"{rows[0].key},{missing}\n")
        means = tuple((k, f"{sum(v) / len(v):.1f}") for k, v in sorted(values.items()))
        file, out = f"{subject.split()[0]}.csv", "means.csv"
        prompt = _asked(place, subject, file) + (
            f"Work out the mean of the column {column} for each {key} and write {key},mean to "
            f"{out}, sorted by {key}, with one decimal."
        )
        return Made(prompt, {file: "".join(lines)}, out, Table((key, "mean"), means))

    return make


def latest(subject: str, key: str, show: Callable[[tuple[int, int, int]], str], low: int) -> Maker:
    def make(rng: random.Random, long: bool, place: str) -> Made:
        rows = _rows(rng, long)
        rows = [
            row._replace(date=(rng.randint(low, 2024), *row.date[1:])) if n % 2 else row
            for n, row in enumerate(rows)
        ]
        # The same key twice within a year, in months and days that read differently either way.
        first = rows[0]
        rows[0] = first._replace(date=(2024, 3, 11))
        rows.insert(1, first._replace(date=(2024, 10, 2)))
        best: dict[str, tuple[int, int, int]] = {}
        for row in rows:
            best[row.key] = max(best.get(row.key, row.date), row.date)
        dates = tuple((k, f"{d[0]}-{d[1]:02}-{d[2]:02}") for k, d in sorted(best.items()))
        file, out = f"{subject.split()[0]}.csv", "latest.csv"
        text = "".join([f"{key},date\n", *(f"{row.key},{show(row.date)}\n" for row in rows)])
        prompt = _asked(place, subject, file) + (
            f"Keep for each {key} the latest date and write {key},date to {out}, sorted by {key}, "
            "with dates as YYYY-MM-DD."
        )
        return Made(prompt, {file: text}, out, Table((key, "date"), dates))

    return make


# -- how amounts are written


def _grouped(mark: str) -> Show:
    return lambda cents: f"{cents // 100:,}".replace(",", mark) + f".{cents % 100:02}"


def _bracketed(cents: int) -> str:
    return f"({plain(-cents)})" if cents < 0 else plain(cents)


def _trailing(cents: int) -> str:
    return f"{plain(-cents)}-" if cents < 0 else plain(cents)


# -- how tables are written


def _with(
    extra: Callable[[random.Random, list[Row], Show], list[str]], *, first: str = ""
) -> Render:
    """Rows as they are, then what ``extra`` adds; ``first`` stands before the header."""

    def render(rng: random.Random, rows: list[Row], key: str, column: str, show: Show) -> str:
        return first + _csv(rng, rows, key, column, show) + "".join(extra(rng, rows, show))

    return render


def _nothing(rng: random.Random, rows: list[Row], show: Show) -> list[str]:
    return []


def _total_line(rng: random.Random, rows: list[Row], show: Show) -> list[str]:
    return [f"Total,{show(sum(row.cents for row in rows))}\n"]


def _numbered(rng: random.Random, rows: list[Row], key: str, column: str, show: Show) -> str:
    lines = [f"id,{key},{column}\n"]
    for n, row in enumerate(rows, 1000):
        line = f"{n},{row.key},{show(row.cents)}\n"
        lines += [line] * (2 if n % 4 == 1 else 1)
    return "".join(lines)


def _spelled(rng: random.Random, rows: list[Row], key: str, column: str, show: Show) -> str:
    spell = (str.upper, str.capitalize, str.lower, lambda k: f"{k} ")
    lines = (f"{spell[n % 4](row.key)},{show(row.cents)}\n" for n, row in enumerate(rows))
    return "".join([f"{key},{column}\n", *lines])


def _marked(rng: random.Random, rows: list[Row], key: str, column: str, show: Show) -> str:
    """Void rows between the good ones."""
    lines = [f"{key},{column},status\n"]
    for n, row in enumerate(rows):
        lines.append(f"{row.key},{show(row.cents)},{rng.choice(['A', 'B'])}\n")
        if n % 4 == 0:
            lines.append(f"{row.key},{show(rng.randint(100, 90_000))},V\n")
    return "".join(lines)


def _commented(rng: random.Random, rows: list[Row], key: str, column: str, show: Show) -> str:
    lines = [f"{key},{column}\n"]
    for n, row in enumerate(rows):
        if n % 5 == 2:
            lines.append(f"#{row.key},{show(rng.randint(100, 90_000))}\n")
        lines.append(f"{row.key},{show(row.cents)}\n")
    return "".join(lines)


def _umlauts(word: str) -> str:
    return word.replace("a", "ä", 1).replace("o", "ö", 1).replace("u", "ü", 1) + "é"


def _comma(cents: int) -> str:
    return '"' + plain(cents).replace(".", ",") + '"'


def _day_first(date: tuple[int, int, int]) -> str:
    return f"{date[2]:02}/{date[1]:02}/{date[0]}"


def _short_year(date: tuple[int, int, int]) -> str:
    return f"{date[0] % 100:02}-{date[1]:02}-{date[2]:02}"


_PREAMBLE = "Report of the branch\nprinted,automatically\n\n"

TEMPLATES = [
    Template(
        "tables",
        "till export",
        "The till export writes amounts with a decimal comma.",
        total("till export", "day", "amount", _comma),
    ),
    Template(
        "tables",
        "freight invoices",
        "In freight invoices an apostrophe separates the thousands of an amount.",
        total("freight invoices", "carrier", "price", _grouped("'")),
    ),
    Template(
        "tables",
        "petty cash book",
        "In the petty cash book an amount in parentheses is negative.",
        total("petty cash book", "purpose", "amount", _bracketed, negative=True),
    ),
    Template(
        "tables",
        "bank statement",
        "In the bank statement a trailing minus sign makes an amount negative.",
        total("bank statement", "purpose", "amount", _trailing, negative=True),
    ),
    Template(
        "tables",
        "ticket sales",
        "Amounts of ticket sales are in cents, divide them by 100.",
        total("ticket sales", "show", "amount", str),
    ),
    Template(
        "tables",
        "donation list",
        "The last line of the donation list is a grand total and must be left out.",
        total("donation list", "donor", "amount", plain, _with(_total_line)),
    ),
    Template(
        "tables",
        "payroll sheet",
        "The payroll sheet is encoded in Latin-1, not in UTF-8.",
        total("payroll sheet", "team", "hours", plain, encoding="latin-1", spell=_umlauts),
    ),
    Template(
        "tables",
        "stock count",
        "The stock count has a preamble of three lines before its header.",
        total("stock count", "shelf", "weight", plain, _with(_nothing, first=_PREAMBLE)),
    ),
    Template(
        "tables",
        "order feed",
        "The order feed sends some rows twice: count each id once.",
        count("order feed", "product", "price", _numbered),
    ),
    Template(
        "tables",
        "visitor sheet",
        "In the visitor sheet names differ in case and blanks only: ignore case and blanks.",
        count("visitor sheet", "club", "fee", _spelled),
    ),
    Template(
        "tables",
        "booking journal",
        "Rows of the booking journal with status V are void and must be left out.",
        count("booking journal", "room", "price", _marked),
    ),
    Template(
        "tables",
        "tariff table",
        "Lines of the tariff table that begin with a hash are comments, leave them out.",
        count("tariff table", "zone", "price", _commented),
    ),
    Template(
        "tables",
        "meter readings",
        "In meter readings the value 999 stands for a missing reading and must be skipped.",
        mean("meter readings", "meter", "reading", "999"),
    ),
    Template(
        "tables",
        "inspection dates",
        "Inspection dates are written with the day first.",
        latest("inspection dates", "device", _day_first, 2019),
    ),
    Template(
        "tables",
        "membership dates",
        "In membership dates a two-digit year above 50 belongs to the twentieth century.",
        latest("membership dates", "member", _short_year, 1961),
    ),
]
