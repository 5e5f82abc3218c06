"""The simulated load of learning: attempts handed in, entries read and changed by hand, reviews."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from isovist.syscalls import messages as m
from isovist.syscalls.records import Message

if TYPE_CHECKING:
    from isovist.kernel.state.sim_load import Load, Peer

SAID = (Message("user", "convert it"),)
SUBMIT: dict[str, Any] = {"task": "t", "trajectory": SAID}
KEYS = ("", "", "k1", "k2")

BAD: tuple[tuple[type[m.Call], dict[str, Any], str], ...] = (
    (m.LearnSubmit, {**SUBMIT, "task": " "}, "task"),
    (m.LearnSubmit, {**SUBMIT, "task": "x" * 8193}, "task"),
    (m.LearnSubmit, {**SUBMIT, "trajectory": ()}, "trajectory"),
    (m.LearnSubmit, {**SUBMIT, "verifier_tail": "x" * 8193}, "verifier_tail"),
    (m.LearnSubmit, {**SUBMIT, "claim": "x" * 8193}, "claim"),
    (m.LearnSubmit, {**SUBMIT, "key": "a/b"}, "key"),
    (m.LearnStatus, {"limit": 0}, "limit"),
    (m.LearnStatus, {"limit": 501}, "limit"),
    (m.LearnStatus, {"retry": True}, "id"),
    (m.LearnLessons, {"task": ""}, "task"),
    (m.LearnLessons, {"task": "x", "budget": 99}, "budget"),
    (m.LearnLessons, {"task": "x", "scopes": ("pair", "own/own")}, "scopes"),
    (m.LearnLessons, {"task": "x", "barrier_ms": 60_001}, "barrier_ms"),
    (m.LearnList, {"limit": 0}, "limit"),
    (m.LearnList, {"limit": 101}, "limit"),
    (m.LearnEdit, {"id": "u1", "version": 0, "lesson": "x"}, "version"),
    (m.LearnEdit, {"id": "u1", "version": 1}, "scope"),
    (m.LearnEdit, {"id": "u1", "version": 1, "lesson": "x", "scope": "pair"}, "scope"),
    (m.LearnEdit, {"id": "u1", "version": 1, "scope": "own/own"}, "scope"),
    (m.LearnEdit, {"id": "u1", "version": 1, "situation": "two\nlines"}, "situation"),
    (m.LearnEdit, {"id": "u1", "version": 1, "lesson": "x" * 2001}, "lesson"),
    (m.LearnEdit, {"id": "u1", "version": 1, "lesson": "x", "agent": "a/b"}, "agent"),
)
"""(syscall, fields, the field at fault), as of the whole load."""


class Study:
    """Draws requests for ``load``, which knows who asks and which units there are.
    ``submissions`` lists ids that were filed, whoever filed them."""

    def __init__(self, load: Load) -> None:
        self._load, self._rng = load, load.rng
        self.submissions: list[str] = []
        self.entries: list[str] = []

    def makers(self) -> dict[Callable[[Peer], m.Request], float]:
        return {
            self._submit: 12, self._status: 2, self._retry: 2, self._lessons: 5, self._list: 3,
            self._edit: 5, self._delete: 1, self.consent: 2, self.review: 2,
        }  # fmt: skip

    def _submit(self, peer: Peer) -> m.Request:
        return m.LearnSubmit(
            task="convert it",
            trajectory=SAID,
            outcome=self._rng.choice(("passed", "failed", "failed", "error", "unknown")),
            key=self._rng.choice(KEYS),
            **self._load.who(peer),
        )

    def _submission(self) -> str:
        return self._rng.choice(self.submissions[-9:]) if self.submissions else "l0"

    def _entry(self) -> str:
        return self._rng.choice(self.entries) if self.entries else self._load.unit()

    def _status(self, peer: Peer) -> m.Request:
        id_ = self._rng.choice(("", "", self._submission()))
        return m.LearnStatus(id=id_, limit=self._rng.choice((1, 20)), **self._load.who(peer))

    def _retry(self, peer: Peer) -> m.Request:
        return m.LearnStatus(id=self._submission(), retry=True, **self._load.who(peer))

    def _lessons(self, peer: Peer) -> m.Request:
        return m.LearnLessons(
            task="convert it",
            budget=self._rng.choice((100, 150, 20_000)),
            scopes=self._rng.choice(((), (), ("user", "global"), ("pair",))),
            barrier_ms=self._rng.choice((0, 20, 2000)),
            **self._load.who(peer),
        )

    def _list(self, peer: Peer) -> m.Request:
        id_ = self._rng.choice(("", "", "", self._entry()))
        return m.LearnList(id=id_, limit=self._rng.choice((1, 100)), **self._load.who(peer))

    def _edit(self, peer: Peer) -> m.Request:
        changes: tuple[dict[str, Any], ...] = (
            {"scope": self._rng.choice(("pair", "user", "agent", "global"))},
            {"scope": self._rng.choice(("pair", "user", "agent", "global")), "agent": "plan"},
            {"lesson": "by hand"},
            {"situation": "by hand", "lesson": "all of it"},
        )
        return m.LearnEdit(
            id=self._entry(),
            version=self._rng.choice((1, 1, 2, 3)),
            **self._rng.choice(changes),
            **self._load.who(peer),
        )

    def _delete(self, peer: Peer) -> m.Request:
        return m.LearnDelete(id=self._entry(), **self._load.who(peer))

    def consent(self, peer: Peer) -> m.Request:
        choice: Any = self._rng.choice(("", "", "nothing", "own", "share", "share", "share"))
        return m.LearnConsent(choice=choice, **self._load.who(peer))

    def review(self, peer: Peer) -> m.Request:
        return m.LearnReview(dry_run=self._rng.random() < 0.3)
