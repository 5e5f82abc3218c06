"""A unit's text as its row holds it: short ones as they are, long ones deflated.

A round of LongMemEval (2,000 characters) takes half the bytes, and two fit a page of the file
where one did. What is deflated is a BLOB: the text's bytes (UTF-8) in eight digits, so that SQL can
read its size, then a raw deflate stream. A file written before has texts alone, which stay legal.
"""

from __future__ import annotations

import zlib

SIZE = (
    "CASE typeof(text) WHEN 'text' THEN length(CAST(text AS BLOB))"
    " ELSE CAST(substr(text, 1, 8) AS INTEGER) END"
)
"""SQL for the bytes of a row's text."""
_HEAD = 8
_SHORT = 256
"""Bytes below which too little is won."""
_RAW = -15


def pack(text: str) -> str | bytes:
    """What to put into the row; ``text`` has no lone surrogates and is below 100 MB."""
    plain = text.encode()
    if len(plain) < _SHORT:
        return text
    deflate = zlib.compressobj(6, zlib.DEFLATED, _RAW)
    packed = b"%08d" % len(plain) + deflate.compress(plain) + deflate.flush()
    return packed if len(packed) * 10 < len(plain) * 9 else text


def unpack(held: str | bytes) -> str:
    if isinstance(held, str):
        return held
    return zlib.decompress(held[_HEAD:], _RAW, int(held[:_HEAD])).decode()
