"""``doctor`` and the log's tail, without a kernel where none is needed."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from cli_helpers import Shell, end
from kernel_helpers import short_folder

from isovist.kernel.cli.doctor import Check
from isovist.kernel.cli.logs import Tail, parse
from isovist.kernel.cli.show import brief, ms, plain, safe
from isovist.storage import schema
from isovist.syscalls.records import Barrier


@pytest.fixture
def shell() -> Iterator[Shell]:
    with short_folder() as folder:
        yield Shell(Path(folder))


def checks(shell: Shell, code: int = 0) -> dict[str, Check]:
    return {c["name"]: Check(**c) for c in shell("doctor", "--json", code=code).json}


# -- doctor


def test_doctor_finds_a_sound_machine_and_a_running_kernel(shell: Shell) -> None:
    shell("up", "-d")
    found = checks(shell)
    shell("down")
    assert {c.state for c in found.values()} <= {"ok", "warn"}
    assert found["embedder"].detail == "hash-256, 256 dimensions"
    assert found["store"].detail.endswith("sound")
    assert "runs as process" in found["kernel"].detail
    assert found["index"].detail.startswith("indexed engine: words ")
    assert found["memory"].detail.startswith("0 chunks, 0 partitions, ")
    assert found["models"].state == "warn"
    assert "model add smollm2" in found["models"].hint


def test_doctor_says_so_where_nothing_runs_and_nothing_is_stored(shell: Shell) -> None:
    out = shell("doctor").out
    assert "not running" in out
    assert "none yet" in out
    assert all(line.startswith(("ok", "warn", "  ")) for line in out.splitlines())


def damaged(file: Path) -> None:
    file.write_text("nothing that a database begins with, but long enough to look like one" * 9)


def foreign(file: Path) -> None:
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE cakes (name)")
    db.close()


def newer(file: Path) -> None:
    with sqlite3.connect(file) as db:
        db.execute(f"PRAGMA application_id = {schema.APPLICATION}")
        db.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    db.close()


@pytest.mark.parametrize(
    ("make", "word"), [(damaged, "not a database"), (foreign, "no store"), (newer, "version")]
)
def test_doctor_fails_for_a_store_that_will_not_open(shell: Shell, make, word: str) -> None:
    shell.state.mkdir()
    make(shell.state / "isovist.db")
    store = checks(shell, code=1)["store"]
    assert store.state == "fail"
    assert word in store.detail
    assert store.hint


def test_doctor_fails_for_a_model_that_has_gone_or_changed(shell: Shell) -> None:
    folder = Path(shell.env["XDG_CACHE_HOME"]) / "isovist" / "models"
    folder.mkdir(parents=True)
    changed = folder / "changed.gguf"
    changed.write_bytes(b"GGUF\x03\0\0\0")
    spec = {"driver": "llama", "sha256": "0" * 64}
    listed = [
        {"name": "gone", "path": str(folder / "gone.gguf"), **spec},
        {"name": "changed", "path": str(changed), **spec},
    ]
    (folder / "models.json").write_text(json.dumps(listed))
    found = checks(shell, code=1)
    assert "is gone" in found["model gone"].detail
    assert "another SHA-256" in found["model changed"].detail


def test_doctor_fails_for_a_broken_configuration(shell: Shell) -> None:
    (shell.folder / "config" / "isovist" / "config.toml").write_text("context = 1\n")
    found = checks(shell, code=1)
    assert found["config"].state == "fail"
    assert "context" in found["config"].detail
    assert found["python"].state == "ok"


def test_doctor_says_which_endpoint_lacks_its_key(shell: Shell) -> None:
    (shell.folder / "config" / "isovist" / "config.toml").write_text(
        """
        [endpoints.locked]
        url = "https://example.org/v1"
        model = "m"
        key = "ISOVIST_NO_SUCH_KEY"
        [endpoints.open]
        url = "http://127.0.0.1:9/v1"
        model = "m"
        """
    )
    found = checks(shell)
    assert found["model locked"].state == "warn"
    assert "ISOVIST_NO_SUCH_KEY" in found["model locked"].detail
    assert found["model open"].state == "ok"


def test_doctor_fails_for_a_path_too_long_for_a_socket(shell: Shell) -> None:
    shell.state = shell.folder / ("s" * 120)
    assert checks(shell, code=1)["socket"].state == "fail"


# -- the log


def test_a_followed_log_survives_its_rotation(shell: Shell) -> None:
    shell.state.mkdir()
    log = shell.state / "kernel.log"
    log.write_text('{"event": "one"}\n')
    following = shell.start("log", "-f", "--json")
    assert following.stdout is not None
    assert json.loads(following.stdout.readline()) == {"event": "one"}
    with log.open("a") as file:
        file.write('{"event": "two"}\nTraceback\n')
    assert json.loads(following.stdout.readline()) == {"event": "two"}
    assert json.loads(following.stdout.readline()) == {"event": "Traceback"}
    log.replace(log.with_suffix(".log.1"))
    log.write_text('{"event": "three"}\n')
    assert json.loads(following.stdout.readline()) == {"event": "three"}
    following.send_signal(signal.SIGINT)
    assert end(following).code == 130


def test_a_tail_gives_each_line_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one\ntw")
    with Tail(path) as tail:
        assert list(tail.lines()) == ["one"]
        with path.open("ab") as file:
            file.write(b"o\n")
        assert list(tail.lines()) == ["two"]
        with path.open("ab") as file:
            file.write(b"late\n")
        path.rename(tmp_path / "old")
        assert list(tail.lines()) == ["late"]
        path.write_bytes(b"new\n")
        assert list(tail.lines()) == ["new"]
        path.write_bytes(b"")
        assert list(tail.lines()) == []
        path.write_bytes(b"again\n")
        assert list(tail.lines()) == ["again"]


def test_a_log_that_is_not_there(shell: Shell) -> None:
    assert "up -d" in shell("log", code=1).err


def test_a_line_that_is_no_json_is_an_event() -> None:
    assert parse('{"event": "x", "n": 1}') == {"event": "x", "n": 1}
    assert parse("ValueError: no") == {"event": "ValueError: no"}
    assert parse("[1]") == {"event": "[1]"}


# -- words for people


def test_texts_cannot_command_the_terminal() -> None:
    assert safe("a\x1b[31mred\x07\nb") == "a\ufffd[31mred\ufffd b"
    assert safe("a\nb\rc\u202ed", lines=True) == "a\nb\ufffdc\ufffdd"


@pytest.mark.parametrize(
    ("text", "short"),
    [("few words", "few words"), ("one two three", "one two…"), ("x" * 20, "x" * 9 + "…")],
)
def test_first_words(text: str, short: str) -> None:
    assert brief(text, 10) == short


def test_structs_become_objects_in_json_whatever_they_are_on_the_wire() -> None:
    barrier = {"state": "ready", "waited_ms": 1.5, "lagging": []}
    assert plain({"b": (Barrier(state="ready", waited_ms=1.5),)}) == {"b": [barrier]}
    assert (ms(0.04), ms(12.34), ms(1234.5)) == ("0.0 ms", "12.3 ms", "1,234 ms")


def test_doctor_names_vectors_of_another_embedder(shell: Shell) -> None:
    shell.state.mkdir()
    with sqlite3.connect(shell.state / "isovist.db") as db:
        db.execute("CREATE TABLE meta (name, value)")
        db.execute("CREATE TABLE vectors (row, vector)")
        db.execute(
            "INSERT INTO meta VALUES ('embedder', ?)", (msgspec.msgpack.encode(("e5", 384)),)
        )
    assert "vectors" not in checks(shell, code=1), "none are held"
    with db:
        db.execute("INSERT INTO vectors VALUES (1, x'00')")
    db.close()
    found = checks(shell, code=1)["vectors"]
    assert found.state == "fail"
    assert "'e5'" in found.detail
    assert "'hash-256'" in found.detail
    assert "memory reembed" in found.hint
