"""Small programs: what is read and printed, where a detail can be had two ways."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable

from bench.errands import Made, Maker, Program, Template, names

Case = Callable[[random.Random], tuple[list[str], object]]
"""Draws the lines of an input, and what must be printed (a list: a line each)."""
CASES = 4


def program(subject: str, task: str, draw: Case, *, special: Case | None = None) -> Maker:
    """``special`` is a case in which the detail surely matters."""

    def make(rng: random.Random, long: bool, place: str) -> Made:
        drawn = [(special or draw)(rng), *(draw(rng) for _ in range(CASES - 1))]
        cases = [
            (
                "".join(f"{line}\n" for line in lines),
                "\n".join(map(str, out)) if isinstance(out, list) else str(out),
            )
            for lines, out in drawn
        ]
        prompt = f"The {place} team needs the {subject}. Write program.py that {task}."
        return Made(prompt, {}, "program.py", Program(tuple(cases)))

    return make


def _numbers(rng: random.Random, count: int) -> list[int]:
    return [rng.randint(-60, 99) for _ in range(count)]


def _mean(rng: random.Random) -> tuple[list[str], object]:
    whole, count = rng.randint(1, 30) * 2, rng.choice((2, 4, 6))
    values = [whole] * count
    values[0] += count // 2  # the mean ends in a half
    return list(map(str, values)), whole + 1


def _median(rng: random.Random) -> tuple[list[str], object]:
    values = rng.sample(range(100), rng.choice((4, 6, 8)))
    return list(map(str, values)), sorted(values)[len(values) // 2 - 1]


def _largest(rng: random.Random) -> tuple[list[str], object]:
    values = _numbers(rng, 5)
    return list(map(str, values)), max(values)


def _quotients(rng: random.Random) -> tuple[list[str], object]:
    pairs = [(rng.randint(-50, -1), rng.choice((3, 4, 7))) for _ in range(3)] + [(-7, 2)]
    return [f"{a} {b}" for a, b in pairs], [-(-a // b) for a, b in pairs]


def _days(rng: random.Random) -> tuple[list[str], object]:
    first = datetime.date(2023, 1, 1) + datetime.timedelta(days=rng.randint(0, 600))
    span = rng.randint(1, 90)
    return [str(first), str(first + datetime.timedelta(days=span))], span + 1


def _position(rng: random.Random) -> tuple[list[str], object]:
    values = rng.sample(range(100), 6)
    return list(map(str, values)), values.index(max(values)) + 1


def _sorted(rng: random.Random) -> tuple[list[str], object]:
    words = [w.capitalize() if n % 2 else w for n, w in enumerate(names(rng, 6))]
    rng.shuffle(words)
    return words, sorted(words, key=str.lower)


def _running(rng: random.Random) -> tuple[list[str], object]:
    one, two = _numbers(rng, 3), _numbers(rng, 3)
    sums = [sum(block[: n + 1]) for block in (one, two) for n in range(3)]
    return [*map(str, one), "", *map(str, two)], sums


def _percent(rng: random.Random) -> tuple[list[str], object]:
    pairs = [(rng.randint(1, 6), 7), (rng.randint(1, 10), 11), (2, 3)]
    return [f"{a} {b}" for a, b in pairs], [100 * a // b for a, b in pairs]


def _prefixed(rng: random.Random) -> tuple[list[str], object]:
    values = [rng.randint(10, 250) for _ in range(4)]
    return [hex(v) if n % 2 == 0 else str(v) for n, v in enumerate(values)], sum(values)


def _clock(rng: random.Random) -> tuple[list[str], object]:
    spans = [(rng.randint(9, 23), rng.randint(1, 59)) for _ in range(3)]
    minutes = sum(60 * h + m for h, m in spans)
    return [f"{h}:{m:02}" for h, m in spans], f"{minutes // 60}:{minutes % 60:02}"


def _ranks(rng: random.Random) -> tuple[list[str], object]:
    values = rng.sample(range(50), 4)
    values.insert(1, max(values))
    order = sorted(set(values), reverse=True)
    return list(map(str, values)), [order.index(v) + 1 for v in values]


def _nothing(out: object) -> Case:
    return lambda rng: ([], out)


_ONE = "reads numbers from standard input, one a line, and prints"
TEMPLATES = [
    Template(
        "programs",
        "score average",
        "The score average is rounded half up, so 2.5 becomes 3.",
        program("score average", f"{_ONE} their mean rounded to a whole number", _mean),
    ),
    Template(
        "programs",
        "price median",
        "With an even count the price median is the lower of the two middle values.",
        program("price median", f"{_ONE} their median", _median),
    ),
    Template(
        "programs",
        "peak finder",
        "Without any input the peak finder prints none.",
        program("peak finder", f"{_ONE} the largest", _largest, special=_nothing("none")),
    ),
    Template(
        "programs",
        "share splitter",
        "The share splitter divides towards zero, so -7 by 2 is -3.",
        program(
            "share splitter",
            "reads two whole numbers a line from standard input and "
            "prints for each line the quotient as a whole number",
            _quotients,
        ),
    ),
    Template(
        "programs",
        "stay calculator",
        "The stay calculator counts days with both the first and the last day included.",
        program(
            "stay calculator",
            "reads two dates from standard input, one a line as "
            "YYYY-MM-DD, and prints the number of days",
            _days,
        ),
    ),
    Template(
        "programs",
        "winner lookup",
        "Positions in the winner lookup are counted from one.",
        program("winner lookup", f"{_ONE} the position of the largest", _position),
    ),
    Template(
        "programs",
        "guest sorter",
        "The guest sorter must order names without regard to case.",
        program(
            "guest sorter",
            "reads names from standard input, one a line, and prints them sorted",
            _sorted,
        ),
    ),
    Template(
        "programs",
        "running total",
        "The running total starts again at zero after an empty line.",
        program("running total", f"{_ONE} the sum so far after each", _running),
    ),
    Template(
        "programs",
        "quota report",
        "Percentages in the quota report are always rounded down.",
        program(
            "quota report",
            "reads two whole numbers a line from standard input and prints "
            "for each line which percentage the first is of the second, as a whole number",
            _percent,
        ),
    ),
    Template(
        "programs",
        "register adder",
        "Inputs of the register adder may be hexadecimal, with 0x in front.",
        program("register adder", f"{_ONE} their sum", _prefixed),
    ),
    Template(
        "programs",
        "shift clock",
        "The shift clock shows a sum beyond 24 hours in full and does not wrap around.",
        program(
            "shift clock",
            "reads durations like 9:30 from standard input, one a line, and "
            "prints their sum in the same form",
            _clock,
        ),
    ),
    Template(
        "programs",
        "league ranking",
        "In the league ranking equal scores share a rank and no rank is left out after them.",
        program("league ranking", f"{_ONE} for each its rank, the largest first", _ranks),
    ),
]
