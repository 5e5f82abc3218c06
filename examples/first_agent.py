"""Remember what is said on standard input; answer the lines that end with a question mark."""

import sys

from isovist.agents import connect


def main() -> None:
    with connect() as k:  # who we are and whom we serve comes from the kernel, not from here
        for line in sys.stdin:
            said = line.strip()
            if said.endswith("?"):
                reply = k.chat(said)  # the kernel injects what is in view
                print(reply.text, [(u.unit, u.scope, u.tokens) for u in reply.injected])
            elif said:
                k.remember(said)  # private to this user and this agent unless said otherwise


main()
