"""The one module that mints views (promise ``view.choke``).

The seal is taken here at import and leaves this module never, so no other code, in the kernel
or outside, can make a ``View`` with an audience of its own choice.
"""

from __future__ import annotations

from isovist.syscalls.records import ALL, Axis, Partition, Reader, Seal, View

_SEAL = Seal()


def audience(reader: Reader) -> tuple[Partition, ...]:
    """All and only the partitions whose both axes admit the reader, narrow to wide [S 3.2].

    Each axis is *own or open*, so the list has the same shape for every reader, whether or not
    anything is stored there: its length tells nothing.
    """
    user, agent = Axis("one", reader.user), Axis("one", reader.agent)
    return (
        Partition(user, agent),
        Partition(user, ALL),
        Partition(ALL, agent),
        Partition(ALL, ALL),
    )


def view_of(reader: Reader) -> View:
    """The reader's view: the only constructor of a ``View``."""
    return View(_SEAL, reader, audience(reader))
