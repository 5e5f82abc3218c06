"""Over its own channel: forged names, others' units, others' processes, a guessed token. Here it is
the kernel that must say no, with confinement or without."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from bench.escapes.base import Stopped, Target, attempt, denied
from isovist.syscalls.client import Client, connect
from isovist.syscalls.codec import decode_reply, encode
from isovist.syscalls.errors import IsovistError
from isovist.syscalls.framing import Framer, pack
from isovist.syscalls.messages import Hello, Identity, Whoami
from isovist.syscalls.records import Process


def _asked(name: str, call: Callable[[Client, Target], object], *, word: bool = True) -> None:
    @attempt(name, word=word)
    def run(t: Target) -> str:
        try:
            with connect() as client:
                return str(call(client, t))
        except IsovistError as e:
            raise Stopped(f"{e.errno.name} from the kernel: {e.message[:120]}") from None


_asked("read another user's unit", lambda c, t: [u.text for u in c.read(t.unit).units], word=False)
_asked("read for another user", lambda c, t: c.read(t.unit, user=t.person).units, word=False)
_asked("search for another user", lambda c, t: c.search("secret", user=t.person).hits, word=False)
_asked("remember as another user", lambda c, t: c.remember("I was here", user=t.person))
_asked("forget another's unit", lambda c, t: c.forget(t.unit))
_asked("forget another user", lambda c, t: c.forget_user(t.person))
_asked("open a session for another user", lambda c, t: c.session_open(t.person))
_asked("grant itself a user", lambda c, t: c.grant("hostile", users=(t.person,)))
_asked("grant itself all scopes", lambda c, t: c.grant("hostile", scopes=("global",)))
_asked("kill another's process", lambda c, t: c.kill(t.shared["victim_number"]))
_asked(
    "wait for another's process", lambda c, t: c.wait(t.shared["victim_number"], deadline_ms=2000)
)
_asked("copy the store", lambda c, t: c.backup(os.path.join(os.getcwd(), "copy")))
_asked("export all", lambda c, t: list(c.export(t.person)), word=False)
_asked("spawn as another agent", lambda c, t: c.spawn("task", agent="victim"))
_asked("spawn for another user", lambda c, t: c.spawn("task", user=t.person))
_asked("spawn a program outside", lambda c, t: c.spawn(t.planted))
_asked("join a group", lambda c, t: c.group_change("readers", "agents", add=("hostile",)))
_asked("see who else runs", lambda c, t: _others(c.processes(all=True).processes))
_asked("see what others cost", lambda c, t: c.metering())


def _others(processes: Sequence[Process]) -> str:
    found = [p for p in processes if p.agent != "hostile"]
    if not found:
        raise Stopped("it sees itself alone")
    return str(found)


@attempt("say hello as the operator", word=True)
def hello(t: Target) -> str:
    """A first message with a name and a guess of the token, on its own channel."""
    reads, writes = map(int, os.environ["ISOVIST_FDS"].split(","))
    os.set_blocking(reads, True)
    os.set_blocking(writes, True)
    for call, message in enumerate(
        (Hello(version=1, agent="operator", token="0" * 64), Whoami()), 1
    ):
        os.write(writes, pack(call, encode(message)))
    framer = Framer()
    while True:
        data = os.read(reads, 65536)
        if not data:
            raise denied(32)
        for _, body in framer.feed(data):
            reply = decode_reply(body)
            if isinstance(reply, Identity):
                if reply.agent == "hostile" and not reply.operator:
                    raise Stopped("the kernel knows whose channel it is")
                return f"{reply.agent}, operator {reply.operator}"
