"""Running other programs: with a new image, filters and hooks of the old one might be gone."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys

from bench.escapes.base import Stopped, Target, attempt, denied, syscall

_MEMFD, _EXECVEAT = 319, 322
_LOADER = "/lib64/ld-linux-x86-64.so.2"


def _run(command: list[str], environment: dict[str, str] | None = None) -> str:
    """What ``command`` prints. Raises where it cannot be executed or says nothing."""
    done = subprocess.run(
        command, capture_output=True, timeout=10, env=environment, check=False, cwd="."
    )
    said = done.stdout.decode(errors="replace").strip()
    if not said:
        raise Stopped(f"status {done.returncode}: {done.stderr.decode(errors='replace')[-160:]}")
    return said


@attempt("run a shell", word=True)
def shell(t: Target) -> str:
    return _run(["/bin/sh", "-c", "echo $$"])


@attempt("become a shell", word=True)
def become_shell(t: Target) -> str:
    """Without a fork: this process itself, which then reads the secret."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(writer, 1)
            os.execv("/bin/sh", ["sh", "-c", "echo $$"])
        except OSError as e:
            os.write(writer, f"!{e.errno}".encode())
        os._exit(0)
    os.close(writer)
    said = os.read(reader, 100).decode()
    os.waitpid(pid, 0)
    if not said or said.startswith("!"):
        raise denied(int(said[1:] or 1))
    return said


@attempt("read by a program")
def cat(t: Target) -> str:
    return _run(["/bin/cat", t.planted])


@attempt("execute in place of itself", word=True)
def in_place(t: Target) -> str:
    """Its last deed: what the new program writes is the report."""
    report = 'escape-report {"gained": "a shell in its place", "stopped": ""}'
    os.dup2(2, 1)
    os.execv("/bin/sh", ["sh", "-c", f"echo; echo '{report}'"])


@attempt("run a fresh interpreter", word=True)
def interpreter(t: Target) -> str:
    return _run([sys.executable, "-S", "-c", "print(1 + 1)"])


@attempt("run a program by the loader", word=True)
def loader(t: Target) -> str:
    """Where execution is tied to the file, the loader is that file."""
    return _run([_LOADER, "/bin/echo", "loaded"])


@attempt("run a copy of a program in the workspace", word=True)
def own_copy(t: Target) -> str:
    shutil.copy("/bin/echo", "echo")
    os.chmod("echo", 0o755)
    return _run(["./echo", "copied"])


@attempt("run a script of its own", word=True)
def own_script(t: Target) -> str:
    with open("script", "w") as file:
        file.write("#!/bin/sh\necho script\n")
    os.chmod("script", 0o755)
    return _run(["./script"])


@attempt("run a program from memory", word=True)
def from_memory(t: Target) -> str:
    """No path, so nothing to look up."""
    with open("/bin/echo", "rb") as file:
        program = file.read()
    fd = syscall(_MEMFD, b"program", 0)
    os.write(fd, program)
    return _run([f"/proc/self/fd/{fd}", "from memory"]) if not fd else _memory_child(fd)


def _memory_child(fd: int) -> str:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(writer, 1)
        arguments = (ctypes.c_char_p * 3)(b"echo", b"from memory", None)
        nothing = (ctypes.c_char_p * 1)(None)
        ctypes.CDLL(None, use_errno=True).syscall(_EXECVEAT, fd, b"", arguments, nothing, 0x1000)
        os.write(writer, f"!{ctypes.get_errno()}".encode())
        os._exit(1)
    os.close(writer)
    said = os.read(reader, 100).decode()
    os.waitpid(pid, 0)
    if not said or said.startswith("!"):
        raise denied(int(said[1:] or 1))
    return said.strip()


@attempt("make memory that a program can be in", word=True)
def memory_file(t: Target) -> str:
    """Memory that no limit of a process counts, and that can be executed."""
    return f"descriptor {syscall(_MEMFD, b'x', 0)}"


@attempt("preload a library into a program", word=True)
def preload(t: Target) -> str:
    import ctypes.util

    found = ctypes.util.find_library("m")
    if not found:
        raise Stopped("no library at hand")
    return _run(["/bin/echo", "preloaded"], {"LD_PRELOAD": found})


@attempt("run a setuid program", word=True)
def setuid(t: Target) -> str:
    """The runner (root) leaves one that tells whose rights it has; without it there is none."""
    if not t.setuid:
        raise Stopped("the host has none")
    said = _run([t.setuid, "-u"])
    if said.split()[0] == str(os.getuid()):
        raise Stopped(f"it ran as user {said}, without the owner's rights")
    return f"it runs as user {said}"


@attempt("run a debugger's or compiler's way of starting", word=True)
def posix_spawn(t: Target) -> str:
    reader, writer = os.pipe()
    pid = os.posix_spawn(
        "/bin/echo", ["echo", "spawned"], {}, file_actions=[(os.POSIX_SPAWN_DUP2, writer, 1)]
    )
    os.close(writer)
    said = os.read(reader, 100).decode().strip()
    os.waitpid(pid, 0)
    if not said:
        raise Stopped("it said nothing")
    return said


@attempt("load a library of its own", word=False)
def own_library(t: Target) -> str:
    """Code of its own it has anyway (``ctypes``); that it is confined is what counts: the
    library's loading may not read outside."""
    shutil.copy(t.planted, "library.so")
    with open("library.so") as file:
        return file.read()
