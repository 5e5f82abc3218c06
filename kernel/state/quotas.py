"""What agents, users and processes may have: syscalls a second, stored units and bytes, workspace,
processor. Tokens and calls of models pass their gates in :mod:`.scheduling`.

Over a limit a request is refused: with ``EAGAIN`` and when to try again where time helps, else with
``EDQUOT`` and how much there is of what is allowed. A process's limits (from its manifest) hold for
it and all that descend from it together, so no chain of spawns gets more than its first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from isovist.kernel.state import events as ev
from isovist.kernel.state import instructions as ins
from isovist.kernel.state.calls import Call, Step
from isovist.kernel.state.sharing import acts_as_itself
from isovist.kernel.state.users import Principal, own_user
from isovist.scheduler.quota import FIGURES, OF_MODELS, SECOND, Allowances, Bucket, Limit
from isovist.syscalls import messages as m
from isovist.syscalls.abi import quotas as abi
from isovist.syscalls.errors import CallerError, Errno, WorldError
from isovist.syscalls.names import check_name
from isovist.syscalls.operations import Held, Op, Outcome

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State
    from isovist.kernel.state.process import Entry

DAY = 86_400 * SECOND
HIGHEST = 1 << 53
"""Of a figure: what JSON holds exactly."""
PATIENCE = 1024
"""Syscalls over the limit in a row after which the channel ends: whoever does not heed an answer
is not given more."""
WORKSPACE = 1 << 30
"""Bytes in the workspace of an agent that was spawned, where no limit is said."""
SPILL = 10
"""Percent that a workspace may be over its limit before its agent's processes are ended: they write
there without asking."""
NAMES = 4096
"""Of users, those whose pace is remembered; further ones share one pace."""

What = Literal["units", "bytes", "workspace"]


@dataclass(slots=True)
class Store:
    """What somebody has stored, and what is on its way to the store."""

    units: int = 0
    bytes: int = 0
    coming_units: int = 0
    coming_bytes: int = 0


@dataclass(slots=True)
class Account:
    """What a process with limits of its own and its descendants have used.

    ``store`` is what descendants of other agents' names have stored (those of its own are counted
    with the agent), ``nanoseconds`` the processor's time of those that have ended.
    """

    bucket: Bucket | None
    store: Store = field(default_factory=Store)
    nanoseconds: int = 0


@dataclass(slots=True)
class Coming:
    """A write on its way: what it was counted as, and where."""

    names: tuple[tuple[str, str], ...]
    stores: tuple[Store, ...]
    accounts: tuple[Store, ...]
    units: int
    bytes: int


class Quotas:
    """Invariants: of each agent and user, the units and bytes are those that the store says were
    committed; ``_coming`` holds all and only the writes that were counted and not answered."""

    def __init__(self, state: State, limits: Allowances, held: Iterable[Held]) -> None:
        self._state = state
        self._limits = limits
        self._stores: dict[tuple[str, str], Store] = {}
        self._coming: dict[tuple[object, int], Coming] = {}
        self._paces: dict[tuple[str, str], Bucket] = {}
        self._pace_users = limits.any("user", "syscalls")
        self._workspaces: dict[str, int] = {}
        self._running: dict[int, tuple[int, int]] = {}
        """By process: nanoseconds of processor so far, and bytes of memory."""
        self._today: dict[tuple[str, str], int] = {}
        self._day = 0
        self._purged: list[int] = []
        self._choosing: dict[int, tuple[str, str, dict[str, int]]] = {}
        for one in held:
            self._count(one)

    def syscalls(self) -> dict[type[m.Call], Callable[[Channel, int, Any], None]]:
        return {abi.QuotaList: self._list, abi.QuotaSet: self._set}

    def events(self) -> dict[type[ev.Event], Callable[[Any], None]]:
        return {ev.Sampled: self._sampled}

    # -- syscalls a second

    def attached(self, channel: Channel) -> None:
        """Find which paces a new channel has to keep."""
        for one in channel.who.line():
            if one.account is None and one.rights.quotas:
                rate = one.rights.quotas.get("syscalls")
                bucket = None if rate is None else Bucket(rate, self._state.now, SECOND)
                one.account = Account(bucket)
        channel.pace = tuple(self._paces_of(channel.who))

    def _paces_of(self, who: Principal) -> Iterator[Bucket]:
        if not acts_as_itself(who) and (bucket := self._pace("agent", who.agent)) is not None:
            yield bucket
        for one in who.line():
            if one.account is not None and one.account.bucket is not None:
                yield one.account.bucket

    def _pace(self, axis: str, name: str) -> Bucket | None:
        bucket = self._paces.get((axis, name))
        if bucket is None:
            limit = self._limits.of(axis, name)
            if limit is None or not limit.syscalls:
                return None
            if len(self._paces) >= NAMES:
                self._forget_paces()
            if len(self._paces) >= NAMES:
                name = "*"
            bucket = self._paces.setdefault(
                (axis, name), Bucket(limit.syscalls, self._state.now, SECOND)
            )
        return bucket

    def _forget_paces(self) -> None:
        """Those as good as new, of nobody who is here."""
        kept = {id(bucket) for c in self._state.channels.values() for bucket in c.pace}
        for key, bucket in list(self._paces.items()):
            if id(bucket) not in kept and bucket.full(self._state.now):
                del self._paces[key]

    def step(self, channel: Channel) -> None:
        """Count a syscall of a channel that has a pace. Raises ``EAGAIN``."""
        now, at = self._state.now, 0
        for place, bucket in enumerate(channel.pace):
            if at := bucket.draw(now):
                for drawn in channel.pace[:place]:
                    drawn.take(-1, now)
                channel.refused += 1
                if channel.refused >= PATIENCE and not channel.closing:
                    channel.closing = True
                    why = f"{PATIENCE} syscalls over the limit of {bucket.rate} a second"
                    self._state.chronicle.note("disconnect", "kernel", channel.who.agent, why=why)
                    self._state.emit(ins.Disconnect(channel.number, why))
                raise self._later(f"{bucket.rate} syscalls a second are the limit", at)
        channel.refused = 0

    def step_for(self, user: str) -> None:
        """Count a call for a user. Raises ``EAGAIN``."""
        if self._pace_users and (bucket := self._pace("user", user)) is not None:
            at = bucket.draw(self._state.now)
            if at:
                why = f"{bucket.rate} syscalls a second are the limit of user {user}"
                raise self._later(why, at)

    def _later(self, why: str, at: int) -> WorldError:
        retry_at = self._state.calendar() + at - self._state.now if at < DAY * 365 else 0
        return WorldError(why, errno=Errno.EAGAIN, retry_at=retry_at)

    # -- stored units and bytes

    def check(self, who: Principal, user: str, more: dict[What, int], name: str = "text") -> None:
        """Raise ``EDQUOT`` where ``who``, for ``user``, may not have so much more; ``name`` is the
        field of the request that asks for it."""
        if acts_as_itself(who):
            return
        for what, figure in more.items():
            if figure <= 0:
                continue
            for whose, has, limit in self._bounds(who, user, what):
                if has + figure > limit:
                    raise WorldError(
                        f"{whose} has {has:,} {WORDS[what]}; {figure:,} more are over the limit of "
                        f"{limit:,}",
                        errno=Errno.EDQUOT,
                        field=name,
                    )

    def charge(self, who: Principal, user: str, size: int, name: str) -> None:
        """Check so many more bytes of files, and count them until the shell measures again."""
        self.check(who, user, {"workspace": size}, name)
        if who.agent in self._workspaces:
            self._workspaces[who.agent] += size

    def _bounds(self, who: Principal, user: str, what: What) -> Iterator[tuple[str, int, int]]:
        """Whoever bounds it: in words, what there is already, and the limit."""
        for axis, name in (("agent", who.agent), ("user", user)):
            limit = self._limits.of(axis, name)
            figure = getattr(limit, what) if limit is not None else 0
            if what == "workspace" and axis == "agent" and who.pid:
                figure = figure or WORKSPACE
            if figure:
                yield f"{axis} {name}", self._has(axis, name, what), figure
        for one in who.line():
            bound = one.rights.quotas.get(what)
            if bound is not None:
                below = _has(one.account.store, what) if one.account is not None else 0
                has = self._has("agent", one.agent, what) + below
                yield f"process {one.pid} with its descendants", has, bound

    def _has(self, axis: str, name: str, what: What) -> int:
        if what == "workspace":
            return self._workspaces.get(name, 0) if axis == "agent" else 0
        return _has(self._stores.get((axis, name)), what)

    def reserve(self, who: Principal, user: str, op: Op, units: int, size: int) -> None:
        """Count a write that was checked and has its number, until it is answered."""
        if not (units or size):
            return
        stores = self._of("agent", who.agent), self._of("user", user)
        accounts = tuple(
            one.account.store
            for one in who.line()
            if one.account is not None and one.agent != who.agent
        )
        for store in (*stores, *accounts):
            store.coming_units += units
            store.coming_bytes += size
        self._coming[op.partition, op.seq] = Coming(
            (("agent", who.agent), ("user", user)), stores, accounts, units, size
        )

    def settled(self, outcome: Outcome) -> None:
        """A write has been answered, for the first time."""
        op = outcome.op
        coming = self._coming.pop((op.partition, op.seq), None)
        if coming is not None:
            for store in (*coming.stores, *coming.accounts):
                store.coming_units -= coming.units
                store.coming_bytes -= coming.bytes
            for store in coming.accounts:
                store.units += sum(one.units for one in outcome.held)
                store.bytes += sum(one.bytes for one in outcome.held)
        for one in outcome.held:
            self._count(one)
        for key in coming.names if coming is not None else ():
            self._tidy(*key)

    def purged(self, key: int, outcomes: Iterable[Outcome], user: str) -> None:
        """All that a user had is gone, by the demand ``key``; told twice it counts once."""
        if key in self._purged:
            return
        self._purged = [*self._purged[-63:], key]
        for outcome in outcomes:
            for one in outcome.held:
                self._count(one)
        self._limits.choose("user", user, {})
        self._paces.pop(("user", user), None)
        self._today.pop(("user", user), None)

    def _of(self, axis: str, name: str) -> Store:
        return self._stores.setdefault((axis, name), Store())

    def _count(self, held: Held) -> None:
        for axis, name in (("agent", held.agent), ("user", held.user)):
            store = self._of(axis, name)
            store.units += held.units
            store.bytes += held.bytes
            self._tidy(axis, name)

    def _tidy(self, axis: str, name: str) -> None:
        """Nothing is kept of who has nothing."""
        if self._stores.get((axis, name)) == Store():
            del self._stores[axis, name]

    # -- processor, memory, workspaces: what the shell measures

    def of_process(self, who: Principal, user: str) -> dict[str, int]:
        """The limits that a new process is to be held to by the host."""
        figures = dict(who.rights.quotas)
        for axis, name in (("agent", who.agent), ("user", user)):
            limit = self._limits.of(axis, name)
            if limit is not None and limit.memory:
                figures["memory"] = min(limit.memory, figures.get("memory", limit.memory))
        return figures

    def check_spawn(self, who: Principal, user: str) -> None:
        """Raise where the process that ``who`` is to be would have no time left for ``user``:
        ``EAGAIN`` until another day, or ``EDQUOT``."""
        self._begin_day()
        for axis, name in (("agent", who.agent), ("user", user or own_user(who.agent))):
            limit = self._limits.of(axis, name) if name else None
            spent = self._today.get((axis, name), 0) // SECOND
            if limit is not None and limit.seconds and spent >= limit.seconds:
                why = f"{axis} {name} has used its {limit.seconds:,} seconds of processor today"
                raise self._later(why, self._state.now + self._until_tomorrow())
        for one in who.line():
            bound = one.rights.quotas.get("seconds")
            if bound is not None and self._spent(one) // SECOND >= bound:
                raise WorldError(
                    f"process {one.pid} and its descendants have used {bound:,} seconds of "
                    "processor, their limit",
                    errno=Errno.EDQUOT,
                    field="program",
                )

    def _until_tomorrow(self) -> int:
        return DAY - self._state.calendar() % DAY

    def _begin_day(self) -> None:
        day = self._state.calendar() // DAY
        if day != self._day:
            self._day, self._today = day, {}

    def _spent(self, who: Principal) -> int:
        """Nanoseconds of processor of a process with limits of its own and its descendants."""
        ended = who.account.nanoseconds if who.account is not None else 0
        return ended + sum(
            self._running[entry.pid][0]
            for entry in self._state.processes.entries()
            if entry.pid in self._running and any(one is who for one in entry.who.line())
        )

    def _sampled(self, event: ev.Sampled) -> None:
        self._begin_day()
        self._workspaces = dict(event.workspaces)
        for pid, (nanoseconds, memory) in event.usage.items():
            entry = self._state.processes.entry(pid)
            if entry is None or entry.state == "exited":
                continue
            before, _ = self._running.get(pid, (0, 0))
            self._spend(entry, max(0, nanoseconds - before))
            self._running[pid] = max(nanoseconds, before), memory
        for entry in self._state.processes.entries():
            if entry.state == "running" and (why := self._over(entry)):
                entry.by_hand = True
                self._state.processes.kill(entry, why)

    def _spend(self, entry: Entry, nanoseconds: int) -> None:
        for key in (("agent", entry.agent), ("user", entry.user or own_user(entry.agent))):
            self._today[key] = self._today.get(key, 0) + nanoseconds

    def _over(self, entry: Entry) -> str:
        """Why a process has to end; empty: it need not."""
        for one in entry.who.line():
            bound = one.rights.quotas.get("seconds")
            if bound is not None and self._spent(one) > bound * SECOND:
                return f"over {bound:,} seconds of processor, the limit of process {one.pid}"
        for axis, name in (("agent", entry.agent), ("user", entry.user or own_user(entry.agent))):
            limit = self._limits.of(axis, name)
            if limit is None:
                continue
            if limit.seconds and self._today.get((axis, name), 0) > limit.seconds * SECOND:
                return f"over {limit.seconds:,} seconds of processor a day, {axis} {name}'s limit"
        for _, has, limit_ in self._bounds(entry.who, entry.user, "workspace"):
            if has > limit_ + limit_ * SPILL // 100:
                return f"its workspace holds {has:,} bytes, over the limit of {limit_:,}"
        return ""

    def exited(self, entry: Entry) -> None:
        """What a process has used stays on the accounts of those above it."""
        nanoseconds, _ = self._running.pop(entry.pid, (0, 0))
        for one in entry.who.line():
            if one.account is not None:
                one.account.nanoseconds += nanoseconds

    def watched(self) -> dict[str, int]:
        """The limits of the workspaces of agents that are here and have one: what the shell
        measures."""
        watched: dict[str, int] = {}
        here = [(entry.who, entry.user) for entry in self._state.processes.entries()
                if entry.state != "exited"]  # fmt: skip
        here += [(channel.who, "") for channel in self._state.channels.values()]
        for who, user in here:
            for _, _, limit in self._bounds(who, user, "workspace"):
                watched[who.agent] = max(limit, watched.get(who.agent, 0))
        return watched

    # -- the syscalls

    def _list(self, channel: Channel, frame: int, request: abi.QuotaList) -> None:
        who = channel.who
        if request.name and not request.axis:
            raise CallerError("name goes with axis", field="axis")
        if who.operator and request.user is None:
            quotas = self._all(request.axis, request.name)
            if request.name and not quotas:
                raise CallerError("nothing is known of it", errno=Errno.ENOENT, field="name")
        else:
            user = self._state.users.resolve(who, request.user).user
            own = [("agent", who.agent), ("user", user)]
            quotas = [self._shown(*key) for key in own]
            quotas += [self._of_line(one) for one in who.line() if one.rights.quotas]
            quotas = [
                quota
                for quota in quotas
                if request.axis in ("", quota.axis) and request.name in ("", quota.name)
            ]
        self._state.reply(channel, frame, abi.Quotas(quotas=tuple(quotas)))

    def _all(self, axis: str, name: str) -> list[abi.Quota]:
        self._begin_day()
        keys = self._limits.named() | set(self._stores) | set(self._today)
        keys |= {("agent", agent) for agent in self._workspaces}
        quotas = [
            self._shown(*key)
            for key in sorted(keys)
            if axis in ("", key[0]) and name in ("", key[1])
        ]
        if axis in ("", "process"):
            for entry in self._state.processes.entries():
                limited = entry.state != "exited" and entry.who.rights.quotas
                if limited and name in ("", str(entry.pid)):
                    quotas.append(self._of_line(entry.who))
        return quotas

    def _shown(self, axis: str, name: str) -> abi.Quota:
        limit = self._limits.of(axis, name) or Limit()
        store = self._stores.get((axis, name), Store())
        limits = {figure: value for figure in FIGURES if (value := getattr(limit, figure))}
        used: dict[str, int] = {}
        if axis != "model":
            used = {
                "units": store.units + store.coming_units,
                "bytes": store.bytes + store.coming_bytes,
                "seconds": self._today.get((axis, name), 0) // SECOND,
            }
        if axis == "agent":
            used["workspace"] = self._workspaces.get(name, 0)
            memory = [
                self._running[e.pid][1]
                for e in self._state.processes.entries()
                if e.agent == name and e.pid in self._running
            ]
            used["memory"] = max(memory, default=0)
        if (pace := self._paces.get((axis, name))) is not None:
            used["syscalls"] = pace.rate - pace.left(self._state.now)
        used |= self._state.admission.used(axis, name)
        return abi.Quota(
            axis="agent" if axis == "agent" else "user" if axis == "user" else "model",
            name=name,
            limits=limits,
            used=used,
            chosen=tuple(sorted(self._limits.chosen(axis, name))),
        )

    def _of_line(self, who: Principal) -> abi.Quota:
        used: dict[str, int] = {}
        for what in ("units", "bytes", "workspace"):
            below = _has(who.account.store, what) if who.account is not None else 0
            used[what] = self._has("agent", who.agent, what) + below
        used["seconds"] = self._spent(who) // SECOND
        if who.account is not None and (bucket := who.account.bucket) is not None:
            used["syscalls"] = bucket.rate - bucket.left(self._state.now)
        used |= self._state.admission.used("process", str(who.pid))
        return abi.Quota(
            axis="process", name=str(who.pid), limits=dict(who.rights.quotas), used=used
        )

    def _set(self, channel: Channel, frame: int, request: abi.QuotaSet) -> None:
        if not channel.who.operator:
            raise CallerError("only the operator sets limits", errno=Errno.EPERM)
        name = request.name
        if name != "*":
            agent_user = request.axis == "user" and name == own_user(name.partition("/")[2])
            check_name(name.partition("/")[2] if agent_user else name, "name")
        known = OF_MODELS if request.axis == "model" else FIGURES
        for figure, value in request.limits.items():
            if figure not in known:
                raise CallerError(f"limits are {', '.join(known)}, not {figure!r}", field="limits")
            if not 0 <= value <= HIGHEST:
                raise CallerError(f"limits.{figure} must be 0 to {HIGHEST}", field="limits")
        if not (request.limits or request.reset):
            raise CallerError("limits names none", field="limits")
        before = {} if request.reset else self._limits.chosen(request.axis, name)
        chosen = before | request.limits
        call = self._state.open(channel, frame, request)
        call.to(Step.LOOKUP, self._state.now)
        users = (name,) if request.axis == "user" and name != "*" else ()
        self._state.chronicle.note(
            "quota",
            channel.who.agent,
            request.axis if users else f"{request.axis} {name}",
            users=users,
            **{figure: chosen[figure] for figure in sorted(chosen)},
        )
        self._choosing[call.key] = request.axis, name, chosen
        self._state.emit(ins.SaveLimits(call.key, request.axis, name, chosen))

    def saved(self, key: int) -> None:
        """Allowances are durable, whether or not their call still waits: they hold."""
        axis, name, chosen = self._choosing.pop(key, ("", "", {}))
        if not axis:
            return
        self._limits.choose(axis, name, chosen)
        self._state.admission.changed(axis, name)
        self._paces.clear()
        self._pace_users = self._limits.any("user", "syscalls")
        for channel in self._state.channels.values():
            channel.pace = tuple(self._paces_of(channel.who))

    def set(self, call: Call) -> m.AnyReply:
        """What the call that set limits is told."""
        request = call.request
        assert isinstance(request, abi.QuotaSet)
        return abi.QuotaShown(quota=self._shown(request.axis, request.name))

    def failed(self, key: int) -> None:
        """What a call chose is not durable."""
        self._choosing.pop(key, None)

    def validate(self) -> None:
        coming: dict[int, list[int]] = {}
        for one in self._coming.values():
            for store in (*one.stores, *one.accounts):
                sums = coming.setdefault(id(store), [0, 0])
                sums[0] += one.units
                sums[1] += one.bytes
        for store in self._stores.values():
            assert [store.coming_units, store.coming_bytes] == coming.get(id(store), [0, 0])
            assert min(store.units, store.bytes, store.coming_units, store.coming_bytes) >= 0


WORDS: dict[str, str] = {
    "units": "units stored",
    "bytes": "bytes stored",
    "workspace": "bytes in its workspace",
}


def _has(store: Store | None, what: str) -> int:
    if store is None:
        return 0
    if what == "units":
        return store.units + store.coming_units
    return store.bytes + store.coming_bytes if what == "bytes" else 0
