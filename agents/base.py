"""The base of all agents: connect, hear what is said line by line, answer, and end decently."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from isovist.syscalls.client import Client, connect
from isovist.syscalls.errors import CallerError, Errno, IsovistError


@dataclass(frozen=True)
class Said:
    """One line of standard input: what a user said.

    ``user`` is ``None`` where the kernel knows whom this agent serves. ``session`` and ``round``
    say where in a conversation it was said.
    """

    text: str
    user: str | None = None
    session: str = ""
    round: int = 0

    @classmethod
    def parse(cls, line: str) -> Said:
        """A line is the text itself, or a JSON object of these fields (for an agent that is
        granted for several users). Raises ``EINVAL`` naming a field that breaks its type."""
        try:
            given = json.loads(line) if line.startswith("{") else None
        except (ValueError, RecursionError):
            given = None
        if not isinstance(given, dict):
            return cls(line)
        kinds = {"text": str, "user": str, "session": str, "round": int}
        for field, value in given.items():
            if field not in kinds:
                raise CallerError(
                    f"a line has no field {field!r}, only {', '.join(kinds)}", field=field
                )
            if type(value) is not kinds[field] and not (field == "user" and value is None):
                raise CallerError(f"{field} must be of type {kinds[field].__name__}", field=field)
        if "text" not in given:
            raise CallerError("a line needs the field text", field="text")
        return cls(**given)


class Agent:
    """A program that the kernel runs: ``isovist run module:Class``.

    Most agents override :meth:`hear`, some :meth:`main`. ``self.k`` is the connected client.
    """

    name: ClassVar[str] = ""
    """What this agent is called where its channel does not say so already."""

    def __init__(self, k: Client) -> None:
        self.k = k

    def hear(self, said: Said) -> str | Iterable[str] | None:
        """Answer what was said; each text returned is printed on a line of its own."""
        raise NotImplementedError(f"{type(self).__name__} defines neither hear nor main")

    def main(self, args: Sequence[str]) -> int:
        """The whole program; returns its exit status."""
        return self.listen()

    def listen(self) -> int:
        """Hear standard input to its end. A line that fails is reported and passed over; the
        status is then 1."""
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")
        status = 0
        for line in sys.stdin:
            if not line.strip():
                continue
            try:
                answer = self.hear(Said.parse(line.strip()))
                for text in [answer] if isinstance(answer, str) else answer or ():
                    print(text, flush=True)
            except IsovistError as e:
                if e.errno is Errno.EPIPE:
                    raise
                self.complain(e)
                status = 1
        return status

    @classmethod
    def complain(cls, problem: object) -> None:
        """One line on standard error."""
        print(f"{cls.name or cls.__name__}:", *str(problem).split(), file=sys.stderr, flush=True)

    @classmethod
    def launch(cls, args: Sequence[str] | None = None) -> int:
        """Connect as the environment says and run :meth:`main`.

        ``args`` default to the command line's. Returns the exit status: what ``main`` returned,
        1 for an error of the kernel's, 130 after Ctrl-C.
        """
        try:
            with connect(agent=cls.name) as k:
                return cls(k).main(sys.argv[1:] if args is None else args)
        except IsovistError as e:
            cls.complain(e)
            return 1
        except KeyboardInterrupt:
            return 130
        except BrokenPipeError:
            # Whoever read our output has left; nothing of it must be flushed at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
