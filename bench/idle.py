"""An agent that says that it runs, makes two calls, and then waits for nothing."""

from __future__ import annotations

import ctypes
import os
import signal

from isovist.syscalls.client import connect


def main(marker: str, number: str) -> None:
    os.write(1, b"!")
    ctypes.CDLL(None).prctl(15, marker.encode(), 0, 0, 0)
    with connect() as kernel:
        assert kernel.ping(number).payload == number
        kernel.remember(f"I am number {number} of many.")
        while True:
            signal.pause()
