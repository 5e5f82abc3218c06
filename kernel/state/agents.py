"""What agents ask for and are granted: approvals of manifests.

A manifest asks; the operator's approval grants what it asks for and is kept with the very manifest
that was approved. Under it, and no other, the agent is started (:mod:`.spawning`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from isovist.kernel.state import instructions as ins
from isovist.kernel.state.calls import Call, Step
from isovist.kernel.state.users import Grants
from isovist.syscalls import messages as m
from isovist.syscalls.abi import supervision as abi
from isovist.syscalls.errors import CallerError, Errno, KernelError
from isovist.syscalls.manifest import Approval, check
from isovist.syscalls.names import check_name

if TYPE_CHECKING:
    from isovist.kernel.state.core import Channel, State

MAX_APPROVALS = 1024
SHOWN, NAMED = 256, 16
"""Agents in one list, and names of each kind that it shows of one: it must fit a frame."""


class Agents:
    def __init__(self, state: State, approvals: Mapping[str, Approval]) -> None:
        self._state = state
        self._approved = dict(approvals)

    def syscalls(self) -> dict[type[m.Call], Callable[[Channel, int, Any], None]]:
        return {abi.AgentApprove: self._approve, abi.AgentList: self._list}

    def approved(self, agent: str) -> Approval | None:
        return self._approved.get(agent)

    def digest(self, agent: str) -> str:
        """Of the manifest that is approved; empty: none is."""
        approved = self._approved.get(agent)
        return approved.digest if approved else ""

    def forget(self, user: str) -> None:
        """No approval names ``user`` any more (the store has removed them from its own)."""
        self._approved = {
            agent: approval
            for agent, approval in self._approved.items()
            if user not in approval.manifest.users
        }

    # -- syscalls

    def _approve(self, channel: Channel, frame: int, request: abi.AgentApprove) -> None:
        if not channel.who.operator:
            raise CallerError("only the operator approves agents", errno=Errno.EPERM)
        if request.revoke:
            agent, approval = check_name(request.agent, "agent"), None
            gone = self._approved.get(agent)
            if gone is None:
                raise CallerError(
                    f"agent {agent!r} has no approval", errno=Errno.ENOENT, field="agent"
                )
            asks = gone.manifest
        else:
            if request.manifest is None:
                raise CallerError("manifest is missing", field="manifest")
            asks = request.manifest
            check(asks)
            self._check_cwd(request.cwd)
            agent = asks.name
            if agent not in self._approved and len(self._approved) >= MAX_APPROVALS:
                raise CallerError(
                    f"{MAX_APPROVALS} agents are approved, the limit", errno=Errno.EDQUOT
                )
            approval = Approval(manifest=asks, cwd=request.cwd, at=self._state.calendar())
        grant = m.Grant(
            agent=agent,
            users=self._revocable(agent, asks.users) if request.revoke else asks.users,
            scopes=asks.publish,
            mail=asks.mail,
            tools=asks.tools,
            revoke=request.revoke,
        )
        # Everything that may be refused, before anything changes.
        self._state.sharing.check_grant(grant.scopes, grant.revoke)
        call = self._state.open(channel, frame, request)
        self._state.identities.grant(grant)
        if approval is None:
            self._approved.pop(agent, None)
            self._state.identities.unbind_agent(agent, set(grant.users))
        else:
            self._approved[agent] = approval
        call.to(Step.LOOKUP, self._state.now)
        self._state.chronicle.note(
            "approval revoked" if request.revoke else "approve",
            channel.who.agent,
            agent,
            users=grant.users,
            digest=approval.digest if approval else "",
            scopes=grant.scopes,
            mail=grant.mail,
            tools=[rule.name for rule in grant.tools],
        )
        self._state.emit(ins.SaveApproval(self._state.identities.save(call.key, agent), approval))

    def _revocable(self, agent: str, users: tuple[str, ...]) -> tuple[str, ...]:
        """Those of ``users`` that can be taken by name: from an agent that may serve everybody, a
        single one cannot."""
        held = self._state.users.grants(agent).users
        return () if "*" in held and "*" not in users else users

    @staticmethod
    def _check_cwd(cwd: str) -> None:
        if not cwd.startswith("/") or "\0" in cwd or len(cwd.encode()) > 4096:
            raise CallerError("cwd must be an absolute path", field="cwd")

    def saved(self, call: Call) -> abi.Agents:
        """The answer to an approval, or its end, that is durable."""
        request = call.request
        if not isinstance(request, abi.AgentApprove):
            raise KernelError("not an approval", story=call.told())
        agent = request.manifest.name if request.manifest else request.agent
        return abi.Agents(agents=(self._shown(agent, self._state.users.grants(agent)),))

    def _list(self, channel: Channel, frame: int, request: abi.AgentList) -> None:
        if not channel.who.operator:
            raise CallerError("only the operator lists agents", errno=Errno.EPERM)
        held = dict(self._state.users.permissions())
        if request.agent:
            agent = check_name(request.agent, "agent")
            shown = [self._shown(agent, held.get(agent) or Grants())]
        else:
            names = sorted(name for name in {*held, *self._approved} if name > request.after)
            shown = [_brief(self._shown(name, held.get(name) or Grants())) for name in names]
        self._state.reply(channel, frame, abi.Agents(agents=tuple(shown[:SHOWN])))

    def _shown(self, agent: str, held: Grants) -> abi.Installed:
        approval = self._approved.get(agent)
        return abi.Installed(
            agent=agent,
            users=tuple(sorted(held.users)),
            scopes=tuple(sorted(held.scopes)),
            mail=tuple(sorted(held.mail)),
            tools=tuple(sorted({rule.name for rule in held.tools})),
            digest=approval.digest if approval else "",
            manifest=approval.manifest if approval else None,
            cwd=approval.cwd if approval else "",
            approved_at=approval.at if approval else 0,
        )


def _brief(shown: abi.Installed) -> abi.Installed:
    return msgspec.structs.replace(
        shown,
        manifest=None,
        users=shown.users[:NAMED],
        scopes=shown.scopes[:NAMED],
        mail=shown.mail[:NAMED],
        tools=shown.tools[:NAMED],
    )
