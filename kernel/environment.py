"""What agents, and what else the kernel starts for them, inherit of its environment."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Mapping
from pathlib import Path

ENVIRONMENT = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM",
     "COLORTERM", "NO_COLOR", "COLUMNS", "LINES", "VIRTUAL_ENV", "LD_LIBRARY_PATH"}
)  # fmt: skip
"""What agents inherit of the kernel's environment, besides ``LC_*`` and ``PYTHON*``. The rest
stays out: keys of model endpoints are among it."""


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of ``environ`` that agents get, with this very copy of isovist importable."""
    kept = {
        name: value
        for name, value in environ.items()
        if name in ENVIRONMENT or name.startswith(("LC_", "PYTHON"))
    }
    # Not resolved: in a checkout the packages are links, and only beside them is `isovist`.
    root = str(Path(__file__).absolute().parent.parent.parent)
    if root != sysconfig.get_path("purelib"):
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, (root, kept.get("PYTHONPATH"))))
    return kept
