"""What one process may do at most, of what its agent is granted: rights only narrow.

An agent's grants (:mod:`isovist.kernel.state.users`) are what the operator gave it. A process has
*rights* beside them, a bound of its own: the operator's spawn sets them (from a manifest, or
none), and what a process spawns gets the meet of the spawner's rights and of what is asked for. So
no chain of spawns reaches a user, a scope, a tool or a quota that an ancestor lacked. A right is
held iff both the grants and the rights allow it.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType

import msgspec

from isovist.syscalls.records import ToolRule

__all__ = ["NO_QUOTAS", "UNBOUND", "Rights", "ToolRule"]

NO_QUOTAS: Mapping[str, int] = MappingProxyType({})


class Rights(msgspec.Struct, frozen=True, kw_only=True):
    """``None``: no bound of its own, so that the agent's grants alone decide.

    ``tools`` is a layer of rules for each narrowing: a call must fit a rule of *each* layer (no
    layer: no bound). ``quotas`` maps the name of a limit to its figure; a name that is absent has
    no bound.
    """

    users: frozenset[str] | None = None
    scopes: frozenset[str] | None = None
    mail: frozenset[str] | None = None
    """Agents that mail may go to."""
    tools: tuple[tuple[ToolRule, ...], ...] = ()
    quotas: Mapping[str, int] = NO_QUOTAS

    def meet(self, other: Rights) -> Rights:
        """All and only what both allow."""
        quotas = dict(self.quotas)
        for name, figure in other.quotas.items():
            quotas[name] = min(figure, quotas.get(name, figure))
        return Rights(
            users=_meet(self.users, other.users),
            scopes=_meet(self.scopes, other.scopes),
            mail=_meet(self.mail, other.mail),
            tools=(*self.tools, *(layer for layer in other.tools if layer not in self.tools)),
            quotas=MappingProxyType(quotas),
        )

    def serves(self, user: str) -> bool:
        return self.users is None or user in self.users

    def publishes(self, scope: str) -> bool:
        return self.scopes is None or scope in self.scopes

    def mails(self, agent: str) -> bool:
        return self.mail is None or agent in self.mail

    def calls(self, tool: str, arguments: Mapping[str, object]) -> bool:
        """True iff a rule of every layer fits ``SERVER.TOOL`` and its arguments."""
        return all(any(fits(rule, tool, arguments) for rule in layer) for layer in self.tools)

    def lists(self, tool: str) -> bool:
        """True iff some arguments may exist with which ``tool`` may be called."""
        return all(any(names(rule, tool) for rule in layer) for layer in self.tools)


UNBOUND = Rights()


def _meet(a: frozenset[str] | None, b: frozenset[str] | None) -> frozenset[str] | None:
    if a is None or b is None:
        return b if a is None else a
    return a & b


def names(rule: ToolRule, tool: str) -> bool:
    """The rule speaks of ``SERVER.TOOL``."""
    return fnmatchcase(tool, rule.name)


def fits(rule: ToolRule, tool: str, arguments: Mapping[str, object]) -> bool:
    """The rule allows this call."""
    if not names(rule, tool):
        return False
    for name, pattern in rule.arguments.items():
        if name not in arguments:
            return False
        value = arguments[name]
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        if not fnmatchcase(text, pattern):
            return False
    return True
