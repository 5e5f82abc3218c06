"""The llama driver: one GGUF model, many requests at a time.

Run as ``python -m isovist.kernel.drivers.llama --model PATH [--context TOKENS] [--slots N]
[--sequences N] [--kv-mib MIB] [--host-mib MIB] R W``.

Between two steps the pipe is looked at, so that an abort or a pause takes effect within one. What
a conversation has computed stays: the next prompt computes only what follows the longest common
beginning, which is why injected memory stands in the last user turn. See
:mod:`~isovist.kernel.drivers.cells` for what is kept, and
:mod:`~isovist.kernel.drivers.batch` for what a step computes.

**The same text whatever else runs?** A sequence's attention reads its own cells alone, and its
choices depend on its own logits, seed and place. What the library does not promise is that a row of
a matrix product comes out the same to the last bit for every number of rows: it has kernels for one
row, for few and for many, and a prompt's rows depend on how steps cut it. Where two tokens are all
but equally likely a request may then answer otherwise beside others than alone. Measured, greedy,
32 tokens after 100 of random words (where near ties are common), SmolLM2-135M Q4_0: eight requests
together twice gave the same text 8 of 8 times, together and one by one 2 of 8; a request that was
paused, put into host memory and resumed goes on as uninterrupted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from isovist.kernel.drivers.grammar import with_tools
from isovist.kernel.drivers.peer import Peer, Unusable, serve
from isovist.kernel.drivers.protocol import (
    Abort,
    Embed,
    Embedded,
    Flush,
    Generate,
    Kept,
    Load,
    Pause,
    Progress,
    RequestFailed,
    Restore,
    Resume,
    Snapshot,
    ToProcess,
    Up,
)
from isovist.syscalls.errors import Errno, IsovistError

if TYPE_CHECKING:
    from isovist.kernel.drivers.gguf import Model

BEAT_NS = 1_000_000_000
"""How often a busy driver says that it lives, if it says nothing else."""
CHANGE_NS = 100_000_000
"""How often, at most, it says that its load has changed."""


class Driver:
    """A loaded model between its pipe and its sequences."""

    def __init__(self, peer: Peer, model: Model, arguments: argparse.Namespace) -> None:
        from isovist.kernel.drivers.engine import Engine, cell_bytes
        from isovist.kernel.drivers.serving import Serving
        from isovist.kernel.drivers.snapshots import fingerprint

        self._peer, self._model = peer, model
        self._path: str = arguments.model
        # What the sequences take is taken at once, for good.
        affordable = (arguments.kv_mib << 20) // (cell_bytes(model) * arguments.context)
        self._sequences = max(1, min(max(arguments.slots, arguments.sequences), affordable))
        self._fingerprint = fingerprint(self._path)
        self.engine = Engine(model, arguments.context, self._sequences)
        self.serving = Serving(
            self.engine,
            model,
            peer.send,
            time.monotonic_ns,
            arguments.slots,
            arguments.host_mib << 20,
        )
        self._said: Load | None = None
        self._said_at = 0

    def run(self) -> None:
        """Until the kernel closes the pipe (:class:`~isovist.kernel.drivers.peer.Closed`)."""
        while True:
            if not self.serving.busy:
                self._beat(idle=True)
                self._handle(self._peer.receive())
            for message in self._peer.received():
                self._handle(message)
            self.serving.step()
            self._beat()

    def _handle(self, message: ToProcess) -> None:
        try:
            match message:
                case Generate():
                    self.serving.submit(message)
                case Abort():
                    self.serving.abort(message.key)
                case Pause():
                    self.serving.pause(message.key)
                case Resume():
                    self.serving.resume(message.key)
                case Flush():
                    self.serving.flush()
                    self._peer.send(Kept(message.id, 0))
                case Snapshot():
                    self._peer.send(Kept(message.id, self._snapshot(message)))
                case Restore():
                    self._peer.send(Kept(message.id, self._restore(message)))
                case Embed():
                    self._peer.send(self._embed(message))
                case _:
                    why = "this driver does not count"
                    self._peer.send(RequestFailed(message.id, int(Errno.ENOSYS), why))
        except IsovistError as e:
            key = message.key if isinstance(message, Generate) else getattr(message, "id", 0)
            self._peer.fail(key, e)

    def _snapshot(self, message: Snapshot) -> int:
        from isovist.kernel.drivers import snapshots

        messages = with_tools(message.messages, message.tools, message.choice)
        prompt = self._model.prompt(messages, spoken=True)
        found = self.serving.cells.find(prompt, message.owner)
        if found is None:
            return 0
        tokens, state = found
        snapshots.write(message.path, self._fingerprint, tokens, state)
        return len(tokens)

    def _restore(self, message: Restore) -> int:
        from isovist.kernel.drivers import snapshots

        tokens, state = snapshots.read(message.path, self._fingerprint)
        return len(tokens) if self.serving.cells.keep(tokens, state, message.owner) else 0

    def _embed(self, message: Embed) -> Embedded | RequestFailed:
        # Chat models give no useful vectors; a model that embeds has a driver of its own.
        why = f"{self._model.name} generates text; vectors come from the embedder"
        return RequestFailed(message.id, int(Errno.ENOSYS), why)

    def _beat(self, idle: bool = False) -> None:
        """Say how busy it is, if that has changed or nothing was said for long."""
        load, now = self.serving.load(), time.monotonic_ns()
        said, age = self._said, now - self._said_at
        if said == load:
            due = age >= BEAT_NS and not idle
        else:
            moved = said is None or _counts(said) != _counts(load)
            due = idle or age >= BEAT_NS or (moved and age >= CHANGE_NS)
        if due:
            self._said, self._said_at = load, now
            self._peer.send(load)


def _counts(load: Load) -> tuple[int, int, int]:
    return load.running, load.waiting, load.paused


def work(peer: Peer, arguments: argparse.Namespace) -> None:
    try:
        from isovist.kernel.drivers.gguf import Model
    except ImportError as e:
        raise Unusable(
            f"the llama driver needs the extra: pip install 'isovist[llama]' ({e})"
        ) from e
    model = Model(arguments.model, progress=lambda fraction: peer.send(Progress(fraction)))
    driver = Driver(peer, model, arguments)
    peer.send(Up(driver.engine.context, model.tokenizer, model.name, slots=driver.serving.slots))
    driver.run()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="llama driver")
    parser.add_argument("--model", required=True)
    parser.add_argument("--context", type=int, default=2048, help="tokens of one request at most")
    parser.add_argument("--slots", type=int, default=4, help="requests worked on at a time")
    parser.add_argument(
        "--sequences", type=int, default=0, help="conversations held by the model (from slots)"
    )
    parser.add_argument(
        "--kv-mib", type=int, default=4096, help="memory of the model's sequences at most"
    )
    parser.add_argument(
        "--host-mib", type=int, default=512, help="host memory for conversations put aside"
    )
    return serve(work, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
