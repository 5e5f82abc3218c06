"""The wire: every message survives it, and whatever comes else ends in a typed error."""

from __future__ import annotations

import tracemalloc
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect as mi

from isovist.syscalls import abi
from isovist.syscalls import messages as m
from isovist.syscalls.codec import decode_reply, decode_request, encode, failed
from isovist.syscalls.errors import CallerError, Errno, IsovistError
from isovist.syscalls.framing import HEADER, FrameError, Framer, pack
from isovist.syscalls.names import MAX_FRAME

REQUESTS = list(m.REPLY_OF)
FAMILIES = [import_module(f"{abi.__name__}.{one.name}") for one in iter_modules(abi.__path__)]
"""The modules of the newer families of syscalls."""
REPLIES = [
    reply
    for module in (m, *FAMILIES)
    for reply in vars(module).values()
    if isinstance(reply, type) and issubclass(reply, m.Reply) and reply is not m.Reply
]

REMEMBER = [11, None, None, "x", "note", None, "protected", "", 0, None, None, ""]

raw = msgspec.msgpack.encode


def values(kind: mi.Type) -> st.SearchStrategy[Any]:
    """Anything that a field of this type may hold."""
    match kind:
        case mi.StrType():
            return st.text(max_size=40)
        case mi.BytesType():
            return st.binary(max_size=40)
        case mi.IntType():
            return st.integers(-(2**63), 2**63 - 1)
        case mi.FloatType():
            return st.floats(allow_nan=False)
        case mi.BoolType():
            return st.booleans()
        case mi.NoneType():
            return st.none()
        case mi.LiteralType():
            return st.sampled_from(kind.values)
        case mi.UnionType():
            return st.one_of(*map(values, kind.types))
        case mi.VarTupleType():
            return st.lists(values(kind.item_type), max_size=3).map(tuple)
        case mi.TupleType():
            return st.tuples(*map(values, kind.item_types))
        case mi.DictType():
            return st.dictionaries(values(kind.key_type), values(kind.value_type), max_size=3)
        case mi.StructType():
            return structs(kind.cls)
    raise AssertionError(f"no strategy for {kind}: is this type allowed in the ABI?")


def structs(kind: type) -> st.SearchStrategy[Any]:
    info = mi.type_info(kind)
    assert isinstance(info, mi.StructType)
    required = {f.name: values(f.type) for f in info.fields if f.required}
    optional = {f.name: values(f.type) for f in info.fields if not f.required}
    return st.fixed_dictionaries(required, optional=optional).map(lambda given: kind(**given))


requests = st.sampled_from(REQUESTS).flatmap(structs)
replies = st.sampled_from(REPLIES).flatmap(structs)


def typed(decode, body: bytes) -> object:
    """What ``decode`` makes of ``body``, where a typed error counts as an answer."""
    try:
        return decode(body)
    except IsovistError as e:
        error = e
    assert len(encode(failed(error))) < 1000, "an error must not carry the bad body along"
    return error


# -- what is sound goes through ----------------------------------------------------------------


@given(requests)
def test_requests_survive(request):
    assert decode_request(encode(request)) == request


@given(replies)
def test_replies_survive(reply):
    assert decode_reply(encode(reply)) == reply


def test_the_tables_of_the_abi_are_complete():
    tags = [kind.__struct_config__.tag for kind in [*REQUESTS, *REPLIES]]
    assert len(set(tags)) == len(tags)
    assert all(0 < kind.__struct_config__.tag < 100 for kind in REQUESTS)
    assert all(100 < kind.__struct_config__.tag < 0x100 for kind in REPLIES)
    assert set(m.REPLY_OF) == set(m.NAMES) == set(m.Request.__args__)
    assert set(m.REPLY_OF.values()) <= set(REPLIES)
    assert len(set(m.NAMES.values())) == len(m.NAMES)


# -- what is not ends in a typed error ---------------------------------------------------------


@given(st.binary(max_size=200))
@settings(max_examples=500)
def test_random_bytes(body):
    typed(decode_request, body)
    typed(decode_reply, body)


@given(st.one_of(requests, replies), st.data())
@settings(max_examples=300)
def test_truncated_bodies(message, data):
    body = encode(message)
    cut = body[: data.draw(st.integers(0, len(body) - 1))]
    decode = decode_request if isinstance(message, m.Call) else decode_reply
    assert isinstance(typed(decode, cut), IsovistError)


@given(st.one_of(requests, replies), st.data())
@settings(max_examples=500)
def test_mutated_bodies(message, data):
    body = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    for decode, kind in ((decode_request, m.Call), (decode_reply, m.Reply)):
        assert isinstance(typed(decode, bytes(body)), (kind, IsovistError))


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


@given(st.sampled_from([*range(24), *range(98, 120)]), st.lists(plain, max_size=16))
@settings(max_examples=500)
def test_fields_of_any_type(tag, fields):
    body = raw([tag, None, None, *fields])
    typed(decode_request, body)
    typed(decode_reply, body)


@pytest.mark.parametrize(
    "opening", [b"\x91", b"\x81\xa1a", b"\xdc\x00\x01", b"\xdf\x00\x00\x00\x01\xa1a"]
)
@pytest.mark.parametrize(
    "prefix", [b"", b"\x94\x0b\xc0\xc0", b"\x94\x02\xc0\xc0", b"\x95\x02\xc0\xc0\xa0"]
)
def test_nesting_that_fills_a_frame(prefix, opening):
    body = prefix + opening * ((MAX_FRAME - len(prefix)) // len(opening))
    assert isinstance(typed(decode_request, body), IsovistError)
    assert isinstance(typed(decode_reply, body), IsovistError)


@pytest.mark.parametrize(
    "item",
    [[], {}, None, "x", {"role": "user"}, 0.5],
    ids=["list", "map", "nil", "text", "message", "float"],
)
def test_a_full_frame_of_small_items_takes_memory_in_proportion(item):
    count = (MAX_FRAME - 64) // len(raw(item))
    tracemalloc.start()
    try:
        for fields in ([item] * count, ["x", *[item] * count]):
            typed(decode_request, raw([17, None, None, fields]))
            typed(decode_request, raw([11, None, None, *fields]))
        assert tracemalloc.get_traced_memory()[1] < 40 * MAX_FRAME
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [2**16, 2**32 - 1])
def test_a_header_that_promises_more_than_there_is(size):
    for opcode in (b"\xdb", b"\xdd", b"\xdf", b"\xc6"):
        body = b"\x94\x0b\xc0\xc0" + opcode + size.to_bytes(4, "big") + b"x"
        error = typed(decode_request, body)
        assert isinstance(error, CallerError)
        assert error.errno in (Errno.EPROTO, Errno.EINVAL)


@pytest.mark.parametrize("tag", [0, 98, 99, 100, 105, 127, 128, 2**16, 2**63, -1])
def test_an_unknown_tag_is_enosys(tag):
    for body in (raw([tag]), raw([tag, None, None, "x"])):
        with pytest.raises(CallerError) as caught:
            decode_request(body)
        assert caught.value.errno is Errno.ENOSYS


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([11, None, None, 5], "text"),
        ([11, 7, None, "x"], "user"),
        ([11, None, "soon", "x"], "deadline_ms"),
        ([11], "text"),
        ([11, None, None], "text"),
        ([15, None, None, "id", 1], "text"),
        ([15, None, None, "id"], "version"),
        ([11, None, None, "x", "note", None, "public"], "stream"),
        ([11, None, None, "x", "note", None, "`$[0]` Invalid value"], "stream"),
        ([11, None, None, "x", "note", None, "` - at `$[3]`"], "stream"),
        ([*REMEMBER, {"a": 1}], "meta[...]"),
        ([*REMEMBER, {1: "a"}], "meta"),
        ([*REMEMBER, []], "meta"),
        ([17, None, None, [{"role": "boss", "content": "x"}]], "messages[0].role"),
        ([17, None, None, [{"role": "user", "content": 3}]], "messages[0].content"),
        ([17, None, None, ["hi"]], "messages[0]"),
        (["ping"], "$[0]"),
        ([], ""),
        ({}, ""),
        (None, ""),
    ],
)  # fmt: skip
def test_a_bad_field_is_named(body, field):
    with pytest.raises(CallerError) as caught:
        decode_request(raw(body))
    assert (caught.value.errno, caught.value.field) == (Errno.EINVAL, field)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([12, None, None, "x", 8, "fuzzy"], "mode: Invalid enum value 'fuzzy'; it may be "
         "bm25, dense, hybrid, rrf"),
        ([*REMEMBER[:6], "public"], "stream: Invalid enum value 'public'; it may be "
         "protected, reusable"),
        ([17, None, None, [{"role": "boss", "content": "x"}]], "messages[0].role: Invalid enum "
         "value 'boss'; it may be assistant, system, tool, user"),
    ],
)  # fmt: skip
def test_where_a_field_takes_one_of_several_words_the_error_lists_them(body, words):
    with pytest.raises(CallerError) as caught:
        decode_request(raw(body))
    assert caught.value.message == words


def test_an_error_does_not_quote_a_whole_frame_back():
    with pytest.raises(CallerError) as caught:
        decode_request(raw([11, None, None, "x", "note", None, "p" * 1_000_000]))
    assert caught.value.field == "stream"
    assert len(caught.value.message) < 300


# -- evolution ---------------------------------------------------------------------------------


@given(requests, st.lists(plain, min_size=1, max_size=3))
def test_fields_that_a_newer_peer_appended_are_ignored(request, more):
    full = [request.__struct_config__.tag, *msgspec.to_builtins(request)[1:]]
    assert decode_request(raw([*full, *more])) == request


@given(replies, st.lists(plain, min_size=1, max_size=3))
def test_the_same_holds_for_replies(reply, more):
    plainly = msgspec.to_builtins(reply, builtin_types=(bytes,))
    assert decode_reply(raw([*plainly, *more])) == reply


@pytest.mark.parametrize("kind", [*REQUESTS, *REPLIES])
def test_fields_that_an_older_peer_does_not_send_have_defaults(kind):
    fields = msgspec.structs.fields(kind)
    required = [f.name for f in fields if f.required]
    positions = [at for at, f in enumerate(fields) if f.required]
    # Optional fields stand behind the required ones; the two of the base stand before.
    first = 2 if issubclass(kind, m.Call) else 0
    assert positions == list(range(first, first + len(required)))


def test_the_bases_are_frozen_for_ever():
    assert m.Call.__struct_fields__ == ("user", "deadline_ms")
    assert m.Reply.__struct_fields__ == ()


# -- frames ------------------------------------------------------------------------------------


def test_frames_split_at_every_position():
    frames = [(1, b""), (2**32 - 1, b"x"), (3, b"y" * 30), (4, b"")]
    stream = b"".join(pack(call, body) for call, body in frames)
    for one in range(len(stream) + 1):
        for two in range(one, len(stream) + 1):
            framer = Framer()
            got = framer.feed(stream[:one]) + framer.feed(stream[one:two])
            assert got + framer.feed(stream[two:]) == frames
            assert len(framer) == 0


@given(
    st.lists(st.tuples(st.integers(0, 2**32 - 1), st.binary(max_size=50)), max_size=8), st.data()
)
def test_frames_come_out_as_they_went_in_however_they_are_cut(frames, data):
    stream = b"".join(pack(call, body) for call, body in frames)
    framer, got = Framer(), []
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        got += framer.feed(stream[:cut])
        stream = stream[cut:]
    assert got == frames


def test_the_largest_frame_passes_and_a_larger_one_does_not():
    body = bytes(MAX_FRAME)
    assert Framer().feed(pack(7, body)) == [(7, body)]
    with pytest.raises(IsovistError) as caught:
        pack(7, body + b"x")
    assert caught.value.errno is Errno.EMSGSIZE
    with pytest.raises(FrameError) as refused:
        Framer().feed(HEADER.pack(MAX_FRAME + 1, 7))
    assert refused.value.errno is Errno.EMSGSIZE


@pytest.mark.parametrize("size", [1, 4096, 65536])
def test_a_framer_holds_no_more_than_one_frame(size):
    framer = Framer()
    stream = HEADER.pack(MAX_FRAME, 1) + bytes(MAX_FRAME - 1)
    for at in range(0, len(stream), max(size, 997)):
        assert framer.feed(stream[at : at + max(size, 997)]) == []
        assert len(framer) <= MAX_FRAME + 8
    assert framer.feed(b"x" + HEADER.pack(1, 2)) == [(1, bytes(MAX_FRAME - 1) + b"x")]
    assert len(framer) == 8


def test_a_lone_surrogate_cannot_be_sent():
    for text in ("\ud800", "a\udfffb"):
        with pytest.raises(CallerError):
            encode(m.Ping(payload=text))
