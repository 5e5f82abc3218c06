"""The table ``[learn]`` of config.toml."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel_helpers import config

from isovist.kernel.config import load
from isovist.kernel.kernel import Kernel
from isovist.kernel.learning.agentic import AgenticWriter
from isovist.kernel.learning.asked import ModelSplitter, ModelWriter
from isovist.kernel.learning.choice import judging_for, roles_for
from isovist.kernel.learning.loopback import Loopback
from isovist.kernel.learning.rules import RuleSplitter, RuleWriter
from isovist.kernel.models import SCRIPTED
from isovist.kernel.state.learning import Learning
from isovist.syscalls.errors import CallerError


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "isovist" / "config.toml"
    path.parent.mkdir()
    return path


def test_without_a_word_rules_learn_and_all_is_shared(file: Path) -> None:
    file.write_text("")
    assert load().settings.learn == Learning()


def test_what_is_said_is_taken(file: Path) -> None:
    file.write_text(
        '[learn]\nwriter = "agentic"\nmodel = "big"\nscopes = ["pair", "user"]\n'
        'consent = "own"\nwiden = "person"\nreview_after = 0\n'
    )
    assert load().settings.learn == Learning(
        writer="agentic", model="big", scopes=("pair", "user"), consent="own", widen="person",
        review_after=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ('writer = "magic"', "magic"),
        ('scopes = ["pair", "team"]', "'team'"),
        ("review_after = -1", "review_after"),
        ('consent = "all"', "all"),
        ('split = "no"', "split"),
    ],
)
def test_what_is_wrong_is_named_with_its_file(file: Path, line: str, word: str) -> None:
    file.write_text(f"[learn]\n{line}\n")
    with pytest.raises(CallerError) as caught:
        load()
    assert str(file) in caught.value.message
    assert word in caught.value.message
    assert caught.value.field in ("learn", "config")


def test_the_settings_choose_who_learns() -> None:
    loopback = Loopback(lambda pipes: None, None, "big", lambda name: 4096)  # type: ignore[arg-type] # nothing is asked
    model = loopback.model("ana")
    assert (model.name, model.context) == ("big", 4096)
    for writer, splitter, kind, by in (
        ("rules", RuleSplitter, RuleWriter, "rules"),
        ("model", ModelSplitter, ModelWriter, ""),
        ("agentic", ModelSplitter, AgenticWriter, ""),
    ):
        settings = Learning(writer=writer, model="big")  # type: ignore[arg-type] # of a table
        roles = roles_for(settings)
        assert isinstance(roles.splitter(model), splitter)
        assert isinstance(roles.writer(model), kind)
        assert (roles.by, roles.trusting) == (by, False)
        assert judging_for(settings, loopback.model).name == ("rules" if by else "big")


async def test_a_kernel_does_not_start_with_a_learner_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CallerError) as caught:
        await Kernel(config(tmp_path, learn=Learning(model="big")), models=[SCRIPTED]).run()
    assert "'big'" in caught.value.message
    assert caught.value.field == "config"
