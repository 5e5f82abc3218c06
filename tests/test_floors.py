"""The house's rules about imports and packaging (design §3), kept by reading the source."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import isovist.kernel

ROOT = Path(__file__).parent.parent
STDLIB = sys.stdlib_module_names

FLOORS: dict[str, tuple[str, ...]] = {
    "syscalls": ("syscalls",),
    "scheduler": ("scheduler", "syscalls"),
    "storage": ("storage", "syscalls"),
    "kernel/state": ("kernel/state", "scheduler", "syscalls"),
    "kernel": ("kernel", "kernel/state", "storage", "scheduler", "syscalls"),
    "agents": ("agents", "syscalls"),
}
"""Which folders each folder may import; all else of ours is above it or beside it."""

OUTSIDE: dict[str, set[str]] = {
    "syscalls": {"msgspec", "trio"},
    "scheduler": {"msgspec"},
    "kernel/state": {"msgspec"},
    "agents": set(),
}
"""What these floors may import besides the standard library."""

IMPURE = {
    "asyncio", "io", "logging", "multiprocessing", "os", "pathlib", "queue", "random", "secrets",
    "select", "selectors", "shutil", "signal", "socket", "sqlite3", "subprocess", "tempfile",
    "threading", "time", "uuid",
}  # fmt: skip
"""Modules of the standard library that the pure kernel must do without."""


def folder_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return "kernel/state" if parts[:2] == ("kernel", "state") else parts[0]


def modules(*folders: str) -> list[Path]:
    return [p for f in folders for p in sorted((ROOT / f).rglob("*.py"))]


def imports(path: Path) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            module = node.module or ""
            if module == "isovist" or module == "isovist.kernel":
                found += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
            else:
                found.append((node.lineno, module))
    return found


def ours(name: str) -> str | None:
    """The folder that an import of ours reaches."""
    parts = name.split(".")
    if parts[0] != "isovist" or len(parts) == 1:
        return None
    return "kernel/state" if parts[1:3] == ["kernel", "state"] else parts[1]


@pytest.mark.parametrize("folder", FLOORS)
def test_imports_go_downwards_only(folder: str) -> None:
    for path in modules(folder):
        if folder_of(path) != folder:
            continue
        for line, name in imports(path):
            target = ours(name)
            if target is not None:
                assert target in FLOORS[folder], f"{path}:{line}: {folder} may not import {name}"
            elif folder in OUTSIDE:
                top = name.split(".")[0]
                allowed = top in STDLIB or top in OUTSIDE[folder] or top == "isovist"
                assert allowed, f"{path}:{line}: {folder} may not import {name}"


def test_the_pure_kernel_has_no_clock_thread_or_file() -> None:
    for path in modules("kernel/state", "scheduler"):
        for line, name in imports(path):
            if path.name in ("simulator.py", "traces.py") and name == "random":
                continue  # a generator with the seed, never the shared one
            assert name.split(".")[0] not in IMPURE, f"{path}:{line}: {name} is not pure"
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("open", "input", "print"), f"{path}:{node.lineno}"


def test_nobody_imports_a_folder_by_its_bare_name() -> None:
    bare = {"agents", "kernel", "scheduler", "storage", "syscalls"}
    for path in modules(*bare, "tests", "bench", "examples"):
        for line, name in imports(path):
            assert name.split(".")[0] not in bare, f"{path}:{line}: use isovist.{name}"


def test_the_seal_is_taken_in_one_module() -> None:
    makers = [
        path.relative_to(ROOT).as_posix()
        for path in modules("agents", "kernel", "scheduler", "storage", "syscalls", "bench")
        if any(
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("Seal", "View")
            for node in ast.walk(ast.parse(path.read_text()))
        )
    ]
    assert makers == ["kernel/state/views.py"]


def test_links_hold_the_packages_and_nothing_else() -> None:
    package = ROOT / "src" / "isovist"
    expected = {"agents", "kernel", "scheduler", "storage", "syscalls"}
    found = {p.name: os.readlink(p) for p in package.iterdir() if p.name != "__pycache__"}
    assert found == {name: f"../../{name}" for name in expected}


def test_importing_the_abi_is_light() -> None:
    """Agents and one-shot commands pay for msgspec alone."""
    code = "import sys, isovist.syscalls.messages; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert not loaded & {"numpy", "trio", "sqlite3", "structlog", "isovist.kernel"}


def test_the_wheel_is_what_is_tested_when_asked() -> None:
    inside = Path(isovist.kernel.__file__).resolve().is_relative_to(ROOT / "kernel")
    assert inside == ("ISOVIST_TEST_WHEEL" not in os.environ)
