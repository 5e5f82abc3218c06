"""Who splits, writes and judges, by the settings."""

from __future__ import annotations

from collections.abc import Callable

from isovist.kernel.learning.agentic import AgenticWriter
from isovist.kernel.learning.asked import ModelSplitter, ModelWriter
from isovist.kernel.learning.judging import RuleJudge
from isovist.kernel.learning.pipeline import Roles
from isovist.kernel.learning.reviewer import Judging
from isovist.kernel.learning.roles import Model
from isovist.kernel.learning.rules import RuleSplitter, RuleWriter
from isovist.kernel.state.learning import Learning


def roles_for(settings: Learning) -> Roles:
    """The splitter and the writers that ``settings`` name."""
    if settings.writer == "model":
        return Roles(splitter=ModelSplitter, writer=ModelWriter)
    if settings.writer == "agentic":
        return Roles(splitter=ModelSplitter, writer=AgenticWriter)
    return Roles(splitter=lambda _: RuleSplitter(), writer=lambda _: RuleWriter(), by="rules")


def judging_for(settings: Learning, model: Callable[[str], Model]) -> Judging:
    """The judge of reviews that ``settings`` name."""
    return Judging(judge=RuleJudge, name="rules", widen=settings.widen)
