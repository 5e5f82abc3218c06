"""Format conversions: from one notation to another, where a value can be taken in two ways."""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Callable

from bench.errands import Json, Made, Maker, Table, Template, names

Column = Callable[[random.Random], tuple[str, object]]
"""Draws one value: as it is written, and what it must become."""


def _asked(subject: str, file: str, place: str) -> str:
    return f"For the {place} shop we have the {subject} in {file}. "


def to_json(subject: str, column: str, draw: Column, *, mark: str = "") -> Maker:
    """CSV to a list of objects. ``mark`` stands before all."""

    def make(rng: random.Random, long: bool, place: str) -> Made:
        lines, wanted = [f"item,count,{column}\n"], []
        for item in names(rng, 7):
            written, value = draw(rng)
            count = rng.randint(2, 90)
            lines.append(f"{item},{count},{written}\n")
            wanted.append({"item": item, "count": count, column: value})
        file, out = f"{subject.split()[0]}.csv", f"{subject.split()[0]}.json"
        prompt = _asked(subject, file, place) + (
            f"Convert it to {out}: a JSON list with one object a row, numbers as JSON numbers."
        )
        return Made(prompt, {file: mark + "".join(lines)}, out, Json(wanted))

    return make


def _code(rng: random.Random) -> tuple[str, object]:
    code = f"{rng.randint(7, 980):05}"
    return code, code


def _gap(rng: random.Random) -> tuple[str, object]:
    if rng.random() < 0.5:
        return "", None
    word = rng.choice(names(rng, 5))
    return word, word


def _flag(rng: random.Random) -> tuple[str, object]:
    flag = rng.random() < 0.5
    return "yes" if flag else "no", flag


def _word(rng: random.Random) -> tuple[str, object]:
    word = rng.choice(names(rng, 9))
    return word, word


def _serial(rng: random.Random) -> tuple[str, object]:
    days = rng.randint(43_000, 46_000)
    return str(days), str(datetime.date(1899, 12, 30) + datetime.timedelta(days=days))


def _list(rng: random.Random) -> tuple[str, object]:
    words = names(rng, rng.randint(2, 4))
    return ";".join(words), words


def _percent(rng: random.Random) -> tuple[str, object]:
    share = rng.randint(1, 99)
    return f"{share}%", share / 100


def settings(
    subject: str, draw: Callable[[random.Random], tuple[list[str], dict[str, object]]]
) -> Maker:
    """Lines of the form ``key = value`` to one object."""

    def make(rng: random.Random, long: bool, place: str) -> Made:
        lines, wanted = draw(rng)
        file, out = f"{subject.split()[0]}.conf", f"{subject.split()[0]}.json"
        prompt = _asked(subject, file, place) + (
            f"It holds lines of the form key = value. Convert it to {out}: one JSON object, all "
            "values as strings."
        )
        return Made(prompt, {file: "".join(f"{line}\n" for line in lines)}, out, Json(wanted))

    return make


def _remarks(rng: random.Random) -> tuple[list[str], dict[str, object]]:
    keys = names(rng, 7)
    wanted: dict[str, object] = {key: rng.choice(names(rng, 6)) for key in keys}
    return [
        f"{k} = {v}  ; {rng.choice(keys)}" if n % 2 else f"{k} = {v}"
        for n, (k, v) in enumerate(wanted.items())
    ], wanted


def _repeats(rng: random.Random) -> tuple[list[str], dict[str, object]]:
    keys = names(rng, 6)
    wanted: dict[str, object] = {key: rng.choice(names(rng, 6)) for key in keys}
    lines = [f"{key} = {value}" for key, value in wanted.items()]
    return [*lines, f"{keys[0]} = later", f"{keys[3]} = later"], wanted


def _continued(rng: random.Random) -> tuple[list[str], dict[str, object]]:
    lines, wanted = [], dict[str, object]()
    for n, key in enumerate(names(rng, 6)):
        one, two = names(rng, 2)
        if n % 2:
            lines += [f"{key} = {one} \\", f"  {two}"]
            wanted[key] = f"{one} {two}"
        else:
            lines.append(f"{key} = {one}")
            wanted[key] = one
    return lines, wanted


def records(
    subject: str,
    header: tuple[str, ...],
    draw: Callable[[random.Random, str], tuple[dict[str, object], tuple[str, ...]]],
) -> Maker:
    """Objects, one a line, to CSV."""

    def make(rng: random.Random, long: bool, place: str) -> Made:
        drawn = [draw(rng, name) for name in names(rng, 8)]
        file, out = f"{subject.split()[0]}.jsonl", "records.csv"
        prompt = _asked(subject, file, place) + (
            f"It holds one JSON object a line. Convert it to {out} with the columns "
            f"{','.join(header)}, in the order of the lines."
        )
        text = "".join(json.dumps(value) + "\n" for value, _ in drawn)
        return Made(prompt, {file: text}, out, Table(header, tuple(row for _, row in drawn)))

    return make


def _nested(rng: random.Random, name: str) -> tuple[dict[str, object], tuple[str, ...]]:
    town = rng.choice(names(rng, 5))
    return {"name": name, "address": {"town": town}}, (name, town)


def _tagged(rng: random.Random, name: str) -> tuple[dict[str, object], tuple[str, ...]]:
    tags = names(rng, 3)
    return {"name": name, "tags": tags}, (name, " ".join(tags))


def _stamped(rng: random.Random, name: str) -> tuple[dict[str, object], tuple[str, ...]]:
    day = datetime.date(2021, 1, 1) + datetime.timedelta(days=rng.randint(0, 1400))
    seconds = (day - datetime.date(1970, 1, 1)).days * 86_400 + rng.randint(3600, 80_000)
    return {"name": name, "date": seconds * 1000}, (name, str(day))


def _renewed(rng: random.Random, name: str) -> tuple[dict[str, object], tuple[str, ...]]:
    """Seconds since 2000 instead of 1970."""
    day = datetime.date(2021, 1, 1) + datetime.timedelta(days=rng.randint(0, 1400))
    return {"name": name, "date": (day - datetime.date(2000, 1, 1)).days * 86_400 + 40_000}, (
        name,
        str(day),
    )


TEMPLATES = [
    Template(
        "formats",
        "parcel codes",
        "Parcel codes keep their leading zeros, so they must stay strings.",
        to_json("parcel codes", "code", _code),
    ),
    Template(
        "formats",
        "colour chart",
        "An empty cell of the colour chart becomes null, not an empty string.",
        to_json("colour chart", "colour", _gap),
    ),
    Template(
        "formats",
        "feature matrix",
        "In the feature matrix yes and no become true and false.",
        to_json("feature matrix", "enabled", _flag),
    ),
    Template(
        "formats",
        "supplier list",
        "The supplier list begins with a byte order mark that must not become part of a key.",
        to_json("supplier list", "brand", _word, mark="\ufeff"),
    ),
    Template(
        "formats",
        "delivery calendar",
        "Dates of the delivery calendar are spreadsheet serial numbers, counted from 1899-12-30: "
        "write them as YYYY-MM-DD.",
        to_json("delivery calendar", "due", _serial),
    ),
    Template(
        "formats",
        "recipe box",
        "Semicolons in a cell of the recipe box separate the values of a list.",
        to_json("recipe box", "spices", _list),
    ),
    Template(
        "formats",
        "discount table",
        "A percentage in the discount table becomes a fraction of one.",
        to_json("discount table", "rate", _percent),
    ),
    Template(
        "formats",
        "router settings",
        "In router settings a semicolon begins an inline remark that is cut off.",
        settings("router settings", _remarks),
    ),
    Template(
        "formats",
        "kiosk settings",
        "If a key of the kiosk settings is repeated, the first value holds.",
        settings("kiosk settings", _repeats),
    ),
    Template(
        "formats",
        "lamp settings",
        "A backslash at the end of a line of the lamp settings continues it on the next line.",
        settings("lamp settings", _continued),
    ),
    Template(
        "formats",
        "customer records",
        "In customer records the value of a column may lie one level deeper in a nested object.",
        records("customer records", ("name", "town"), _nested),
    ),
    Template(
        "formats",
        "article records",
        "Lists in article records are joined with a blank between.",
        records("article records", ("name", "tags"), _tagged),
    ),
    Template(
        "formats",
        "sensor records",
        "Dates of sensor records are milliseconds since 1970, write them as YYYY-MM-DD.",
        records("sensor records", ("name", "date"), _stamped),
    ),
    Template(
        "formats",
        "archive records",
        "Dates of archive records are seconds since the year 2000, write them as YYYY-MM-DD.",
        records("archive records", ("name", "date"), _renewed),
    ),
]
