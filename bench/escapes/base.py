"""What attempts are written with: who is attacked, raw system calls, the list of attempts."""

from __future__ import annotations

import ctypes
import errno
import importlib
import mmap
import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass

from bench.escapes import TOPICS

SECRET = b"isovist-secret-"
"""What all planted secrets begin with, so that whoever finds memory can look for them."""

_SECRETS = re.compile(re.escape(SECRET) + rb"[a-z'-]+[0-9a-f]{16}")
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


@dataclass(frozen=True, kw_only=True)
class Target:
    """What the attacker is told, which is more than it could know. Process numbers are the host's;
    ``victim`` is another agent, ``decoy`` a process of the kernel's user outside, ``nonce`` names
    what this attempt leaves behind. ``places`` are files that hold a secret."""

    nonce: str
    state: str
    outside: str
    home: str
    neighbour: str
    places: dict[str, str]
    planted: str
    kernel: int
    zygote: int
    driver: int
    victim: int
    decoy: int
    tcp: int
    udp: int
    path: str
    abstract: str
    door: str
    handle: str
    shared: dict[str, int]
    queue: str
    key: str
    unit: str
    person: str
    setuid: str


@dataclass(frozen=True)
class Attempt:
    """``word``: what it returns proves it by itself (a descriptor that it holds, say). All others
    count only where a witness outside confirms them."""

    topic: str
    name: str
    run: Callable[[Target], str]
    word: bool


ATTEMPTS: dict[str, Attempt] = {}


def every() -> dict[str, Attempt]:
    """All attempts of all topics, by name."""
    for topic in TOPICS:
        importlib.import_module(f"bench.escapes.{topic}")
    return ATTEMPTS


def attempt(
    name: str, *, word: bool = False
) -> Callable[[Callable[[Target], str]], Callable[[Target], str]]:
    """List a function, under its module's name as topic."""

    def add(run: Callable[[Target], str]) -> Callable[[Target], str]:
        assert name not in ATTEMPTS, name
        ATTEMPTS[name] = Attempt(run.__module__.rpartition(".")[2], name, run, word)
        return run

    return add


class Stopped(Exception):
    """What stopped it, where no system call said so."""


def syscall(number: int, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """A raw system call; numbers become 64 bits wide. Raises :class:`OSError`."""
    ctypes.set_errno(0)
    made = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(_libc.syscall(ctypes.c_long(number), *made))
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), f"syscall {number}")
    return result


def read(path: str, size: int = 1 << 20) -> str:
    """What stands there, as far as a report can carry it: only secrets matter."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return secrets_in(os.read(fd, size))
    finally:
        os.close(fd)


def secrets_in(data: bytes) -> str:
    """The planted secrets in ``data``; else how it begins."""
    return planted(data) or f"{len(data)} bytes: {data[:80].decode('ascii', 'replace')}"


def planted(data: bytes) -> str:
    """The planted secrets in ``data``, each once, separated by spaces."""
    return " ".join(sorted({found.decode() for found in _SECRETS.findall(data)})[:40])


def in_a_child(body: Callable[[], str]) -> str:
    """What ``body`` returns when a forked child runs it; for what would change or end this
    process. Raises what stopped it there. Who may not fork tries it in person."""
    reader, writer = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        return body()
    if pid == 0:
        try:
            said = "+" + body()
        except OSError as e:
            said = f"-{e.errno or 0}"
        except BaseException as e:
            said = f"?{type(e).__name__}: {e}"
        os.write(writer, said.encode()[:60_000])
        os._exit(0)
    os.close(writer)
    whole = b""
    while data := os.read(reader, 65536):
        whole += data
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        raise Stopped(f"{signal.Signals(os.WTERMSIG(status)).name} ended the child")
    kind, text = whole[:1], whole[1:].decode(errors="replace")
    if kind == b"-":
        code = int(text)
        raise OSError(code, os.strerror(code))
    if kind != b"+":
        raise Stopped(text)
    return text


def denied(code: int) -> OSError:
    return OSError(code, os.strerror(code))


def machine_code(code: bytes) -> int:
    """Run ``code`` (x86-64, ends in ``ret``); returns its result as the 32 bits of EAX."""
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    result = int(ctypes.CFUNCTYPE(ctypes.c_int)(address)())
    if -4096 < result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


def name_of(code: int) -> str:
    return errno.errorcode.get(code, str(code))
