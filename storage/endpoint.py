"""An embedder behind an address that speaks OpenAI's ``/v1/embeddings``.

The key comes from the environment and goes into one header of one connection, nowhere else: no
message, no name, no log holds it.
"""

from __future__ import annotations

import http.client
import os
from contextlib import suppress
from urllib.parse import urlsplit

import msgspec

from isovist.storage.choice import Choice, clean, unit
from isovist.storage.chunks import LIMIT
from isovist.storage.dense import Vector
from isovist.syscalls.errors import CallerError, Errno, IsovistError, WorldError

KEY = "ISOVIST_EMBEDDER_KEY"
OPENAI_KEY = "OPENAI_API_KEY"
"""Holds the key where the host is OpenAI's own and ``KEY`` is not set."""
TIMEOUT_S = 10.0
"""For a connection to stand, and for each answer."""
_ANSWER_BYTES = 1 << 20
_LONGEST = LIMIT + 100
_LOCAL = ("localhost", "127.0.0.1", "::1")


class _One(msgspec.Struct):
    embedding: list[float]


class _Answer(msgspec.Struct):
    data: list[_One]


class _Question(msgspec.Struct, frozen=True):
    model: str
    input: str
    encoding_format: str = "float"


class EndpointEmbedder:
    """``openai:http://host/v1#model``. What stands behind an address cannot be seen: the name
    holds the address and the model's name, and its keeper must not change the weights below them.

    Asks once when made, to learn the dimension. Raises ``EINVAL`` for a wrong address and for a
    text that is refused, ``EAGAIN``, ``EPIPE`` and ``ETIMEDOUT`` for what may pass, ``EIO`` for an
    answer that is none. One connection; not for several threads at once.
    """

    def __init__(self, choice: Choice) -> None:
        address = urlsplit(choice.target)
        host = address.hostname or ""
        if address.scheme not in ("http", "https") or not host or not choice.model:
            raise _wrong("is written openai:http://host/v1#model")
        if address.username is not None or address.password is not None:
            raise _wrong(f"the key stands in the environment, as {KEY}, never in the address")
        try:
            port = address.port
        except ValueError:
            raise _wrong("the port must be a number up to 65535") from None
        key = os.environ.get(KEY, "")
        if not key and host == "api.openai.com":
            key = os.environ.get(OPENAI_KEY, "")
        if key and address.scheme == "http" and host not in _LOCAL:
            raise _wrong(f"{KEY} goes over https, or to this machine alone")
        if not (key.isascii() and key.isprintable()):
            raise _wrong(f"{KEY} holds characters that no header may")
        kind = http.client.HTTPSConnection if address.scheme == "https" else (
            http.client.HTTPConnection
        )  # fmt: skip
        self._connection = kind(host, port, timeout=TIMEOUT_S)
        self._path = address.path.rstrip("/") + "/embeddings"
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._choice = choice
        self.name = choice.named(f"openai:{address.netloc}{address.path}#{choice.model}")
        self.dim = 0
        self.dim = len(self.embed("dimension"))

    def embed(self, text: str) -> Vector:
        return self._embed(self._choice.passage + text)

    def embed_query(self, text: str) -> Vector:
        return self._embed(self._choice.query + text)

    def _embed(self, text: str) -> Vector:
        if len(text) > _LONGEST:
            text = text[: _LONGEST // 2] + text[-_LONGEST // 2 :]
        # Some servers refuse an empty text.
        question = _Question(self._choice.model, clean(text) or " ")
        status, body = self._ask(msgspec.json.encode(question))
        if status != 200:
            raise _refusal(status)
        try:
            (one,) = msgspec.json.decode(body, type=_Answer).data
        except (msgspec.DecodeError, ValueError):
            raise WorldError("the endpoint's answer holds no vector", errno=Errno.EIO) from None
        if self.dim and len(one.embedding) != self.dim:
            raise WorldError(
                f"the endpoint gave {len(one.embedding)} dimensions, not {self.dim}",
                errno=Errno.EIO,
            )
        return unit(one.embedding)

    def _ask(self, body: bytes) -> tuple[int, bytes]:
        """The answer's status and body. A kept connection that the server has closed meanwhile is
        opened again, once."""
        kept = self._connection.sock is not None
        while True:
            try:
                self._connection.request("POST", self._path, body, self._headers)
                with self._connection.getresponse() as answer:
                    data = answer.read(_ANSWER_BYTES + 1)
                    if len(data) > _ANSWER_BYTES:
                        self._connection.close()
                    return answer.status, data
            except TimeoutError:
                self._connection.close()
                late = WorldError("the endpoint did not answer in time", errno=Errno.ETIMEDOUT)
                raise late from None
            except (OSError, http.client.HTTPException) as e:
                self._connection.close()
                if kept and isinstance(e, ConnectionError | http.client.BadStatusLine):
                    kept = False
                    continue
                raise WorldError(
                    f"the endpoint cannot be reached: {type(e).__name__}", errno=Errno.EPIPE
                ) from None

    def close(self) -> None:
        with suppress(OSError):
            self._connection.close()


def _refusal(status: int) -> IsovistError:
    """By who must act. The answer's words are left out: some servers quote the text or the key."""
    if status in (400, 413, 422):
        return CallerError(f"the endpoint refuses the text (HTTP {status})")
    if status in (401, 403):
        return WorldError(f"the endpoint refuses the key in {KEY} (HTTP {status})",
                          errno=Errno.EAGAIN)  # fmt: skip
    return WorldError(f"the endpoint answers HTTP {status}", errno=Errno.EAGAIN)


def _wrong(rule: str) -> CallerError:
    return CallerError(f"embedder openai: {rule}", field="embedder")
