"""The command line: parse, run one command, and turn how it went into an exit code.

Exit codes (design §3.2): 0; 1 an error; 2 wrong usage; 3 no kernel answers. ``run`` ends with its
agent's status. An error is one line and a hint on standard error; with ``--json`` the error is
the one object on standard output too. Tracebacks come with ``--debug`` only.

Each command imports what it needs when it runs: ``isovist ps`` must not wait for numpy or trio.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from isovist.kernel.cli.common import Common, Problem, problem_of

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``isovist`` with ``argv`` (default: the process's own); returns the exit code."""
    from cyclopts.exceptions import CycloptsError

    from isovist.kernel.cli.app import app

    tokens = list(sys.argv[1:] if argv is None else argv)
    try:
        command, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
    except CycloptsError as e:
        return _tell(Problem(_one_line(str(e)), _usage_hint(tokens), status=2), Common())
    common = bound.arguments.get("common", Common())
    try:
        result = command(*bound.args, **bound.kwargs)
        sys.stdout.flush()
        return int(result or 0)
    except BrokenPipeError:
        # The reader of our output has gone; nothing is left to say, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as e:
        problem = problem_of(e, common)
        if common.debug:
            import traceback

            traceback.print_exc()
        return _tell(problem or Problem(f"{type(e).__name__}: {e}", BUG), common)


BUG = "this is a bug of Isovist; please report it with what --debug prints"


def _tell(problem: Problem, common: Common) -> int:
    sys.stderr.write(f"isovist: {_one_line(problem.message)}\n")
    sys.stderr.write(f"  hint: {problem.hint}\n")
    if common.json:
        from isovist.kernel.cli.show import emit

        error = {"errno": problem.errno, "message": problem.message, "hint": problem.hint}
        emit({"error": error})
    return problem.status


def _usage_hint(tokens: Sequence[str]) -> str:
    from isovist.kernel.cli.app import COMMANDS

    words = [t for t in tokens[:2] if not t.startswith("-")]
    if words[:1] == ["run"] and "--" not in tokens:
        return "options of the program itself come after --; isovist run --help shows ours"
    known = " ".join(words) in COMMANDS or (len(words) > 1 and words[0] in COMMANDS)
    if len(words) == 2 and " ".join(words) not in COMMANDS:
        words = words[:1]
    return " ".join(["isovist", *(words if known else ()), "--help shows what there is"])


def _one_line(text: str) -> str:
    return " ".join(text.split())
