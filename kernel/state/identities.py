"""Who a channel is and what its agent is granted: whoami, sessions, grants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from isovist.kernel.state import instructions as ins
from isovist.kernel.state.calls import Step
from isovist.kernel.state.toolcalls import check_rules
from isovist.kernel.state.users import EVERY, Principal
from isovist.syscalls import messages as m
from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.names import check_name

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State


class Identities:
    def __init__(self, state: State) -> None:
        self._state = state

    def syscalls(self) -> dict[type[m.Call], Callable[[Channel, int, Any], None]]:
        return {m.Whoami: self._whoami, m.SessionOpen: self._session_open, m.Grant: self._grant}

    def _whoami(self, channel: Channel, frame: int, request: m.Whoami) -> None:
        """Users and scopes are those that it may use now, however much its agent is granted."""
        who, users = channel.who, self._state.users
        resolved = users.resolve(who, request.user)
        grants = users.grants(who.agent)
        named = {*grants.users, *([who.bound] if who.bound else [])}
        if EVERY in named and who.above is not None:
            # Everybody, but for what those above it are granted.
            named |= {user for one in who.line() for user in users.grants(one.agent).users}
            named |= {one.bound for one in who.line() if one.bound}
        served = {user for user in named if user == EVERY or users.may_serve(who, user)}
        if not (who.operator or all(users.serves_all(one) for one in who.line())):
            served.discard(EVERY)
        filled = {s for s in grants.scopes if s == "user" or users.may_publish(who, s)}
        self._state.reply(
            channel,
            frame,
            m.Identity(
                agent=who.agent,
                user=resolved.user,
                rule=resolved.rule,
                pid=channel.pid,
                operator=who.operator,
                users=tuple(sorted(served)),
                scopes=tuple(sorted({"pair", "user", *filled})),
            ),
        )

    def _session_open(self, channel: Channel, frame: int, request: m.SessionOpen) -> None:
        if request.user is None:
            raise CallerError("user is missing", field="user")
        resolved = self._state.users.resolve(channel.who, request.user)
        sessions = channel.who.sessions
        if request.replace:
            sessions.clear()
        if resolved.user not in sessions:
            if len(sessions) >= 1024:
                raise CallerError("1024 sessions are open, the limit", errno=Errno.EAGAIN)
            sessions.append(resolved.user)
        self._state.reply(channel, frame, m.SessionOpened(user=resolved.user, rule=resolved.rule))

    # -- grants

    def _grant(self, channel: Channel, frame: int, request: m.Grant) -> None:
        if not channel.who.operator:
            raise CallerError("only the operator grants", errno=Errno.EPERM)
        self._check(request)
        call = self._state.open(channel, frame, request)
        self.grant(request)
        if request.revoke:
            self.unbind_agent(request.agent, set(request.users))
        call.to(Step.LOOKUP, self._state.now)
        self.note_grant(channel.who.agent, request)
        self._state.emit(self.save(call.key, request.agent))

    def note_grant(self, actor: str, request: m.Grant) -> None:
        """Have the chronicle say what is granted or taken, before it is durable."""
        self._state.chronicle.note(
            "revoke" if request.revoke else "grant",
            actor,
            request.agent,
            users=request.users,
            scopes=request.scopes,
            mail=request.mail,
            tools=[rule.name for rule in request.tools],
        )

    def _check(self, request: m.Grant) -> None:
        check_name(request.agent, "agent")
        for field, names in (("users", request.users), ("mail", request.mail)):
            for name in names:
                if name != EVERY:
                    check_name(name, field)
        check_rules(request.tools)
        self._state.sharing.check_grant(request.scopes, request.revoke)

    def grant(self, request: m.Grant) -> None:
        """Grant or revoke, where that may be."""
        self._check(request)
        self._state.users.grant(
            request.agent,
            set(request.users),
            set(request.scopes),
            request.revoke,
            mail=request.mail,
            tools=request.tools,
        )

    def save(self, key: int, agent: str) -> ins.SaveGrant:
        """What makes durable all that ``agent`` holds now."""
        held = self._state.users.grants(agent)
        return ins.SaveGrant(
            key,
            agent,
            tuple(sorted(held.users)),
            tuple(sorted(held.scopes)),
            tuple(sorted(held.mail)),
            tuple(held.tools),
        )

    # -- who was spawned for a user that its agent may serve no more

    def unbind_agent(self, agent: str, users: set[str]) -> None:
        """A revoked user is lost to running instances too, where they were spawned for it."""
        for who in self._everybody():
            if who.agent == agent and (who.bound in users or EVERY in users):
                who.bound = ""

    def unbind(self, user: str) -> None:
        """A forgotten user is lost to every running instance. Sessions and sightings stay: where
        they named the user alone, a request must now name whom it is for, and what was meant for
        one passes to nobody else."""
        for who in self._everybody():
            if who.bound == user:
                who.bound = ""

    def _everybody(self) -> Iterator[Principal]:
        """Whoever may act, is on its way to, or stands above one who may."""
        for channel in self._state.channels.values():
            yield from channel.who.line()
        for entry in self._state.processes.entries():
            yield from entry.who.line()
