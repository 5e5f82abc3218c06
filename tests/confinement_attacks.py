"""Attacks by real agents, confined and not: ``python confinement_attacks.py FOLDER``, as any user.

Prints {attack: [how it ended confined, how it ended unconfined]} as JSON: ``got``, or the name of
the error that stopped it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import trio

from isovist.kernel.spawner import Confinement, Spawner

_TEXT = """
# read the store
got = open(there['store']).read()
# read the store by a link
os.symlink(there['store'], there['link'])
got = open(there['link']).read()
# look at the store's size
got = os.stat(there['store']).st_size
# write to the store
got = open(there['store'], 'a')
# truncate the store
os.truncate(there['spare'], 0)
got = True
# unlock the store
os.chmod(there['spare'], 0o777)
got = True
# touch the store
os.utime(there['spare'])
got = True
# move the store
os.rename(there['moved'], there['moved'] + '2')
got = True
# list the state folder
got = os.listdir(there['state'])
# read another's workspace
got = open(there['other']).read()
# look for another's workspace
os.stat(os.path.dirname(there['other']))
got = True
# list the root
got = os.listdir('/')
# read of the home folder
got = open(there['home']).read()
# read another's environment
got = open(f'/proc/{there["decoy"]}/environ').read()
# see another process
os.stat(f'/proc/{there["decoy"]}')
got = True
# read its own /proc
got = open('/proc/self/maps').read()
# signal another process
os.kill(there['decoy'], 0)
got = True
# signal all
os.kill(-1, 0)
got = True
# open a pidfd
got = os.pidfd_open(there['decoy'])
# trace another process
got = libc(101, 0x4206, there['decoy'], 0, 0) == 0
# read another's memory
buffer = ctypes.create_string_buffer(8)
iov = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
far = (ctypes.c_void_p * 2)(there['address'], 8)
got = libc(310, there['decoy'], iov, 1, far, 1, 0) == 8
# change another's limits
import resource
got = resource.prlimit(there['decoy'], resource.RLIMIT_CORE)
# open a TCP connection
got = socket.create_connection(('127.0.0.1', there['port']), 5)
# send a UDP datagram
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
got = s.sendto(b'x', ('127.0.0.1', there['port']))
# reach a unix socket
s = socket.socket(socket.AF_UNIX)
s.connect(there['socket'])
got = True
# reach one by a datagram pair
s, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
got = s.sendto(b'x', there['datagrams'])
# listen on an abstract socket
s = socket.socket(socket.AF_UNIX)
s.bind('\\0' + there['state'] + str(os.getpid()))
got = True
# fork
pid = os.fork()
if not pid: os._exit(0)
os.waitpid(pid, 0)
got = True
# execute a program
os.set_inheritable(writes, True)
os.execv(sys.executable, [sys.executable, '-c', f"__import__('os').write({writes}, b'got')"])
# execute by the loader
import subprocess
got = subprocess.check_output([sys.executable, '-c', 'print(1)'])
# a user namespace
got = libc(272, 0x10000000) == 0
# a mount namespace in a clone
pid = libc(56, 0x20000 | 0x10000000 | 17, 0, 0, 0, 0)
if not pid: os._exit(0)
got = pid > 0
# io_uring
p = ctypes.create_string_buffer(120)
got = libc(425, 4, p) > 0
# a memory file
got = os.memfd_create('x')
# shared memory
number = libc(29, 0, 4096, 0o1600)
got = number >= 0
libc(31, number, 0, 0)
# a message queue
name = b'isovist-%d' % os.getpid()
got = libc(240, name, 0o102, 0o600, 0) > 0
libc(241, name)
# watch a folder
got = libc(254, libc(253), there['state'].encode(), 2) > 0
# keys of the user
got = libc(248, b'user', b'isovist', b'x', 1, -2) > 0
# a large buffer of a socket
left, right = socket.socketpair()
before = left.getsockopt(1, 7)
left.setsockopt(1, 7, 4 * before)
left.setsockopt(1, 7, before // 4)
got = left.getsockopt(1, 7) != before
# a large pipe
import fcntl
r, w = os.pipe()
got = fcntl.fcntl(w, 1031, 1 << 18)
# a lease on a file
import fcntl
got = fcntl.fcntl(open(there['home']), 1024, 0) == 0
# a thread in another ABI
got = libc(0x40000000 + 39) > 0
# three gibibytes
b = bytearray(3 << 30)
got = True
# a file of a gibibyte
open('big', 'wb').truncate(1 << 30)
got = True
# ten thousand descriptors
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = [os.dup(0) for _ in range(min(hard - 100, 1000))]
got = hard > 1000
# a device
got = libc(133, b'device', 0o20600, 0x103) == 0 or None
# a FIFO
os.mkfifo('fifo')
got = True
"""

ATTACKS = {name: code for name, _, code in (part.partition("\n") for part in _TEXT.split("# ")[1:])}
"""Name -> code that sets ``got`` where it succeeds. ``libc`` is ``syscall`` of x86_64."""

NOT_REAL = frozenset(
    {"a thread in another ABI", "io_uring", "keys of the user", "a device", "three gibibytes"}
)
"""What the host itself may forbid, or what not every host has the room for."""

SCRIPT = """
import ctypes, errno, json, os, socket, sys
reads, writes = eval(os.environ["ISOVIST_FDS"])
there, code = json.loads(sys.argv[1]), sys.argv[2]
syscall = ctypes.CDLL(None, use_errno=True).syscall
syscall.restype = ctypes.c_long
def libc(*arguments):
    done = syscall(*(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    if done < 0:
        raise OSError(ctypes.get_errno(), "syscall")
    return done
scope = globals()
try:
    exec(code, scope)
    word = "got" if scope.get("got") else "nothing"
except OSError as e:
    word = errno.errorcode.get(e.errno, "") or repr(e)
except MemoryError:
    word = "MemoryError"
except BaseException as e:
    word = repr(e)
os.write(writes, word.encode())
"""


async def attempt(spawner: Spawner, pid: int, script: str, there: str, code: str) -> str:
    child = await spawner.spawn(pid, script, [there, code], agent="attacker")
    word = b""
    while True:
        await trio.lowlevel.wait_readable(child.read_fd)
        if not (part := os.read(child.read_fd, 4096)):
            break
        word += part
    child.close()
    return word.decode() or "killed"


async def attack(folder: Path) -> dict[str, list[str]]:
    state, own, home = folder / "state", folder / "program", folder / "outside"
    for made in (state, own, home, state / "workspaces", state / "workspaces" / "other"):
        made.mkdir()
    for name in ("store", "spare", "moved"):
        (state / name).write_text("secret")
    (state / "workspaces" / "other" / "file").write_text("another's")
    (home / "file").write_text("private")
    (own / "agent.py").write_text(SCRIPT)
    results: dict[str, list[str]] = {name: [] for name in ATTACKS}
    with (
        subprocess.Popen(
            [sys.executable, "-c",
             "import ctypes, sys; b = ctypes.create_string_buffer(b'decoyed!')\n"
             "print(ctypes.addressof(b), flush=True); sys.stdin.read()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as decoy,
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
    ):  # fmt: skip
        assert decoy.stdout is not None
        unix.bind(str(home / "socket"))
        unix.listen(64)
        datagrams.bind(str(home / "datagrams"))
        there = {
            "store": str(state / "store"), "spare": str(state / "spare"),
            "moved": str(state / "moved"), "state": str(state), "link": str(home / "link"),
            "other": str(state / "workspaces" / "other" / "file"), "home": str(home / "file"),
            "decoy": decoy.pid, "address": int(decoy.stdout.readline()),
            "port": tcp.getsockname()[1], "socket": str(home / "socket"),
            "datagrams": str(home / "datagrams"),
        }  # fmt: skip
        for confinement in (Confinement(state / "workspaces", (str(state),)), None):
            if confinement is not None:
                there["link"] = str(state / "workspaces" / "attacker" / "link")
            else:
                there["link"] = str(home / "link")
                os.chdir(own)
            async with trio.open_nursery() as nursery:
                spawner = Spawner(
                    nursery,
                    lambda _: None,
                    confinement=confinement,
                    namespaces=confinement is not None,
                )
                for number, (name, code) in enumerate(ATTACKS.items()):
                    word = await attempt(
                        spawner, number, str(own / "agent.py"), json.dumps(there), code
                    )
                    results[name].append(word)
                await spawner.aclose()
        decoy.kill()
    return results


if __name__ == "__main__":
    print(json.dumps(trio.run(attack, Path(sys.argv[1]))))
