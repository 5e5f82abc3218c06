"""Public data sets of conversations as units with known evidence.

Each set becomes a :class:`Corpus`: histories of rounds, one of each user, and questions whose
evidence is named by *labels*. A round (a turn and its reply) is what one conversation unit holds:
the speakers' names stand in its text, session and round in its fields, and the time is when it
was said. Nothing of the data is kept in this project: ``--data`` names the folder.

- **LoCoMo** (``locomo/*.json``): a history a dialogue, a round two turns of a session in order,
  a photo as its caption. Labels are turns (``dia_id``); a question's evidence are the turns that
  it names and that exist. Category 5 (adversarial: nothing answers it) is left out.
- **LongMemEval S** (``longmemeval/longmemeval_s*.jsonl[.xz]``): a history a question, which is
  its haystack. Labels are sessions by (question, place in the haystack), since a haystack can
  repeat a session's id. Abstentions are kept: they have sessions that come near their question.
- **MemoryBank, Chinese** (``memorybank/memory_bank_cn.json``): a history a user, a session a
  day. The probing questions have no gold, so only those whose evidence follows from their words
  are asked, and labels are days. A question is *dated* if it names a day of its user's history
  (5月2日), and that day is its evidence. Else it is *quoting* if the runs of four Chinese
  characters that it shares with its user's dialogue all stand in one day and no other. All
  others are left out. The second rule shares words with the evidence by making, so it flatters
  the lexical leg: compare the modes with each other, not with other data sets.
"""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.report import CannotRun


@dataclass(frozen=True)
class Round:
    """One conversation unit: ``said_at`` in nanoseconds since 1970 UTC."""

    session: str
    number: int
    said_at: int
    text: str
    labels: frozenset[str]


@dataclass(frozen=True)
class History:
    user: str
    rounds: tuple[Round, ...]


@dataclass(frozen=True)
class Question:
    """``gold``: the labels of its evidence, never empty. ``kind``: the data set's own class."""

    id: str
    user: str
    text: str
    kind: str
    gold: frozenset[str]


@dataclass(frozen=True)
class Corpus:
    name: str
    histories: tuple[History, ...]
    questions: tuple[Question, ...]

    def first(self, count: int) -> Corpus:
        """The first ``count`` histories with their questions."""
        histories = self.histories[:count]
        users = {history.user for history in histories}
        return Corpus(self.name, histories, tuple(q for q in self.questions if q.user in users))


# -- LoCoMo


def locomo(folder: Path) -> Corpus:
    histories: list[History] = []
    questions: list[Question] = []
    for path in _files(folder / "locomo", "*.json"):
        for sample in json.loads(path.read_text("utf-8")):
            user = str(sample["sample_id"])
            histories.append(History(user, tuple(_dialogue(user, sample["conversation"]))))
            turns = {label for r in histories[-1].rounds for label in r.labels}
            for number, qa in enumerate(sample["qa"]):
                named = re.findall(r"D\d+:\d+", " ".join(map(str, qa.get("evidence") or ())))
                gold = frozenset(f"{user}/{turn}" for turn in named) & turns
                if qa["category"] != 5 and gold:
                    questions.append(
                        Question(
                            f"{user}/{number}", user, qa["question"], str(qa["category"]), gold
                        )
                    )
    return Corpus("locomo", tuple(histories), tuple(questions))


def _dialogue(user: str, conversation: dict[str, Any]) -> Iterator[Round]:
    names = [name for name in conversation if re.fullmatch(r"session_\d+", name)]
    for session in sorted(names, key=lambda name: int(name.rpartition("_")[2])):
        said_at = _time(conversation[f"{session}_date_time"], "%I:%M %p on %d %B, %Y")
        turns = conversation[session]
        for start in range(0, len(turns), 2):
            pair = turns[start : start + 2]
            yield Round(
                session,
                start // 2 + 1,
                said_at,
                "\n".join(map(_turn, pair)),
                frozenset(f"{user}/{turn['dia_id']}" for turn in pair),
            )


def _turn(turn: dict[str, Any]) -> str:
    caption = turn.get("blip_caption")
    photo = f" [photo: {caption}]" if caption else ""
    return f"{turn['speaker']}: {turn['text']}{photo}"


# -- LongMemEval


def longmemeval(folder: Path) -> Corpus:
    histories: list[History] = []
    questions: list[Question] = []
    for path in _files(folder / "longmemeval", "longmemeval_s*.jsonl*"):
        for item in _lines(path):
            user = str(item["question_id"])
            ids: list[str] = item["haystack_session_ids"]
            answers = set(item["answer_session_ids"])
            sessions = list(
                zip(ids, item["haystack_dates"], item["haystack_sessions"], strict=True)
            )
            histories.append(
                History(
                    user,
                    tuple(
                        unit
                        for place, (_, date, turns) in enumerate(sessions)
                        for unit in _chat(
                            f"{user}/{place}", _time(date, "%Y/%m/%d (%a) %H:%M"), turns
                        )
                    ),
                )
            )
            gold = frozenset(f"{user}/{at}" for at, name in enumerate(ids) if name in answers)
            if gold:
                questions.append(
                    Question(user, user, item["question"], item["question_type"], gold)
                )
    return Corpus("longmemeval", tuple(histories), tuple(questions))


def _chat(label: str, said_at: int, turns: Sequence[dict[str, str]]) -> Iterator[Round]:
    """A round starts with each turn of the user's."""
    number = 0
    spoken: list[str] = []
    for turn in turns:
        if turn["role"] == "user" and spoken:
            number += 1
            yield Round(label, number, said_at, "\n".join(spoken), frozenset((label,)))
            spoken = []
        if turn["content"].strip():
            spoken.append(f"{turn['role']}: {turn['content']}")
    if spoken:
        yield Round(label, number + 1, said_at, "\n".join(spoken), frozenset((label,)))


# -- MemoryBank


_DATE = re.compile(r"(\d{1,2})\s*月\s*(\d{1,2})\s*[日号]")
_RUN = re.compile(r"[\u4e00-\u9fff]+")
_QUOTE = 4
"""Chinese characters of a quotation."""


def memorybank(folder: Path) -> Corpus:
    bank = json.loads(_one(folder / "memorybank" / "memory_bank_cn.json").read_text("utf-8"))
    asked = [
        pair
        for line in _lines(_one(folder / "memorybank" / "probing_questions_cn.jsonl"))
        for pair in line.items()
    ]
    histories: list[History] = []
    for user, person in bank.items():
        rounds = [
            Round(
                day,
                number,
                _time(day, "%Y-%m-%d"),
                f"{user}：{said.get('query') or ''}\nAI：{said.get('response') or ''}",
                frozenset((f"{user}/{day}",)),
            )
            for day, talk in person["history"].items()
            for number, said in enumerate(talk, start=1)
        ]
        histories.append(History(user, tuple(rounds)))
    days = {history.user: _days(history) for history in histories}
    questions: list[Question] = []
    for user, texts in asked:
        for number, text in enumerate(texts):
            kind, day = _evident(text, days[user])
            if day:
                gold = frozenset((f"{user}/{day}",))
                questions.append(Question(f"{user}/{number}", user, text, kind, gold))
    return Corpus("memorybank", tuple(histories), tuple(questions))


def _days(history: History) -> dict[str, frozenset[str]]:
    """By day: the runs of ``_QUOTE`` Chinese characters in its dialogue, speakers' names aside."""
    days: dict[str, set[str]] = {}
    for unit in history.rounds:
        for line in unit.text.splitlines():
            days.setdefault(unit.session, set()).update(_runs(line.partition("：")[2] or line))
    return {day: frozenset(runs) for day, runs in days.items()}


def _evident(question: str, days: dict[str, frozenset[str]]) -> tuple[str, str]:
    """The rule and the day of the question's evidence; no day where none is evident."""
    named = {(int(month), int(day)) for month, day in _DATE.findall(question)}
    if named:
        found = [d for d in days if (int(d[5:7]), int(d[8:10])) in named]
        return "dated", found[0] if len(named) == len(found) == 1 else ""
    runs = _runs(question)
    found = [day for day, held in days.items() if runs & held]
    return "quoting", found[0] if len(found) == 1 else ""


def _runs(text: str) -> set[str]:
    return {
        run[at : at + _QUOTE] for run in _RUN.findall(text) for at in range(len(run) - _QUOTE + 1)
    }


# -- files


LOADERS: dict[str, Callable[[Path], Corpus]] = {
    "locomo": locomo,
    "longmemeval": longmemeval,
    "memorybank": memorybank,
}


def _files(folder: Path, pattern: str) -> list[Path]:
    found = sorted(folder.glob(pattern))
    if not found:
        raise CannotRun(f"no {pattern} in {folder}: --data names the folder of data sets")
    return found


def _one(path: Path) -> Path:
    if not path.exists():
        raise CannotRun(f"no {path}: --data names the folder of data sets")
    return path


def _lines(path: Path) -> Iterator[Any]:
    """The objects of a JSON Lines file, compressed by xz or not."""
    raw = path.read_bytes()
    for line in (lzma.decompress(raw) if path.suffix == ".xz" else raw).splitlines():
        if line.strip():
            yield json.loads(line)


def _time(text: str, form: str) -> int:
    """Nanoseconds since 1970; the data names no zone, so it is taken for UTC."""
    return int(datetime.strptime(text.strip(), form).replace(tzinfo=UTC).timestamp()) * 10**9
