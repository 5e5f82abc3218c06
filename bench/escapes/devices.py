"""Devices and the system's own files: the disk under the files, memory, terminals, switches."""

from __future__ import annotations

import fcntl
import glob
import os
import pty
import stat

from bench.escapes.base import Stopped, Target, attempt, in_a_child


def _opened(name: str, path: str, flags: int = os.O_RDONLY) -> None:
    @attempt(name, word=True)
    def run(t: Target) -> str:
        """Opened, and nothing done with it: most would harm the machine."""
        fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
        os.close(fd)
        return f"{path} was opened"


for _name, _path, _flags in (
    ("open the machine's memory", "/dev/mem", os.O_RDONLY),
    ("open the log of the system", "/dev/kmsg", os.O_RDONLY),
    ("open the virtual machines' device", "/dev/kvm", os.O_RDWR),
    ("open the device of tunnels", "/dev/net/tun", os.O_RDWR),
    ("open the device of user file systems", "/dev/fuse", os.O_RDWR),
    ("open the loop devices' control", "/dev/loop-control", os.O_RDWR),
    ("open the terminal", "/dev/tty", os.O_RDWR),
    ("open the console", "/dev/console", os.O_RDWR),
    ("open the system's request keys", "/proc/sysrq-trigger", os.O_WRONLY),
    ("open the name of the crash handler", "/proc/sys/kernel/core_pattern", os.O_WRONLY),
    ("open the name of the module loader", "/proc/sys/kernel/modprobe", os.O_WRONLY),
    ("open the handler of device events", "/sys/kernel/uevent_helper", os.O_WRONLY),
    ("open the system's memory image", "/proc/kcore", os.O_RDONLY),
    ("open the kernel's symbols", "/proc/kallsyms", os.O_RDONLY),
    ("read what is mounted", "/proc/self/mounts", os.O_RDONLY),
    ("read the machine's network", "/proc/net/tcp", os.O_RDONLY),
    ("read the machine's sockets", "/proc/net/unix", os.O_RDONLY),
    ("read the machine's locks", "/proc/locks", os.O_RDONLY),
    ("read the machine's load", "/proc/loadavg", os.O_RDONLY),
    ("read the machine's shared memory", "/proc/sysvipc/shm", os.O_RDONLY),
    ("read the machine's keys", "/proc/keys", os.O_RDONLY),
):
    _opened(_name, _path, _flags)


@attempt("open the disk under the files", word=True)
def disk(t: Target) -> str:
    """All files of all users lie on it."""
    for path in sorted(
        glob.glob("/dev/*d[a-z]") + glob.glob("/dev/nvme*n*") + glob.glob("/dev/vd*")
    ):
        if stat.S_ISBLK(os.stat(path).st_mode):
            fd = os.open(path, os.O_RDONLY)
            return f"{len(os.read(fd, 512))} bytes of {path}"
    raise FileNotFoundError(2, "no disk in sight")


@attempt("type into a terminal", word=True)
def type_into(t: Target) -> str:
    """TIOCSTI puts characters where its person will have typed them."""

    def body() -> str:
        master, slave = pty.openpty()
        os.setsid()
        fcntl.ioctl(slave, 0x540E, 0)  # TIOCSCTTY
        fcntl.ioctl(slave, 0x5412, b"x")  # TIOCSTI
        return f"typed into {master}"

    return in_a_child(body)


@attempt("find another's terminal", word=True)
def terminals(t: Target) -> str:
    for path in glob.glob("/dev/pts/[0-9]*"):
        fd = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        os.close(fd)
        return path
    raise Stopped("none in sight")


@attempt("open a terminal of its own", word=True)
def own_terminal(t: Target) -> str:
    master, _ = pty.openpty()
    return os.ttyname(master) if os.isatty(master) else f"descriptor {master}"


# -- control groups


def _groups() -> list[str]:
    return glob.glob("/sys/fs/cgroup/*") + glob.glob("/sys/fs/cgroup")


@attempt("name a program that the system runs when a group is empty", word=True)
def release_agent(t: Target) -> str:
    """It would run as root, outside everything."""
    for folder in _groups():
        path = os.path.join(folder, "release_agent")
        if os.path.exists(path):
            fd = os.open(path, os.O_WRONLY)
            os.close(fd)
            return path
    raise FileNotFoundError(2, "no control groups in sight")


@attempt("leave its control group", word=True)
def leave(t: Target) -> str:
    """With it would go all limits."""

    def body() -> str:
        for folder in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"):
            path = os.path.join(folder, "cgroup.procs")
            if os.path.exists(path):
                with open(path, "w") as file:
                    file.write("0")
                return f"joined {folder}"
        raise FileNotFoundError(2, "no control groups in sight")

    return in_a_child(body)


@attempt("make a control group", word=True)
def make(t: Target) -> str:
    for folder in ("/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"):
        if os.path.isdir(folder):
            path = os.path.join(folder, t.nonce)
            os.mkdir(path)
            os.rmdir(path)
            return path
    raise FileNotFoundError(2, "no control groups in sight")


@attempt("hide from the system's memory killer", word=True)
def oom(t: Target) -> str:
    """Then others die for what it takes."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-900")
    return "-900"


@attempt("raise its own limits", word=True)
def raise_limit(t: Target) -> str:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if hard == resource.RLIM_INFINITY:
        return "files may be of any size"
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard + 1, hard + 1))
    return f"{soft} was raised"
