"""Answer a question with tools: the model itself looks into memory, as often as it likes."""

import sys

from isovist.agents import connect
from isovist.syscalls.records import Message
from isovist.syscalls.tools import offer, run_tool

ROUNDS = 4


def main() -> None:
    turns = [Message("user", " ".join(sys.argv[1:]))]
    tools = offer(["memory_search", "memory_read"])
    with connect() as k:
        # First it has to look; then it may look again, or answer.
        reply = k.chat(turns, tools=tools, choice="required", memory=False)
        for _ in range(ROUNDS):
            if not reply.calls:
                break
            turns.append(Message("assistant", reply.text, reply.calls))
            for call in reply.calls:
                result = run_tool(k, call.name, call.arguments)
                turns.append(Message("tool", result, call=call.id))
            reply = k.chat(turns, tools=tools, memory=False)
        print(reply.text)


main()
