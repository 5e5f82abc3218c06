"""Learning in a whole kernel: real store, real writers' thread, hostile models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from kernel_helpers import client, running
from learning_attacks import ATTACKS, ATTEMPT, STORED, Attack, Hostile
from learning_helpers import Scripted

from isovist.kernel.learning import asked, pipeline
from isovist.kernel.learning.agentic import AgenticWriter
from isovist.kernel.learning.asked import ModelSplitter, ModelWriter
from isovist.kernel.learning.pipeline import Roles
from isovist.kernel.learning.roles import Model, Writer
from isovist.kernel.state import learning
from isovist.kernel.state.lessons import Attempt, Brief, Operation, Streams
from isovist.syscalls.aio import AsyncClient
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.messages import Chatted
from isovist.syscalls.records import Entry, Message, Submission, Tool

BY_HAND = {"review_after": 0}
TRAJECTORY = (Message("user", "Convert it. I like ISO dates."), Message("assistant", "Done."))


class Splits:
    """A splitter that gives what it is told to."""

    def __init__(self, reusable: str, protected: str) -> None:
        self.streams = Streams(reusable=reusable, protected=protected, by="test")
        self.seen: list[Attempt] = []

    async def split(self, attempt: Attempt) -> Streams:
        self.seen.append(attempt)
        return self.streams


class Writes:
    """A writer that asks for ``by_stream``, and notes what it was shown."""

    def __init__(self, **by_stream: Sequence[Operation]) -> None:
        self.by_stream = by_stream
        self.seen: list[Brief] = []

    async def write(self, brief: Brief) -> tuple[Operation, ...]:
        self.seen.append(brief)
        return tuple(self.by_stream.get(brief.stream, ()))


def roles(splitter: Splits, writer: Writes) -> Roles:
    return Roles(splitter=lambda _: splitter, writer=lambda _: writer, by="test")


def lesson(text: str, scope: str, situation: str = "converting a csv", **more: str) -> Operation:
    return Operation(situation=situation, lesson=text, scope=scope, **more)


async def ended(k: AsyncClient, user: str = "ana", **more: Any) -> Submission:
    """The latest submission, at its end."""
    with trio.fail_after(60):
        while True:
            latest = (await k.learn_status(user=user, **more)).submissions[0]
            if latest.state not in ("queued", "learning"):
                return latest
            await trio.sleep(0.01)


async def learned(k: AsyncClient, user: str = "ana", **more: Any) -> Submission:
    fields = {"outcome": "failed", "verifier_tail": "decimal comma", **more}
    await k.learn_submit("Convert sales.csv", TRAJECTORY, user=user, **fields)
    return await ended(k, user)


async def entries(k: AsyncClient, **more: Any) -> tuple[Entry, ...]:
    return (await k.learn_list(**more)).entries


async def granted(operator: AsyncClient, *agents: str) -> None:
    for agent in agents:
        await operator.grant(agent, users=("ana", "bo"))


# -- what each is shown


@pytest.mark.promise("protected.stays", "view.noninterference")
async def test_a_writer_is_shown_its_own_stream_and_what_its_pair_may_read(tmp_path: Path) -> None:
    split = Splits("mind the decimal comma", "likes ISO dates")
    write = Writes(
        reusable=[lesson("Mind the decimal comma.", "global")],
        protected=[lesson("Likes ISO dates.", "user", "writing for this person")],
    )
    async with (
        running(tmp_path, roles=roles(split, write)) as kernel,
        client(kernel, "operator", operator=True) as operator,
        client(kernel, "coder") as coder,
    ):
        await granted(operator, "coder")
        assert (await learned(coder)).added == 2
        assert (await learned(coder, user="bo")).added == 1  # the reusable one is known
        write.seen.clear()
        await learned(coder)
        reusable, protected = write.seen
        assert (reusable.stream, reusable.text) == ("reusable", "mind the decimal comma")
        assert [e.lesson for e in reusable.entries] == ["Mind the decimal comma."]
        assert protected.text == "likes ISO dates"
        assert [e.lesson for e in protected.entries] == ["Likes ISO dates."]
        assert len(await entries(operator)) == 3
        mine, his = await entries(coder, user="ana"), await entries(coder, user="bo")
        assert {e.scope for e in mine} == {"user", "global"}
        assert all(e.user in ("", "bo") for e in his)
        assert {o.user for e in mine for o in e.origins} == {"ana"}


async def test_lessons_come_scope_by_scope_within_their_budget(tmp_path: Path) -> None:
    many = [
        lesson(f"Mind rule {n} of the converter.", "global", f"case {n} of csv") for n in range(12)
    ]
    write = Writes(
        reusable=many,
        protected=[lesson("Likes ISO dates.", "user"), lesson("Likes it short.", "pair")],
    )
    async with (
        running(tmp_path, roles=roles(Splits("r", "p"), write)) as kernel,
        client(kernel, "operator", operator=True) as operator,
        client(kernel, "coder") as coder,
        client(kernel, "writer") as writer,
    ):
        await granted(operator, "coder", "writer")
        await learned(coder)
        whole = await coder.learn_lessons("convert a csv", user="ana")
        assert [f.name for f in whole.files] == ["pair.md", "user.md", "global.md"]
        assert whole.text.count("# Learned memory: ") == 3
        assert len(whole.entries) == 14
        small = await coder.learn_lessons("convert a csv, case 7 of csv", budget=160, user="ana")
        assert all(len(f.text) <= 161 for f in small.files)
        assert "case 7" in small.text
        other = await writer.learn_lessons("convert a csv", user="ana")
        assert "Likes it short." not in other.text
        assert "Likes ISO dates." in other.text
        stranger = await writer.learn_lessons("convert a csv", user="bo")
        assert {e.scope for e in stranger.entries} == {"global"}
        only = await coder.learn_lessons("convert", scopes=("pair",), user="ana")
        assert {e.scope for e in only.entries} == {"pair"}
        for bad in ({"budget": 99}, {"scopes": ("all",)}):
            with pytest.raises(CallerError) as caught:
                await coder.learn_lessons("convert", user="ana", **bad)
            assert caught.value.field == next(iter(bad))


# -- what the kernel takes out, whoever wrote it


@pytest.mark.promise("protected.stays", "secrets.never")
async def test_what_the_store_holds_as_protected_leaves_in_no_reusable_text(tmp_path: Path) -> None:
    split = Splits("Send it to Rosengasse 7. Mind the decimal comma.", "")
    write = Writes(
        reusable=[lesson("Mind the comma.", "global"), lesson("It goes to Rosengasse 7.", "agent")]
    )
    async with (
        running(tmp_path, roles=roles(split, write)) as kernel,
        client(kernel, "operator", operator=True) as operator,
        client(kernel, "coder") as coder,
        client(kernel, "mailer") as mailer,
    ):
        await granted(operator, "coder", "mailer")
        # Another agent of the same user knows it: no view of the submitting pair holds that.
        await mailer.remember("Ana lives in Rosengasse 7", user="ana", stream="protected")
        report = await learned(coder)
        assert (report.added, report.cut) == (1, 2)
        assert write.seen[0].text.strip() == "Mind the decimal comma."
        assert [e.lesson for e in await entries(operator)] == ["Mind the comma."]


async def test_a_writer_that_breaks_a_rule_is_told_of(tmp_path: Path) -> None:
    write = Writes(protected=[lesson("Likes ISO dates.", "global"), lesson("Likes tea.", "user")])
    async with (
        running(tmp_path, roles=roles(Splits("", "p"), write)) as kernel,
        client(kernel, "operator", operator=True) as operator,
        client(kernel, "coder") as coder,
    ):
        await granted(operator, "coder")
        report = await learned(coder)
        assert (report.added, report.denied) == (1, 1)
        assert report.reasons == ("the scope is not one of pair, user, the cap of this stream",)


# -- forty attacks and more


class Attacker:
    """A model that answers as the ``attack`` of the moment says."""

    name, context = "hostile", 8192

    def __init__(self) -> None:
        self.begin(ATTACKS[0])

    def begin(self, attack: Attack) -> None:
        self.attack, self._hostile = attack, Hostile(attack)

    def writer(self, _: Model) -> Writer:
        return AgenticWriter(self) if self.attack.part == "agentic" else ModelWriter(self)

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        schema: str = "",
        tools: Sequence[Tool] = (),
        choice: str = "auto",
    ) -> Chatted:
        answer = self._hostile(messages, tools=bool(tools))
        return await Scripted(answer, context=self.context).ask(messages, max_tokens=max_tokens)


@pytest.mark.promise("protected.stays", "secrets.never", "kernel.survives")
async def test_whatever_a_model_answers_the_promises_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All attacks over one store, one after the other, so that each may build on those before."""
    monkeypatch.setattr(learning, "AGAIN", 1_000_000)
    monkeypatch.setattr(pipeline, "PATIENCE_S", 0.5)
    monkeypatch.setattr(asked, "PATIENCE_S", 0.5)
    model = Attacker()
    hostile = Roles(splitter=lambda _: ModelSplitter(model), writer=model.writer, by="hostile")
    assert len(ATTACKS) >= 40
    async with (
        running(tmp_path, roles=hostile, learn=BY_HAND) as kernel,
        client(kernel, "operator", operator=True) as operator,
        client(kernel, "coder") as coder,
    ):
        await granted(operator, "coder")
        await coder.remember(f"Ana lives in {STORED}", user="ana", stream="protected")
        for attack in ATTACKS:
            model.begin(attack)
            await coder.learn_submit(
                ATTEMPT.task, ATTEMPT.trajectory, user="ana", outcome="passed",
                verifier_tail=ATTEMPT.tail,
            )  # fmt: skip
            report = await ended(coder)
            if attack.end in ("something", "nothing"):
                assert report.state == "done", attack.name
            else:  # an answer about an entry can be read only where there is one
                assert report.state == "parked" or report.denied, attack.name
            kept = [e async for e in every_entry(operator)]
            text = "\n".join(f"{e.situation}\n{e.lesson}" for e in kept)
            assert not [value for value in attack.never if value in text], attack.name
            seen = [e async for e in every_entry(coder, user="bo")]
            text = "\n".join(f"{e.situation}\n{e.lesson}" for e in seen)
            stays = (*attack.never, *attack.stays, STORED)
            assert not [value for value in stays if value in text], attack.name
            cap = {e.scope for e in kept if e.stream == "protected"}
            assert cap <= {"pair", "user"}, attack.name
            kernel.state.validate()
            # The kernel and everybody else go on.
            reply = await coder.chat("Are you there?", user="bo", model="scripted", memory=False)
            assert reply.finish in ("stop", "length")
        assert (await coder.remember("one more", user="bo")).version == 1


async def every_entry(k: AsyncClient, **more: Any) -> AsyncIterator[Entry]:
    after = ""
    while True:
        page = await k.learn_list(after=after, **more)
        for entry in page.entries:
            yield entry
        after = page.next
        if not after:
            return


# -- persons


async def test_no_lesson_steers_the_terminals_of_its_readers(tmp_path: Path) -> None:
    write = Writes(
        reusable=[lesson("Mind\x1b[2J the\0 comma.", "global")],
        protected=[lesson("Likes \x07tea.", "user", "wri\x1bting")],
    )
    async with (
        running(tmp_path, roles=roles(Splits("r", "p"), write)) as kernel,
        client(kernel, "operator", operator=True) as operator,
        client(kernel, "coder") as coder,
    ):
        await granted(operator, "coder")
        await learned(coder)
        by_scope = {e.scope: e for e in await entries(operator)}
        own = by_scope["user"]
        assert by_scope["global"].lesson == "Mind[2J the comma."
        assert (own.situation, own.lesson) == ("writing", "Likes tea.")
        await coder.learn_edit(own.id, 1, lesson="Likes \x1b[31mmilk.", user="ana")
        with pytest.raises(CallerError) as caught:
            await coder.learn_edit(own.id, 2, lesson="\x1b", user="ana")
        assert caught.value.field == "lesson"
        (entry,) = await entries(coder, id=own.id, user="ana")
        assert entry.lesson == "Likes [31mmilk."


@pytest.mark.promise("erase.complete", "protected.stays")
async def test_a_forgotten_user_leaves_no_trace_in_what_others_read(tmp_path: Path) -> None:
    write = Writes(
        reusable=[lesson("Mind the comma.", "global")],
        protected=[lesson("Likes ISO dates.", "user")],
    )
    async with (
        running(tmp_path, roles=roles(Splits("r", "p"), write)) as kernel,
        client(kernel, "operator", operator=True) as operator,
        client(kernel, "coder") as coder,
    ):
        await granted(operator, "coder")
        await learned(coder)
        word = (await operator.forget_user("ana")).confirm
        await operator.forget_user("ana", confirm=word)
        (left,) = await entries(operator)
        assert (left.scope, left.lesson, left.origins) == ("global", "Mind the comma.", ())
        assert (await operator.learn_status()).submissions == ()


async def test_people_change_and_delete_what_was_learned(tmp_path: Path) -> None:
    write = Writes(
        reusable=[lesson("Mind the comma.", "global")],
        protected=[lesson("Likes ISO dates.", "user")],
    )
    async with (
        running(tmp_path, roles=roles(Splits("r", "p"), write)) as kernel,
        client(kernel, "operator", operator=True) as operator,
        client(kernel, "coder") as coder,
    ):
        await granted(operator, "coder")
        await learned(coder)
        by_scope = {e.scope: e for e in await entries(operator)}
        shared, own = by_scope["global"], by_scope["user"]
        await coder.learn_edit(own.id, own.version, lesson="Likes tea.", user="ana")
        (entry,) = await entries(coder, id=own.id, user="ana")
        assert (entry.lesson, entry.writer, entry.situation) == (
            "Likes tea.", "person", "converting a csv"
        )  # fmt: skip
        for call in (
            coder.learn_edit(shared.id, shared.version, lesson="x", user="ana"),
            coder.learn_delete(shared.id, user="ana"),
            operator.learn_edit(own.id, 2, scope="global", user="ana"),
        ):
            with pytest.raises(CallerError) as caught:
                await call
            assert caught.value.errno is Errno.EPERM
        with pytest.raises(CallerError) as caught:
            await coder.learn_delete(own.id, user="bo")
        assert caught.value.errno is Errno.ENOENT
        # Narrowed it is one user's, widened again nobody's; a forgotten user takes no shared one.
        moved = await operator.learn_edit(shared.id, 1, scope="user", user="ana")
        assert moved.scope == "user"
        await operator.learn_edit(shared.id, 2, scope="agent", agent="coder")
        await operator.learn_edit(shared.id, 3, scope="global")
        receipt = (await coder.learn_delete(own.id, user="ana")).receipt
        assert receipt
        (left,) = await entries(operator)
        assert (left.id, left.scope, left.user) == (shared.id, "global", "")


@pytest.mark.promise("protected.stays")
async def test_an_agent_publishes_nothing_of_a_user_who_shares_nothing(tmp_path: Path) -> None:
    write = Writes(reusable=[lesson("Mind the comma.", "user")])
    async with (
        running(tmp_path, roles=roles(Splits("r", ""), write)) as kernel,
        client(kernel, "operator", operator=True) as operator,
        client(kernel, "coder") as coder,
    ):
        await operator.grant("coder", users=("ana",), scopes=("global",))
        await coder.learn_consent("own", user="ana")
        await learned(coder)
        (entry,) = await entries(coder, user="ana")
        with pytest.raises(CallerError) as caught:
            await coder.learn_edit(entry.id, entry.version, scope="global", user="ana")
        assert (caught.value.errno, caught.value.field) == (Errno.EPERM, "scope")
        await operator.learn_consent("share", user="ana")
        moved = await coder.learn_edit(entry.id, entry.version, scope="global", user="ana")
        assert moved.scope == "global"


# -- a review


@pytest.mark.promise("protected.stays")
async def test_a_review_merges_and_keeps_origins(tmp_path: Path) -> None:
    write = Writes()
    async with (
        running(tmp_path, roles=roles(Splits("r", ""), write), learn=BY_HAND) as kernel,
        client(kernel, "operator", operator=True) as operator,
        client(kernel, "coder") as coder,
    ):
        await granted(operator, "coder")
        words = (
            ("ana", "Parse the amounts with a decimal comma."),
            ("bo", "Parse amounts with the decimal comma."),
            ("bo", "Do not parse amounts with a decimal comma."),
        )
        for user, text in words:
            write.by_stream = {"reusable": [lesson(text, "global", "converting a csv export")]}
            await learned(coder, user)
        dry = await operator.learn_review(dry_run=True)
        assert [c.what for c in dry.changes] == ["merge"]
        assert len(await entries(operator)) == 3
        done = await operator.learn_review()
        assert [c.done for c in done.changes] == [True]
        kept = await entries(operator)
        assert len(kept) == 2
        merged = next(e for e in kept if len(e.origins) == 2)
        assert {o.user for o in merged.origins} == {"ana", "bo"}
        # Nothing has changed but the merged one.
        assert (await operator.learn_review()).changed <= 1
        assert (await operator.learn_review()).changed == 0
        with pytest.raises(CallerError) as caught:
            await coder.learn_review(user="ana")
        assert caught.value.errno is Errno.EPERM


@pytest.mark.promise("protected.stays")
async def test_a_review_opens_a_lesson_to_others_only_with_a_witness(tmp_path: Path) -> None:
    write = Writes()
    rule = lesson("Parse amounts with a decimal comma.", "pair", "converting a csv export")
    async with (
        running(
            tmp_path, roles=roles(Splits("r", "p"), write), learn={"review_after": 0}
        ) as kernel,
        client(kernel, "operator", operator=True) as operator,
        client(kernel, "coder") as coder,
    ):
        await granted(operator, "coder")
        wish = lesson("Wants short answers.", "pair", "writing for this person")
        write.by_stream = {"reusable": [rule], "protected": [wish]}
        await learned(coder)
        await operator.learn_review()
        await operator.learn_review()
        assert {e.scope for e in await entries(operator)} <= {"pair", "user"}
        await learned(coder, "bo")
        for _ in range(4):
            await operator.learn_review()
        kept = await entries(operator)
        assert {e.scope for e in kept if e.stream == "protected"} <= {"pair", "user"}
        shared = [e for e in kept if e.scope == "global"]
        assert [e.stream for e in shared] == ["reusable"] * len(shared)
        assert shared


async def test_what_no_review_has_seen_counts_after_a_restart(tmp_path: Path) -> None:
    write = Writes(reusable=[lesson("Mind the decimal comma.", "pair")])
    own = roles(Splits("r", "p"), write)
    for life, fresh in ((0, 1), (1, 0)):
        async with (
            running(tmp_path, roles=own, learn={"review_after": 2}) as kernel,
            client(kernel, "operator", operator=True) as operator,
            client(kernel, "coder") as coder,
        ):
            await granted(operator, "coder")
            write.by_stream = {"reusable": [lesson(f"Quote field {life}.", "pair", f"case {life}")]}
            assert (await learned(coder)).added == 1
            with trio.fail_after(60):
                while (await operator.statistics())["store_entries_fresh"] != fresh:
                    await trio.sleep(0.01)
