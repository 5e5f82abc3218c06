"""The manifest of promises, PROMISES.md and the tests say the same, in all directions."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
MANIFEST = tomllib.loads((ROOT / "docs" / "promises.toml").read_text())
DESIGNED = {
    "view.noninterference", "view.choke", "private.default", "identity.bound",
    "process.confined", "author.true", "barrier.order", "write.durable", "budget.tokens",
    "protected.stays", "secrets.never", "erase.complete", "fair.progress", "kernel.survives",
    "audit.replay",
}  # fmt: skip


def proofs() -> dict[str, list[str]]:
    """Promise id to the tests that carry it, read from the source."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith(".promise"):
                    for argument in mark.args:
                        assert isinstance(argument, ast.Constant)
                        found.setdefault(str(argument.value), []).append(node.name)
    return found


def test_every_designed_promise_is_listed() -> None:
    assert set(MANIFEST) == DESIGNED


def test_what_is_claimed_is_proven_and_nothing_unknown_is() -> None:
    proven = proofs()
    claimed = {name for name, entry in MANIFEST.items() if entry["status"] != "planned"}
    assert claimed - set(proven) == set(), "claimed without a test"
    assert set(proven) - claimed == set(), "tests bound to what is not claimed"


def test_statuses_are_complete() -> None:
    for name, entry in MANIFEST.items():
        assert entry["status"] in ("holds", "partial", "planned"), name
        assert ("step" in entry) == (entry["status"] != "holds"), name


def test_the_page_says_the_same() -> None:
    page = (ROOT / "PROMISES.md").read_text()
    said = re.findall(r"^## (\S+) — (\w+)(?: \((\w)\))?$", page, re.MULTILINE)
    assert {
        name: {"status": status, **({"step": step} if step else {})} for name, status, step in said
    } == MANIFEST
