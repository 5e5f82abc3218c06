"""manifest.toml: what may stand there, what is said about what may not, what it becomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from isovist.kernel.manifest import FILE, find, load
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.manifest import Mount, Restart

WHOLE = """
entry = "writer.py"
name = "writer"
users = ["ana"]
scope = "user"
publish = ["agent", "@team"]
mail = ["*"]
children = 2
heartbeat = 5.0

[[mounts]]
path = "data"

[[mounts]]
path = "/srv/out"
mode = "rw"

[[tools]]
name = "files.*"
arguments = { path = "notes/*" }

[quotas]
memory = 1000000

[restart]
policy = "on-failure"
most = 3
"""


def write(folder: Path, text: str) -> Path:
    file = folder / FILE
    file.write_text(text)
    return file


def test_a_manifest_is_read_with_its_paths_made_absolute(tmp_path: Path) -> None:
    asked = load(write(tmp_path, WHOLE))
    manifest = asked.manifest
    assert manifest.entry == str(tmp_path / "writer.py")
    assert manifest.mounts == (
        Mount(path=str(tmp_path / "data")), Mount(path="/srv/out", mode="rw"),
    )  # fmt: skip
    assert manifest.restart == Restart(policy="on-failure", most=3)
    assert manifest.tools[0].arguments == {"path": "notes/*"}
    assert asked.cwd == str(tmp_path)


def test_without_a_name_it_has_that_of_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "planner"
    folder.mkdir()
    assert load(write(folder, 'entry = "mod:Class"')).manifest.name == "planner"


@pytest.mark.parametrize(
    ("text", "key", "rule"),
    [
        ("entry = 3", "entry", "Expected `str`"),
        ("", "entry", "is missing"),
        ('entry = "x.py"\nentyr = 1', "entyr", "no such key"),
        ('entry = "x.py"\n[restart]\npolicies = 1', "restart.policies", "no such key"),
        ('entry = "x.py"\n[restart]\npolicy = "maybe"', "restart.policy", "Invalid enum"),
        ('entry = "x.py"\n[restart]\nlongest = 0.1', "restart.longest", "no less than"),
        ('entry = "x.py"\nname = "a/b"', "name", "no control character and no '/'"),
        ('entry = "x.py"\nname = "operator"', "name", "operator's"),
        ('entry = "x.py"\nusers = ["a/b"]', "users", "'/'"),
        ('entry = "x.py"\nusers = "ana"', "users", "Expected `array`"),
        ('entry = "x.py"\npublish = ["pair"]', "publish", "agent, global"),
        ('entry = "x.py"\nscope = "all"', "scope", "pair, user"),
        ('entry = "x.py"\n[quotas]\nbeer = 3', "quotas.beer", "one of"),
        ('entry = "x.py"\n[quotas]\nunits = -3', "quotas.units", "0 to"),
        ('entry = "x.py"\nchildren = 100', "children", "0 to 64"),
        ('entry = "x.py"\nheartbeat = 0.01', "heartbeat", "0.1 to"),
        ('entry = "x.py"\nheartbeat = nan', "heartbeat", "0.1 to"),
        ('entry = "x.py"\n[[mounts]]\npath = "/"', "mounts[0].path", "one's own"),
        ('entry = "x.py"\n[[mounts]]\npath = ""', "mounts[0].path", "a path"),
        ('entry = "x.py"\n[[mounts]]\npath = "a"\nmode = "w"', "mounts[0].mode", "Invalid enum"),
        ("entry =", "manifest", "no TOML"),
    ],
)  # fmt: skip
def test_what_breaks_a_rule_is_told_by_file_key_and_rule(
    tmp_path: Path, text: str, key: str, rule: str
) -> None:
    file = write(tmp_path, text)
    with pytest.raises(CallerError) as caught:
        load(file)
    assert (caught.value.errno, caught.value.field) == (Errno.EINVAL, key)
    assert str(file) in caught.value.message
    assert rule in caught.value.message


def test_it_is_found_for_its_folder_its_script_and_its_class(tmp_path: Path) -> None:
    folder = tmp_path / "writer"
    folder.mkdir()
    write(folder, WHOLE)
    by_folder = find("writer", str(tmp_path))
    by_script = find("writer/writer.py", str(tmp_path))
    assert by_folder is not None
    assert by_folder == by_script
    # Another script beside it is none of its business.
    assert find("writer/other.py", str(tmp_path)) is None
    assert find("mod:Class", str(folder)) is None
    assert find("assistant", str(folder)) is None
    write(folder, 'entry = "mod:Class"')
    assert find("mod:Class", str(folder)) is not None


def test_a_folder_without_one_is_no_program(tmp_path: Path) -> None:
    with pytest.raises(CallerError) as caught:
        find(".", str(tmp_path))
    assert caught.value.errno == Errno.ENOENT


def test_the_digest_tells_what_is_asked_and_where_it_runs(tmp_path: Path) -> None:
    first = load(write(tmp_path, WHOLE))
    again = load(write(tmp_path, "# a comment\n" + WHOLE))
    assert first.digest == again.digest
    assert load(write(tmp_path, WHOLE.replace('"rw"', '"ro"'))).digest != first.digest
    other = tmp_path / "other"
    other.mkdir()
    assert load(write(other, WHOLE)).digest != first.digest
