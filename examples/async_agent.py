"""Ask several questions at once, and print each answer as soon as it is there.

    isovist run examples/async_agent.py --user ana -- "Which locker is mine?" "Who teaches me?"

Slow calls don't wait for each other. Leaving a scope, here at a time limit, cancels the calls in
it, in the kernel as well.
"""

import sys

import trio

from isovist.agents import open_client


async def main(questions: list[str]) -> None:
    async with open_client() as k, trio.open_nursery() as nursery:

        async def ask(question: str) -> None:
            with trio.move_on_after(60) as limit:
                reply = await k.chat(question, max_tokens=48)
                print(f"{question} {reply.text.strip()}")
            if limit.cancelled_caught:
                print(f"{question} (no answer within a minute)")

        for question in questions or ["What do you know about me?"]:
            nursery.start_soon(ask, question)


trio.run(main, sys.argv[1:])
