"""What the kernel and the host of a tool server say to each other.

MessagePack arrays with integer tags, one a frame, over a pipe pair, as with drivers
(:mod:`isovist.kernel.drivers.protocol`). The first message to a host is :class:`Mount`; it answers
with :class:`Mounted`, and says so again when its tools change. ``run`` is the kernel's number of a
call.
"""

from __future__ import annotations

import msgspec

from isovist.kernel.drivers.protocol import Fatal
from isovist.kernel.state.toolwords import MountedTool
from isovist.kernel.tools.place import Place
from isovist.syscalls.errors import CallerError
from isovist.syscalls.framing import pack

PIECE = 64 * 1024
"""Characters of an answer that travel at once."""
LONGEST = 4 << 20
"""Characters of an answer that are taken; what is longer is cut there."""
TOOLS = 256
"""Tools of one server that are taken."""


class Mount(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Serve this server: a ``command`` that speaks MCP over its pipes, a ``url`` that speaks it
    over HTTP, or ``python``, a module of functions. ``env`` names the variables of the host's own
    environment that a command is given; ``key`` the one that holds a bearer token for ``url``. It
    works in ``place``, and is held to its policy: a command by its host, which is confined itself
    where it runs functions."""

    name: str
    command: tuple[str, ...] = ()
    url: str = ""
    python: str = ""
    env: tuple[str, ...] = ()
    key: str = ""
    place: Place = Place("", None)


class Use(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Call a tool with ``arguments``, a JSON object. Answered by :class:`Piece`, as often as it
    takes, and :class:`Ended`."""

    run: int
    tool: str
    arguments: str


class Stop(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """End call ``run``, and say so as soon as it has ended; no effect where it has."""

    run: int


class Mounted(msgspec.Struct, frozen=True, array_like=True, tag=100):
    tools: tuple[MountedTool, ...]


class Piece(msgspec.Struct, frozen=True, array_like=True, tag=101):
    run: int
    text: str


class Ended(msgspec.Struct, frozen=True, array_like=True, tag=102):
    """``failed``: the answer is an error of the tool's own. ``errno`` is not 0: there is none;
    ``lost``: and nobody knows whether the call was carried out."""

    run: int
    failed: bool = False
    errno: int = 0
    message: str = ""
    lost: bool = False


ToHost = Mount | Use | Stop
FromHost = Mounted | Piece | Ended

_encoder = msgspec.msgpack.Encoder()
_to_host: msgspec.msgpack.Decoder[ToHost] = msgspec.msgpack.Decoder(ToHost)
_from_host: msgspec.msgpack.Decoder[FromHost | Fatal] = msgspec.msgpack.Decoder(FromHost | Fatal)


def frame(message: ToHost | FromHost | Fatal) -> bytes:
    """One whole frame. Raises ``EINVAL`` for a lone surrogate, ``EMSGSIZE`` over the limit."""
    try:
        return pack(0, _encoder.encode(message))
    except UnicodeEncodeError:
        raise CallerError("a text holds a lone surrogate") from None


def decode_to_host(body: bytes) -> ToHost:
    """Raises :class:`msgspec.DecodeError` where ``body`` is no such message."""
    return _to_host.decode(body)


def decode_from_host(body: bytes) -> FromHost | Fatal:
    """Raises :class:`msgspec.DecodeError` where ``body`` is no such message."""
    return _from_host.decode(body)
