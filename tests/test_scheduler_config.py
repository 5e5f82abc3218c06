"""What config.toml says of scheduling, as the pure kernel gets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from isovist.kernel.config import Settings, load
from isovist.kernel.state.scheduling import Scheduling
from isovist.scheduler.quota import Limit
from isovist.syscalls.errors import CallerError


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "isovist" / "config.toml"
    file.parent.mkdir()
    return file


def test_all_of_it_arrives(written: Path) -> None:
    written.write_text(
        """
        scheduler = "deadline"
        clients = "pair"
        [weights.agent]
        mail = 2
        [weights.user]
        ana = 0.5
        [priorities.agent]
        mail = 3
        [quotas.agent."*"]
        calls = 4
        [quotas.model.small]
        tokens = 9000
        queue = 8
        """
    )
    scheduling = load("x").settings.scheduling
    assert (scheduling.policy, scheduling.clients) == ("deadline", "pair")
    assert scheduling.weight("mail", "ana") == 1.0
    assert scheduling.weight("mail", "bob") == 2.0
    assert scheduling.priority("mail", "ana") == 3
    assert scheduling.client("mail", "ana") == "mail/ana"
    assert scheduling.quotas == {
        "agent": {"*": Limit(calls=4)},
        "model": {"small": Limit(tokens=9000, queue=8)},
    }


def test_nothing_said_is_fair_and_without_limits() -> None:
    assert Settings().scheduling == Scheduling()
    assert Scheduling().policy == "fair"
    assert Scheduling().weight("a", "u") == 1.0
    assert Scheduling().priority("a", "u") == 0


def test_a_weight_is_that_of_the_axis_that_shares() -> None:
    """All calls of a client have one weight, whoever else they are for."""
    weights = {"agent": {"a": 2.0}, "user": {"u": 3.0}}
    shares = [Scheduling(clients=c, weights=weights).weight("a", "u") for c in ("agent", "user")]
    assert shares == [2.0, 3.0]
    assert Scheduling(clients="pair", weights=weights).weight("a", "u") == 6.0
    levels = {"agent": {"a": 6}, "user": {"u": 6}}
    assert Scheduling(priorities=levels).priority("a", "u") == 9


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('scheduler = "lottery"', "round_robin"),
        ("[weights.agent]\nmail = 0", "weights.agent.mail"),
        ("[weights.agent]\nmail = nan", "weights.agent.mail"),
        ("[priorities.user]\nana = 10", "priorities.user.ana"),
        ("[quotas.user.ana]\ntokens = -1", "quotas.user.ana"),
        ("[quotas.user.ana]\nwords = 1", "words"),
        ("[weights.models]\nx = 1", "weights"),
        ('clients = "team"', "clients"),
    ],
)
def test_what_breaks_a_rule_is_named(written: Path, text: str, word: str) -> None:
    written.write_text(text)
    with pytest.raises(CallerError, match=str(written)) as e:
        load("x")
    assert word in e.value.message
