"""An endpoint of embeddings on this machine, whose answers a test decides."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from isovist.storage.embedder import HashEmbedder

HASH = HashEmbedder(16)


class Endpoint(ThreadingHTTPServer):
    """Answers as :class:`HashEmbedder` does; ``answer`` may do otherwise: (status, body)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.seen: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.paths: list[str] = []
        self.connections: set[Any] = set()
        self.answer: Callable[[str], tuple[int, bytes]] = vector_of

    @property
    def address(self) -> str:
        return f"openai:http://127.0.0.1:{self.server_port}/v1"


def vector_of(text: str) -> tuple[int, bytes]:
    # Not of unit length: servers differ, the embedder sees to it.
    values = [3.0 * float(x) for x in HASH.embed(text)]
    return 200, json.dumps({"object": "list", "data": [{"embedding": values}]}).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Endpoint

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(body)
        self.server.keys.append(self.headers.get("Authorization", ""))
        self.server.paths.append(self.path)
        self.server.connections.add(self.client_address)
        status, data = self.server.answer(body["input"])
        if status == 0:  # hang up without a word
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


# -- chat completions

Turn = Callable[["_Talker"], None]
"""What a server does with one request, over its own connection."""


class Completions(ThreadingHTTPServer):
    """An endpoint of chat completions: each request is answered by the next of ``turns``, and by
    ``then`` when there is none left."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Talker)
        self.seen: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.connections: set[Any] = set()
        self.turns: list[Turn] = []
        self.then: Turn = says("word0", " word1")
        self.gone = threading.Event()
        """A client has hung up on a server that had more to say."""
        self.gate = threading.Event()
        """What :func:`holds` waits for; opened when the test ends."""
        self.active = self.most = 0
        self.lock = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request: object, client_address: object) -> None:
        self.gone.set()


class _Talker(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Completions

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.seen.append({**body, "path": self.path})
            server.keys.append(self.headers.get("Authorization", ""))
            server.connections.add(self.client_address)
            turn = server.turns.pop(0) if server.turns else server.then
            server.active += 1
            server.most = max(server.most, server.active)
            server.lock.notify_all()
        try:
            turn(self)
        finally:
            with server.lock:
                server.active -= 1

    def begin(self, status: int = 200, kind: str = "text/event-stream", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def piece(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        self.wfile.write(b"0\r\n\r\n")

    def hang_up(self) -> None:
        """In the midst of an answer."""
        self.close_connection = True

    def log_message(self, *arguments: object) -> None:
        pass


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def delta(finish: str | None = None, **said: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": said, "finish_reason": finish}]}


def usage(prompt: int, written: int, cached: int = 0) -> dict[str, Any]:
    told = {"prompt_tokens": prompt, "completion_tokens": written}
    return {"choices": [], "usage": {**told, "prompt_tokens_details": {"cached_tokens": cached}}}


def streams(*events: bytes) -> Turn:
    """The events as they are, and the end of the answer."""

    def turn(it: _Talker) -> None:
        it.begin()
        for one in events:
            it.piece(one)
        it.end()

    return turn


def says(*words: str, finish: str = "stop") -> Turn:
    """A whole answer, a word an event."""
    return streams(
        event(**delta(role="assistant", content="")),
        *(event(**delta(content=word)) for word in words),
        event(**delta(finish)),
        event(**usage(11, len(words), 3)),
        b"data: [DONE]\n\n",
    )


def breaks(*words: str) -> Turn:
    """Hangs up in the midst of an event, after these words."""

    def turn(it: _Talker) -> None:
        it.begin()
        for word in words:
            it.piece(event(**delta(content=word)))
        it.piece(b'data: {"choices": [{"del')
        it.hang_up()

    return turn


def refuses(status: int, said: bytes = b"{}", **headers: str) -> Turn:
    def turn(it: _Talker) -> None:
        it.begin(status, "application/json", **headers)
        it.piece(said)
        it.end()

    return turn


def drops(it: _Talker) -> None:
    """Hangs up without a word."""
    it.hang_up()


def holds(*words: str) -> Turn:
    """These words, and nothing more before the gate opens or the client goes."""

    def turn(it: _Talker) -> None:
        it.begin()
        for word in words:
            it.piece(event(**delta(content=word)))
        it.connection.settimeout(0.02)
        while not it.server.gate.is_set():
            try:
                if not it.connection.recv(1):
                    it.server.gone.set()
                    return
            except TimeoutError:
                it.piece(b": still here\n\n")
        it.connection.settimeout(None)
        it.piece(event(**delta("stop")))
        it.end()

    return turn


@contextmanager
def completions(*turns: Turn) -> Iterator[Completions]:
    with Completions() as server:
        server.turns = list(turns)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.gate.set()
            server.shutdown()
            thread.join()
