"""AssistantAgent: answers questions. It retrieves nothing itself; the kernel injects [K 3.2]."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from isovist.agents.base import Agent, Said
from isovist.syscalls.client import Client
from isovist.syscalls.messages import Chatted
from isovist.syscalls.records import Message


class AssistantAgent(Agent):
    """Answers each question, and says which units the kernel showed to the model."""

    name = "assistant"

    def __init__(
        self,
        k: Client,
        *,
        memory: bool = True,
        max_tokens: int = 64,
        model: str = "",
        json: bool = False,
    ) -> None:
        super().__init__(k)
        self.memory, self.max_tokens, self.model, self.json = memory, max_tokens, model, json

    def main(self, args: Sequence[str]) -> int:
        parser = argparse.ArgumentParser(prog=self.name, description=type(self).__doc__)
        parser.add_argument("question", nargs="*", help="default: the lines of standard input")
        parser.add_argument("--json", action="store_true", help="one JSON object an answer")
        parser.add_argument("--no-memory", action="store_true", help="have nothing injected")
        parser.add_argument("--max-tokens", type=int, default=self.max_tokens)
        parser.add_argument("--model", default="", help="default: the kernel's")
        options = parser.parse_args(args)
        self.memory, self.json = not options.no_memory, options.json
        self.max_tokens, self.model = options.max_tokens, options.model
        if options.question:
            print(self.hear(Said(" ".join(options.question))), flush=True)
            return 0
        return self.listen()

    def hear(self, said: Said) -> str:
        reply = self.ask(said.text, user=said.user)
        return json.dumps(as_json(reply), ensure_ascii=False) if self.json else as_text(reply)

    def ask(self, question: str, user: str | None = None) -> Chatted:
        """The whole of what an assistant does on this kernel."""
        return self.k.chat(
            self.messages(question),
            memory=self.memory,
            max_tokens=self.max_tokens,
            model=self.model,
            user=user,
        )

    @staticmethod
    def messages(question: str) -> tuple[Message, ...]:
        """What the model is sent, before the kernel injects. No system turn: a small model reads
        memory best where nothing else stands before the question."""
        return (Message("user", question),)


def as_text(reply: Chatted) -> str:
    """The answer, and below it a line for each unit that was shown."""
    shown = (
        f"  from {unit.unit} ({unit.scope}, by {unit.owner}, {unit.tokens} tokens)"
        for unit in reply.injected
    )
    return "\n".join([reply.text.strip(), *shown])


def as_json(reply: Chatted) -> dict[str, object]:
    """What ``--json`` prints; times in milliseconds."""
    return {
        "answer": reply.text.strip(),
        "injected": [
            {
                "unit": unit.unit,
                "owner": unit.owner,
                "scope": unit.scope,
                "kind": unit.kind,
                "tokens": unit.tokens,
                "score": unit.score,
            }
            for unit in reply.injected
        ],
        "user": reply.user,
        "model": reply.model,
        "call": reply.call,
        "barrier": {
            "state": reply.barrier.state,
            "waited_ms": reply.barrier.waited_ms,
            "lagging": list(reply.barrier.lagging),
        },
        "timings_ms": {
            stage: getattr(reply.timings, stage) for stage in reply.timings.__struct_fields__
        },
    }
