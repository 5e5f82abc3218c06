"""Log forensics: what happened when, and how long it took."""

from __future__ import annotations

import random
from collections.abc import Callable

from bench.errands import LONG, Made, Maker, Table, Tally, Template, names

Hours = Callable[[random.Random, int, int], tuple[list[str], int]]
"""Draws the lines of one event, by its hour and number, and the hour that it counts for."""


def hourly(
    subject: str, draw: Hours, noise: Callable[[random.Random, int], str] | None = None
) -> Maker:
    """Errors an hour. ``noise`` draws lines that do not count."""

    def make(rng: random.Random, long: bool, place: str) -> Made:
        tally, lines = Tally(), []
        hours = [*rng.sample(range(2, 13), 3), *rng.sample(range(13, 20), 3)]
        for hour in sorted(hours):
            for n in range(-(-LONG // 6) if long else rng.randint(3, 5)):
                drawn, counted = draw(rng, hour, n)
                lines += drawn
                tally.add(f"{counted:02}", _errors(drawn))
                if n % 2:
                    lines.append(f"{_at(rng, hour)} INFO {rng.choice(_DONE)}")
                if noise and n % 2 == 0:
                    lines.append(noise(rng, hour))
        file, out = f"{subject.split()[0]}.log", "hours.csv"
        prompt = (
            f"In {file} there is the {subject} of the {place} site. Count the ERROR lines for each "
            f"hour and write hour,count to {out}, sorted by hour, hours with two digits."
        )
        text = "".join(f"{line}\n" for line in lines)
        rows = tuple(row for row in tally.rows() if row[1] != "0")
        return Made(prompt, {file: text}, out, Table(("hour", "count"), rows))

    return make


_DONE = ("pump idle", "valve shut", "belt running", "door open")
_WRONG = ("pump stalled", "valve stuck", "belt torn", "door jammed")


def _at(rng: random.Random, hour: int) -> str:
    return f"2024-05-06 {hour:02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}"


def _errors(lines: list[str]) -> int:
    """How many errors an event is: it says so itself where it is not one."""
    last = lines[-1].split()
    return 1 + int(last[-2]) if last[-1] == "times" else 1


def _wrong(rng: random.Random, hour: int) -> str:
    return f"{_at(rng, hour)} ERROR {rng.choice(_WRONG)}"


def _plain(rng: random.Random, hour: int, n: int) -> tuple[list[str], int]:
    return [_wrong(rng, hour)], hour


def _offset(rng: random.Random, hour: int, n: int) -> tuple[list[str], int]:
    stamp, rest = f"{_at(rng, hour)} +02:00", f"ERROR {rng.choice(_WRONG)}"
    return [f"{stamp} {rest}"], hour - 2


def _twelve(rng: random.Random, hour: int, n: int) -> tuple[list[str], int]:
    day, clock = _at(rng, (hour - 1) % 12 + 1).split()
    half = "AM" if hour < 12 else "PM"
    return [f"{day} {clock} {half} ERROR {rng.choice(_WRONG)}"], hour


def _repeated(rng: random.Random, hour: int, n: int) -> tuple[list[str], int]:
    again = f"{_at(rng, hour)} last message repeated {rng.randint(2, 6)} times"
    return [_wrong(rng, hour), *([again] if n % 2 == 0 else [])], hour


def _short(rng: random.Random, hour: int, n: int) -> tuple[list[str], int]:
    level = ("ERROR", "E", "ERR")[n % 3]
    return [f"{_at(rng, hour)} {level} {rng.choice(_WRONG)}"], hour


def _twice(rng: random.Random, hour: int, n: int) -> tuple[list[str], int]:
    line = f"{_wrong(rng, hour)} id={rng.randint(10_000, 99_999)}"
    return [line] * (2 if n % 3 == 0 else 1), hour


def _late(rng: random.Random, hour: int, n: int) -> tuple[list[str], int]:
    """The clock is an hour behind."""
    return [_wrong(rng, hour)], hour + 1


def _probe(rng: random.Random, hour: int) -> str:
    return f"{_at(rng, hour)} ERROR selftest {rng.choice(_WRONG)}"


def _in_text(rng: random.Random, hour: int) -> str:
    return f"{_at(rng, hour)} INFO text of an ERROR message was cleared"


# -- durations

Job = Callable[[random.Random, str, int], tuple[list[str], int | None]]
"""Draws the lines of the runs of one job, by name and number, and how many seconds it
took; ``None``: it must not appear."""


def durations(subject: str, draw: Job) -> Maker:
    def make(rng: random.Random, long: bool, place: str) -> Made:
        lines, rows = [], []
        for n, name in enumerate(names(rng, 48 if long else 6)):
            drawn, seconds = draw(rng, name, n)
            lines += drawn
            if seconds is not None:
                rows.append((name, str(seconds)))
        file, out = f"{subject.split()[0]}.log", "durations.csv"
        prompt = (
            f"In {file} there is the {subject} of the {place} site. Work out how many seconds each "
            f"job took from start to stop and write job,seconds to {out}, sorted by job."
        )
        text = "".join(f"{line}\n" for line in lines)
        return Made(prompt, {file: text}, out, Table(("job", "seconds"), tuple(rows)))

    return make


def _clock(seconds: int) -> str:
    return f"{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _midnight(rng: random.Random, name: str, n: int) -> tuple[list[str], int | None]:
    start, took = (86_000, 20_000)[n % 2] + rng.randint(0, 300), rng.randint(400, 3000)
    return [f"{_clock(start)} start {name}", f"{_clock(start + took)} stop {name}"], took


def _ticks(rng: random.Random, name: str, n: int) -> tuple[list[str], int | None]:
    start, took = rng.randint(1000, 90_000), rng.randint(20, 900)
    return [f"{start * 1000} start {name}", f"{(start + took) * 1000} stop {name}"], took


def _open(rng: random.Random, name: str, n: int) -> tuple[list[str], int | None]:
    start, took = rng.randint(1000, 40_000), rng.randint(20, 900)
    lines = [f"{_clock(start)} start {name}", f"{_clock(start + took)} stop {name}"]
    return (lines[:1], None) if n % 3 == 1 else (lines, took)


def _restarted(rng: random.Random, name: str, n: int) -> tuple[list[str], int | None]:
    start, wait, took = rng.randint(1000, 40_000), rng.randint(20, 300), rng.randint(20, 900)
    return [
        f"{_clock(start)} start {name}",
        f"{_clock(start + wait)} start {name}",
        f"{_clock(start + wait + took)} stop {name}",
    ], took


def _paused(rng: random.Random, name: str, n: int) -> tuple[list[str], int | None]:
    at, legs = rng.randint(1000, 40_000), [rng.randint(20, 300) for _ in range(3)]
    words, lines = ("start", "pause", "resume", "stop"), []
    for word, leg in zip(words, (0, *legs), strict=True):
        at += leg
        lines.append(f"{_clock(at)} {word} {name}")
    return lines, legs[0] + legs[2]


TEMPLATES = [
    Template(
        "logs",
        "gateway log",
        "Times of the gateway log must be converted to UTC by their offset.",
        hourly("gateway log", _offset),
    ),
    Template(
        "logs",
        "scanner log",
        "The scanner log has a twelve-hour clock with AM and PM.",
        hourly("scanner log", _twelve),
    ),
    Template(
        "logs",
        "turbine log",
        "In the turbine log a line like last message repeated 3 times counts as that many more.",
        hourly("turbine log", _repeated),
    ),
    Template(
        "logs",
        "elevator log",
        "The elevator log also writes the level ERROR as E or ERR.",
        hourly("elevator log", _short),
    ),
    Template(
        "logs",
        "crane log",
        "The crane log writes some lines twice: count each id once.",
        hourly("crane log", _twice),
    ),
    Template(
        "logs",
        "boiler log",
        "Lines of the boiler log that come from a selftest must not be counted.",
        hourly("boiler log", _plain, _probe),
    ),
    Template(
        "logs",
        "printer log",
        "In the printer log the word may occur in a message: only the level column counts.",
        hourly("printer log", _plain, _in_text),
    ),
    Template(
        "logs",
        "greenhouse log",
        "The clock of the greenhouse log is one hour slow, so add one hour.",
        hourly("greenhouse log", _late),
    ),
    Template(
        "logs",
        "night job log",
        "Jobs of the night job log may run past midnight.",
        durations("night job log", _midnight),
    ),
    Template(
        "logs",
        "render job log",
        "Times of the render job log are in milliseconds.",
        durations("render job log", _ticks),
    ),
    Template(
        "logs",
        "mirror job log",
        "Jobs of the mirror job log without a stop are unfinished and must be left out.",
        durations("mirror job log", _open),
    ),
    Template(
        "logs",
        "batch job log",
        "In the batch job log a job that is started again counts from its last start.",
        durations("batch job log", _restarted),
    ),
    Template(
        "logs",
        "welding job log",
        "In the welding job log the time between pause and resume does not count.",
        durations("welding job log", _paused),
    ),
]
