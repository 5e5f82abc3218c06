"""The victim: an honest agent with something to lose, in its memory and in its workspace."""

from __future__ import annotations

import ctypes

from isovist.syscalls.client import connect


def main(name: str, secret: str) -> None:
    ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)
    with open("diary", "w") as file:
        file.write(f"{secret}\n")
    with connect() as kernel:
        # It lives until it is ended.
        while True:
            kernel.ping()
            ctypes.CDLL(None).usleep(200_000)
