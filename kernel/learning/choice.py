"""Who splits, writes and judges, by the settings."""

from __future__ import annotations

from collections.abc import Callable

from isovist.kernel.learning.agentic import AgenticWriter
from isovist.kernel.learning.asked import ModelSplitter, ModelWriter
from isovist.kernel.learning.asked_review import ModelJudge
from isovist.kernel.learning.judging import RuleJudge
from isovist.kernel.learning.pipeline import Roles
from isovist.kernel.learning.reviewer import Judging
from isovist.kernel.learning.roles import Model
from isovist.kernel.learning.rules import RuleSplitter, RuleWriter
from isovist.kernel.state.learning import Learning
from isovist.kernel.state.lessons import LEARNER
from isovist.kernel.state.users import own_user


def roles_for(settings: Learning) -> Roles:
    """The splitter and the writers that ``settings`` name."""
    if settings.writer == "model":
        return Roles(splitter=ModelSplitter, writer=ModelWriter)
    if settings.writer == "agentic":
        return Roles(splitter=ModelSplitter, writer=AgenticWriter)
    return Roles(splitter=lambda _: RuleSplitter(), writer=lambda _: RuleWriter(), by="rules")


def judging_for(settings: Learning, model: Callable[[str], Model]) -> Judging:
    """The judge of reviews that ``settings`` name. A review is for no single user, so a model is
    asked for the learner itself."""
    if settings.writer in ("model", "agentic"):
        own = own_user(LEARNER)
        name = settings.model or "the default model"
        return Judging(lambda: ModelJudge(model(own)), name, settings.widen)
    return Judging(RuleJudge, "rules", settings.widen)
