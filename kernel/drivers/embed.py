"""The embedder process: texts to vectors, so that embedding never holds the kernel's loop.

Run as ``python -m isovist.kernel.drivers.embed --embedder NAME R W``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from isovist.kernel.drivers.peer import Peer, Unusable, serve
from isovist.kernel.drivers.protocol import Embed, Embedded, Progress, Up
from isovist.storage.embedder import Embedder, make_embedder, stored
from isovist.syscalls.errors import Errno, IsovistError

ALIVE_S = 5.0
"""A sign of life goes to the kernel after so long without an answer."""
PAUSE_S, LONGEST_PAUSE_S = 0.5, 8.0
_PASSING = (Errno.EAGAIN, Errno.EPIPE, Errno.ETIMEDOUT)
"""Failures that say nothing against the text: it is tried again, for as long as they last."""


def work(peer: Peer, arguments: argparse.Namespace) -> None:
    try:
        embedder = make_embedder(arguments.embedder)
    except (IsovistError, ImportError, OSError, ValueError) as e:
        words = e.message if isinstance(e, IsovistError) else e
        raise Unusable(f"embedder {arguments.embedder!r}: {words}") from e
    peer.send(Up(0, embedder.name, dim=embedder.dim))
    while True:
        request = peer.receive()
        if not isinstance(request, Embed):
            continue
        try:
            # One text a call: in a batch, foreign texts would leak into a vector's last bits.
            if request.question:
                made = [embedder.embed_query(text).astype("<f4").tobytes()
                        for text in request.texts]  # fmt: skip
            else:
                made = _documents(peer, embedder, request.texts)
            peer.send(Embedded(request.id, tuple(made)))
        except IsovistError as e:
            peer.fail(request.id, e)


def _documents(peer: Peer, embedder: Embedder, texts: Sequence[str]) -> list[bytes]:
    """The vectors of texts to be stored, however slow the embedder is and however long the world
    is in the way; the kernel hears that this process is at work."""
    made: list[bytes] = []
    said = time.monotonic()
    pause = PAUSE_S
    while len(made) < len(texts):
        try:
            made.append(stored(embedder.embed(texts[len(made)])))
            pause = PAUSE_S
        except IsovistError as e:
            if e.errno not in _PASSING:
                raise
            print(f"tried again in {pause} s: {e.message}", file=sys.stderr)
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)
        if time.monotonic() - said > ALIVE_S:
            peer.send(Progress(len(made) / len(texts)))
            said = time.monotonic()
    return made


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="embedder")
    parser.add_argument("--embedder", required=True)
    return serve(work, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
