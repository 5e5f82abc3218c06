"""Do a task, say how it ended, and do it better the next time: the kernel learns in between."""

import sys
import time

from isovist.agents import connect
from isovist.syscalls.records import Message


def main() -> None:
    task, wish, verdict = sys.argv[1:]
    with connect() as k:
        known = k.learn_lessons(task)  # what this agent may know for this user, scope by scope
        print(known.text or "nothing is known yet")
        trajectory = [
            Message("user", f"{task}. {wish}"),
            Message("assistant", "I read the amounts as they stand and wrote the file."),
        ]
        k.learn_submit(task, trajectory, outcome="failed", verifier_tail=verdict)
        while k.learn_status().submissions[0].state in ("queued", "learning"):
            time.sleep(0.05)  # an agent need not wait; this one wants to show what comes of it
        print(k.learn_lessons(task).text)


main()
