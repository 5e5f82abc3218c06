"""The hostile agent: tries one way out, and says on standard error what came of it."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys

from bench.escapes.base import ATTEMPTS, Stopped, Target, name_of

TARGET = "target.json"
"""Beside the program: what it is told."""
BEGUN, REPORT = "escape-begun", "escape-report "
_PR_SET_NAME = 15


def main(topic: str, name: str) -> None:
    importlib.import_module(f"bench.escapes.{topic}")
    with open(os.path.join(os.path.dirname(sys.argv[0]), TARGET)) as file:
        told = Target(**json.load(file))
    # Whatever survives is known by this.
    ctypes.CDLL(None).prctl(_PR_SET_NAME, told.nonce.encode(), 0, 0, 0)
    # Nothing is stopped that was never tried.
    sys.stderr.write(f"{BEGUN}\n")
    sys.stderr.flush()
    gained, stopped = "", ""
    try:
        gained = ATTEMPTS[name].run(told)
    except Stopped as e:
        stopped = str(e)
    except OSError as e:
        stopped = name_of(e.errno or 0)
    except MemoryError:
        stopped = "ENOMEM"
    except Exception as e:
        stopped = f"{type(e).__name__}: {e}"
    sys.stderr.write(
        "\n" + REPORT + json.dumps({"gained": gained[:8000], "stopped": stopped}) + "\n"
    )
    sys.stderr.flush()
