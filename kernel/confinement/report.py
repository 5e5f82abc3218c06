"""What this system can enforce: found by confining a process and letting it try.

``python -m isovist.kernel.confinement.report`` prints it as JSON.
"""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress

import msgspec

from isovist.kernel import linux
from isovist.kernel.confinement import policy
from isovist.kernel.confinement.apply import Fence, bound_tasks
from isovist.kernel.confinement.cover import Cover
from isovist.kernel.confinement.policy import Policy
from isovist.kernel.environment import inherited
from isovist.syscalls.errors import CallerError, Errno, WorldError

Enforced = Mapping[str, str]
"""Of what (a key of :data:`MATTERS`) -> by what; empty: by nothing."""

MATTERS = {
    "processes": "agents cannot signal or trace others, and what they start ends with them",
    "view": "agents cannot tell what lies in the kernel's folders, nor which processes there are",
    "files": "agents open files of their workspace, mounts and interpreter alone",
    "syscalls": "agents have no network, no new processes, no way into Linux",
    "privileges": "agents have no privileges, not even as root",
    "memory": "each agent's memory is bound",
    "tasks": "each agent's threads are bound",
    "processor": "agents cannot take the processor from the kernel",
}
OPTIONAL = frozenset({"processor"})
"""What a confined agent may lack all the same: it harms the speed of others, not their secrets."""

HINTS = {
    "processes": "allow user namespaces (sysctl user.max_user_namespaces) or run as root",
    "view": "allow user namespaces (sysctl user.max_user_namespaces) or run as root",
    "files": "needs Linux 5.13 or newer, with landlock among its LSMs (boot option lsm=)",
    "syscalls": "needs a Linux with seccomp filters, on x86_64 or aarch64",
    "privileges": "needs a Linux with seccomp filters, on x86_64 or aarch64",
    "memory": "",
    "tasks": "needs Linux 6.14, or a cgroup that is ours, or another user than root",
    "processor": "give the kernel a cgroup of its own: systemd-run --user --scope -p Delegate=yes",
}


def lacking(enforced: Enforced) -> list[str]:
    """What is not enforced although it must be, in the order of :data:`MATTERS`."""
    return [name for name in MATTERS if name not in OPTIONAL and not enforced.get(name)]


def here() -> dict[str, str]:
    """:func:`survey` for agents of a kernel that would start now. Takes about a quarter of a
    second, in a process of its own. Raises ``EIO`` where that fails."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", __name__],
        capture_output=True,
        env=inherited(os.environ),
        check=False,
    )
    try:
        return msgspec.json.decode(done.stdout, type=dict[str, str])
    except msgspec.MsgspecError:
        lines = done.stderr.decode("utf-8", "replace").splitlines() or ["no word"]
        raise WorldError(f"confinement could not be tried: {lines[-1]}") from None


def require() -> None:
    """Raise ``EPERM`` where agents cannot be wholly confined."""
    if lack := lacking(here()):
        raise CallerError(
            f"this system cannot enforce that {MATTERS[lack[0]]}: {HINTS[lack[0]]}",
            errno=Errno.EPERM,
            field="confinement",
        )


def survey(fence: Fence, namespace: linux.Namespace | None, cover: Cover | None) -> dict[str, str]:
    """Confine a child as an agent is, have it try, and say what held it. ``namespace``: in one of
    its own below this, under ``cover``; ``None``: there is none."""
    results, writes = os.pipe()
    with ExitStack() as stack:
        stack.callback(os.close, results)
        if namespace is not None:
            namespace.leave()
        try:
            child = os.fork()
            if child == 0:
                with suppress(Exception):
                    found = _tried(fence, cover)
                    os.write(writes, msgspec.json.encode(found))
                os._exit(0)
        finally:
            os.close(writes)
            if namespace is not None:
                namespace.back()
        data = b""
        while part := os.read(results, 4096):
            data += part
        os.waitpid(child, 0)
    return msgspec.json.decode(data, type=dict[str, str]) if data else dict.fromkeys(MATTERS, "")


def _tried(fence: Fence, cover: Cover | None) -> dict[str, str]:
    """In the child: take each step, then try what it should have made impossible."""
    found = dict.fromkeys(MATTERS, "")
    bounded = bound_tasks(policy.TASKS)
    if cover is not None:
        cover.reveal(())
        if not os.path.exists("/proc/self"):
            found["view"] = "a mount namespace for each agent"
    with suppress(OSError):
        fence.files(Policy())
    with suppress(OSError):
        fence.rest(Policy())
    if os.getpid() == 1:
        found["processes"] = "a PID namespace for each agent"
    if _refused(lambda: os.close(os.open("/", os.O_RDONLY))) and _refused(
        lambda: os.close(os.open("/proc/self/status", os.O_RDONLY))
    ):
        found["files"] = f"Landlock, version {fence.abi}"
    if _refused(lambda: socket.socket(socket.AF_UNIX).close()) and _refused(os.fork):
        found["syscalls"] = "a seccomp filter"
    if not _capabilities():
        found["privileges"] = "no_new_privs, no capabilities"
    if resource.getrlimit(resource.RLIMIT_DATA)[1] == policy.MEMORY:
        found["memory"] = "resource limits"
    if bounded:
        found["tasks"] = "its PID namespace"
    elif os.getuid() != 0 and resource.getrlimit(resource.RLIMIT_NPROC)[1] <= policy.USER_TASKS:
        found["tasks"] = "resource limits"
    return found


def _refused(attempt: Callable[[], object]) -> bool:
    try:
        if attempt() == 0:  # a fork that succeeded: its child must not go on
            os._exit(0)
    except OSError:
        return True
    return False


def _capabilities() -> bool:
    """Whether any is permitted."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", 0x20080522, 0))
    sets = ctypes.create_string_buffer(24)
    linux.capget(ctypes.addressof(header), ctypes.addressof(sets))
    return any(struct.unpack("=6I", sets.raw))


def main() -> None:
    fence = Fence(policy.shared(), ())
    namespace: linux.Namespace | None = None
    cover: Cover | None = None
    with suppress(OSError):
        linux.unshare_pids()
        # Only process 1 of that namespace can make others below it.
        if (child := os.fork()) != 0:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        namespace = linux.Namespace()
        cover = Cover(())
    sys.stdout.buffer.write(msgspec.json.encode(survey(fence, namespace, cover)))


if __name__ == "__main__":
    main()
