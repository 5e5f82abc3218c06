"""``kill -9`` amid tools, steps and messages: a few of the kills of ``bench effects``."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.effects import kill
from kernel_helpers import short_folder


@pytest.mark.promise("write.durable")
@pytest.mark.promise("kernel.survives")
def test_no_kill_repeats_an_effect_or_loses_a_message() -> None:
    with short_folder() as folder:
        told = kill(Path(folder), "test", 4, lambda number: None)
    assert told.problems == []
    assert (told.started, told.twice, told.missing) == (0, 0, 0)
    assert (told.lost, told.doubles, told.undead) == (0, 0, 0)
    assert told.kills == 4
    assert told.answered > 10
