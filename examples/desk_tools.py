"""Two functions for the kernel to call: docs/tools.md mounts them."""

from isovist.syscalls.tools import tool


@tool(read_only=True)
def convert(amount: float, rate: float) -> float:
    """An amount of money at a rate of exchange."""
    return round(amount * rate, 2)


def note(text: str) -> str:
    """Write a line on the desk's pad."""
    with open("pad.txt", "a") as pad:
        pad.write(text + "\n")
    return "noted"
