"""The scripted solver: a program that does what a prompt says, as well as it knows how.

It is told a prompt, a workspace, the memory that it is shown and which agent it is. It works as an
agent does: lists the files, reads, writes, looks back. What is special about a task it knows only
from words: the prompt's, the memory's, or those of a handbook that it now and then opens on a
second look, as it now and then opens whatever else lies in the folder. All that it draws comes from
``rng``; it knows neither the bench's conditions nor any answer.

Another solver has the same one function (``docs/crosslearn.md``).
"""

from __future__ import annotations

import datetime
import random
import re
from dataclasses import dataclass
from pathlib import Path

from bench import toolbox
from bench.advice import Advice, Style, fits, subject, take
from bench.harness import PAGE, Harness
from bench.toolbox import Output
from isovist.syscalls.records import Message

SECOND_LOOK = 0.25
"""The chance to look once more at one side of the work: what the data are like, the layout, what
the tools have done."""
CURIOUS = 0.2
"""The chance to open every file of the folder."""
CHATTY = 0.4
"""The chance to speak of what was found there, or of one's notes."""
HARNESS = {
    "kestrel": "terminal",
    "osprey": "terminal",
    "heron": "notebook",
    "merlin": "console",
    "plover": "mailroom",
    "dunlin": "workbench",
}
"""Which tools each agent has."""
QUIRK = {
    "terminal": (
        "parts",
        "read_file",
        f"returns only the first {PAGE} lines of a long file, so I read it in parts with from_line",
    ),
    "notebook": (
        "parts",
        "read_file",
        f"returns only the last {PAGE} lines of a long file, so I read it in parts with from_line",
    ),
    "console": (
        "line end",
        "write_file",
        "leaves off the last line end of a file, so I add one more",
    ),
    "mailroom": (
        "unix",
        "write_file",
        "writes Windows line ends, so I pass line_ends unix",
    ),
    "workbench": (
        "no mark",
        "write_file",
        "puts a byte order mark in front of a file, so I pass mark no",
    ),
}
"""By harness: the way round its quirk, the tool, and how an agent says so that has found it."""
WHERE = (
    "{tool} of the {harness} {does}.",
    "My {tool} tool {does}.",
    "In the {harness} {tool} {does}.",
)


@dataclass(frozen=True)
class Solved:
    """A finished attempt: its messages, the prompt first, and what the agent says of it."""

    messages: tuple[Message, ...]
    claim: str


def solve(prompt: str, workspace: Path, memory: str, agent: str, rng: random.Random) -> Solved:
    """Work on ``prompt`` in ``workspace``; leaves the files there."""
    return _Run(prompt, workspace, memory, agent, rng).solved()


class _Run:
    def __init__(
        self, prompt: str, workspace: Path, memory: str, agent: str, rng: random.Random
    ) -> None:
        self.prompt, self.agent, self.rng = prompt, agent, rng
        self.tools = Harness(HARNESS.get(agent, ""), workspace, [Message("user", prompt)])
        own = {agent, self.tools.name}
        others = {*HARNESS, *HARNESS.values()} - own
        self.advice: Advice
        self.style: Style
        self.advice, self.style = take(memory, prompt, own, others)
        # All draws happen here, so that what one is shown never shifts another's.
        self._looks = {side: rng.random() < SECOND_LOOK for side in ("data", "layout", "tools")}
        self._curious, self._chatty = rng.random() < CURIOUS, rng.random() < CHATTY
        self._words = random.Random(rng.random())
        self.learned: list[str] = []
        self.texts: dict[str, str] = {}

    def solved(self) -> Solved:
        names = self.tools.list_files(
            self._one(
                "Let me see what there is.",
                "I'll look at the files first.",
                "First I check what is in the folder.",
            )
        )
        if self._chatty and self.advice.because:
            self.tools.say(f"My notes say: {self.advice.because[0]}")
        if self._curious:
            self._explore(names)
        output = self._operate()
        for side in ("data", "layout", "tools"):
            if self._looks[side]:
                output = getattr(self, f"_look_at_{side}")(names, output)
        claim = self._finish(output)
        return Solved(tuple(self.tools.messages), claim)

    # -- the work

    def _operate(self) -> Output | None:
        """Read the inputs, and work out and write what is asked for."""
        output = toolbox.operate(self.prompt, self._read, frozenset(self.advice.on))
        if output is None:
            self.tools.say("I do not know how to do this.")
            return None
        self._write(output)
        return output

    def _read(self, name: str) -> str:
        encoding = "latin-1" if "latin-1" in self.advice.on else ""
        key = f"{name} {encoding} {'parts' in self.advice.quirks}"
        if key not in self.texts:
            self.texts[key] = self._read_anew(name, encoding)
        return self.texts[key]

    def _read_anew(self, name: str, encoding: str) -> str:
        why = self._one("I read {}.", "Now {}.", "Let me open {}.").format(name)
        if "parts" not in self.advice.quirks:
            return self.tools.read_file(why, name, encoding=encoding)
        text, at = "", 1
        while part := self.tools.read_file(why, name, encoding=encoding, from_line=at):
            text, at, why = text + part, at + PAGE, "And the next part."
            if part.count("\n") < PAGE:
                break
        return text

    def _write(self, output: Output) -> None:
        quirks = self.advice.quirks
        text = output.text or self._table(output)
        ends, mark = "unix" * ("unix" in quirks), "no" * ("no mark" in quirks)
        why = self._one("I write {}.", "That gives {}.", "Now I can write {}.").format(output.name)
        self.tools.write_file(why, output.name, text, line_ends=ends, mark=mark)
        path = self.tools.workspace / output.name
        if "line end" in quirks and not path.read_bytes().endswith(b"\n"):
            why = "The last line has no end, I write it again with one more."
            self.tools.write_file(why, output.name, text + "\n", line_ends=ends, mark=mark)

    def _table(self, output: Output) -> str:
        header = [
            name.upper() if self.advice.header == "capitals" else name for name in output.header
        ]
        rows = output.rows if self.advice.header == "none" else (header, *output.rows)
        separator = self.advice.separator or ","
        return "".join(separator.join(row) + "\n" for row in rows)

    # -- second looks

    def _look_at_data(self, names: list[str], output: Output | None) -> Output | None:
        handbook = next((name for name in names if "handbook" in name), "")
        if not handbook or not output:
            return output
        text = self.tools.read_file(
            f"I am not sure about {output.name}: is there anything in {handbook}?", handbook
        )
        about, before = subject(self.prompt), set(self.advice.on)
        for line in text.splitlines():
            if fits(line, about):
                self.advice.data(line)
        found = sorted(self.advice.on - before)
        if not found:
            return output
        said = " and ".join(toolbox.SWITCHES[switch][1] for switch in found)
        ways = ("in the {0} {1}.", "for the {0}: {1}.", "{1} (this is so in the {0}).")
        said = self._one(*ways).format(about, said)
        return self._again(said[:1].upper() + said[1:], output)

    def _look_at_layout(self, names: list[str], output: Output | None) -> Output | None:
        sample = next((name for name in names if "previous" in name), "")
        if not sample or not output or self.advice.separator:
            return output
        text = self.tools.read_file(f"What is the usual layout? {sample} may show it.", sample)
        first = text.partition("\n")[0]
        for name, separator in (("semicolons", ";"), ("tabs", "\t"), ("vertical bars", "|")):
            if separator in first:
                names_are = (
                    " and the column names are in capitals"
                    if first.isupper()
                    else " and there is no header line"
                    if not first.startswith("name")
                    else ""
                )
                said = f"In this user's tables columns are separated by {name}{names_are}."
                self.advice.layout(said)
                return self._again(said, output)
        return output

    def _look_at_tools(self, names: list[str], output: Output | None) -> Output | None:
        """Compare what the tools gave and wrote with what is there."""
        quirk, tool, does = QUIRK.get(self.tools.name, ("", "", ""))
        if not output or not quirk or quirk in self.advice.quirks:
            return output
        if quirk == "parts":
            at = PAGE + 1 if self.tools.name == "terminal" else 1
            cut = [n for n in names if n in self.prompt and self._read(n).count("\n") == PAGE]
            if not cut:
                return output
            why = "Was that the whole file?"
            seen = self._read(cut[0])
            if self.tools.read_file(why, cut[0], from_line=at) in ("", seen):
                return output
        self.advice.quirks.add(quirk)
        said = self._one(*WHERE).format(tool=tool, harness=self.tools.name, does=does)
        return self._again(said, output)

    def _again(self, said: str, output: Output) -> Output:
        whose = ""
        signed = re.search(r"(?:Thanks|Regards|Best),\s+([A-Z]\w+ [A-Z]\w+)", self.prompt)
        if signed and self._words.random() < 0.2:
            whose = f" (this is for {signed[1]})"
        self.tools.say(
            self._one(
                "That was the matter: {}{}",
                "Now I see what was wrong: {}{}",
                "I had missed this: {}{}",
            ).format(said, whose)
        )
        self.learned.append(said)
        return self._operate() or output

    # -- what else lies there

    def _explore(self, names: list[str]) -> None:
        others = [n for n in names if n.endswith(".txt") and n not in self.prompt]
        others = [n for n in others if "handbook" not in n]
        seen = [self.tools.read_file(f"What is in {name}?", name) for name in others]
        if not seen or not self._chatty:
            return
        lines = [line for text in seen for line in text.splitlines() if len(line) > 12]
        if lines:
            line = self._words.choice(lines)
            self.tools.say(
                self._one(
                    'One of these files says "{}". That has nothing to do with the task.',
                    "I found this here: {} It is personal and of no use for the task.",
                    "Noted: {} Back to the task.",
                ).format(line)
            )

    # -- the end

    def _finish(self, output: Output | None) -> str:
        written = [output.name] if output else []
        self._report(written)
        did = f"I wrote {written[0]} as asked." if written else "I could not do what was asked."
        claim = f"{did} The report is in report.md."
        learned = f" What mattered: {' '.join(self.learned)}" if self.learned else ""
        self.tools.say(claim + learned)
        return claim

    def _report(self, written: list[str]) -> None:
        style = self.style
        about = subject(self.prompt) or "task"
        title = f"Report on the {about}"
        titled = style.title or "# {title}"
        for mark in "=~":
            titled = titled.replace(f"{{rule:{mark}}}", mark * len(title))
        lines = [titled.format(title=title, upper=title.upper())]
        if style.opening:
            lines += ["", f"{style.opening} the {about} has been dealt with."]
        named = [(style.files or "{}").format(name) for name in written] or ["nothing"]
        points = [f"Worked on the {about}", f"Wrote {' and '.join(named)}"]
        lines.append("")
        for n, point in enumerate(points):
            mark = (style.bullets or "- ").format(n=n + 1, letter="abc"[n])
            lines.append(f"{mark}{point}")
        lines += ["", f"Signed off: {self._today(style)}"]
        self.tools.write_file("And the report.", "report.md", "\n".join(lines) + "\n")

    def _today(self, style: Style) -> str:
        day = re.search(r"today's date, (\d{4}-\d\d-\d\d)", self.prompt)
        if not day:
            return "today"
        return datetime.date.fromisoformat(day[1]).strftime(style.date or "%Y-%m-%d")

    def _one(self, *ways: str) -> str:
        return self._words.choice(ways)
