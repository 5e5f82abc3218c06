"""Names of files: one rule for the kernel's spaces and for folders on disk.

A path is a list of names, and leads nowhere but down: what it names in a space can be written out
under the same name in a folder, on any file system of this machine, and shown in any terminal.
"""

from __future__ import annotations

import unicodedata

from isovist.syscalls.errors import CallerError, Errno

MAX_PATH, MAX_PART, MAX_DEPTH = 1024, 240, 16
"""Bytes of UTF-8 of a path and of one of its names; names in it. A file system takes 255 bytes, and
while a file is written its name is longer."""

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of characters that are not seen, turn the text around them, or mean nothing yet."""


def check_path(path: str, field: str = "path") -> str:
    """``path`` itself, if it is relative, in Unicode form NFC, of 1 to 16 names of 1 to 240 bytes
    between single slashes, none of them ``.`` or ``..``, none beginning or ending with white space,
    all of characters that can be seen; at most 1,024 bytes.

    Raises ``EMSGSIZE`` where it is too long, else ``EINVAL``.
    """

    def refuse(rule: str, errno: Errno = Errno.EINVAL) -> CallerError:
        return CallerError(f"{field} {rule}", errno=errno, field=field)

    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise refuse("holds a lone surrogate") from None
    if not path:
        raise refuse("is empty")
    if size > MAX_PATH:
        raise refuse(f"has {size} bytes, the limit is {MAX_PATH}", Errno.EMSGSIZE)
    if not unicodedata.is_normalized("NFC", path):
        raise refuse("must be in Unicode form NFC")
    if any(unicodedata.category(c) in _UNSEEN for c in path):
        raise refuse("holds a character that cannot be seen")
    names = path.split("/")
    if len(names) > MAX_DEPTH:
        raise refuse(f"has {len(names)} names, the limit is {MAX_DEPTH}", Errno.EMSGSIZE)
    for name in names:
        if name in ("", ".", ".."):
            raise refuse("must be relative, of names between single slashes, none '.' or '..'")
        if name != name.strip():
            raise refuse("must have no name that begins or ends with white space")
        if len(name.encode()) > MAX_PART:
            raise refuse(f"has a name of more than {MAX_PART} bytes", Errno.EMSGSIZE)
    return path


def check_prefix(prefix: str, field: str = "prefix") -> str:
    """``prefix`` itself, if it is empty or names a folder as :func:`check_path` has it."""
    return check_path(prefix, field) if prefix else prefix
