"""Program strings, agent names and the ring of standard error: no process needed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isovist.kernel.programs import BUILT_IN, Resolved, resolve
from isovist.kernel.spawner import inherited
from isovist.syscalls.errors import CallerError, Errno


def test_paths_resolve_from_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.py").write_text("")
    found = Resolved("script", str(tmp_path / "sub" / "a.py"), str(tmp_path))
    assert resolve("sub/a.py", str(tmp_path)) == found
    assert resolve("./sub/../sub/a.py", str(tmp_path)) == found
    assert resolve(str(tmp_path / "sub" / "a.py"), "").cwd == str(Path.cwd())


def test_classes_and_names_resolve_to_module_and_class(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("raise SystemExit('must not be imported')")
    cwd = str(tmp_path)
    assert resolve("own:A.B", cwd) == Resolved("class", "own:A.B", cwd)
    assert resolve("isovist.agents.other:X", cwd).kind == "class"
    for name, target in BUILT_IN.items():
        assert resolve(name, cwd) == Resolved("name", target, cwd)


@pytest.mark.parametrize(
    ("program", "errno"),
    [
        ("missing.py", Errno.ENOENT),
        ("dir/missing", Errno.ENOENT),
        ("nobody", Errno.ENOENT),
        ("no_such_module_anywhere:A", Errno.ENOENT),
        ("./folder", Errno.ENOEXEC),
        ("./text.txt", Errno.ENOEXEC),
        ("a-b:C", Errno.EINVAL),
        ("os:", Errno.EINVAL),
        (":A", Errno.EINVAL),
        ("os:A:B", Errno.EINVAL),
        ("", Errno.EINVAL),
        ("a\0b.py", Errno.EINVAL),
        ("\ud800.py", Errno.EINVAL),
        ("x" * 5000, Errno.EINVAL),
    ],
)
def test_what_is_no_program_says_so(tmp_path: Path, program: str, errno: Errno) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.txt").write_text("")
    with pytest.raises(CallerError) as caught:
        resolve(program, str(tmp_path))
    assert (caught.value.errno, caught.value.field) == (errno, "program")


@pytest.mark.parametrize(
    ("cwd", "errno"), [("relative", Errno.EINVAL), ("/no/such/place", Errno.ENOENT)]
)
def test_a_bad_working_directory_says_so(cwd: str, errno: Errno) -> None:
    with pytest.raises(CallerError) as caught:
        resolve("profile", cwd)
    assert (caught.value.errno, caught.value.field) == (errno, "cwd")


@given(st.text(max_size=30))
def test_any_program_string_resolves_or_gets_a_typed_error(program: str) -> None:
    try:
        errno = None if resolve(program, "/").cwd == "/" else Errno.EKERNEL
    except CallerError as e:
        errno = e.errno
    assert errno in (None, Errno.ENOENT, Errno.ENOEXEC, Errno.EINVAL)


def test_the_environment_of_agents_is_an_allow_list() -> None:
    kept = inherited(
        {"PATH": "/bin", "LC_ALL": "C", "PYTHONHASHSEED": "1", "OPENAI_API_KEY": "sk", "AWS_X": "y"}
    )
    assert {"PATH", "LC_ALL", "PYTHONHASHSEED"} <= kept.keys()
    assert not {"OPENAI_API_KEY", "AWS_X"} & kept.keys()
