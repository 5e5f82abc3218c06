"""The command ``isovist`` as a shell would run it, in a home of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import isovist.kernel

SECONDS = 120
"""How long one command may take on a machine that is busy with other things."""
SOURCES = str(Path(isovist.kernel.__file__).parents[2])


class Ran:
    """What a command said and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON value and nothing else."""
        return json.loads(self.out)

    def __repr__(self) -> str:
        return f"exit {self.code}\n--- out\n{self.out}\n--- err\n{self.err}"


class Shell:
    """Commands for the kernel whose state lies in ``folder`` (with a short path: it holds the
    socket). No model is installed there, and the quick test embedder serves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "s"
        config = folder / "config" / "isovist" / "config.toml"
        config.parent.mkdir(parents=True)
        config.write_text('embedder = "hash"\n')
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("ISOVIST", "XDG"))},
            "PYTHONPATH": SOURCES,
            "XDG_CONFIG_HOME": str(folder / "config"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "XDG_STATE_HOME": str(folder / "state"),
        }

    def command(self, *args: str) -> list[str]:
        """The words to execute; what follows ``--`` in ``args`` stays last."""
        at = args.index("--") if "--" in args else len(args)
        ours = (*args[:at], "--state", str(self.state), *args[at:])
        return [sys.executable, "-P", "-m", "isovist.kernel", *ours]

    def __call__(self, *args: str, code: int = 0, stdin: str | int = "") -> Ran:
        """Run a command to its end, and check its exit code."""
        given: dict[str, Any] = {"input": stdin} if isinstance(stdin, str) else {"stdin": stdin}
        done = subprocess.run(
            self.command(*args),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            cwd=self.folder,
            env=self.env,
            check=False,
            **given,
        )
        ran = Ran(done.returncode, done.stdout, done.stderr)
        assert ran.code == code, ran
        return ran

    def start(self, *args: str) -> subprocess.Popen[str]:
        """A command that goes on beside the test."""
        return subprocess.Popen(
            self.command(*args),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.env,
        )

    def script(self, name: str, text: str) -> str:
        """A program for ``run``; returns its name."""
        (self.folder / name).write_text(text)
        return name


def end(process: subprocess.Popen[str]) -> Ran:
    """Wait for a started command."""
    out, err = process.communicate(timeout=SECONDS)
    return Ran(process.returncode, out, err)


def two_lines(err: str) -> bool:
    """True iff an error was told as it must be: one line, and one of a hint."""
    lines = err.splitlines()
    return len(lines) == 2 and lines[0].startswith("isovist: ") and lines[1].startswith("  hint: ")
