"""The harnesses that scripted agents run in: tools over a workspace, each with a quirk of its own.

A quirk shows only in what a tool does; there is a way round each, and no tool tells of it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from isovist.syscalls.records import Message, ToolCall

PAGE = 60
"""Lines that ``read_file`` returns at most in the harnesses that cut."""


@dataclass
class Harness:
    """One run: what is called is done, and written down as messages."""

    name: str
    workspace: Path
    messages: list[Message] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.messages.append(Message("assistant", text))

    def list_files(self, why: str) -> list[str]:
        names = sorted(p.name for p in self.workspace.iterdir() if p.is_file())
        self._called(why, "list_files", {}, "\n".join(names))
        return names

    def read_file(self, why: str, path: str, *, encoding: str = "", from_line: int = 0) -> str:
        """The text, or as much of it as this harness gives. With ``from_line`` (1 and up) it gives
        ``PAGE`` lines from there on."""
        file = self.workspace / path
        if not file.is_file():
            self._called(why, "read_file", {"path": path}, "no such file")
            return ""
        lines = file.read_bytes().decode(encoding or "utf-8", "replace").splitlines(keepends=True)
        if from_line:
            lines = lines[from_line - 1 : from_line - 1 + PAGE]
        elif self.name == "terminal":
            lines = lines[:PAGE]
        elif self.name == "notebook":
            lines = lines[-PAGE:]
        asked: dict[str, object] = {"path": path}
        if encoding:
            asked["encoding"] = encoding
        if from_line:
            asked["from_line"] = from_line
        self._called(why, "read_file", asked, "".join(lines))
        return "".join(lines)

    def write_file(
        self, why: str, path: str, text: str, *, line_ends: str = "", mark: str = ""
    ) -> None:
        raw = text
        asked: dict[str, object] = {"path": path, "text": text}
        if line_ends:
            asked["line_ends"] = line_ends
        if mark:
            asked["mark"] = mark
        if self.name == "console" and raw.endswith("\n"):
            raw = raw[:-1]
        if self.name == "mailroom" and line_ends != "unix":
            raw = raw.replace("\n", "\r\n")
        if self.name == "workbench" and mark != "no":
            raw = "\ufeff" + raw
        (self.workspace / path).write_bytes(raw.encode())
        self._called(why, "write_file", asked, "written")

    def _called(self, why: str, tool: str, arguments: dict[str, object], result: str) -> None:
        call = ToolCall(tool, json.dumps(arguments), f"call{len(self.messages)}")
        self.messages.append(Message("assistant", why, (call,)))
        self.messages.append(Message("tool", result, call=call.id))
