"""What is attacked, and the witnesses: a kernel with a victim, planted secrets, processes outside,
servers that listen. What an attempt has done is read off these, never off its own word alone."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec

from bench import ROOT
from bench.escapes.base import Target
from bench.lanes import environment
from bench.report import CannotRun
from isovist.kernel.config import Settings
from isovist.syscalls.client import Client, connect

START_SECONDS = 30.0
PERSON = "ana"
OWN = frozenset({"store", "write-ahead log", "shared memory file", "token", "lock",
                 "another's workspace", "system's shadow"})  # fmt: skip
"""Files in which nothing need be planted."""
DECOY = """
import ctypes, os, sys, time
secret = ctypes.create_string_buffer(sys.argv[1].encode(), 256)
print(ctypes.addressof(secret), flush=True)
for line in sys.stdin:
    print(secret.value.decode(), flush=True)
"""
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def secret(place: str) -> str:
    return f"isovist-secret-{place.replace(' ', '-')}-{secrets.token_hex(8)}"


class Decoy:
    """A process of the kernel's user that has nothing to do with it."""

    def __init__(self) -> None:
        self.secret, self.key = secret("decoy-memory"), secret("decoy-environment")
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", DECOY, self.secret],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"KEY": self.key},
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.address = int(self._line())
        self.before = self._state()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode().strip()

    def _state(self) -> tuple[object, ...]:
        limits = Path(f"/proc/{self.pid}/limits").read_text()
        return (
            os.getpriority(os.PRIO_PROCESS, self.pid),
            sorted(os.sched_getaffinity(self.pid)),
            os.sched_getscheduler(self.pid),
            limits,
            Path(f"/proc/{self.pid}/oom_score_adj").read_text(),
            int(_libc.syscall(ctypes.c_long(252), 1, self.pid)),
        )

    def harm(self) -> str:
        """What has happened to it; empty: nothing."""
        if self._process.poll() is not None:
            return f"the process outside ended with {self._process.returncode}"
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(b"?\n")
            self._process.stdin.flush()
        said = self._line()
        if not said:
            return "the process outside has ended"
        if said != self.secret:
            return "the memory of the process outside was changed"
        if self._state() != self.before:
            return "what is set of the process outside was changed"
        return ""

    def close(self) -> None:
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait()


class Servers:
    """Whoever reaches one of these has reached the world."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "listens")
        self.abstract = f"isovist-escape-{secrets.token_hex(6)}"
        self.heard: list[bytes] = []
        self._sockets: list[socket.socket] = []
        tcp = self._bind(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
        udp = self._bind(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0))
        self.tcp, self.udp = tcp.getsockname()[1], udp.getsockname()[1]
        self._bind(socket.AF_UNIX, socket.SOCK_STREAM, self.path)
        self._bind(socket.AF_UNIX, socket.SOCK_DGRAM, self.path + ".dgram")
        self._bind(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + self.abstract)

    def _bind(self, family: int, kind: int, address: tuple[str, int] | str) -> socket.socket:
        sock = socket.socket(family, kind)
        sock.bind(address)
        self._sockets.append(sock)
        threading.Thread(target=self._serve, args=(sock, kind), daemon=True).start()
        return sock

    def _serve(self, sock: socket.socket, kind: int) -> None:
        with contextlib.suppress(OSError):
            if kind == socket.SOCK_DGRAM:
                while True:
                    self.heard.append(sock.recv(4096))
            sock.listen()
            while True:
                peer, _ = sock.accept()
                with peer:
                    peer.settimeout(2)
                    with contextlib.suppress(OSError):
                        self.heard.append(peer.recv(4096))

    def close(self) -> None:
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


class Shared:
    """What the system keeps for all processes of a user: System V objects, a queue, a key."""

    def __init__(self) -> None:
        self.key = secrets.randbelow(1 << 30) + 1
        self.secret = secret("shared")
        self.queue = f"isovist-{secrets.token_hex(6)}"
        self.name = f"isovist-{secrets.token_hex(6)}"
        raw = self.secret.encode() + b"\0"
        self._segment = _call(29, self.key, 4096, 0o1600)
        address = _call(30, self._segment, 0, 0) & (1 << 64) - 1
        ctypes.memmove(address, raw, len(raw))
        _call(67, address)
        self._messages = _call(68, self.key, 0o1600)
        message = ctypes.create_string_buffer(struct.pack("q", 1) + raw)
        _call(69, self._messages, message, len(raw), 0)
        self._semaphore = _call(64, self.key, 1, 0o1600)
        attributes = ctypes.create_string_buffer(struct.pack("qqqq", 0, 8, 8192, 0) + bytes(32))
        queue = _call(240, self.queue.encode(), os.O_RDWR | os.O_CREAT, 0o600, attributes)
        for _ in range(4):
            _call(242, queue, raw, len(raw), 0, None)
        os.close(queue)
        self._user_key = _call(248, b"user", self.name.encode(), raw, len(raw), -4)

    def close(self) -> None:
        _call(31, self._segment, 0, None)
        _call(71, self._messages, 0, None)
        _call(66, self._semaphore, 0, 0)
        _call(241, self.queue.encode())
        with contextlib.suppress(OSError):
            _call(250, 9, self._user_key, -4)


def _call(number: int, *arguments: object) -> int:
    made = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(_libc.syscall(ctypes.c_long(number), *made))
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), f"syscall {number}")
    return result


class World:
    """All of it, in ``folder``, of the user that runs this. ``confined``: as shipped; else with all
    confinement switched off, the namespace of process numbers included."""

    def __init__(self, folder: Path, confined: bool, setuid: str) -> None:
        self.folder, self.confined, self.setuid = folder, confined, setuid
        self.state, self.outside, self.home = folder / "s", folder / "outside", folder / "home"
        self.program = folder / "program"
        self.secrets: dict[str, str] = {}
        self.marker = secrets.token_hex(8)
        for path in (self.state, self.outside, self.home / ".ssh", folder / "models"):
            path.mkdir(parents=True)
        for made in (self.program, folder / "victim"):
            package = made / "bench" / "escapes"
            package.mkdir(parents=True)
            (made / "bench" / "__init__.py").write_text("")
            for source in (ROOT / "bench" / "escapes").glob("*.py"):
                if source.name not in ("world.py", "stage.py", "kernel.py"):
                    shutil.copy(source, package)
        call = "import sys\nfrom bench.escapes.{0} import main\nmain(*sys.argv[1:])\n"
        first = 'import sys\nif sys.argv[1] == "memory":\n    import bench.escapes.lean\n'
        (self.program / "hostile.py").write_text(first + call.format("agent"))
        (folder / "victim" / "victim.py").write_text(call.format("victim"))
        self.servers = Servers(folder)
        self.terminal = os.openpty()
        self.shared = Shared()
        self.decoy = Decoy()
        self._start()

    # -- the kernel and its victim

    def _start(self) -> None:
        config = self.folder / "config" / "isovist" / "config.toml"
        config.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"# {self._secret('config')}", 'model = "scripted"', 'embedder = "hash"']
        lines.append(f'models = "{self.folder / "models"}"')
        known = {field.name for field in msgspec.structs.fields(Settings)}
        if "confinement" in known and not self.confined:
            lines.append('confinement = "off"')
        config.write_text("\n".join(lines) + "\n")
        self._log = open(self.folder / "stderr", "ab")  # noqa: SIM115 # closed with the kernel
        self.kernel = subprocess.Popen(
            [sys.executable, "-m", "bench.escapes.kernel", str(self.state),
             *([] if self.confined else ["bare"])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=self.state,
            env={
                **environment(),
                "XDG_CONFIG_HOME": str(self.folder / "config"),
                "HOME": str(self.home),
                "ISOVIST_BENCH_KEY": self._secret("environment"),
                "LC_ISOVIST_BENCH": self.marker,
            },
        )  # fmt: skip
        assert self.kernel.stdout is not None
        if not self.kernel.stdout.readline().startswith(b"ready"):
            raise CannotRun(f"the kernel does not start:\n{self.log()}")
        self.client: Client = connect(socket=self.state / "socket")
        self.client.chat("Are you there?")
        self._victim()
        for name, path in self._files().items():
            # The kernel's own files hold secrets by themselves, or get one at their end.
            if name in OWN:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(PermissionError), open(path, "a") as file:
                file.write(f"{self._secret(name)}\n")
        with contextlib.closing(sqlite3.connect(self.state / "isovist.db")) as database:
            database.execute("pragma wal_checkpoint(passive)")
        self.secrets["token"] = (self.state / "token").read_text().strip()
        self.plant()

    def log(self) -> str:
        return "\n".join((self.folder / "stderr").read_text(errors="replace").splitlines()[-12:])

    def _secret(self, place: str) -> str:
        return self.secrets.setdefault(place, secret(place))

    def _victim(self) -> None:
        name = f"victim{secrets.token_hex(4)}"
        words = (name, self._secret("another's workspace"))
        script = self.folder / "victim" / "victim.py"
        spawned = self.client.spawn(
            str(script), args=words, agent="victim", user=PERSON, cwd=self.cwd(script)
        )
        self.victim_number = spawned.pid
        with connect("victim", PERSON, socket=self.state / "socket") as own:
            self.unit = own.remember(f"My word is {self._secret('store')}, nobody else's").id
        end = time.monotonic() + START_SECONDS
        while not (found := pids_named(name)) or not self._diary(found[0]):
            every = self.client.processes(all=True).processes
            (seen,) = [p for p in every if p.pid == spawned.pid]
            if seen.state == "exited" or time.monotonic() > end:
                raise CannotRun(f"the victim does not live: {seen.reason} {seen.stderr}")
            time.sleep(0.02)
        self.victim = found[0]

    def _diary(self, victim: int) -> bool:
        """Find the victim's workspace: what it calls so may have another name out here."""
        own = Path(os.readlink(f"/proc/{victim}/cwd")) / "diary"
        found = [own] if own.exists() else sorted(self.folder.rglob("diary"))
        if found:
            self.neighbour = found[0].parent
        return bool(found)

    def cwd(self, script: Path) -> str:
        """Without confinement an agent works where it is told to, else in its workspace."""
        return "" if self.confined and (self.state / "workspaces").exists() else str(script.parent)

    def _files(self) -> dict[str, Path]:
        database = self.state / "isovist.db"
        return {
            "store": database,
            "write-ahead log": database.with_name("isovist.db-wal"),
            "shared memory file": database.with_name("isovist.db-shm"),
            "index": database.with_name("isovist.db.index") / "planted",
            "token": self.state / "token",
            "log": self.state / "kernel.log",
            "lock": self.state / "kernel.lock",
            "models": self.folder / "models" / "weights.gguf",
            "config": self.folder / "config" / "isovist" / "config.toml",
            "snapshots": self.state / "snapshots" / "planted",
            "ssh key": self.home / ".ssh" / "id_ed25519",
            "folder outside": self.outside / "letter",
            "another's workspace": self.neighbour / "diary",
            "system's shadow": Path("/etc/shadow"),
        }

    def plant(self) -> None:
        """Put back what attempts changed."""
        planted = self.state / "planted"
        for path, text in (
            (planted, f"{self._secret('kernel folder')}\n"),
            (self.outside / "letter", f"{self._secret('folder outside')}\n"),
        ):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
            path.write_text(text)
            path.chmod(0o600)
            with contextlib.suppress(OSError):
                os.setxattr(path, "user.mark", b"planted")
            os.utime(path, (1_700_000_000, 1_700_000_000))
        diary = self.neighbour / "diary"
        diary.write_text(self._secret("another's workspace") + "\n")
        (self.outside / "empty").mkdir(exist_ok=True)

    def scene(self) -> dict[str, object]:
        """All that an attempt may not change: files planted, and what lies beside them."""
        found: dict[str, object] = {}
        for folder in (self.state, self.outside, self.home, self.neighbour):
            names = sorted(os.listdir(folder)) if folder.exists() else ["gone"]
            found[f"names in {folder.name}"] = [
                # The kernel itself makes files in its folder as it goes.
                name
                for name in names
                if folder != self.state or name == "planted" or name.startswith("esc-")
            ]
        for path in (
            self.state / "planted", self.outside / "letter", self.neighbour / "diary",
            self.state / "token", self.state / "socket", self.state / "isovist.db",
        ):  # fmt: skip
            found[str(path.name)] = self._looks(path)
        return found

    def _looks(self, path: Path) -> object:
        try:
            status = path.lstat()
        except FileNotFoundError:
            return "gone"
        looks: list[object] = [status.st_ino, status.st_mode, status.st_uid, status.st_gid]
        if path.name in ("planted", "letter"):
            # The change of the inode itself shows what leaves no other trace (a group given anew).
            looks += [path.read_bytes(), status.st_mtime_ns, status.st_ctime_ns]
            with contextlib.suppress(OSError):
                looks.append(os.getxattr(path, "user.mark"))
        elif path.name == "diary":
            looks.append(path.read_bytes())
        return looks

    def target(self, nonce: str) -> Target:
        """What the attacker is told. No secret is in it."""
        # Guard, zygote, agents: each is forked from the one before, so they come in this order.
        zygotes = [pid for pid in self.descendants() if b"kernel.zygote" in command(pid)]
        drivers = [pid for pid in self.descendants() if b"kernel.drivers" in command(pid)]
        return Target(
            nonce=nonce,
            state=str(self.state),
            outside=str(self.outside),
            home=str(self.home),
            neighbour=str(self.neighbour),
            places={name: str(path) for name, path in self._files().items()},
            planted=str(self.state / "planted"),
            kernel=self.kernel.pid,
            zygote=(zygotes or [0])[:2][-1],
            driver=max(drivers, default=0),
            victim=self.victim,
            decoy=self.decoy.pid,
            tcp=self.servers.tcp,
            udp=self.servers.udp,
            path=self.servers.path,
            abstract=self.servers.abstract,
            door=str(self.state / "socket"),
            handle=handle_of(self.state / "planted"),
            shared={
                "key": self.shared.key,
                "decoy_address": self.decoy.address,
                "victim_number": self.victim_number,
            },
            queue=self.shared.queue,
            key=self.shared.name,
            unit=self.unit,
            person=PERSON,
            setuid=self.setuid,
        )

    def descendants(self) -> list[int]:
        """The kernel's children and theirs, while they hang together."""
        parents = {}
        for name in os.listdir("/proc"):
            if name.isdecimal():
                with contextlib.suppress(OSError):
                    _, _, rest = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")
                    parents[int(name)] = int(rest.split()[1])
        found, grown = {self.kernel.pid}, True
        while grown:
            more = {pid for pid, parent in parents.items() if parent in found} - found
            grown, found = bool(more), found | more
        return sorted(found - {self.kernel.pid})

    # -- what came of an attempt

    def secret_in(self, text: str) -> str:
        """The place whose secret ``text`` holds; empty: none."""
        own = {value: place for place, value in self.secrets.items()} | {
            self.decoy.secret: "a process outside",
            self.decoy.key: "its environment",
            self.shared.secret: "what the system shares",
        }
        return next((place for value, place in own.items() if value in text), "")

    def harm(self, before: dict[str, object], nonce: str, patience: float) -> str:
        """What has changed out here since ``before``, or changes within ``patience`` seconds;
        empty: nothing. What was harmed is mended."""
        end = time.monotonic() + patience
        while not (harm := self._harm(before, nonce)) and time.monotonic() < end:
            time.sleep(0.02)
        if self.decoy.harm():
            self.decoy.close()
            self.decoy = Decoy()
        for folder in (Path("/tmp"), Path("/dev/shm"), self.home, self.outside, self.state,
                       self.neighbour):  # fmt: skip
            left = folder / nonce
            if left.is_dir() and not left.is_symlink():
                left.rmdir()
            else:
                left.unlink(missing_ok=True)
        self.plant()
        if not self.well():
            self.restart()
        return harm

    def _harm(self, before: dict[str, object], nonce: str) -> str:
        if self.kernel.poll() is not None:
            return f"the kernel ended with {self.kernel.returncode}"
        if found := self.decoy.harm():
            return found
        if not Path(f"/proc/{self.victim}").exists():
            return "the other agent ended"
        now = self.scene()
        if changed := [name for name in now if now[name] != before[name]]:
            return f"changed outside: {', '.join(changed)}"
        for folder in ("/tmp", "/dev/shm"):
            if os.path.lexists(os.path.join(folder, nonce)):
                return f"a file in {folder}"
        if any(nonce.encode() in heard for heard in self.servers.heard):
            return "a server outside was reached"
        return ""

    def well(self) -> bool:
        return self.kernel.poll() is None and Path(f"/proc/{self.victim}").exists()

    def restart(self) -> None:
        self.stop()
        self._start()

    def stop(self) -> None:
        with contextlib.suppress(Exception):
            self.client.close()
        self.kernel.terminate()
        try:
            self.kernel.wait(20)
        except subprocess.TimeoutExpired:
            self.kernel.kill()
            self.kernel.wait()
        assert self.kernel.stdout is not None
        self.kernel.stdout.close()
        self._log.close()

    def close(self) -> None:
        self.stop()
        self.decoy.close()
        self.servers.close()
        for fd in self.terminal:
            os.close(fd)
        self.shared.close()


def survivors(nonce: str, seconds: float = 2.0) -> list[int]:
    """Processes called ``nonce`` that still live ``seconds`` from now; returns early at none."""
    end = time.monotonic() + seconds
    while True:
        found = pids_named(nonce)
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.02)


def pids_named(name: str) -> list[int]:
    """Processes whose name or command line holds ``name``; zombies are none."""
    found = []
    for pid in os.listdir("/proc"):
        if pid.isdecimal() and int(pid) != os.getpid():
            with contextlib.suppress(OSError):
                comm = Path(f"/proc/{pid}/comm").read_bytes()
                state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
                if state != b"Z" and (name.encode() in comm or name.encode() in command(int(pid))):
                    found.append(int(pid))
    return found


def command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def handle_of(path: Path) -> str:
    """``TYPE:HEX`` as name_to_handle_at tells it; empty where the file system has none."""
    buffer = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    mount = ctypes.create_string_buffer(4)
    try:
        _call(303, -100, os.fsencode(path), buffer, mount, 0)
    except OSError:
        return "0:"
    size, kind = struct.unpack_from("Ii", buffer.raw)
    return f"{kind}:{buffer.raw[8 : 8 + size].hex()}"
