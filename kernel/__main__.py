"""``python -m isovist.kernel`` is the command ``isovist``."""

from __future__ import annotations

import sys

from isovist.kernel.cli import main

if __name__ == "__main__":
    sys.exit(main())
