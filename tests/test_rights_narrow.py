"""Rights only narrow: no chain of spawns, shares, sessions and restarts ever gives an agent a user,
a scope, a tool, a quota or a mount that one of its ancestors lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rights_world import run

from isovist.kernel.state import spawning
from isovist.kernel.state.identities import Identities
from isovist.kernel.state.rights import Rights
from isovist.kernel.state.users import Principal, Users


def several(seeds: int) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in range(seeds):
        seen.update(run(seed).seen)
    return seen


@pytest.mark.promise("author.true")
@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1 << 32))
def test_nobody_ever_does_what_an_ancestor_may_not(seed: int) -> None:
    run(seed)


def test_the_world_is_one_in_which_children_may_do_something() -> None:
    seen = several(8)
    assert all(seen[name] >= 5 for name in
               ("users", "scopes", "tools", "mail", "children", "others")), seen  # fmt: skip


def alone(who: Principal) -> list[Principal]:
    return [who]


def wide(self: Rights, other: Rights) -> Rights:
    return other


def as_asked(asked: Any, above: Any) -> Any:
    return asked


BROKEN: dict[str, tuple[object, str, Callable[..., Any]]] = {
    "ancestors are not asked": (Principal, "line", alone),
    "bounds do not meet": (Rights, "meet", wide),
    "mounts are not compared": (spawning, "_within", as_asked),
    "a revoked user stays with its process": (Identities, "unbind_agent", lambda *_: None),
    "every user is served": (Users, "may_serve", lambda *_: True),
    "every scope is published to": (Users, "may_publish", lambda *_: True),
    "every tool is called": (Users, "may_call", lambda *_: True),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_kernel_that_breaks_the_rule_is_caught(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, attribute, broken = BROKEN[name]
    monkeypatch.setattr(where, attribute, broken)
    with pytest.raises(AssertionError):
        several(40)
