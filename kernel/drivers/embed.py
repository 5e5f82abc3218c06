"""The embedder process: texts to vectors, so that embedding never holds the kernel's loop.

Run as ``python -m isovist.kernel.drivers.embed --embedder NAME R W``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from isovist.kernel.drivers.peer import Peer, Unusable, serve
from isovist.kernel.drivers.protocol import Embed, Embedded, Up
from isovist.storage.embedder import make_embedder
from isovist.syscalls.errors import IsovistError


def work(peer: Peer, arguments: argparse.Namespace) -> None:
    try:
        embedder = make_embedder(arguments.embedder)
    except (IsovistError, ImportError, OSError, ValueError) as e:
        raise Unusable(f"embedder {arguments.embedder!r}: {e}") from e
    peer.send(Up(0, embedder.name, dim=embedder.dim))
    while True:
        request = peer.receive()
        if not isinstance(request, Embed):
            continue
        try:
            # One text a call: in a batch, foreign texts would leak into a vector's last bits.
            vectors = tuple(
                embedder.embed(text).astype("<f4", copy=False).tobytes() for text in request.texts
            )
            peer.send(Embedded(request.id, vectors))
        except IsovistError as e:
            peer.fail(request.id, e)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="embedder")
    parser.add_argument("--embedder", required=True)
    return serve(work, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
