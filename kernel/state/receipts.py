"""The names of receipts: each says, to the kernel alone, whose memories it is about.

A name is a nonce and a keyed hash over it and the user, so nothing that outlives the forgotten has
to hold the user's name, and nobody can make out a receipt, or whose it is, without the key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isovist.kernel.state.users import Principal, own_user

if TYPE_CHECKING:
    from isovist.kernel.state.core import State


def name_of(state: State, key: int, user: str) -> str:
    """The receipt of the call ``key``, about memories of ``user``."""
    nonce = state.opaque("r", state.boot, key)
    return nonce + state.opaque("", nonce, user)


def may_read(state: State, who: Principal, named: str | None, receipt: str) -> bool:
    """True iff the receipt is about the user that the request names, or where it names none about
    one whom the channel serves; the operator may read all. Raises ``EPERM`` for a name that the
    channel holds no grant for."""
    if who.operator:
        return True
    if named is not None:
        users = [state.users.resolve(who, named).user]
    else:
        known = (who.bound, own_user(who.agent), *who.sessions, *who.seen)
        users = [user for user in known if user and state.users.may_serve(who, user)]
    nonce = receipt[: len(state.opaque("r"))]
    return any(receipt == nonce + state.opaque("", nonce, user) for user in users)
