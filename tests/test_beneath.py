"""Attacks on paths: by names, by what lies in the workspace, and by changing it at the same time.
Both ways to walk are attacked alike."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from isovist.kernel import beneath, contents
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.paths import MAX_DEPTH, MAX_PART, MAX_PATH, check_path

LIMIT = 1 << 20
SECRET = b"the kernel's own"


@pytest.fixture(params=["openat2", "walk"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.param == "openat2" and not beneath._has_openat2():
        pytest.skip("this kernel has no openat2")
    how = beneath._openat2 if request.param == "openat2" else beneath._walk
    monkeypatch.setattr(beneath, "_open", how)
    folder = tmp_path / "workspace"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "outside").mkdir()
    return folder


def read(root: Path, path: str) -> bytes:
    with beneath.reading(root, path, "source", LIMIT) as fd:
        return os.pread(fd, LIMIT, 0)


def write(root: Path, path: str, body: bytes = b"new", *, replace: bool = False) -> None:
    beneath.write(root, path, "target", (body,), replace=replace)


# -- names

NAMES = {
    "empty": "",
    "absolute": "/etc/passwd",
    "double slash": "//etc/passwd",
    "parent": "..",
    "parent first": "../secret",
    "parent inside": "a/../../secret",
    "parent last": "a/..",
    "dot": ".",
    "dot inside": "a/./b",
    "empty name": "a//b",
    "slash last": "a/",
    "NUL": "a\0b",
    "NUL at the end": "secret\0.txt",
    "newline": "a\nb",
    "tab": "a\tb",
    "escape": "a\x1b[2Jb",
    "delete": "a\x7f",
    "C1": "a\x85b",
    "decomposed": "cafe\u0301",
    "compatible with NFC only": "\u212b",
    "lone surrogate": "a\ud800",
    "right to left": "a\u202egpj.exe",
    "isolate": "a\u2066b",
    "zero width": "a\u200bb",
    "byte order mark": "\ufeffa",
    "soft hyphen": "a\u00adb",
    "line separator": "a\u2028b",
    "private use": "a\ue000",
    "not a character": "a\uffff",
    "space first": " a",
    "space last": "a ",
    "wide space": "\u3000a",
    "only a space": "a/ /b",
    "long name": "a" * (MAX_PART + 1),
    "long name in bytes": "\u00e9" * (MAX_PART // 2 + 1),
    "long path": "/".join(["a" * 100] * 11),
    "deep": "/".join("a" * (MAX_DEPTH + 1)),
}


@pytest.mark.parametrize("path", NAMES.values(), ids=NAMES)
def test_a_name_that_is_none(path: str) -> None:
    with pytest.raises(CallerError) as caught:
        check_path(path, "to_path")
    assert caught.value.errno in (Errno.EINVAL, Errno.EMSGSIZE)
    assert caught.value.field == "to_path"


@pytest.mark.parametrize(
    "path",
    ["a", ".hidden", "...", "a b/c", "\uff0e\uff0e", "\u2024\u2024", "caf\u00e9",
     "\u65e5\u672c/\u8a9e", "a\\b", "%2e%2e", "~", "-rf", "a" * MAX_PART, "/".join("a" * MAX_DEPTH),
     "\u0967\u0968"],
)  # fmt: skip
def test_odd_names_that_lead_nowhere_else(path: str, root: Path) -> None:
    assert check_path(path) == path
    write(root, path)
    assert read(root, path) == b"new"
    assert (root / path).resolve().is_relative_to(root)


# -- what lies there

Prepare = Callable[[Path], object]


def sparse(root: Path) -> None:
    with (root / "x").open("wb") as file:
        file.truncate(1 << 40)


def unix_socket(root: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        before = Path.cwd()
        os.chdir(root)  # a socket's path is short
        try:
            listener.bind("x")
        finally:
            os.chdir(before)


LYING: dict[str, tuple[str, Prepare]] = {
    "link to a file outside": ("x", lambda r: (r / "x").symlink_to("../secret")),
    "link by an absolute path": ("x", lambda r: (r / "x").symlink_to(r.parent / "secret")),
    "link to a folder outside": ("x/secret", lambda r: (r / "x").symlink_to("..")),
    "link to the folder itself": ("x/x", lambda r: (r / "x").symlink_to(".")),
    "link that stays inside": (
        "x",
        lambda r: ((r / "y").write_text("mine"), (r / "x").symlink_to("y")),
    ),
    "folder link that stays inside": (
        "x/f",
        lambda r: ((r / "y").mkdir(), (r / "y/f").write_text("a"), (r / "x").symlink_to("y")),
    ),
    "dangling link": ("x", lambda r: (r / "x").symlink_to("nothing")),
    "link into /proc": ("x/etc/passwd", lambda r: (r / "x").symlink_to("/proc/self/root")),
    "magic link": ("x", lambda r: (r / "x").symlink_to("/proc/self/exe")),
    "link of a link": (
        "x",
        lambda r: ((r / "y").symlink_to("../secret"), (r / "x").symlink_to("y")),
    ),
    "second name of a file outside": ("x", lambda r: (r / "x").hardlink_to(r.parent / "secret")),
    "second name inside": (
        "x",
        lambda r: ((r / "y").write_text("mine"), (r / "x").hardlink_to(r / "y")),
    ),
    "pipe": ("x", lambda r: os.mkfifo(r / "x")),
    "socket": ("x", unix_socket),
    "folder": ("x", lambda r: (r / "x").mkdir()),
    "file as a folder": ("x/y", lambda r: (r / "x").write_text("mine")),
    "sparse bomb": ("x", sparse),
    "nothing": ("x", lambda r: None),
    "nothing on the way": ("x/y/z", lambda r: None),
}


@pytest.mark.parametrize(("path", "prepare"), LYING.values(), ids=LYING)
def test_what_lies_there_is_not_read(path: str, prepare: Prepare, root: Path) -> None:
    prepare(root)
    with pytest.raises(CallerError) as caught:
        read(root, path)
    assert caught.value.errno in (Errno.EINVAL, Errno.EMSGSIZE, Errno.ENOENT)
    assert caught.value.field == "source"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices and mounts")
@pytest.mark.parametrize("device", [os.makedev(1, 5), os.makedev(5, 2), os.makedev(10, 229)])
def test_a_device_is_not_even_opened(device: int, root: Path) -> None:
    try:
        os.mknod(root / "x", 0o20600, device)
    except PermissionError:
        pytest.skip("no devices can be made here")
    with pytest.raises(CallerError, match="no regular file"):
        read(root, "x")


def test_another_file_system_is_not_entered(root: Path) -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == root.stat().st_dev:
        pytest.skip("there is no other file system to enter")
    # A link to it is refused as a link; the device is compared where a mount stands in its place.
    (root / "x").symlink_to(shm)
    with pytest.raises(CallerError):
        read(root, "x/anything")
    with beneath.opened(Path("/dev")) as folder, pytest.raises(OSError, match="cross-device"):
        os.close(beneath._open(folder, "shm", os.O_PATH | os.O_DIRECTORY))


# -- writing

INTO: dict[str, tuple[str, Prepare]] = {
    "link as the folder": ("x/new", lambda r: (r / "x").symlink_to("../outside")),
    "link as the folder, absolute": (
        "x/new",
        lambda r: (r / "x").symlink_to(r.parent / "outside"),
    ),
    "link deep inside": (
        "a/b/new",
        lambda r: ((r / "a").mkdir(), (r / "a/b").symlink_to("../../outside")),
    ),
    "dangling link as the folder": ("x/new", lambda r: (r / "x").symlink_to("../outside/made")),
    "file as the folder": ("x/new", lambda r: (r / "x").write_text("a file")),
    "folder of that name": ("x", lambda r: (r / "x").mkdir()),
    "link of that name": ("x", lambda r: (r / "x").symlink_to("../secret")),
    "file of that name": ("x", lambda r: (r / "x").write_text("there")),
}


@pytest.mark.parametrize(("path", "prepare"), INTO.values(), ids=INTO)
def test_nothing_is_written_through_what_lies_there(
    path: str, prepare: Prepare, root: Path
) -> None:
    prepare(root)
    with pytest.raises(CallerError) as caught:
        write(root, path)
    assert caught.value.errno in (Errno.EINVAL, Errno.EEXIST)
    assert list((root.parent / "outside").iterdir()) == []
    assert (root.parent / "secret").read_bytes() == SECRET


def test_a_link_is_replaced_and_not_followed(root: Path) -> None:
    (root / "x").symlink_to("../secret")
    write(root, "x", replace=True)
    assert not (root / "x").is_symlink()
    assert read(root, "x") == b"new"
    assert (root.parent / "secret").read_bytes() == SECRET


def test_a_second_name_is_replaced_and_its_file_stays(root: Path) -> None:
    (root / "x").hardlink_to(root.parent / "secret")
    write(root, "x", replace=True)
    assert (root.parent / "secret").read_bytes() == SECRET


def test_what_ends_in_an_error_leaves_nothing(root: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"half"
        raise CallerError("the rest is damaged")

    with pytest.raises(CallerError, match="damaged"):
        beneath.write(root, "a/x", "target", pieces(), replace=False)
    assert os.listdir(root / "a") == []


# -- at the same time


class Swapper:
    """A thread that puts one thing after another under a name, as fast as it can."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self._steps = steps
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.turns = 0

    def _work(self) -> None:
        while not self._stop.is_set():
            for step in self._steps:
                with suppress(OSError):
                    step()
            self.turns += 1

    def __enter__(self) -> Swapper:
        self._before = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        sys.setswitchinterval(self._before)


TRIES = 3000


def swapped(root: Path, name: str, honest: Path, bad: Path) -> Swapper:
    """``name`` is in turn the honest thing and a link to the bad one, each by one rename."""
    place, link, spare = root / name, root / "link", root / "spare"

    def put_link() -> None:
        link.symlink_to(bad)
        if place.is_dir() and not place.is_symlink():
            place.rename(spare)
        link.rename(place)

    def put_honest() -> None:
        if place.is_symlink():
            place.unlink()
        (spare if spare.exists() else honest).rename(place)

    return Swapper(put_honest, put_link)


def test_a_file_that_turns_into_a_link_is_never_followed(root: Path) -> None:
    (root / "honest").write_bytes(b"mine")

    def again() -> None:
        if not (root / "honest").exists():
            (root / "honest").write_bytes(b"mine")

    with swapped(root, "x", root / "honest", root.parent / "secret") as swapper:
        seen = set()
        for _ in range(TRIES):
            again()
            with suppress(CallerError):
                seen.add(read(root, "x"))
    assert swapper.turns > 1
    assert SECRET not in seen


def test_a_folder_that_turns_into_a_link_is_never_entered(root: Path) -> None:
    outside = root.parent / "outside"
    (outside / "f").write_bytes(SECRET)
    (root / "honest").mkdir()
    (root / "honest" / "f").write_bytes(b"mine")
    seen = set()
    with swapped(root, "x", root / "honest", outside) as swapper:
        for _ in range(TRIES):
            with suppress(CallerError):
                seen.add(read(root, "x/f"))
    assert swapper.turns > 1
    assert seen <= {b"mine"}


def test_nothing_is_written_into_a_folder_that_turns_into_a_link(root: Path) -> None:
    outside, place = root.parent / "outside", root / "x"
    place.mkdir()
    moved = iter(range(1 << 30))
    with Swapper(
        lambda: place.rename(root / f"moved{next(moved)}"),
        lambda: place.symlink_to(outside),
        lambda: place.unlink(),
        lambda: place.mkdir(),
    ) as swapper:
        for n in range(TRIES // 10):
            with suppress(CallerError, OSError):
                write(root, f"x/{n % 7}", replace=True)
    assert swapper.turns > 1
    assert list(outside.iterdir()) == []


def test_a_name_that_turns_into_a_link_is_not_written_through(root: Path) -> None:
    (root / "honest").write_bytes(b"mine")
    with swapped(root, "x", root / "honest", root.parent / "secret") as swapper:
        for _ in range(TRIES // 20):
            with suppress(CallerError, OSError):
                write(root, "x", replace=True)
    assert swapper.turns > 1
    assert (root.parent / "secret").read_bytes() == SECRET


def test_a_file_that_grows_while_it_is_read_is_cut_off(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    grown = root / "x"
    grown.write_bytes(b"a" * 100_000)

    def growing(fd: int) -> Iterator[bytes]:
        for piece in contents.pieces(fd):
            yield piece
            with grown.open("ab") as file:
                file.write(bytes(1 << 20))

    monkeypatch.setattr(contents, "MAX_FILE", 4 << 20)
    with beneath.reading(root, "x", "source", LIMIT) as fd, pytest.raises(CallerError) as caught:
        contents.take_in(folder, "blob", growing(fd), "x", "source")
    assert caught.value.errno is Errno.EMSGSIZE
    assert os.listdir(folder) == []


def test_the_limits_stand_for_what_they_say() -> None:
    assert len(NAMES) + len(LYING) + len(INTO) >= 40
    assert MAX_PART + len(".part-") + 9 <= 255 < MAX_PATH
