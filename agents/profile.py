"""ProfileAgent: what stays true of a user."""

from __future__ import annotations

import re

from isovist.agents.listener import ListenerAgent

_PERSON = re.compile(r"\b(?:i|me|my|mine|myself|we|our|ours|us)\b", re.IGNORECASE)
_PASSING = re.compile(
    r"\b(?:deadline|due|postponed|rescheduled|overdue|blocked|milestone|today|tomorrow|tonight|"
    r"yesterday|(?:this|next|last) (?:week|month|sprint|quarter)|"
    r"by (?:mon|tues|wednes|thurs|fri|satur|sun)day)\b",
    re.IGNORECASE,
)


class ProfileAgent(ListenerAgent):
    """Keeps stable facts about the user as profile units."""

    name = "profile"
    kind = "profile"

    def wants(self, sentence: str) -> bool:
        """All but what speaks of no person and will soon have passed."""
        return bool(_PERSON.search(sentence)) or not _PASSING.search(sentence)
