"""Reaching the world: sockets of all kinds, and what answers to them outside."""

from __future__ import annotations

import os
import socket
import struct

from bench.escapes.base import Target, attempt, syscall

_SOCKET = 41
_VSOCK, _ALG, _NETLINK, _PACKET, _XDP, _BLUETOOTH = 40, 38, 16, 17, 44, 31


def _opened(name: str, family: int, kind: int, protocol: int = 0) -> None:
    @attempt(f"open a {name} socket", word=True)
    def run(t: Target) -> str:
        return f"descriptor {syscall(_SOCKET, family, kind, protocol)}"


for _name, _family, _kind, _protocol in (
    ("TCP", socket.AF_INET, socket.SOCK_STREAM, 0),
    ("UDP", socket.AF_INET, socket.SOCK_DGRAM, 0),
    ("TCP over IPv6", socket.AF_INET6, socket.SOCK_STREAM, 0),
    ("ping", socket.AF_INET, socket.SOCK_DGRAM, 1),
    ("raw", socket.AF_INET, socket.SOCK_RAW, 1),
    ("packet", _PACKET, socket.SOCK_RAW, 0x0300),
    ("netlink", _NETLINK, socket.SOCK_RAW, 0),
    ("uevent", _NETLINK, socket.SOCK_DGRAM, 15),
    ("vsock", _VSOCK, socket.SOCK_STREAM, 0),
    ("kernel crypto", _ALG, 5, 0),
    ("express data path", _XDP, socket.SOCK_RAW, 0),
    ("multipath TCP", socket.AF_INET, socket.SOCK_STREAM, 262),
    ("unix", socket.AF_UNIX, socket.SOCK_STREAM, 0),
):
    _opened(_name, _family, _kind, _protocol)


@attempt("reach a TCP server on this machine")
def tcp(t: Target) -> str:
    with socket.create_connection(("127.0.0.1", t.tcp), 2) as sock:
        sock.sendall(t.nonce.encode())
    return "sent"


@attempt("reach a UDP server on this machine")
def udp(t: Target) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(t.nonce.encode(), ("127.0.0.1", t.udp))
    return "sent"


@attempt("reach a unix socket by path")
def unix(t: Target) -> str:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(t.path)
        sock.sendall(t.nonce.encode())
    return "sent"


@attempt("reach an abstract unix socket")
def abstract(t: Target) -> str:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect("\0" + t.abstract)
        sock.sendall(t.nonce.encode())
    return "sent"


@attempt("reach a unix socket by TCP's fast open")
def fast_open(t: Target) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.sendto(t.nonce.encode(), 0x20000000, ("127.0.0.1", t.tcp))
    return "sent"


@attempt("listen to the world", word=True)
def listen(t: Target) -> str:
    with socket.socket(socket.AF_INET) as sock:
        sock.bind(("0.0.0.0", 0))
        sock.listen()
        return f"port {sock.getsockname()[1]}"


@attempt("listen at an abstract name", word=True)
def listen_abstract(t: Target) -> str:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("\0" + t.nonce)
        sock.listen()
        return "listens"


@attempt("ask for a name's address", word=True)
def resolve(t: Target) -> str:
    """No server need answer: that a question can leave is enough."""
    question = (
        b"\x12\x34\x01\x00\x00\x01" + bytes(6) + b"\x07isovist\x07invalid\x00\x00\x01\x00\x01"
    )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return f"{sock.sendto(question, ('127.0.0.53', 53))} bytes"


@attempt("connect a socket pair elsewhere")
def pair(t: Target) -> str:
    """A pair is allowed (event loops need one); a datagram end may try to send to another name."""
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.sendto(t.nonce.encode(), t.path + ".dgram")
    return "sent"


@attempt("reconnect a socket pair to a server")
def reconnect(t: Target) -> str:
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    one.connect(t.path)
    one.sendall(t.nonce.encode())
    return "sent"


@attempt("make a socket pair of another family", word=True)
def other_pair(t: Target) -> str:
    pair = bytearray(8)
    import ctypes

    buffer = (ctypes.c_char * 8).from_buffer(pair)
    syscall(53, 30, socket.SOCK_STREAM, 0, buffer)  # AF_TIPC knows pairs
    return f"descriptors {struct.unpack('ii', pair)}"


@attempt("come in by the kernel's own door")
def door(t: Target) -> str:
    """As the operator, with the token from beside the socket."""
    from isovist.syscalls.client import connect

    with open(os.path.join(os.path.dirname(t.door), "token")) as file:
        token = file.read()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(t.door)
    with connect("victim", t.person, socket=t.door, token=token) as client:
        units = client.read(t.unit).units
        return " ".join(unit.text for unit in units)


@attempt("knock at the kernel's door", word=True)
def knock(t: Target) -> str:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(t.door)
    return "connected"


@attempt("come in by what the environment names", word=True)
def environment(t: Target) -> str:
    """As a second client that the kernel takes for its operator."""
    from isovist.syscalls.client import connect
    from isovist.syscalls.errors import IsovistError

    try:
        with connect(None, None, socket=t.door) as client:
            return client.whoami().agent
    except IsovistError as e:
        raise PermissionError(13, e.message) from None
