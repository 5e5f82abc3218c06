"""Figures with their references: ``python -m bench NAME`` (``docs/benchmarks.md``).

Runs from a bare checkout too: where no isovist is installed, the one beside this folder is taken.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).absolute().parent.parent
SOURCE = ROOT / "src"

if importlib.util.find_spec("isovist") is None:
    sys.path.insert(0, str(SOURCE))
