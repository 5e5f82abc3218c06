"""What a set about who may know what comes to, question by question."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.report import CannotRun, Figure, figure

REFERENCE = "BM25, one scope"
QUICK = 2
"""Scenarios, cases and episodes of each kind in a quick run."""


@dataclass(frozen=True)
class Score:
    """Of one question: how many of those that must be found are, and how many come back of those
    that must not."""

    found: int
    leaked: int


@dataclass
class Count:
    questions: int = 0
    passed: int = 0
    passed_there: int = 0
    must: int = 0
    found: int = 0
    found_there: int = 0
    deep: int = 0
    banned: int = 0
    leaked: int = 0
    leaked_there: int = 0
    apart: Counter[str] = field(default_factory=Counter)
    """What scopes cannot express, or what is no question to them, by reason."""
    failures: list[str] = field(default_factory=list)

    def question(
        self, name: str, *, must: int, banned: int, here: Score, there: Score, deep: int
    ) -> None:
        """``here`` in the kernel, ``there`` in one scope; ``deep``: of the must, those that a
        search found at any depth."""
        self.questions += 1
        self.must += must
        self.banned += banned
        self.found += here.found
        self.leaked += here.leaked
        self.found_there += there.found
        self.leaked_there += there.leaked
        self.deep += deep
        self.passed += here == Score(must, 0)
        self.passed_there += there == Score(must, 0)
        if here != Score(must, 0):
            self.failures.append(
                f"{name}: {here.found} of {must} found ({deep} deep), {here.leaked} that must not"
            )

    def figures(self, name: str, bar: bool) -> Iterator[Figure]:
        """``bar``: every question must be passed."""

        def beside(value: int) -> tuple[str, float]:
            return REFERENCE, value

        yield figure(
            f"{name}.passed",
            self.passed,
            f"of {self.questions}",
            reference=beside(self.passed_there),
            bar=f">= {self.questions}" if bar else None,
        )
        yield figure(
            f"{name}.must", self.found, f"of {self.must}", reference=beside(self.found_there)
        )
        yield figure(f"{name}.must_deep", self.deep, f"of {self.must}")
        yield figure(
            f"{name}.must_not",
            self.leaked,
            f"of {self.banned}",
            reference=beside(self.leaked_there),
            bar="== 0",
        )
        for reason, number in sorted(self.apart.items()):
            yield figure(f"{name}.apart.{reason}", number, "apart")


def whole(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        raise CannotRun(f"no {path}: --data names the folder of data sets")
    found: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))
    return found


def lines(folder: Path, pattern: str) -> list[dict[str, Any]]:
    paths = sorted(folder.glob(pattern))
    if not paths:
        raise CannotRun(f"no {pattern} in {folder}: --data names the folder of data sets")
    # A text may hold other ends of lines than this.
    found = [line for path in paths for line in path.read_text("utf-8").split("\n")]
    return [json.loads(line) for line in found if line.strip()]


def some(items: list[dict[str, Any]], quick: bool) -> list[dict[str, Any]]:
    return items[:QUICK] if quick else items
