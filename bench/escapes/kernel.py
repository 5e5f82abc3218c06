"""``python -m bench.escapes.kernel STATE [bare]``: a kernel as ``isovist up`` runs it.

``bare`` takes away the namespace of process numbers too, which holds agents even where confinement
is switched off, so that an attempt that only this stops is seen to be real.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from unittest import mock


def main(state: str, bare: bool) -> None:
    from isovist.kernel import config, processes
    from isovist.kernel.cli import serve
    from isovist.kernel.spawner import Spawner

    def announce() -> None:
        print("ready", os.getpid(), flush=True)

    loaded = config.load("", Path(state))
    if not bare:
        return serve.serve(loaded, "info", announce)
    loose = partial(Spawner, namespaces=False)
    with mock.patch.object(processes, "Spawner", loose):
        return serve.serve(loaded, "info", announce)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] == ["bare"])
