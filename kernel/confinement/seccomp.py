"""Which syscalls a confined process may make: a filter that Linux runs before each of them.

An allow-list. What is not on it fails with ``EPERM``, and with ``ENOSYS`` where it is newer than
this list (programs then do without it, as on an older Linux). It inherits over fork and exec, and
nothing can take it off.

Denied to all, among others: sockets (``socketpair`` within the process excepted), namespaces,
mounts, ptrace and other processes' memory, signals to others, io_uring, bpf, perf, keys,
userfaultfd, handles of files, kernel modules, inotify; and what Landlock does not see though it
changes files by path: modes, owners, times, attributes, and devices, FIFOs and sockets made as
files.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Iterable
from functools import cache

from isovist.kernel import linux
from isovist.kernel.confinement.numbers import NUMBERS

_READING_AND_WRITING = """
    read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek open creat
    openat openat2 close close_range dup dup2 dup3 fstat stat lstat newfstatat statx access
    faccessat faccessat2 readlink readlinkat getdents getdents64 getcwd chdir fchdir mkdir mkdirat
    rmdir unlink unlinkat rename renameat renameat2 link linkat symlink symlinkat truncate
    ftruncate fsync fdatasync sync_file_range flock fadvise64 readahead statfs fstatfs
    umask sendfile copy_file_range pipe pipe2
"""
_WAITING = """
    poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait
    epoll_pwait2 eventfd eventfd2 signalfd signalfd4 timerfd_create timerfd_settime timerfd_gettime
    timer_create timer_settime timer_gettime timer_getoverrun timer_delete nanosleep
    clock_nanosleep clock_gettime clock_getres gettimeofday time alarm getitimer setitimer pause
    restart_syscall wait4 waitid
"""
_MEMORY = """
    mmap munmap mprotect mremap madvise brk msync mlock mlock2 munlock pkey_alloc pkey_free
    pkey_mprotect membarrier mseal map_shadow_stack
"""
_THREADS = """
    futex futex_waitv futex_wake futex_wait futex_requeue set_robust_list set_tid_address rseq
    gettid sched_yield sched_getaffinity sched_getparam sched_getscheduler sched_get_priority_max
    sched_get_priority_min sched_rr_get_interval getcpu arch_prctl exit exit_group
"""
_ITSELF = """
    rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend
    sigaltstack getpid getppid getuid geteuid getgid getegid getresuid getresgid getgroups getpgid
    getpgrp getsid getpriority getrlimit setrlimit getrusage times uname sysinfo getrandom capget
"""
# What a socketpair and a socket that was handed over need. A connected pair of streams goes
# nowhere else: it cannot be bound or connected, and an address in sendmsg is an error.
_SOCKETPAIRS = "sendmsg recvmsg recvfrom shutdown getsockname getpeername getsockopt setsockopt"

_ALWAYS = (*_READING_AND_WRITING.split(), *_WAITING.split(), *_MEMORY.split(),
           *_THREADS.split(), *_ITSELF.split(), *_SOCKETPAIRS.split())  # fmt: skip
# Signals go anywhere only in a namespace of the process's own, so there is nobody else to hit.
_CHILDREN = """
    fork vfork execve execveat setsid setpgid kill tkill tgkill pidfd_open pidfd_send_signal
"""
_NETWORK = "connect bind listen accept accept4 sendto sendmmsg recvmmsg"

_LAST = 470
"""No number up to this one is newer than this list; those above fail with ``ENOSYS``."""

_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_CLONE_THREAD = 0x00010000
_SOCKET_FLAGS = 0o2004000  # SOCK_CLOEXEC | SOCK_NONBLOCK
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_STREAM, _DGRAM, _SEQPACKET = 1, 2, 5

# SETOWN, SETSIG, SETOWN_EX would have Linux signal others; a lease makes all others who open
# the file wait; NOTIFY watches folders; SETPIPE_SZ uses up what all of this user's pipes share.
_FCNTL_DENIED = (8, 10, 15, 1024, 1026, 1031)
# SNDBUF, RCVBUF and their FORCE forms: what lies in sockets counts for no limit. Loops ask for
# tiny ones, so asking succeeds and changes nothing.
_BUFFERS = (7, 8, 32, 33)
# TCGETS, TCSETS*, TIOCGWINSZ, FIONREAD, FIONBIO, FIOCLEX, FIONCLEX. Never TIOCSTI or TIOCLINUX,
# which type into the terminal that an agent may have been handed.
_IOCTL_ALLOWED = (0x5401, 0x5402, 0x5403, 0x5404, 0x5413, 0x541B, 0x5421, 0x5451, 0x5450)
# GET_PDEATHSIG, GET_DUMPABLE, SET_NAME, GET_NAME, GET_SECCOMP, CAPBSET_READ, timer slack,
# NO_NEW_PRIVS, THP_DISABLE, SET_VMA (names of mappings).
_PRCTL_ALLOWED = (2, 3, 15, 16, 21, 23, 29, 30, 38, 39, 41, 42, 0x53564D41)

_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000
"""On x86_64, numbers from here on are of another ABI with the same architecture."""

_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_ERRNO = 0x00050000
_DENY = _ERRNO | errno.EPERM
_UNKNOWN = _ERRNO | errno.ENOSYS

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_JUMP, _EQUAL, _AT_LEAST, _BITS = 0x05, 0x15, 0x35, 0x45

Code = list[bytes]
"""Instructions of classic BPF, each 8 bytes."""

_SECCOMP_SET_MODE_FILTER = 1


def supported() -> bool:
    """Whether we have a list for this machine (that Linux filters is asked when it is applied)."""
    return platform.machine() in _ARCHITECTURE


@cache
def program(
    *,
    pid: int,
    children: bool = False,
    network: bool = False,
    replace: bool = False,
    truncate: bool = True,
) -> bytes:
    """The filter, for a process whose number is ``pid`` (in its own namespace).

    ``children``: it may fork, execute and signal; ``network``: open internet sockets;
    ``replace``: execute another program once and restrict itself further (a fresh interpreter,
    which then calls :func:`seal`); without ``truncate`` none by path, for a Landlock that does not
    see it. A new thread is always allowed.
    """
    allowed = {*_ALWAYS}
    if children:
        allowed |= {*_CHILDREN.split()}
    if network:
        allowed |= {*_NETWORK.split()}
    if replace:
        allowed |= {"execve", "seccomp"}
    if not truncate:
        allowed -= {"truncate"}
    checked: dict[str, Code] = {
        "clone": _clone(children),
        "clone3": [_return(_UNKNOWN)],  # its flags lie in memory; programs fall back to clone
        "socketpair": [
            *_only(0, (_AF_UNIX,)), *_only(1, (_STREAM, _SEQPACKET), ignore=_SOCKET_FLAGS),
            *_only(2, (0,)), _return(_ALLOW),
        ],
        "fcntl": [*_never(1, _FCNTL_DENIED), _return(_ALLOW)],
        "ioctl": [*_only(1, _IOCTL_ALLOWED), _return(_ALLOW)],
        "prctl": [*_only(0, (*_PRCTL_ALLOWED, *((1,) if children else ()))), _return(_ALLOW)],
        "prlimit64": [*_only(0, (0, pid)), _return(_ALLOW)],
        # To take a disk costs as long as to write it, so that the kernel sees it coming. Libraries
        # then write instead.
        "fallocate": [_return(_ERRNO | errno.EOPNOTSUPP)],
        "setsockopt": [*_never(2, _BUFFERS, _ERRNO), _return(_ALLOW)],
        "sched_setaffinity": [*_only(0, (0,)), _return(_ALLOW)],
    }  # fmt: skip
    if network:
        checked["socket"] = [
            *_only(0, (_AF_INET, _AF_INET6)),
            *_only(1, (_STREAM, _DGRAM), ignore=_SOCKET_FLAGS),
            _return(_ALLOW),
        ]
    else:
        # To the other end of a pair, never to an address.
        checked["sendto"] = [*_null(4), _return(_ALLOW)]
    if not children:
        checked["kill"] = checked["tgkill"] = [*_only(0, (pid,)), _return(_ALLOW)]
    code = _head()
    for name, body in checked.items():
        if (number := NUMBERS.get(name)) is not None:
            code += [_branch(_EQUAL, number, 0, len(body)), *body]
    numbers = {NUMBERS[name] for name in allowed if name in NUMBERS}
    return b"".join([*code, *_search(_spans(numbers))])


@cache
def _sealing() -> bytes:
    code = _head()
    for name in ("execve", "execveat", "seccomp"):
        code += [_branch(_EQUAL, NUMBERS[name], 0, 1), _return(_DENY)]
    return b"".join([*code, _return(_ALLOW)])


class _Program(ctypes.Structure):
    """``struct sock_fprog``."""

    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def install(code: bytes) -> None:
    """Filter this thread, which must be the process's only one and have no_new_privs. Raises
    :class:`OSError` where Linux has no filters."""
    filter_ = _Program(len(code) // 8, code)
    linux.syscall(
        NUMBERS["seccomp"], _SECCOMP_SET_MODE_FILTER, 0, ctypes.addressof(filter_), call="seccomp"
    )


def seal() -> None:
    """Deny execution and further filters to this process, from here on."""
    install(_sealing())


# -- the assembler. Offsets in ``struct seccomp_data``: number 0, architecture 4, arguments 16 + 8i
# (little endian, so the low half comes first)


def _instruction(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


def _branch(test: int, value: int, yes: int, no: int) -> bytes:
    """Go on ``yes`` or ``no`` instructions further."""
    return _instruction(test, value, yes, no)


def _return(action: int) -> bytes:
    return _instruction(_RETURN, action)


def _head() -> Code:
    """Ends with the number loaded."""
    machine = platform.machine()
    code = [
        _instruction(_LOAD, 4),
        _branch(_EQUAL, _ARCHITECTURE[machine], 1, 0),
        _return(_KILL),
        _instruction(_LOAD, 0),
    ]
    if machine == "x86_64":
        code += [_branch(_AT_LEAST, _X32, 0, 1), _return(_UNKNOWN)]
    return code


def _argument(i: int, half: int = 0) -> bytes:
    return _instruction(_LOAD, 16 + 8 * i + 4 * half)


def _only(i: int, values: Iterable[int], ignore: int = 0) -> Code:
    """Deny unless argument ``i`` (its low 32 bits, all that Linux looks at in these) is one of
    ``values``, once the bits ``ignore`` are cleared."""
    values = [*values]
    code = [_argument(i)]
    if ignore:
        code.append(_instruction(_AND, ~ignore & 0xFFFFFFFF))
    code += [_branch(_EQUAL, value, len(values) - n, 0) for n, value in enumerate(values)]
    return [*code, _return(_DENY)]


def _never(i: int, values: Iterable[int], action: int = _DENY) -> Code:
    code = [_argument(i)]
    for value in values:
        code += [_branch(_EQUAL, value, 0, 1), _return(action)]
    return code


def _null(i: int) -> Code:
    """Deny unless argument ``i`` is a null pointer."""
    code: Code = []
    for half in (0, 1):
        code += [_argument(i, half), _branch(_EQUAL, 0, 1, 0), _return(_DENY)]
    return code


def _clone(children: bool) -> Code:
    code = [_argument(0), _branch(_BITS, _NAMESPACES, 0, 1), _return(_DENY)]
    if not children:
        code += [_branch(_BITS, _CLONE_THREAD, 1, 0), _return(_DENY)]
    return [*code, _return(_ALLOW)]


def _spans(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """(first number, action from there to the next one's first), from 0 on."""
    wanted = {*numbers}
    spans: list[tuple[int, int]] = []
    for number in range(_LAST + 1):
        action = _ALLOW if number in wanted else _DENY
        if not spans or spans[-1][1] != action:
            spans.append((number, action))
    return [*spans, (_LAST + 1, _UNKNOWN)]


def _search(spans: list[tuple[int, int]]) -> Code:
    """A binary search: Linux runs the filter for each number once when it is installed, so its
    depth is felt at each spawn."""
    if len(spans) == 1:
        return [_return(spans[0][1])]
    middle = len(spans) // 2
    below, above = _search(spans[:middle]), _search(spans[middle:])
    return [
        _branch(_AT_LEAST, spans[middle][0], 0, 1),
        _instruction(_JUMP, len(below)),
        *below,
        *above,
    ]
