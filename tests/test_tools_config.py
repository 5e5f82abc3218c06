"""``[tools.NAME]`` of config.toml, and the small parts of the shell's tools."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from isovist.kernel.config import load
from isovist.kernel.tools import schema
from isovist.kernel.tools.config import Mounted, ToolSettings, check
from isovist.kernel.tools.outputs import Outputs
from isovist.kernel.tools.place import prepare
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.tools import RESULT

PY = {"python": "some.module"}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "needs one of"),
        ({"python": "a", "url": "http://localhost/mcp"}, "needs one of"),
        ({"python": "a b"}, "python"),
        ({"command": ("",)}, "command"),
        ({"command": ("x", "a\0")}, "command"),
        ({"url": "ftp://x/mcp"}, "url"),
        ({"url": "https://user:word@x/mcp"}, "url"),
        ({"url": "https://[x/mcp"}, "url"),
        ({"url": "http://far.example/mcp", "key": "TOKEN"}, "key"),
        ({**PY, "key": "TOKEN"}, "key"),
        ({**PY, "env": ("A=b",)}, "env"),
        ({**PY, "folder": "relative"}, "folder"),
        ({**PY, "mounts": (Mounted(path="relative"),)}, "mounts"),
        ({**PY, "timeout": 0.0}, "timeout"),
        ({**PY, "slots": 65}, "slots"),
        ({**PY, "memory": 1}, "memory"),
        ({**PY, "approval": 1e9}, "approval"),
        ({**PY, "approve": ("",)}, "approve"),
        ({**PY, "conflicts": {"x": "alone"}}, "conflicts"),
        ({**PY, "conflicts": {"x": "key:"}}, "conflicts"),
    ],
)
def test_a_bad_server_is_named_and_no_value_is_quoted(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(CallerError) as e:
        check("some", ToolSettings(**fields))
    assert e.value.field == "tools"
    assert named in e.value.message
    assert "word" not in e.value.message


@pytest.mark.parametrize("name", ["", "a.b", "a b", "A", "-a", "x" * 33, "memory_search"])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(CallerError):
        check(name, ToolSettings(python="a"))


def test_the_settings_file_is_read_strictly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "isovist" / "config.toml"
    file.parent.mkdir()
    file.write_text(
        '[tools.files]\ncommand = ["server", "--root", "/data"]\nmounts = [{ path = "/data" }]\n'
        'approve = ["delete*"]\ntimeout = 5\nconflicts = { write = "key:path" }\n'
    )
    tool = load(state=tmp_path).settings.tools["files"]
    server = tool.server("files")
    assert (server.kind, server.timeout) == ("stdio", 5 * 10**9)
    assert server.approval_of("delete_all")
    assert not server.approval_of("read")
    assert (server.conflict_of("write"), server.conflict_of("read")) == ("key:path", "shared")
    for wrong in ('[tools.x]\npython = "a"\nsecret = "b"\n', "[tools.x]\nslots = 3\n"):
        file.write_text(wrong)
        with pytest.raises(CallerError) as e:
            load(state=tmp_path)
        assert str(file) in e.value.message


def test_a_server_without_a_folder_begins_in_an_empty_one(tmp_path: Path) -> None:
    settings = ToolSettings(python="a")
    place = prepare("some", settings, tmp_path, (str(tmp_path),))
    assert place.policy is not None
    assert (place.policy.write, place.policy.network) == ((place.folder,), False)
    Path(place.folder, "left").write_text("of an earlier life")
    again = prepare("some", settings, tmp_path, (str(tmp_path),))
    assert list(Path(again.folder).iterdir()) == []
    assert Path(again.folder).stat().st_mode & 0o777 == 0o700
    for field in ({"folder": str(tmp_path)}, {"mounts": (Mounted(path=str(tmp_path)),)}):
        with pytest.raises(CallerError):
            prepare("some", ToolSettings(python="a", **field), tmp_path, (str(tmp_path),))


def test_the_kernel_imports_neither_the_sdk_nor_what_it_needs() -> None:
    code = (
        "import sys, isovist.kernel.kernel, isovist.kernel.tools.native;"
        "print(*{'mcp', 'pydantic', 'httpx2'} & set(sys.modules))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert ran.stdout.strip() == ""


# -- answers that are too long


def test_long_answers_are_kept_whole_and_the_oldest_go(tmp_path: Path) -> None:
    outputs = Outputs(tmp_path / "o", room=300_000)
    outputs.clean()
    names = []
    for n in range(3):
        output = outputs.begin("mail/ana")
        for piece in ("é" * 20_000, "漢" * 11_000, str(n)):
            output.add(piece)
        assert (len(output.text), output.characters) == (RESULT, 31_001)
        names.append(outputs.keep(output))
    with pytest.raises(CallerError) as e:
        outputs.read(names[0], "mail/ana", 0)
    assert e.value.errno is Errno.ENOENT
    text, characters = outputs.read(names[2], "mail/ana", 31_000)
    assert (text, characters) == ("2", 31_001)
    assert outputs.read(names[2], "mail/ana", 19_999)[0][:2] == "é漢"
    assert outputs.read(names[2], "mail/ana", 99_999) == ("", 31_001)
    with pytest.raises(CallerError):
        outputs.read(names[2], "mail/bob", 0)
    outputs.forget("bob")
    assert outputs.read(names[2], "mail/ana", 0)[0]
    outputs.forget("ana")
    assert list((tmp_path / "o").iterdir()) == []


def test_a_short_answer_leaves_no_file_and_nor_does_one_that_nobody_wants(tmp_path: Path) -> None:
    outputs = Outputs(tmp_path / "o")
    outputs.clean()
    short = outputs.begin("a/b")
    short.add("x" * RESULT)
    assert outputs.keep(short) == ""
    dropped = outputs.begin("a/b")
    dropped.add("x" * (RESULT + 1))
    dropped.drop()
    (tmp_path / "o" / "left").write_text("of an earlier life")
    outputs.clean()
    assert list((tmp_path / "o").iterdir()) == []


# -- functions


def positional(a: int, /) -> int:
    return a


def many(*numbers: int) -> int:
    return len(numbers)


def free(anything, number: int = 1):  # a function without annotations
    return f"{anything} {number}"


def test_a_function_that_can_be_no_tool_is_named() -> None:
    for function in (positional, many):
        with pytest.raises(TypeError, match=function.__name__):
            schema.Function(function)


def test_a_function_without_annotations_takes_any_value() -> None:
    function = schema.Function(free)
    assert json.loads(function.tool.parameters)["required"] == ["anything"]
    assert function.call('{"anything": [1]}') == "[1] 1"
    assert not function.tool.read_only


def test_the_tools_of_a_module_are_its_own_or_those_it_lists() -> None:
    assert set(schema.functions("tests.native_tools")) >= {"add", "hang"}
    assert set(schema.functions("tests.native_tools:add")) == {"add"}
    assert "tool" not in schema.functions("tests.native_tools"), "imported, not its own"
