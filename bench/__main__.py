"""``python -m bench NAME [--json] [--data PATH] [--seed N] [--quick]``.

Exit codes: 0 all bars hold, 1 a bar is missed, 2 it could not be run.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from bench.report import CannotRun, Progress, Report, as_json, as_table
from isovist.syscalls.errors import IsovistError

BENCHES = {
    "abuse": "whether agents without rules harm those with, and whether anything outlives a kernel",
    "answers": "whether what is in view reaches the model, and nothing else does",
    "crash": "whether what was acknowledged outlives kills, power cuts and failing disks",
    "crosslearn": "whether lessons reach whom they help, and nobody whom they expose",
    "escape": "whether a hostile agent gets out of its process, by any of some hundred ways",
    "effects": "whether an effect happens twice, or mail gets lost, when the kernel is killed",
    "erase": "whether what was forgotten has left every file and index",
    "files": "whether files with versions are what a plain model of them says, through kills",
    "govern": "whether what may be known is found and nothing else: three public sets",
    "learners": "whether what learns runs with a model through a kernel, whatever that answers",
    "noninterference": "whether anything outside a reader's view shows in a reply",
    "recall": "whether what answers a question is found, on conversations with known evidence",
    "review": "whether a review costs what has changed, finds twins, and merges nothing else",
    "schedule": "whom each policy keeps waiting, and whether it keeps its bound (simulated)",
    "secrets": "whether the secrets guard finds what it should, and leaves what it should",
    "serve": "whether many agents on one model are served fast, fairly, and through its deaths",
    "spawn": "what an agent costs until it runs, in memory, and five hundred at once",
    "syscalls": "what a syscall costs beside a bare ping-pong of the same frames",
    "views": "whether a search through a view is exact and fast in a store of many users",
    "writes": "how soon a durable write can be searched, and how fast many are taken in",
}
"""Each is a module here, with ``arguments(parser)`` and ``run(options, progress)``."""

HELD, MISSED, FAILED = 0, 1, 2


def main(argv: Sequence[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: python -m bench NAME [--json] [--data PATH] [--seed N] [--quick]\n")
        for name, what in BENCHES.items():
            print(f"  {name:10} {what}")
        return HELD if argv else FAILED
    name, *rest = argv
    if name not in BENCHES:
        print(f"no bench {name!r}; there are: {', '.join(BENCHES)}", file=sys.stderr)
        return FAILED
    try:
        return _run(name, rest)
    except (CannotRun, IsovistError) as e:
        print(f"bench {name} could not run: {e}", file=sys.stderr)
    except Exception:
        # An unexpected end must not look like a missed bar.
        traceback.print_exc()
    return FAILED


def _run(name: str, arguments: Sequence[str]) -> int:
    bench = importlib.import_module(f"bench.{name}")
    options = _parser(name, bench.arguments).parse_args(arguments)
    report: Report = bench.run(options, Progress(name))
    print(as_json(report) if options.json else as_table(report))
    return MISSED if report.missed else HELD


def _parser(name: str, add: object) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m bench {name}", description=BENCHES[name])
    parser.add_argument("--json", action="store_true", help="one JSON object, for programs")
    parser.add_argument("--data", type=Path, help="folder of data sets, where a bench needs one")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn (default 0)")
    parser.add_argument("--quick", action="store_true", help="little work: does it run at all?")
    if callable(add):
        add(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
