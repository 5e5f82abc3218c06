"""Rules for the names and texts that cross the ABI, in one place for clients and kernel."""

from __future__ import annotations

import unicodedata
from datetime import datetime

from isovist.syscalls.errors import CallerError, Errno
from isovist.syscalls.records import KINDS

MAX_NAME = 128
"""Bytes of UTF-8 in the name of a user, agent, session, kind or model."""
MAX_TEXT = 64 * 1024
"""Bytes of UTF-8 in one unit's text."""
LAST_VERSION = 1 << 62
"""The highest version of a unit that is taken in or changed: the next ones fit 64 bits too."""
LAST_TIME = 9_223_372_036_854_775_000
"""The last microsecond, in ns, that 64 bits hold; none is further from 1970, either way."""
MAX_CONTEXT = 512 * 1024
"""Bytes of MessagePack that the messages of one saved context take, as they are kept: it fits a
frame whatever else stands there."""
MAX_FRAME = 1 << 20
"""Bytes in the body of one frame."""

OWNER_KEYS = frozenset(
    {"agent", "agentid", "owner", "owneragent", "ownerid", "owneruser", "user", "userid", "pair",
     "scope", "stream", "visibility", "sharing", "sharingpolicy", "partition", "origin"}
)  # fmt: skip
"""Keys that metadata may not hold, however they are written (letters and digits count alone):
ownership and audience are set by the kernel."""


def check_name(name: str, field: str) -> str:
    """``name`` itself, if it is NFC, 1 to 128 bytes, without control characters and ``/``."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise CallerError(f"{field} holds a lone surrogate", field=field) from None
    if not 1 <= size <= MAX_NAME:
        raise CallerError(f"{field} must have 1 to {MAX_NAME} bytes, has {size}", field=field)
    if any(unicodedata.category(c) == "Cc" or c == "/" for c in name):
        raise CallerError(f"{field} must hold no control character and no '/'", field=field)
    if not unicodedata.is_normalized("NFC", name):
        raise CallerError(f"{field} must be in Unicode form NFC", field=field)
    return name


def check_group(name: str, field: str) -> str:
    """``name`` itself, if it may name a group: a name that stands unmistaken where a scope writes
    it (``@team/own``) and where a list shows it."""
    check_name(name, field)
    if name.strip() != name or name.startswith("@") or name in (".", "..", "*"):
        raise CallerError(
            f"{field} must not be '.', '..' or '*', nor begin with '@', nor begin or end with a "
            "space",
            field=field,
        )
    return name


def check_barrier(barrier_ms: int) -> None:
    if not 0 <= barrier_ms <= 60_000:
        raise CallerError("barrier_ms must be 0 to 60000", field="barrier_ms")


def check_text(text: str, field: str = "text", limit: int = MAX_TEXT) -> str:
    """``text`` cleaned: NUL dropped (:func:`dropped` says how many). Surrogates cannot cross the
    wire, which refuses them; of a text that did not, pairs become the character that they stand
    for and lone ones U+FFFD.

    Raises ``EINVAL`` where nothing visible remains, ``EMSGSIZE`` above ``limit`` bytes.
    """
    if "\0" in text:
        text = text.replace("\0", "")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        size = len(text.encode())
    if size > limit:
        raise CallerError(
            f"{field} has {size} bytes, the limit is {limit}", errno=Errno.EMSGSIZE, field=field
        )
    if not text.strip():
        raise CallerError(f"{field} is empty", field=field)
    return text


def dropped(text: str) -> str:
    """What :func:`check_text` drops of ``text``, in words; empty where it keeps all."""
    count = text.count("\0")
    if not count:
        return ""
    return f"{count} NUL character{' was' if count == 1 else 's were'} dropped from the text"


def check_kinds(kinds: tuple[str, ...], field: str = "kinds") -> tuple[str, ...]:
    """``kinds`` themselves, if all are kinds of unit."""
    for kind in kinds:
        if kind not in KINDS:
            raise CallerError(f"{field} must be among {', '.join(KINDS)}", field=field)
    return kinds


def check_time(when: str | None, field: str) -> int | None:
    """Nanoseconds since 1970 UTC of an ISO 8601 time **with a zone**; ``None`` stays.

    A naive time is refused: nobody can know which instant it means. Digits below the microsecond
    are dropped.
    """
    if when is None:
        return None
    try:
        parsed = datetime.fromisoformat(when)
    except ValueError:
        raise CallerError(f"{field} is not an ISO 8601 time", field=field) from None
    if parsed.tzinfo is None:
        raise CallerError(f"{field} needs a time zone (as in 2026-01-31T09:00Z)", field=field)
    try:
        ns = round(parsed.timestamp() * 1_000_000) * 1000
    except (OverflowError, ValueError):
        ns = 1 << 63
    if not -LAST_TIME <= ns <= LAST_TIME:
        raise CallerError(f"{field} must lie between the years 1678 and 2262", field=field)
    return ns


def check_meta(meta: dict[str, str]) -> dict[str, str]:
    """Metadata without owner or scope keys, at most 32 pairs of at most 1 KiB."""
    if len(meta) > 32:
        raise CallerError(f"meta has {len(meta)} keys, the limit is 32", field="meta")
    for key, value in meta.items():
        try:
            check_name(key, "meta key")
        except CallerError as e:
            raise CallerError(e.message, errno=e.errno, field="meta") from None
        if "".join(filter(str.isalnum, key.casefold())) in OWNER_KEYS:
            raise CallerError(
                f"meta may not hold {key!r}: owner and scope are set by the kernel",
                errno=Errno.EPERM,
                field="meta",
            )
        if len(value.encode(errors="replace")) > 1024:
            raise CallerError(f"meta[{key!r}] is longer than 1024 bytes", field="meta")
    return meta
