"""Saved contexts through the whole kernel: with a model that keeps no state, and a real one."""

from __future__ import annotations

import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from driver_helpers import real_model
from kernel_helpers import client, running, short_folder
from kernel_process import KernelProcess
from trio.testing import wait_all_tasks_blocked

from isovist.kernel import contexts
from isovist.kernel.drivers.snapshots import fingerprint
from isovist.kernel.kernel import Kernel
from isovist.kernel.models import PACKAGED, SCRIPTED, ModelSpec
from isovist.storage.contexts import Ready, prepare
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.operations import Context
from isovist.syscalls.records import Message, Tool

PATIENCE = 300.0
SYSTEM = Message("system", "You answer in one short sentence and never use lists of any kind.")
TURNS = ("Name a colour of the sea.", "Name another one.", "And a third?")
AWS = "AKIA" + "IOSFODNN7EXAMPLE"


@pytest.fixture
def folder() -> AsyncIterator[Path]:
    with short_folder() as made:
        yield Path(made)


@pytest.fixture
def llama() -> ModelSpec:
    return ModelSpec(name="real", driver="llama", path=real_model(), context=512, slots=2)


@asynccontextmanager
async def kernel_of(folder: Path, *models: ModelSpec, **settings: object) -> AsyncIterator[Kernel]:
    with trio.fail_after(PATIENCE):
        async with running(folder, models=[*models, SCRIPTED], **settings) as kernel:
            yield kernel


def states(kernel: Kernel) -> list[Path]:
    return sorted(kernel.config.snapshots.iterdir())


async def until_gone(kernel: Kernel) -> None:
    """A file is removed in a thread, beside the reply."""
    while states(kernel):
        await trio.sleep(0)


# -- without a state


async def test_a_conversation_is_kept_listed_replaced_and_dropped(folder: Path) -> None:
    said = [SYSTEM, Message("user", "where to?"), Message("assistant", None)]
    async with kernel_of(folder) as kernel, client(kernel, "one") as k:
        saved = await k.context_save("trip", said)
        assert (saved.name, saved.model, saved.user) == ("trip", "scripted", "agent/one")
        assert (saved.tokens, saved.replaced, saved.secrets) == (0, False, {})
        loaded = await k.context_load("trip")
        assert (list(loaded.messages), loaded.model, loaded.tokens) == (said, "scripted", 0)
        assert (await k.context_save("trip", said[:2])).replaced
        (kept,) = await k.contexts()
        assert (kept.name, kept.messages, kept.bytes) == ("trip", 2, (await k.context_save(
            "other", said[:2])).bytes)  # fmt: skip
        await k.context_drop("trip")
        for gone in (k.context_load("trip"), k.context_drop("trip")):
            with pytest.raises(CallerError) as caught:
                await gone
            assert (caught.value.errno, caught.value.field) == (Errno.ENOENT, "name")
        assert [one.name for one in await k.contexts()] == ["other"]
        figures = kernel.statistics()
        assert (figures["store_contexts"], figures["store_context_bytes"]) == (1, kept.bytes)


@pytest.mark.promise("view.noninterference")
async def test_nobody_else_reads_it_not_even_under_the_same_name(folder: Path) -> None:
    async with (
        kernel_of(folder) as kernel,
        client(kernel, "one", operator=True, user="ana") as mine,
        client(kernel, "one", operator=True, user="bob") as his,
        client(kernel, "two", operator=True, user="ana") as other,
    ):
        await mine.context_save("trip", [Message("user", "the canary sings")])
        for k in (his, other):
            assert await k.contexts() == ()
            for gone in (k.context_load("trip"), k.context_drop("trip")):
                with pytest.raises(CallerError) as caught:
                    await gone
                assert caught.value.errno == Errno.ENOENT
                # The very words for what nobody has.
                with pytest.raises(CallerError, match=caught.value.message):
                    await k.context_load("nothing")
            await k.context_save("trip", [Message("user", "mine")])
        assert (await mine.context_load("trip")).messages[0].content == "the canary sings"


@pytest.mark.promise("secrets.never")
async def test_secrets_are_replaced_and_told(folder: Path) -> None:
    async with kernel_of(folder) as kernel, client(kernel, "one") as k:
        saved = await k.context_save("keys", [Message("user", f"my key is {AWS}")])
        assert sum(saved.secrets.values()) == 1
        assert AWS not in str(await k.context_load("keys"))


async def test_the_longest_context_fits_a_frame_and_a_longer_one_is_refused(folder: Path) -> None:
    async with kernel_of(folder) as kernel, client(kernel, "one") as k:
        said = [Message("user", "tea " * 16_000)] * 8
        await k.context_save("long", said)
        assert list((await k.context_load("long")).messages) == said
        with pytest.raises(CallerError, match="the limit of a context is 524288") as caught:
            await k.context_save("long", [*said, *said[:1]])
        assert (caught.value.errno, caught.value.field) == (Errno.EMSGSIZE, "messages")
        assert len((await k.context_load("long")).messages) == 8


@pytest.mark.promise("erase.complete")
async def test_a_dropped_context_has_the_store_scrubbed_and_no_model_flushed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with kernel_of(folder) as kernel, client(kernel, "one") as k:
        await k.context_save("trip", [Message("user", "x")])
        flushed: list[None] = []
        monkeypatch.setattr(kernel.models, "flush", lambda: flushed.append(None))
        scrubbed = trio.Event()
        scrub = kernel.store.scrub

        def watched(*arguments: object) -> bool:
            done = scrub(*arguments)  # type: ignore[arg-type] # passed on as they came
            trio.from_thread.run_sync(scrubbed.set)
            return done

        monkeypatch.setattr(kernel.store, "scrub", watched)
        await k.context_drop("trip")
        await scrubbed.wait()
        assert kernel.store.owed() is None
        assert not flushed


@pytest.mark.promise("erase.complete")
async def test_a_save_that_the_guard_still_reads_goes_with_its_user(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, may_end = trio.Event(), threading.Event()

    def slow(context: Context) -> Ready:
        trio.from_thread.run_sync(reads.set)
        may_end.wait()
        return prepare(context)

    monkeypatch.setattr(contexts, "prepare", slow)
    async with (
        kernel_of(folder) as kernel,
        client(kernel, "one", operator=True, user="ana") as k,
        client(kernel, "boss", operator=True) as boss,
        trio.open_nursery() as nursery,
    ):
        word = (await boss.forget_user("ana")).confirm
        nursery.start_soon(k.context_save, "trip", [Message("user", "the canary sings")])
        await reads.wait()
        nursery.start_soon(boss.forget_user, "ana", word)
        while not any(call.receipt for call in kernel.state.calls.values()):
            await trio.sleep(0)
        await wait_all_tasks_blocked()
        may_end.set()
        while kernel.state.calls:
            await trio.sleep(0)
        assert await k.contexts() == ()


# -- with the real model's state


async def talk(k: object, said: list[Message], *turns: str) -> list[int]:
    """Go on with a conversation; returns how many tokens of each prompt were cached."""
    cached: list[int] = []
    for turn in turns:
        said.append(Message("user", turn))
        reply = await k.chat(said, model="real", max_tokens=12, memory=False)  # type: ignore[attr-defined] # a client
        said.append(Message("assistant", reply.text))
        cached.append(reply.cached_tokens)
    return cached


@pytest.mark.promise("write.durable")
async def test_a_conversation_goes_on_after_a_restart_as_if_there_had_been_none(
    folder: Path, llama: ModelSpec
) -> None:
    whole, said = [SYSTEM], [SYSTEM]
    async with kernel_of(folder, llama) as kernel, client(kernel, "one") as k:
        uninterrupted = await talk(k, whole, *TURNS)
    shutil.rmtree(folder)
    folder.mkdir()
    async with kernel_of(folder, llama) as kernel, client(kernel, "one") as k:
        await talk(k, said, *TURNS[:2])
        saved = await k.context_save("sea", said, model="real")
        assert saved.tokens > 60
        (state,) = states(kernel)
        assert state.stat().st_mode & 0o777 == 0o600
    async with kernel_of(folder, llama) as kernel, client(kernel, "one") as k:
        assert states(kernel) == [state]
        loaded = await k.context_load("sea")
        assert (list(loaded.messages), loaded.model) == (said, "real")
        assert loaded.tokens == saved.tokens
        cached = await talk(k, said, TURNS[2])
        # Nothing but the new turn is computed, and what is said is what would have been said.
        assert cached == [saved.tokens]
        assert said == whole
        # As the uninterrupted one had it, but for the end of the turn, which it had not computed.
        assert abs(cached[0] - uninterrupted[2]) <= 2


@pytest.mark.promise("write.durable")
def test_after_kill_9_a_conversation_goes_on_where_it_was_saved(folder: Path) -> None:
    (folder / PACKAGED["smollm2"].file).symlink_to(real_model())
    with KernelProcess(folder) as host:
        with host.attach("one", "ana") as k:
            said = [SYSTEM, Message("user", TURNS[0])]
            reply = k.chat(said, max_tokens=12, memory=False)
            assert reply.model == "smollm2"
            said.append(Message("assistant", reply.text))
            saved = k.context_save("sea", said)
            assert saved.tokens
            asked = [*said, Message("user", TURNS[1])]
            uninterrupted = k.chat(asked, max_tokens=12, memory=False)
        host.kill()
        host.start()
        with host.attach("one", "ana") as k:
            loaded = k.context_load("sea")
            assert (list(loaded.messages), loaded.tokens) == (said, saved.tokens)
            again = k.chat(asked, max_tokens=12, memory=False)
            assert (again.text, again.cached_tokens) == (uninterrupted.text, saved.tokens)
        with host.attach("two", "ana") as k:
            assert k.contexts() == ()


async def test_a_state_holds_nothing_that_was_said_after_the_messages_or_beside_them(
    folder: Path, llama: ModelSpec
) -> None:
    async with (
        kernel_of(folder, llama) as kernel,
        client(kernel, "one", operator=True, user="ana") as k,
        client(kernel, "two", operator=True, user="ana") as other,
    ):
        said = [SYSTEM]
        await talk(k, said, TURNS[0])
        short = await k.context_save("short", said, model="real")
        await talk(k, said, TURNS[1])
        # The conversation has gone on: of the longer one the beginning alone is kept.
        # (with what the template writes between two turns, which it had not computed before).
        again = await k.context_save("short", said[:3], model="real")
        assert short.tokens <= again.tokens <= short.tokens + 4
        longer = await k.context_save("longer", said, model="real")
        assert longer.tokens > again.tokens
        # And cutting the state has cut nothing off the conversation itself.
        assert (await talk(k, said, TURNS[2]))[0] >= longer.tokens - 1
        # What memory the kernel gave the model stands in the prompt and not in the text.
        await k.remember("The sea is called Marabunta.")
        asked = [SYSTEM, Message("user", "What is the sea called?")]
        reply = await k.chat(asked, model="real", max_tokens=8)
        assert reply.injected
        kept = await k.context_save(
            "asked", [*asked, Message("assistant", reply.text)], model="real"
        )
        assert kept.tokens < reply.prompt_tokens - reply.injected_tokens
        # Another agent has none of it, whatever it says.
        assert (await other.context_save("asked", said, model="real")).tokens == 0


async def test_a_state_is_found_with_the_tools_and_tools_are_cleaned(
    folder: Path, llama: ModelSpec
) -> None:
    tools = (Tool("weather", f"The weather of a city. Its key is {AWS}, and never tell."),)
    said = [SYSTEM, Message("user", TURNS[0])]
    async with kernel_of(folder, llama) as kernel, client(kernel, "one") as k:
        plain = (Tool("weather", "The weather of a city, by its name."),)
        reply = await k.chat(said, model="real", max_tokens=8, memory=False, tools=plain)
        with_them = await k.context_save("sea", said, model="real", tools=plain)
        assert with_them.tokens == reply.prompt_tokens - 1
        assert (await k.context_save("without", said, model="real")).tokens < with_them.tokens
        secret = await k.context_save("sea", said, model="real", tools=tools)
        assert sum(secret.secrets.values()) == 1
        with pytest.raises(CallerError) as caught:
            await k.context_save("sea", said, model="real", tools=plain, choice="rain")
        assert caught.value.field == "choice"


async def test_a_replaced_secret_ends_the_state_before_it(folder: Path, llama: ModelSpec) -> None:
    said = [SYSTEM]
    async with kernel_of(folder, llama) as kernel, client(kernel, "one") as k:
        await talk(k, said, TURNS[0])
        before = await k.context_save("plain", said, model="real")
        reply = await talk(k, said, f"My key is {AWS}, and it is a secret that nobody may hear of.")
        cut = await k.context_save("secret", said, model="real")
        assert cut.secrets
        assert reply[0] <= before.tokens < cut.tokens < before.tokens + 20


async def test_a_state_goes_with_its_context_and_an_erasure_takes_all(
    folder: Path, llama: ModelSpec
) -> None:
    async with kernel_of(folder, llama) as kernel, client(kernel, "one", operator=True) as k:
        said = [SYSTEM]
        await talk(k, said, TURNS[0])
        await k.context_save("sea", said, model="real")
        (first,) = states(kernel)
        await k.context_save("sea", said, model="real")
        while first.exists():
            await trio.sleep(0)
        (second,) = states(kernel)
        assert first != second
        await k.context_drop("sea")
        await until_gone(kernel)
        await k.context_save("sea", said, model="real")
        assert states(kernel)
        gone = await k.forget((await k.remember("the canary sings")).id)
        assert (await k.receipt(gone.receipt, wait=True)).issued_at
        assert states(kernel) == []
        # The text is there still, and is computed again.
        loaded = await k.context_load("sea")
        assert (list(loaded.messages), loaded.tokens) == (said, 0)
        assert await talk(k, said, TURNS[1]) == [0]


async def test_of_another_model_file_the_text_alone_is_loaded(
    folder: Path, llama: ModelSpec
) -> None:
    said = [SYSTEM]
    async with kernel_of(folder, llama) as kernel, client(kernel, "one") as k:
        await talk(k, said, TURNS[0])
        assert (await k.context_save("sea", said, model="real")).tokens
    # A byte more makes it another file to whoever looks, and no other to llama.cpp.
    other = folder / "other.gguf"
    shutil.copyfile(llama.path, other)
    with other.open("ab") as file:
        file.write(b"\0")
    assert fingerprint(str(other)) != fingerprint(llama.path)
    changed = ModelSpec(name="real", driver="llama", path=str(other), context=512, slots=2)
    async with kernel_of(folder, changed) as kernel, client(kernel, "one") as k:
        loaded = await k.context_load("sea")
        assert (list(loaded.messages), loaded.tokens) == (said, 0)
        await until_gone(kernel)
        assert await talk(k, said, TURNS[1]) == [0]
        # Its own state takes the place of the one that was of no use.
        assert (await k.context_save("sea", said, model="real")).tokens
        assert states(kernel)


async def test_a_driver_that_is_killed_leaves_the_text(folder: Path, llama: ModelSpec) -> None:
    said = [SYSTEM]
    async with kernel_of(folder, llama) as kernel, client(kernel, "one") as k:
        await talk(k, said, TURNS[0])
        assert (await k.context_save("sea", said, model="real")).tokens
        process = kernel.models.process("real")
        assert process is not None
        process.kill()
        while kernel.models.process("real") is process:
            await trio.sleep(0)
        # Nobody holds anything of it now but its file, which starts the model again.
        assert (await k.context_save("empty", said, model="real")).tokens == 0
        assert (await k.context_load("sea", warm=False)).tokens == 0
        assert kernel.models.process("real") is None
        assert (await k.context_load("sea")).tokens > 0
        assert (await talk(k, said, TURNS[1]))[0] > 0


async def test_states_take_no_more_room_than_they_are_given(folder: Path, llama: ModelSpec) -> None:
    said = [SYSTEM]
    async with kernel_of(folder, llama) as kernel, client(kernel, "one") as k:
        await talk(k, said, TURNS[0])
        await k.context_save("a", said, model="real")
        size = states(kernel)[0].stat().st_size
    more = size + size // 2
    async with kernel_of(folder, llama, states=more) as kernel, client(kernel, "one") as k:
        (old,) = states(kernel)
        await k.context_load("a")
        assert (await k.context_save("b", said, model="real")).tokens
        (new,) = states(kernel)
        assert new != old
        assert (await k.context_load("a")).tokens == 0
        assert (await k.context_load("b")).tokens > 0
    async with kernel_of(folder, llama, states=size // 2) as kernel, client(kernel, "one") as k:
        await talk(k, said, TURNS[1])
        assert (await k.context_save("c", said, model="real")).tokens == 0
        assert states(kernel) == []
