"""Random histories of files against a plain model of versions: the store in memory and on disk,
reopened and with writes that fail; and whole kernels that are killed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bench.file_model import EXPOSED, SCOPES, Model, Step
from bench.files import Play
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from isovist.kernel.state.views import view_of
from isovist.storage import files
from isovist.storage.memory import MemoryStore
from isovist.storage.store import Store
from isovist.syscalls.errors import CallerError, Errno, IsovistError, KernelError, WorldError
from isovist.syscalls.file_operations import Bounds, Changed, Content, FileChange
from isovist.syscalls.operations import Put, SearchQuery
from isovist.syscalls.records import Partition, Reader, partition_of

BOUNDS = Bounds(versions=3)
PAIRS = [("ana", "mail"), ("ana", "plan"), ("bob", "mail")]
PATHS = ["a", "d", "d/x"]
WORDS = ["anchor", "basket", "candle"]
WHY = {"protected": "the protected stream cannot reach others"}


class Histories(RuleBasedStateMachine):
    """Steps on a store. A crash is a store that is opened again, without being closed in order."""

    folder: Path

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(BOUNDS.versions)
        self.seqs: dict[Partition, int] = {}
        self.number = 0

    @initialize(disk=st.booleans())
    def begin(self, disk: bool) -> None:
        self.path = None
        if disk:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.path = self.folder / f"{len(list(self.folder.iterdir()))}.db"
        self.open()

    def open(self) -> None:
        if self.path is None:
            self.store: Any = MemoryStore("none", 4)
        else:
            self.store = Store.open(self.path, "none", 4)
        self.store.restore()

    def teardown(self) -> None:
        with suppress(AttributeError):
            self.store.close()

    @rule()
    def crash(self) -> None:
        if self.path is not None:
            self.store.close()
            self.open()

    def seq(self, space: Partition) -> int:
        self.seqs[space] = self.seqs.get(space, 0) + 1
        return self.seqs[space]

    def part(self, space: Partition, text: str) -> Put:
        self.number += 1
        return Put(
            partition=space, seq=self.seq(space), id=f"u{self.number}", text=text, kind="file",
            agent="", user="", stream="", said_at=1, stored_at=1,
        )  # fmt: skip

    def change(self, step: Step) -> FileChange:
        space = partition_of(step.scope, step.user, step.agent)
        exposed = step.scope in EXPOSED and step.stream == "protected"
        if step.what == "write" and exposed:
            space = partition_of("pair", step.user, step.agent)
        to, path = space, step.path
        if step.what == "move":
            to = partition_of(step.to_scope or step.scope, step.user, step.agent)
            path = step.to_path or step.path
        self.number += 1
        found = self.store.file(view_of(Reader(step.user, step.agent)), space, step.path)
        content = Content(
            hash=sha256(step.body).hexdigest(), size=len(step.body), text=True, body=step.body
        )
        if found is not None and step.what == "move":
            content = found.content
        moved = step.what != "move" or (to, path) != (space, step.path)
        still = step.what == "delete" or not moved
        return FileChange(
            what="delete" if step.what == "delete" else "move" if step.what == "move" else "write",
            space=space, seq=self.seq(space), path=step.path, user=step.user, agent=step.agent,
            at=self.number, bounds=BOUNDS, expect=step.expect,
            seen=(found.id, found.version.version) if found else None,
            refused={} if to.users.kind == "one" else WHY,
            id=f"f{self.number}", content=content, stream=step.stream, writable=step.writable,
            parts=() if still else (self.part(to, f"{path}\n\n{content.body.decode()}"),),
            reason=step.reason, to=to, to_path=path,
        )  # fmt: skip

    @rule(
        what=st.sampled_from(["write", "write", "move", "delete"]), pair=st.sampled_from(PAIRS),
        scope=st.sampled_from(SCOPES), path=st.sampled_from(PATHS), word=st.sampled_from(WORDS),
        stream=st.sampled_from(["reusable", "reusable", "protected"]),
        writable=st.sampled_from([None, True, False]),
        expect=st.sampled_from([None, None, None, 0, 1, 2]),
        to_scope=st.sampled_from(["", *SCOPES]), to_path=st.sampled_from(["", *PATHS]),
    )  # fmt: skip
    def step(self, what: str, pair: tuple[str, str], word: str, **more: Any) -> None:
        user, agent = pair
        step = Step(what=what, user=user, agent=agent, body=word.encode(), **more)
        said = self.model.take(step)
        failure: Errno | None = None
        done = Changed()
        try:
            done = self.store.change_file(self.change(step))
        except IsovistError as e:
            failure = e.errno
        if failure is not None:
            assert failure == said, step
            return
        self.store.apply(done.outcomes)
        assert not isinstance(said, Errno), (step, said)
        if said is not None:
            assert (done.version, done.size) == (said.number, len(said.body))

    @rule(pair=st.sampled_from(PAIRS), path=st.sampled_from(PATHS))
    def fails(self, pair: tuple[str, str], path: str) -> None:
        """A write that the disk refuses at its end leaves nothing of itself."""
        user, agent = pair
        step = Step("write", user, agent, "pair", path, body=b"never to be seen")
        if self.path is None or isinstance(self.model.copy().take(step), Errno):
            return
        real = files._trim

        def broken(*_: Any) -> Any:
            raise sqlite3.OperationalError("disk I/O error")

        files._trim = broken
        try:
            with pytest.raises(WorldError):
                self.store.change_file(self.change(step))
        finally:
            files._trim = real

    @invariant()
    def is_the_models(self) -> None:
        if not hasattr(self, "store"):
            return
        for user, agent in PAIRS:
            view = view_of(Reader(user, agent))
            seen = self.model.seen_by(user, agent)
            infos, last = self.store.files(view, view.partitions, "", None, 100)
            assert last is None
            assert {(one.scope, one.path): one.version for one in infos} == {
                key: file.current.number for key, file in seen.items()
            }
            for (scope, path), file in seen.items():
                space = partition_of(scope, user, agent)
                for version in file.versions:
                    found = self.store.file(view, space, path, version.number)
                    assert found is not None
                    assert found.content.body == version.body
                _, log = self.store.file_log(view, space, path)
                assert [one.version for one in log] == [v.number for v in file.versions][::-1]
            for word in WORDS:
                query = SearchQuery(text=word, k=100, mode="bm25", now=1, kinds=("file",))
                hits = self.store.select(view, query).candidates
                found = {(c.partition.scope, c.hit.unit.meta["path"]) for c in hits}
                holds = {key for key, file in seen.items() if file.current.body == word.encode()}
                # A search shows one of several units of the same text: here, of the same path.
                assert found <= holds
                assert {path for _, path in found} == {path for _, path in holds}


def test_stores_are_what_the_model_says(tmp_path: Path) -> None:
    class Here(Histories):
        folder = tmp_path / "stores"

    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(  # type: ignore[no-untyped-call] # hypothesis has no types for it
        Here, settings=settings(max_examples=25, stateful_step_count=25, deadline=None)
    )


@pytest.mark.promise("write.durable")
def test_kernels_that_are_killed_hold_what_the_model_says(tmp_path: Path) -> None:
    """A few of the 10,000 operations of ``python -m bench files``."""
    from kernel_helpers import short_folder

    with short_folder() as folder:
        tally = Play(Path(folder), "a test", 60, 3).run()
    assert tally.problems == []
    assert tally.counts["kills"] == 3
    assert tally.counts["changes"] > 5


@pytest.mark.parametrize("make", [lambda p: MemoryStore("none", 4),
                                  lambda p: Store.open(p / "isovist.db", "none", 4)])  # fmt: skip
def test_what_is_kept_has_bounds(make: Callable[[Path], Any], tmp_path: Path) -> None:
    """The oldest versions go first, of the owner's files alone; what does not fit is refused, says
    by how much, and leaves nothing."""
    with closing(make(tmp_path)) as store:
        store.restore()
        space = partition_of("global", "ana", "mail")
        view = view_of(Reader("ana", "mail"))
        seq = 0

        def write(path: str, size: int, user: str = "ana", **bounds: int) -> Changed:
            nonlocal seq
            seq += 1
            body = bytes(size)
            change = FileChange(
                what="write", space=space, seq=seq, path=path, user=user, agent="mail", at=seq,
                bounds=msgspec.structs.replace(BOUNDS, **bounds), id=f"f{seq}",
                content=Content(hash="00" * 32, size=size, text=False, body=body),
            )  # fmt: skip
            done: Changed = store.change_file(change)
            store.apply(done.outcomes)
            return done

        for number in range(5):
            done = write("a", 10)
            assert (done.version, done.versions, done.dropped) == (
                number + 1, min(3, number + 1), int(number >= 3),
            )  # fmt: skip
        write("theirs", 30, user="bob")
        assert store.file_bytes() == 60
        assert store.file_bytes(user="ana") == store.file_bytes("mail", "ana") == 30
        # 65 bytes of room: two old versions of ana's go, and none of bob's.
        assert write("b", 25, space=65).dropped == 2
        assert store.file_bytes(user="bob") == 30
        with pytest.raises(CallerError, match="5 too many") as caught:
            write("b", 35, owner=40)
        assert caught.value.errno is Errno.EDQUOT
        assert [v.version for v in store.file_log(view, space, "b")[1]] == [1]
        with pytest.raises(CallerError) as caught:
            write("c", 1, files=3)
        assert caught.value.errno is Errno.EDQUOT
        with pytest.raises(KernelError):
            store.file(None, space, "a")  # no view, no read
