"""The ``learn`` syscalls of both clients: hand in finished attempts, and read what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar, Unpack

from isovist.syscalls import messages as m
from isovist.syscalls.options import (
    CallOptions,
    LearnListOptions,
    LessonOptions,
    SubmitOptions,
    conversation,
)
from isovist.syscalls.records import Message

R = TypeVar("R", bound=m.Reply)
Choice = Literal["", "nothing", "own", "share"]


class LearnCalls:
    """What a client gets that can ``_ask``."""

    def _ask(self, request: m.Request, reply: type[R]) -> R:
        raise NotImplementedError

    def learn_submit(
        self, task: str, trajectory: str | Sequence[Message], **options: Unpack[SubmitOptions]
    ) -> m.Submissions:
        """Hand in a finished attempt. The reply says that it is durable; learning comes later."""
        said = conversation(trajectory)
        request = m.LearnSubmit(task=task, trajectory=said, **options)
        return self._ask(request, m.Submissions)

    def learn_status(
        self,
        id: str = "",
        limit: int = 20,
        retry: bool = False,
        **options: Unpack[CallOptions],
    ) -> m.Submissions:
        """What became of one submission, or of the latest ones."""
        request = m.LearnStatus(id=id, limit=limit, retry=retry, **options)
        return self._ask(request, m.Submissions)

    def learn_lessons(self, task: str, **options: Unpack[LessonOptions]) -> m.Lessons:
        """What was learned that is of use for ``task``, scope by scope, ready for a prompt."""
        return self._ask(m.LearnLessons(task=task, **options), m.Lessons)

    def learn_list(self, **options: Unpack[LearnListOptions]) -> m.Entries:
        """A page of what was learned, newest first; ``id`` asks for one entry."""
        return self._ask(m.LearnList(**options), m.Entries)

    def learn_edit(
        self,
        id: str,
        version: int,
        situation: str = "",
        lesson: str = "",
        scope: str = "",
        agent: str = "",
        **options: Unpack[CallOptions],
    ) -> m.Stored:
        """Give an entry other words, or another scope."""
        request = m.LearnEdit(
            id=id,
            version=version,
            situation=situation,
            lesson=lesson,
            scope=scope,
            agent=agent,
            **options,
        )
        return self._ask(request, m.Stored)

    def learn_delete(self, id: str, **options: Unpack[CallOptions]) -> m.Forgotten:
        return self._ask(m.LearnDelete(id=id, **options), m.Forgotten)

    def learn_consent(self, choice: Choice = "", **options: Unpack[CallOptions]) -> m.Consent:
        """What may be learned from this user's attempts, after it was changed to ``choice``."""
        return self._ask(m.LearnConsent(choice=choice, **options), m.Consent)

    def learn_review(self, dry_run: bool = False, **options: Unpack[CallOptions]) -> m.Reviewed:
        """Operator only: review what is new since the last review."""
        return self._ask(m.LearnReview(dry_run=dry_run, **options), m.Reviewed)


class AsyncLearnCalls:
    """What a client gets that can ``_ask``."""

    async def _ask(self, request: m.Request, reply: type[R]) -> R:
        raise NotImplementedError

    async def learn_submit(
        self, task: str, trajectory: str | Sequence[Message], **options: Unpack[SubmitOptions]
    ) -> m.Submissions:
        """Hand in a finished attempt. The reply says that it is durable; learning comes later."""
        said = conversation(trajectory)
        request = m.LearnSubmit(task=task, trajectory=said, **options)
        return await self._ask(request, m.Submissions)

    async def learn_status(
        self,
        id: str = "",
        limit: int = 20,
        retry: bool = False,
        **options: Unpack[CallOptions],
    ) -> m.Submissions:
        """What became of one submission, or of the latest ones."""
        request = m.LearnStatus(id=id, limit=limit, retry=retry, **options)
        return await self._ask(request, m.Submissions)

    async def learn_lessons(self, task: str, **options: Unpack[LessonOptions]) -> m.Lessons:
        """What was learned that is of use for ``task``, scope by scope, ready for a prompt."""
        return await self._ask(m.LearnLessons(task=task, **options), m.Lessons)

    async def learn_list(self, **options: Unpack[LearnListOptions]) -> m.Entries:
        """A page of what was learned, newest first; ``id`` asks for one entry."""
        return await self._ask(m.LearnList(**options), m.Entries)

    async def learn_edit(
        self,
        id: str,
        version: int,
        situation: str = "",
        lesson: str = "",
        scope: str = "",
        agent: str = "",
        **options: Unpack[CallOptions],
    ) -> m.Stored:
        """Give an entry other words, or another scope."""
        request = m.LearnEdit(
            id=id,
            version=version,
            situation=situation,
            lesson=lesson,
            scope=scope,
            agent=agent,
            **options,
        )
        return await self._ask(request, m.Stored)

    async def learn_delete(self, id: str, **options: Unpack[CallOptions]) -> m.Forgotten:
        return await self._ask(m.LearnDelete(id=id, **options), m.Forgotten)

    async def learn_consent(self, choice: Choice = "", **options: Unpack[CallOptions]) -> m.Consent:
        """What may be learned from this user's attempts, after it was changed to ``choice``."""
        return await self._ask(m.LearnConsent(choice=choice, **options), m.Consent)

    async def learn_review(
        self, dry_run: bool = False, **options: Unpack[CallOptions]
    ) -> m.Reviewed:
        """Operator only: review what is new since the last review."""
        return await self._ask(m.LearnReview(dry_run=dry_run, **options), m.Reviewed)
