"""Messages to bytes and back. The decoders are strict: a wrong type is an error that names it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import cast

import msgspec
from msgspec import inspect

from isovist.syscalls.errors import CallerError, Errno, IsovistError
from isovist.syscalls.messages import REPLY_OF, AnyReply, Call, Failed, Reply, Request

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_replies: msgspec.msgpack.Decoder[AnyReply] = msgspec.msgpack.Decoder(AnyReply)

_FIELDS: dict[int, tuple[msgspec.structs.FieldInfo, ...]] = {
    cast(int, kind.__struct_config__.tag): msgspec.structs.fields(kind) for kind in REPLY_OF
}
"""The fields of each request by its tag; field ``i`` is element ``i + 1`` of the array."""
_TYPES = {cast(int, kind.__struct_config__.tag): kind for kind in REPLY_OF}

_MOST = 200
"""Characters of a message about a bad body: it may quote the body, and must fit a frame."""


def encode(message: Call | Reply) -> bytes:
    """The body of a frame."""
    try:
        return _encoder.encode(message)
    except UnicodeEncodeError:
        raise CallerError("a text holds a lone surrogate") from None
    except (OverflowError, TypeError, ValueError) as e:
        raise CallerError(f"a value cannot be encoded: {e}") from None


def decode_request(body: bytes) -> Request:
    """A request. Raises ``ENOSYS`` for an unknown tag, ``EINVAL`` (naming the field's path, and
    the words that it may hold where it takes one of several) for a value that breaks its type,
    ``EPROTO`` for bytes that are no message."""
    try:
        return _requests.decode(body)
    except msgspec.ValidationError as e:
        rule, path = _parse(str(e))
        if path == "$[0]" and rule.startswith("Invalid value"):
            raise CallerError("no such syscall in this ABI", errno=Errno.ENOSYS) from None
        tag = _tag(body)
        field = _field(rule, path, _FIELDS.get(tag, ()))
        if rule.startswith("Invalid enum value") and (words := _choices(_TYPES[tag], path)):
            rule += f"; it may be {words}"
        raise CallerError(f"{field}: {rule}" if field else rule, field=field) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as e:
        raise CallerError(f"not a message: {e}", errno=Errno.EPROTO) from None


def decode_reply(body: bytes) -> AnyReply:
    """A reply. Raises ``EPROTO`` where the bytes are none."""
    try:
        return _replies.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as e:
        raise IsovistError(f"not a reply: {e}", errno=Errno.EPROTO) from None


def failed(e: IsovistError) -> Failed:
    """The reply that carries an exception across the wire."""
    return Failed(
        errno=int(e.errno), message=e.message, field=e.field, story=e.story, retry_at=e.retry_at
    )


def _parse(text: str) -> tuple[str, str]:
    """msgspec's message as rule and path. The path stands last, and the rule may quote the body:
    only the end of the text is to be trusted."""
    match = re.fullmatch(r"(.*?)(?: - at (?:`key` in )?`(\$[^`]*)`)?", text, re.DOTALL)
    assert match is not None  # every text matches
    rule, path = match[1], match[2] or ""
    return (rule if len(rule) <= _MOST else rule[:_MOST] + "…"), path


def _field(rule: str, path: str, fields: tuple[msgspec.structs.FieldInfo, ...]) -> str:
    """The field's name, as in ``messages[0].role`` for ``$[3][0].role``."""
    if match := re.match(r"\$\[(\d+)\]", path):
        at = int(match[1]) - 1
        return fields[at].name + path[match.end() :] if 0 <= at < len(fields) else path
    if match := re.fullmatch(r"Expected `array` of at least length \d+, got (\d+)", rule):
        # Too short: what it lacks first is a field without a default.
        lacking = (f.name for f in fields[max(0, int(match[1]) - 1) :] if f.required)
        return next(lacking, "")
    return path


def _choices(kind: object, path: str) -> str:
    """The words that the value at msgspec's ``path`` within a ``kind`` may be, as in
    ``both, lexical, none``; empty where there is no such choice."""
    found = [inspect.type_info(kind)]
    for index, name in re.findall(r"\[([^\]]*)\]|\.(\w+)", path):
        found = [inner for one in found for inner in _inside(one, index, name)]
    return ", ".join(str(word) for one in _members(found) for word in one)


def _members(kinds: list[inspect.Type]) -> Iterator[tuple[object, ...]]:
    for kind in kinds:
        if isinstance(kind, inspect.LiteralType):
            yield kind.values
        elif isinstance(kind, inspect.UnionType):
            yield from _members(list(kind.types))


def _inside(kind: inspect.Type, index: str, name: str) -> Iterator[inspect.Type]:
    """What stands in a ``kind`` at this index (of an array) or under this name (of an object)."""
    match kind:
        case inspect.UnionType():
            for one in kind.types:
                yield from _inside(one, index, name)
        case inspect.VarTupleType():
            yield kind.item_type
        case inspect.StructType():
            for at, field in enumerate(kind.fields, kind.tag is not None):
                if field.encode_name == name or index == str(at):
                    yield field.type


def _tag(body: bytes) -> int:
    """The tag of a MessagePack array whose first element is an integer below 256; else -1."""
    head = body[:1]
    start = {b"\xdc": 3, b"\xdd": 5}.get(head, 1)
    if len(body) > start and body[start] < 0x80:
        return body[start]
    if len(body) > start + 1 and body[start] == 0xCC:
        return body[start + 1]
    return -1
