"""One thread for numpy's matrix products."""

from __future__ import annotations

import ctypes
import os


def one_thread() -> bool:
    """Make numpy's OpenBLAS use one thread in this process; false where it has none to set.

    Two threads gain little on such small products, spin on a core that others need (the slowest
    twentieth took five times as long beside one busy neighbour), and change last bits.
    """
    try:
        with open("/proc/self/maps") as maps:
            paths = {p for line in maps if "openblas" in (p := line.split()[-1])}
    except OSError:
        return False
    for path in paths:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        for prefix in ("scipy_openblas", "openblas"):
            for suffix in ("64_", ""):
                setter = getattr(library, f"{prefix}_set_num_threads{suffix}", None)
                if setter is not None:
                    setter(1)
                    return True
    return False
