"""What a spawn comes to: as whom, for whom, which program, with which rights.

Rights only narrow. The operator may start anything as anybody. What an agent starts is an instance
of itself, or another agent that the operator has approved (then the program is the approved one:
else its name, and all that it remembers, would be anybody's who may spawn). Either way it has what
its spawner has at most, at its start by value (:meth:`~isovist.kernel.state.users.Users.held`) and
afterwards by its line (:meth:`~isovist.kernel.state.users.Principal.line`): what an ancestor loses
is lost to it at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from isovist.kernel.state.process import Care, Mounts, agent_name
from isovist.kernel.state.rights import Rights
from isovist.kernel.state.users import EVERY, MAX_DEPTH, OPERATOR, Principal, Resolved, own_user
from isovist.syscalls import messages as m
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.manifest import Approval, Manifest, check_quotas
from isovist.syscalls.names import check_name

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State

SECOND = 1_000_000_000


@dataclass(frozen=True)
class Plan:
    """``who`` it will be, for ``user`` (empty: itself), ``resolved`` where an agent asked."""

    who: Principal
    user: str
    program: str
    cwd: str
    care: Care
    resolved: Resolved | None = None


def plan(state: State, channel: Channel, request: m.Spawn) -> Plan:
    """What ``request`` comes to. Raises ``EINVAL`` or ``EPERM`` by its field."""
    _check(request)
    made = _of_operator(state, request) if channel.who.operator else _of_agent(
        state, channel.who, request
    )  # fmt: skip
    if request.stdio and channel.pid:
        raise CallerError(
            "stdio can be handed over at the socket door only", errno=Errno.EPERM, field="stdio"
        )
    if made.user and not state.users.may_serve(made.who, made.user):
        raise CallerError(
            "with the rights that it gets it could not serve its own user",
            errno=Errno.EPERM,
            field="user" if request.users is None else "users",
        )
    return made


def _check(request: m.Spawn) -> None:
    if not request.program or "\0" in request.program or len(request.program) > 4096:
        raise CallerError("program must have 1 to 4096 characters", field="program")
    if len(request.args) > 256 or any("\0" in a or len(a) > 65536 for a in request.args):
        raise CallerError("args takes at most 256 strings without NUL", field="args")
    for name in ("users", "scopes", "mail", "tools"):
        if len(getattr(request, name) or ()) > 256:
            raise CallerError(f"{name} takes at most 256 items", field=name)
    check_quotas(request.quotas)
    if request.lineage:
        check_name(request.lineage, "lineage")


def _of_operator(state: State, request: m.Spawn) -> Plan:
    name = request.agent or agent_name(request.program)
    check_name(name, "agent")
    if name == OPERATOR:
        raise CallerError(
            f"{OPERATOR!r} is nobody's name but the operator's; give another", field="agent"
        )
    user = request.user or ""
    if request.user is not None:
        check_name(user, "user")
    rights = _asked(request)
    if not request.manifest:
        return Plan(_named(request, name, user, rights), user, request.program, request.cwd, Care())
    approved = state.agents.approved(name)
    if approved is None or approved.digest != request.manifest:
        raise CallerError(
            f"the manifest of agent {name!r} is not approved as it now stands; isovist agent "
            "inspect shows what it asks for",
            errno=Errno.EPERM,
            field="manifest",
        )
    return _of_manifest(request, approved, name, user, rights, None)


def _of_agent(state: State, who: Principal, request: m.Spawn) -> Plan:
    if request.manifest:
        raise CallerError("only the operator names a manifest", errno=Errno.EPERM, field="manifest")
    resolved = state.users.resolve(who, request.user)
    user, rights = resolved.user, _asked(request)
    if sum(1 for _ in who.line()) >= MAX_DEPTH:
        raise CallerError(f"{MAX_DEPTH} generations of processes, the limit", errno=Errno.EAGAIN)
    if request.agent in ("", who.agent):
        # An instance of the same agent is widened with it, so its own grants need no snapshot.
        same = _named(request, who.agent, user, who.rights.meet(rights))
        same.above, same.scope, same.children = who, who.scope, who.children
        above = state.processes.care(who.pid)
        care = Care(mounts=above.mounts, digest=above.digest)
        return Plan(same, user, request.program, request.cwd, care, resolved)
    approved = state.agents.approved(request.agent)
    if who.children is None or approved is None:
        # The same words whether there is such an agent or not.
        raise CallerError(
            "an agent spawns instances of itself, or with a manifest that allows children an "
            "agent that is approved",
            errno=Errno.EPERM,
            field="agent",
        )
    if request.program not in (request.agent, approved.manifest.entry):
        raise CallerError(
            "another agent runs as it was approved: program must be its name or its entry",
            errno=Errno.EPERM,
            field="program",
        )
    rights = state.users.held(who).meet(rights)
    made = _of_manifest(request, approved, request.agent, user, rights, who)
    made.care.mounts = _within(made.care.mounts, state.processes.care(who.pid).mounts)
    return Plan(made.who, user, made.program, made.cwd, made.care, resolved)


def _of_manifest(
    request: m.Spawn,
    approved: Approval,
    name: str,
    user: str,
    rights: Rights,
    above: Principal | None,
) -> Plan:
    asks = approved.manifest
    who = _named(request, name, user, rights.meet(bound_of(asks, name, user)))
    who.above, who.scope, who.children = above, asks.scope, asks.children
    care = Care(
        restart=asks.restart,
        heartbeat=round(asks.heartbeat * SECOND),
        mounts=tuple((mount.path, mount.mode) for mount in asks.mounts),
        digest=approved.digest,
    )
    return Plan(who, user, asks.entry, approved.cwd, care)


def _named(request: m.Spawn, name: str, user: str, rights: Rights) -> Principal:
    who = Principal(name, bound=user, rights=rights, lineage=request.lineage)
    if user:
        who.sessions.append(user)
    return who


def _asked(request: m.Spawn) -> Rights:
    """The bound that a spawn names."""
    return Rights(
        users=None if request.users is None else frozenset(request.users),
        scopes=None if request.scopes is None else frozenset(request.scopes),
        mail=None if request.mail is None else frozenset(request.mail),
        tools=() if request.tools is None else (request.tools,),
        quotas=MappingProxyType(dict(request.quotas)),
    )


def bound_of(asks: Manifest, name: str, user: str) -> Rights:
    """The bound that a manifest is, for an instance that serves ``user``."""
    users = frozenset({*(asks.users or filter(None, (user,))), own_user(name)})
    return Rights(
        users=None if EVERY in users else users,
        scopes=frozenset(asks.publish),
        mail=None if EVERY in asks.mail else frozenset(asks.mail),
        tools=(asks.tools,),
        quotas=MappingProxyType(dict(asks.quotas)),
    )


def _within(asked: Mounts, above: Mounts) -> Mounts:
    """Those of ``asked`` that the spawner has too, each with no more than its mode."""

    def lies(path: str, folder: str) -> bool:
        return path == folder or path.startswith(folder.rstrip("/") + "/")

    kept = []
    for path, mode in asked:
        modes = {of for folder, of in above if lies(path, folder)}
        if modes:
            kept.append((path, mode if "rw" in modes else "ro"))
    return tuple(kept)
