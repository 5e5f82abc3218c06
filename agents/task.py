"""TaskAgent: what a user's work is about at the moment."""

from __future__ import annotations

import re

from isovist.agents.listener import ListenerAgent

_LASTING = re.compile(
    r"\b(?:my name is|i was born|my birthday|my favou?rite|i (?:really )?(?:like|love|hate|enjoy)|"
    r"i am allergic|i[’']m allergic|i am (?:a )?(?:vegan|vegetarian)|years old)\b",
    re.IGNORECASE,
)
_WORK = re.compile(
    r"\b(?:project|deadline|due|task|ticket|release|review|meeting|sprint|branch|build|team|client|"
    r"customer|report|budget|plan|work|today|tomorrow|week|month)\w*\b",
    re.IGNORECASE,
)


class TaskAgent(ListenerAgent):
    """Keeps deadlines, decisions and the state of projects as task_context units."""

    name = "task"
    kind = "task_context"

    def wants(self, sentence: str) -> bool:
        """All but what is plainly a trait or a taste and has nothing to do with work."""
        return not _LASTING.search(sentence) or bool(_WORK.search(sentence))
