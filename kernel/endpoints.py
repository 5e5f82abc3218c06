"""Endpoints as configured: where a remote model stands, and how it is asked.

A key is named by the environment variable that holds it; no file of ours and no command line ever
holds the key itself.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import msgspec

from isovist.kernel.drivers.completions import Form, Length, Omit
from isovist.syscalls.errors import CallerError
from isovist.syscalls.names import check_name

DEFAULT_SLOTS = 8
PROXIES = (
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy",
    "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip
"""Variables of the way to an endpoint, which its driver is given."""
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,127}\Z")
_LOCAL = ("localhost", "127.0.0.1", "::1")


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model behind an address that speaks the chat completions format.

    ``url`` is what stands before ``/chat/completions``; ``model`` what the endpoint calls the
    model; ``key`` the name of the environment variable that holds the key (empty: none is sent);
    ``context`` in tokens; ``slots`` requests at a time; ``tries`` of one request at most;
    ``silence`` seconds that it may say nothing. ``tokenizer`` counts prompts: ``bound`` (UTF-8
    bytes, which no token is shorter than), ``estimate`` (a third of that), or the path of a GGUF
    file with the model's vocabulary. The rest is as in
    :class:`~isovist.kernel.drivers.completions.Dialect`.
    """

    url: str
    model: str
    key: str = ""
    context: int = 8192
    slots: int = DEFAULT_SLOTS
    tries: int = 4
    silence: float = 120.0
    tokenizer: str = "bound"
    omit: tuple[Omit, ...] = ()
    length: Length = "max_tokens"
    form: Form = "json_schema"

    def arguments(self) -> tuple[str, ...]:
        """Of its driver process."""
        named = {
            "--url": self.url,
            "--model": self.model,
            "--context": self.context,
            "--slots": self.slots,
            "--tries": self.tries,
            "--silence": self.silence,
            "--length": self.length,
            "--form": self.form,
        }
        words = [f"{option}={value}" for option, value in named.items()]
        words += [f"--key={self.key}"] if self.key else []
        return (*words, *(f"--omit={name}" for name in self.omit))

    @property
    def keep(self) -> tuple[str, ...]:
        """What of the kernel's environment its driver needs."""
        return (self.key, *PROXIES) if self.key else PROXIES


def check(name: str, endpoint: Endpoint) -> None:
    """Raises ``EINVAL`` that names the field; it quotes no value, as one may be a key."""

    def refuse(field: str, rule: str) -> CallerError:
        return CallerError(f"endpoints.{name}.{field} {rule}", field="endpoints")

    check_name(name, "endpoints")
    try:
        address = urlsplit(endpoint.url)
        host, _ = address.hostname or "", address.port
    except ValueError:
        raise refuse("url", "is no address") from None
    if address.scheme not in ("http", "https") or not host:
        raise refuse("url", "is written https://host/v1")
    if "@" in address.netloc or address.query or address.fragment:
        raise refuse("url", "holds an address alone; a key stands in the environment")
    if endpoint.key and not _VARIABLE.match(endpoint.key):
        rule = "is the name of an environment variable (A-Z, 0-9, _), never the key itself"
        raise refuse("key", rule)
    if endpoint.key and address.scheme == "http" and host not in _LOCAL:
        raise refuse("key", "goes over https, or to this machine alone")
    if not endpoint.model:
        raise refuse("model", "is empty")
    if not 256 <= endpoint.context <= 1 << 24:
        raise refuse("context", f"must be 256 to {1 << 24}")
    if not 1 <= endpoint.slots <= 256:
        raise refuse("slots", "must be 1 to 256")
    if not 1 <= endpoint.tries <= 10:
        raise refuse("tries", "must be 1 to 10")
    if not 0.1 <= endpoint.silence <= 3600:
        raise refuse("silence", "must be 0.1 to 3600 seconds")
    if endpoint.tokenizer not in ("bound", "estimate") and not endpoint.tokenizer.startswith("/"):
        raise refuse("tokenizer", "is bound, estimate, or the absolute path of a GGUF file")
