"""Kernels that learn as they should not, for the simulator to find out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from isovist.kernel.state import entries, learning, reviewing
from isovist.kernel.state.core import Channel
from isovist.kernel.state.entries import Entries
from isovist.kernel.state.learning import Job, Lessons
from isovist.kernel.state.lessons import CAP, Known, Operation
from isovist.kernel.state.memory import Memory
from isovist.kernel.state.reviewing import Reviewing
from isovist.syscalls import messages as m


def _caps_nothing(stream: str, allowed: Any, consent: str) -> tuple[str, ...]:
    return CAP["reusable"]


def _mixes_the_streams(original: Any) -> Any:
    def refusal(
        operation: Operation, stream: Any, scopes: Any, shown: Mapping[str, Known], outcome: Any
    ) -> str:
        mixed = {id_: replace(known, stream=stream) for id_, known in shown.items()}
        return str(original(operation, stream, scopes, mixed, outcome))

    return refusal


def _needs_no_verdict(original: Any) -> Any:
    def refusal(operation: Operation, stream: Any, scopes: Any, shown: Any, outcome: Any) -> str:
        return str(original(operation, stream, scopes, shown, "passed"))

    return refusal


def _hears_late_words(self: Lessons, id_: str, *phases: Any) -> Job | None:
    job = self._job
    return job if job is not None and job.id == id_ and not job.pending else None


def _remembers_the_forgotten(self: Lessons, user: str) -> None:
    pass


def _plans_before_it_is_asked(original: Any) -> Any:
    """Whatever was chosen since the plan was made."""

    def kept(self: Lessons, event: Any) -> None:
        consents, self._consents = self._consents, {}
        try:
            original(self, event)
        finally:
            self._consents = consents

    return kept


def _does_all_again(original: Any) -> Any:
    def again(self: Lessons, job: Job, why: str) -> None:
        job.settled.clear()
        original(self, job, why)

    return again


def _gives_up(self: Lessons, job: Job, why: str) -> None:
    self._end()


def _answers_before_the_disk(original: Any) -> Any:
    def submit(self: Lessons, channel: Channel, frame: int, request: m.LearnSubmit) -> None:
        original(self, channel, frame, request)
        call = self._state.calls.get(channel.calls.get(frame, 0))
        asked = self._state._out[-1]
        if call is not None and hasattr(asked, "submission"):
            self._reply(call, (asked.submission,))

    return submit


def _tells_of_all_users(self: Entries, call: Any) -> bool:
    return True


def _takes_all_proposals(original: Any) -> Any:
    def refusal(proposed: Any) -> str:
        return "" if len(proposed.parts) > (proposed.to is None) else str(original(proposed))

    return refusal


def _drops_what_nothing_stands_for(original: Any) -> Any:
    def done(self: Reviewing, place: int, others: Any, outcome: Any) -> None:
        original(self, place, others, replace(outcome, errno=0))

    return done


def _is_never_dry(original: Any) -> Any:
    def begin(self: Reviewing, key: int, dry: bool) -> None:
        original(self, key, False)

    return begin


def _asks_out_of_all(original: Any) -> Any:
    def ask(self: Memory, call: Any, query: Any, view: Any = None) -> None:
        if isinstance(call.request, m.LearnLessons):
            view = entries.everything(self._state.barrier.partitions())
        original(self, call, query, view)

    return ask


def _everybody_operates(who: Any) -> bool:
    return True


BROKEN: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "a stream without a cap": (learning, "scopes_for", lambda _: _caps_nothing),
    "a writer of both streams": (learning, "refusal", _mixes_the_streams),
    "a change without a verdict": (learning, "refusal", _needs_no_verdict),
    "late words of a learner": (Lessons, "_mine", lambda _: _hears_late_words),
    "lessons of the forgotten": (Lessons, "forget", lambda _: _remembers_the_forgotten),
    "a plan that outlives a choice": (Lessons, "_kept", _plans_before_it_is_asked),
    "a full disk and all again": (Lessons, "_again", _does_all_again),
    "a full disk and no more": (Lessons, "_again", lambda _: _gives_up),
    "a submission that is not durable": (Lessons, "_submit", _answers_before_the_disk),
    "origins of all users": (Entries, "_operates", lambda _: _tells_of_all_users),
    "entries that anybody edits": (entries, "acts_as_itself", lambda _: _everybody_operates),
    "lessons out of any view": (Memory, "ask", _asks_out_of_all),
    "a review without rules": (reviewing, "review_refusal", _takes_all_proposals),
    "a merge that loses": (Reviewing, "_done", _drops_what_nothing_stands_for),
    "a dry run that changes": (Reviewing, "_begin", _is_never_dry),
}
"""By name: what is broken, and how."""
