"""Rights: a meet allows all and only what both sides allow."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isovist.kernel.state.rights import UNBOUND, Rights, ToolRule

NAMES = st.sampled_from(["ana", "ben", "@team", "global"])
SETS = st.none() | st.frozensets(NAMES)
RULES = st.builds(
    ToolRule,
    st.sampled_from(["fs.*", "fs.read", "*", "web.get", "fs.[rw]*"]),
    st.dictionaries(st.sampled_from(["path", "n"]), st.sampled_from(["*", "data/*", "7"])),
)
RIGHTS = st.builds(
    Rights,
    users=SETS,
    scopes=SETS,
    tools=st.lists(st.lists(RULES, max_size=3).map(tuple), max_size=2).map(tuple),
    quotas=st.dictionaries(st.sampled_from(["units", "tokens"]), st.integers(0, 5)),
)
CALLS = st.tuples(
    st.sampled_from(["fs.read", "fs.write", "web.get"]),
    st.dictionaries(
        st.sampled_from(["path", "n"]), st.sampled_from(["data/a", "/etc/passwd", 7, None])
    ),
)


@given(RIGHTS, RIGHTS, NAMES, CALLS)
def test_a_meet_allows_what_both_allow(
    a: Rights, b: Rights, name: str, call: tuple[str, dict[str, object]]
) -> None:
    met = a.meet(b)
    assert met.serves(name) == (a.serves(name) and b.serves(name))
    assert met.publishes(name) == (a.publishes(name) and b.publishes(name))
    assert met.calls(*call) == (a.calls(*call) and b.calls(*call))
    for quota in ("units", "tokens"):
        least = [r.quotas[quota] for r in (a, b) if quota in r.quotas]
        assert met.quotas.get(quota) == (min(least) if least else None)


@given(RIGHTS)
def test_no_bound_changes_nothing(a: Rights) -> None:
    assert UNBOUND.meet(a) == a == a.meet(UNBOUND)


def test_an_argument_that_is_absent_or_other_does_not_fit() -> None:
    rights = Rights(tools=((ToolRule("fs.read", {"path": "data/*"}),),))
    assert rights.calls("fs.read", {"path": "data/a.txt", "n": 3})
    assert not rights.calls("fs.read", {"path": "/data/a.txt"})
    assert not rights.calls("fs.read", {})
    assert not rights.calls("fs.write", {"path": "data/a.txt"})
