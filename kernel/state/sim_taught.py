"""What the judge demands of replies about learning, and of changes of entries by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isovist.syscalls import messages as m
from isovist.syscalls.operations import Drop, Move, Op, Replace
from isovist.syscalls.records import Axis, Entry

if TYPE_CHECKING:
    from isovist.kernel.state.sim_judge import Asked
    from isovist.kernel.state.sim_learning import LearningBooks

LEARNED = (m.Submissions, m.Lessons, m.Entries, m.Consent, m.Reviewed)
LEARNER = "kernel/learner"


def told(books: LearningBooks, asked: Asked, reply: m.AnyReply) -> str:
    """The rule that a reply breaks; empty: none."""
    if isinstance(reply, m.Submissions):
        return _submissions(books, asked, reply)
    if isinstance(reply, m.Lessons):
        return _lessons(books, asked, reply)
    if isinstance(reply, m.Entries):
        return _entries(books, asked, reply)
    if isinstance(reply, m.Consent) and isinstance(asked.request, m.LearnConsent):
        if asked.request.choice:
            books.chosen(reply.user, reply.choice, asked)
            fits = reply.choice == asked.request.choice
        else:
            fits = reply.choice == books.choice(asked.user or "")
        return "" if fits and reply.user == asked.user else f"{reply} is no such choice"
    return books.reviews.replied(asked, reply) if isinstance(reply, m.Reviewed) else ""


def operates(asked: Asked) -> bool:
    return asked.who.operator and asked.who.agent == "operator"


def _submissions(books: LearningBooks, asked: Asked, reply: m.Submissions) -> str:
    """A pair is told of its own, and that something is kept only when it is."""
    request = asked.request
    if (reply.user, reply.rule) != (asked.user, asked.rule):
        return f"{reply} for the wrong user"
    for one in reply.submissions:
        named = request.user if request and operates(asked) else asked.user
        fits = one.user == named or (operates(asked) and named is None)
        if isinstance(request, m.LearnSubmit) or not operates(asked):
            fits = (one.user, one.agent) == (asked.user, asked.who.agent)
        if not fits:
            return f"{one} is another's"
        if one.state == "refused" and isinstance(request, m.LearnSubmit) and not reply.known:
            return "" if books.choice(one.user) == "nothing" else f"{one} for no reason"
        if not books.kept(one.id):
            return f"{one} is not kept"
    if isinstance(request, m.LearnStatus) and request.id:
        fits = [one.id for one in reply.submissions] == [request.id]
        return "" if fits else f"{reply} to {request}"
    if isinstance(request, m.LearnStatus):
        return "" if len(reply.submissions) <= request.limit else "more than asked for"
    return "" if len(reply.submissions) == 1 else "a submission that is not told of"


def _lessons(books: LearningBooks, asked: Asked, reply: m.Lessons) -> str:
    request = asked.request
    if not isinstance(request, m.LearnLessons):
        return "lessons to what asks for none"
    for file in reply.files:
        scope = file.name.removesuffix(".md")
        if request.scopes and scope not in request.scopes:
            return f"{scope} was not asked for"
        if len(file.text) > request.budget:
            return f"{len(file.text)} characters of {scope}"
    if any(entry.origins for entry in reply.entries):
        return "a delivery tells of persons"
    return "".join(_seen(books, asked, entry) for entry in reply.entries)


def _entries(books: LearningBooks, asked: Asked, reply: m.Entries) -> str:
    for entry in reply.entries:
        broken = "" if operates(asked) else _seen(books, asked, entry)
        named = asked.request.user if asked.request and operates(asked) else asked.user
        if named is not None and any(origin.user != named for origin in entry.origins):
            broken = f"{entry} tells of other users"
        if broken:
            return broken
    return ""


def _seen(books: LearningBooks, asked: Asked, entry: Entry) -> str:
    """An entry is of the reader's view, and names nobody but the reader's user to an agent."""
    if set(asked.accepted).isdisjoint(books.places(entry.id)):
        return f"{entry} out of another view"
    named = entry.user not in ("", asked.user) and not operates(asked)
    return f"{entry} names its user" if named else ""


def by_hand(books: LearningBooks, asked: Asked, op: Op) -> str:
    """The rule that a change by hand breaks; empty: none."""
    request = asked.request
    if not isinstance(request, m.LearnEdit | m.LearnDelete) or op.id != request.id:
        return f"{op} that nobody asked for"
    if not operates(asked) and op.partition.users != Axis("one", asked.user or ""):
        return f"{op}: other users read it"
    if isinstance(op, Drop):
        return "" if isinstance(request, m.LearnDelete) else f"{op}, and it was to be edited"
    if not isinstance(request, m.LearnEdit) or not isinstance(op, Move | Replace):
        return f"{op}, and it was to be deleted"
    if op.version != request.version:
        return f"{op} of another version"
    if isinstance(op, Replace):
        person = op.learned is not None and op.learned.writer == "person"
        return "" if person and not request.scope else f"{op} is no person's"
    source, to = op.partition, op.to
    user = source.users.name if source.users.kind == "one" else asked.user or ""
    agent = source.agents.name if source.agents.kind == "one" else request.agent
    users = Axis("one", user) if request.scope in ("pair", "user") else Axis("all")
    agents = Axis("one", agent or asked.who.agent)
    agents = agents if request.scope in ("pair", "agent") else Axis("all")
    if (to.users, to.agents) != (users, agents) or to == source:
        return f"{op} to where nobody wished"
    if op.owner != (users.name or LEARNER, agents.name or LEARNER):
        return f"{op} to another owner"
    return books.reaches(op)
