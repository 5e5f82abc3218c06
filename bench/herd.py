"""An agent with a family: children, grandchildren and daemons that have left its session."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress

from isovist.syscalls.client import connect

SECONDS = 120
"""How long each would live if nothing ended it."""


def main(marker: str) -> None:
    ctypes.CDLL(None).prctl(15, marker.encode(), 0, 0, 0)
    with suppress(OSError):  # where it may not fork, it is alone
        _child(daemon=False)
        _child(daemon=True)
    with connect() as kernel:
        kernel.remember(f"family of {os.getpid()} stands")
        while True:
            time.sleep(1)
            kernel.ping()


def _child(daemon: bool) -> None:
    if os.fork():
        return
    # Deaf to all that can be ignored, and to the death of whoever started it.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
    if daemon:
        os.setsid()
    if os.fork() == 0:
        time.sleep(SECONDS)
        os._exit(0)
    if not daemon:
        time.sleep(SECONDS)
    os._exit(0)
