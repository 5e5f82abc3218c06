"""What ProfileAgent and TaskAgent share: they listen, and store the facts that they hear."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import ClassVar

from isovist.agents import extract
from isovist.agents.base import Agent, Said
from isovist.agents.extract import Fact
from isovist.syscalls.errors import Errno, IsovistError
from isovist.syscalls.fence import spoken

MODEL_MS = 60_000
"""How long a model may take for one proposal, in milliseconds."""
PATIENCE = 3
"""Failures of the model in a row after which it is asked no more."""


class ListenerAgent(Agent):
    """Stores each statement of a user as a protected unit of :attr:`kind` in *user* scope, so that
    every agent of that user, and nobody else's, finds it. Prints one JSON object a stored fact:
    ``unit``, ``text`` and ``extractor`` (``model`` or ``rules``).

    A subclass sets :attr:`kind` and may override :meth:`wants`.
    """

    kind: ClassVar[str] = "note"
    model: str = ""
    """Which model proposes; empty: the kernel's default."""
    ask_model: bool = True

    _failures = 0
    _private = False

    def wants(self, sentence: str) -> bool:
        """Whether a statement concerns this agent."""
        return True

    def main(self, args: Sequence[str]) -> int:
        parser = argparse.ArgumentParser(prog=self.name, description=type(self).__doc__)
        parser.add_argument("--model", default="", help="the model that proposes facts")
        parser.add_argument("--rules", action="store_true", help="ask no model")
        options = parser.parse_args(args)
        self.model, self.ask_model = options.model, not options.rules
        return self.listen()

    def hear(self, said: Said) -> Iterator[str]:
        heard = extract.sentences(spoken(said.text))
        for sentence in dict.fromkeys(heard):
            if extract.states(sentence) and self.wants(sentence):
                yield self.store(self.fact(sentence, said), said)

    def fact(self, sentence: str, said: Said) -> Fact:
        """What the model reads in the sentence, or the sentence as it is."""
        if self.ask_model and self._failures < PATIENCE and len(sentence) <= extract.LONGEST:
            try:
                reply = self.k.chat(
                    extract.messages(sentence),
                    model=self.model,
                    memory=False,
                    temperature=0.0,
                    max_tokens=extract.MAX_TOKENS,
                    user=said.user,
                    deadline_ms=MODEL_MS,
                )
            except IsovistError as e:
                if e.errno is Errno.EPIPE:
                    raise
                self._failures += 1
                self.complain(f"rules instead of the model: {e}")
            else:
                self._failures = 0
                return extract.accept(reply.text, sentence) or Fact(sentence)
        return Fact(sentence)

    def store(self, fact: Fact, said: Said) -> str:
        stored = self.k.remember(
            fact.text,
            kind=self.kind,
            scope="user",
            stream="protected",
            session=said.session,
            round=said.round,
            meta=fact.meta,
            user=said.user,
        )
        if stored.note and not self._private:
            self._private = True
            self.complain(stored.note)
        line = {"unit": stored.id, "text": fact.text, "extractor": fact.extractor}
        return json.dumps(line, ensure_ascii=False)
