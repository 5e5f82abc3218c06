"""What a bench reports: figures, each with its reference, its bar, and whether it holds.

A bar is written as people write it: ``">= 46"`` is about the value, ``"ratio <= 4"`` about the
value divided by its reference.
"""

from __future__ import annotations

import operator
import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

import msgspec

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}


class CannotRun(Exception):
    """The bench could not be run here; the text says why and what would help."""


class Reference(msgspec.Struct, frozen=True):
    """What a figure is compared with. A reference that was not run here says so in its name."""

    name: str
    value: float


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """``ratio`` is value over reference; ``holds`` is ``None`` where there is no bar."""

    id: str
    value: float
    unit: str
    reference: Reference | None = None
    ratio: float | None = None
    bar: str | None = None
    holds: bool | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """``config`` states all that the figures depend on: sizes, models, placement, seed."""

    bench: str
    machine: dict[str, object]
    config: dict[str, object]
    figures: list[Figure]

    @property
    def missed(self) -> list[Figure]:
        return [figure for figure in self.figures if figure.holds is False]


def figure(
    id: str,
    value: float,
    unit: str,
    *,
    reference: tuple[str, float] | None = None,
    bar: str | None = None,
) -> Figure:
    """A figure with its ratio and its verdict, from the exact values, then rounded.

    A bar on a ratio that does not exist (no reference, or a reference of 0) is missed. Raises
    ``ValueError`` for a bar that is not written as above.
    """
    ratio = value / reference[1] if reference and reference[1] else None
    return Figure(
        id=id,
        value=_rounded(value),
        unit=unit,
        reference=Reference(reference[0], _rounded(reference[1])) if reference else None,
        ratio=None if ratio is None else _rounded(ratio),
        bar=bar,
        holds=None if bar is None else holds(bar, value, ratio),
    )


def holds(bar: str, value: float, ratio: float | None) -> bool:
    """Whether ``bar`` is met."""
    words = bar.split()
    about_ratio = words[:1] == ["ratio"]
    try:
        sign, limit = words[about_ratio:]
        compare, number = _COMPARE[sign], float(limit)
    except (KeyError, ValueError):
        raise ValueError(f"not a bar: {bar!r}") from None
    subject = ratio if about_ratio else value
    return subject is not None and compare(subject, number)


def _rounded(value: float) -> float:
    """Four significant digits: more would claim more than a run can know."""
    return float(f"{value:.4g}") if abs(value) < 1e4 else float(round(value))


def as_json(report: Report) -> str:
    """One object on one line."""
    return msgspec.json.encode(report).decode()


def as_table(report: Report) -> str:
    """For people: what was run, where, and a row a figure."""
    head = [
        f"bench {report.bench}",
        *_facts("machine", report.machine),
        *_facts("config", report.config),
    ]
    rows = [("figure", "value", "unit", "reference", "ratio", "bar", "")]
    verdicts = {None: "", True: "holds", False: "MISSED"}
    for f in report.figures:
        beside = f"{_number(f.reference.value)} ({f.reference.name})" if f.reference else ""
        ratio = "" if f.ratio is None else _number(f.ratio)
        bar = f.bar or ""
        rows.append((f.id, _number(f.value), f.unit, beside, ratio, bar, verdicts[f.holds]))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    barred = sum(f.bar is not None for f in report.figures)
    missed = len(report.missed)
    verdict = f"{missed} of {barred} bars missed" if missed else f"all {barred} bars hold"
    return "\n".join([*head, "", *table, "", verdict])


def _facts(title: str, facts: dict[str, object]) -> list[str]:
    return [f"  {title}: {name} = {value}" for name, value in facts.items()]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1e4 else f"{value:.4g}"


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` (0 to 1) of ``values`` do not exceed."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    return ordered[max(0, min(len(ordered) - 1, -int(-share * len(ordered) // 1) - 1))]


class Progress:
    """Says on standard error how far a bench is: at each new stage, and every few seconds."""

    EVERY = 5.0
    """Seconds between two lines of one stage."""

    def __init__(self, bench: str, out: TextIO | None = None) -> None:
        self._bench = bench
        self._out = out if out is not None else sys.stderr
        self._started = self._last = time.monotonic()
        self._stage = ""

    def __call__(self, stage: str, done: int = 0, of: int = 0) -> None:
        now = time.monotonic()
        if stage == self._stage and done < of and now - self._last < self.EVERY:
            return
        if stage == self._stage and not of:
            return
        self._stage, self._last = stage, now
        count = f" {done}/{of}" if of else ""
        print(f"[{self._bench} {now - self._started:5.0f} s] {stage}{count}", file=self._out)
        self._out.flush()
