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
