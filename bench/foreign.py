"""Tasks and solvers from elsewhere (``docs/crosslearn.md``)."""

from __future__ import annotations

import importlib
import importlib.util
import random
import shutil
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Protocol

from bench.errands import House
from bench.report import CannotRun
from bench.solvers import Solved

Solver = Callable[[str, Path, str, str, random.Random], Solved]
"""Prompt, workspace, memory shown, agent, and where all chance comes from."""


class Task(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def family(self) -> str: ...

    @property
    def prompt(self) -> str: ...

    def lay(self, workspace: Path, house: House) -> None:
        """Put the task's files there."""
        ...

    def verify(self, workspace: Path, house: House) -> tuple[bool, str]:
        """Whether it passes, and the verifier's last words."""
        ...


@dataclass(frozen=True)
class Foreign:
    """A folder: ``task.toml``, ``files/``, ``verify.py``."""

    id: str
    family: str
    prompt: str
    folder: Path
    check: Callable[[Path], tuple[bool, str]]

    def lay(self, workspace: Path, house: House) -> None:
        if (self.folder / "files").is_dir():
            shutil.copytree(self.folder / "files", workspace, dirs_exist_ok=True)

    def verify(self, workspace: Path, house: House) -> tuple[bool, str]:
        try:
            passed, tail = self.check(workspace)
        except Exception as e:
            return False, f"The verifier stopped: {type(e).__name__}: {e}"
        return bool(passed), str(tail)


def tasks(folder: Path) -> list[Foreign]:
    """One a folder, in order of their names. Raises :class:`CannotRun`."""
    found: list[Foreign] = []
    for path in sorted(folder.glob("*/task.toml")):
        try:
            said = tomllib.loads(path.read_text("utf-8"))
            family, prompt = str(said["family"]), str(said["prompt"]).strip()
        except (KeyError, ValueError) as e:
            raise CannotRun(f"{path}: {e!r}") from None
        name = f"crosslearn_task_{len(found)}"
        verify = _module(path.parent / "verify.py", name)
        if not hasattr(verify, "verify"):
            raise CannotRun(f"{path.parent / 'verify.py'} has no verify(workspace)")
        found.append(Foreign(path.parent.name, family, prompt, path.parent, verify.verify))
    if not found:
        raise CannotRun(f"no */task.toml in {folder}")
    return found


def solver(name: str) -> Solver:
    """The ``solve`` of a module, by dotted name or by path. Raises :class:`CannotRun`."""
    if name.endswith(".py"):
        module = _module(Path(name), "crosslearn_solver")
    else:
        try:
            module = importlib.import_module(name)
        except ImportError as e:
            raise CannotRun(f"--solver {name}: {e}") from None
    if not hasattr(module, "solve"):
        raise CannotRun(f"--solver {name}: it has no solve(prompt, workspace, memory, agent, rng)")
    solve: Solver = module.solve
    return solve


def _module(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise CannotRun(f"no {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
