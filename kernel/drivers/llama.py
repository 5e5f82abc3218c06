"""The llama driver: one GGUF model, one request at a time.

Run as ``python -m isovist.kernel.drivers.llama --model PATH --context TOKENS R W``.

A prompt is read in chunks, and the pipe is looked at between chunks and between tokens, so that
an abort takes effect within one step. The cells of the last conversation stay: the next prompt
computes only what follows the longest common beginning, which is why injected memory stands in
the last user turn.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from isovist.kernel.drivers.outflow import Outflow
from isovist.kernel.drivers.peer import Peer, Unusable, serve
from isovist.kernel.drivers.protocol import (
    Finish,
    Finished,
    Generate,
    Progress,
    Token,
    Up,
    check_fit,
    check_request,
)
from isovist.syscalls.errors import IsovistError, WorldError

if TYPE_CHECKING:
    from isovist.kernel.drivers.gguf import Model

CHUNK = 128
"""Prompt tokens a step: what an abort waits for at most."""
DECODE_THREADS = 1
PREFILL_THREADS = 2
# One thread decodes as fast as two on two cores, and does not stall when a neighbour is busy.
TOP_K, TOP_P, MIN_P = 40, 0.95, 0.05
"""Sampling above temperature 0: the choice is cut to these before the seed decides."""


class Engine:
    """A loaded model with one context.

    Invariant: ``_past`` are exactly the tokens whose cells the context holds, in order, at
    positions 0 to ``len(_past) - 1``.
    """

    def __init__(self, model: Model, context: int) -> None:
        from isovist.kernel.drivers.gguf import lib

        self._lib = lib
        self._model = model
        self.context = min(context, model.trained_context)
        parameters = lib.llama_context_default_params()
        parameters.n_ctx = self.context
        parameters.n_batch = parameters.n_ubatch = CHUNK
        parameters.n_threads = DECODE_THREADS
        parameters.n_threads_batch = PREFILL_THREADS
        handle = lib.llama_init_from_model(model.handle, parameters)
        if handle is None:
            raise Unusable(f"no context of {self.context} tokens: {model.last_error()}")
        self._handle = handle
        self._memory = lib.llama_get_memory(handle)
        self._batch = lib.llama_batch_init(CHUNK, 0, 1)
        self._past: list[int] = []
        # One decode touches all weights, so that the first caller does not wait for the disk.
        self._decode([0])
        self._forget_from(0)

    def generate(
        self, request: Generate, emit: Callable[[str], None], aborted: Callable[[], bool]
    ) -> Finished:
        """Answer ``request``: calls ``emit`` with each text and ``aborted`` before each step.

        Raises ``EMSGSIZE`` where the prompt and the reply exceed the context, ``EINVAL`` where
        the chat template refuses the messages, ``EIO`` where llama.cpp fails.
        """
        check_request(request)
        prompt = self._model.prompt(request.messages)
        check_fit(len(prompt), request.max_tokens, self.context)
        # The last token is always computed: its logits are what the first choice is made from.
        reused = self._forget_from(min(_common(self._past, prompt), len(prompt) - 1))
        for at in range(reused, len(prompt), CHUNK):
            if aborted():
                return Finished(request.key, "cancelled", 0, len(prompt), reused)
            self._decode(prompt[at : at + CHUNK])
        finish, count = self._answer(request, emit, aborted)
        return Finished(request.key, finish, count, len(prompt), reused)

    def _answer(
        self, request: Generate, emit: Callable[[str], None], aborted: Callable[[], bool]
    ) -> tuple[Finish, int]:
        """Token by token until an end; returns how it ended and the tokens made."""
        sampler = self._sampler(request.temperature, request.seed)
        outflow = Outflow(request.stop)
        finish: Finish = "length"
        count = 0
        try:
            while count < request.max_tokens:
                if aborted():
                    finish = "cancelled"
                    break
                token = int(self._lib.llama_sampler_sample(sampler, self._handle, -1))
                if self._model.is_end(token):
                    finish = "stop"
                    break
                count += 1
                if text := outflow.feed(self._model.piece(token)):
                    emit(text)
                if outflow.stopped:
                    finish = "stop"
                    break
                if count < request.max_tokens:
                    self._decode([token])
        finally:
            self._lib.llama_sampler_free(sampler)
        if text := outflow.finish():
            emit(text)
        return finish, count

    def _decode(self, tokens: Sequence[int]) -> None:
        """Compute at most ``CHUNK`` tokens after the past; the last one's logits are kept."""
        batch, start = self._batch, len(self._past)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = start + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = i == len(tokens) - 1
        status = self._lib.llama_decode(self._handle, batch)
        if status != 0:
            self._forget_from(0)
            raise WorldError(f"llama.cpp could not decode ({status}): {self._model.last_error()}")
        self._past += tokens

    def _forget_from(self, position: int) -> int:
        """Drop all cells from ``position`` on; returns how many are left.

        A model with recurrent state cannot drop a part: then all goes.
        """
        if not self._lib.llama_memory_seq_rm(self._memory, 0, position, -1):
            self._lib.llama_memory_clear(self._memory, True)
            position = 0
        del self._past[position:]
        return position

    def _sampler(self, temperature: float, seed: int) -> Any:
        """A new sampler chain, to be freed. The same seed gives the same choices."""
        lib = self._lib
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        if temperature == 0.0:
            lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_greedy())
        else:
            lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_top_k(TOP_K))
            lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_top_p(TOP_P, 1))
            lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_min_p(MIN_P, 1))
            lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_temp(temperature))
            # The highest 32-bit seed asks llama.cpp for a random one; keep clear of it.
            lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_dist(seed % 0xFFFFFFFF))
        return chain


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens the two begin with alike."""
    size = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        size += 1
    return size


def work(peer: Peer, arguments: argparse.Namespace) -> None:
    try:
        from isovist.kernel.drivers.gguf import Model
    except ImportError as e:
        raise Unusable(
            f"the llama driver needs the extra: pip install 'isovist[llama]' ({e})"
        ) from e
    model = Model(arguments.model, progress=lambda fraction: peer.send(Progress(fraction)))
    engine = Engine(model, arguments.context)
    peer.send(Up(engine.context, model.tokenizer, model.name))
    while True:
        request = peer.receive()
        if isinstance(request, Generate):
            _answer(peer, engine, request)
        # What else may come is an abort of what has already ended.


def _answer(peer: Peer, engine: Engine, request: Generate) -> None:
    """One request from its first word to its end."""

    def emit(text: str) -> None:
        peer.send(Token(request.key, text))

    def aborted() -> bool:
        return peer.aborted(request.key)

    try:
        peer.send(engine.generate(request, emit, aborted))
    except IsovistError as e:
        peer.fail(request.key, e)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="llama driver")
    parser.add_argument("--model", required=True)
    parser.add_argument("--context", type=int, default=2048)
    return serve(work, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
