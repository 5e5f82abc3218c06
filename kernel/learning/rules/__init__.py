"""The floor of learning: a splitter and writers by rules alone, for when no model is good enough.

They are extractive: what they keep was said in the attempt, sentence by sentence, with identifying
detail generalised. What is doubtful is protected. They do a smaller job than a model does, and say
so (``Streams.by`` is ``rules``).
"""

from __future__ import annotations

from isovist.kernel.learning.rules.splitter import RuleSplitter, split
from isovist.kernel.learning.rules.writer import RuleWriter, write

__all__ = ["RuleSplitter", "RuleWriter", "split", "write"]
