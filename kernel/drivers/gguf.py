"""A GGUF model or only its vocabulary, over llama-cpp-python's low-level interface.

This and ``storage/gguf.py``, for embeddings, are all that imports llama_cpp, and only processes
import them: an assert in llama.cpp ends the process that holds it.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import takewhile
from typing import Any

from isovist.kernel.drivers.peer import Unusable
from isovist.kernel.drivers.prompt import PLAIN, ChatTemplate
from isovist.syscalls.errors import CallerError
from isovist.syscalls.records import Message

# Untyped on purpose: its annotations name ctypes types where plain Python values come out, and
# the checkers must pass where the extra is not installed.
lib: Any = importlib.import_module("llama_cpp.llama_cpp")

_ERROR_LEVEL = 4
_META_BYTES = 1024
SPOKEN = 1 << 16
"""Tokens of answers that are remembered as they were written."""
_kept: list[Any] = []
"""Log callbacks: llama.cpp holds the last one set, whatever became of its model."""


class Model:
    """A model file, open until the process ends.

    Raises :class:`~isovist.kernel.drivers.peer.Unusable` where the file cannot be used.
    ``progress`` is called with 0 to 1 while the weights load; with ``vocab_only`` none do.
    """

    def __init__(
        self,
        path: str,
        *,
        vocab_only: bool = False,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        if not os.path.isfile(path):
            raise Unusable(f"no model file at {path}")
        self._errors: deque[str] = deque(maxlen=4)
        # llama.cpp keeps these two as raw pointers: this must live as long as the model.
        self._on_progress = lib.llama_progress_callback(_watch(progress))
        on_log = lib.llama_log_callback(self._log)
        _kept.append(on_log)
        lib.llama_log_set(on_log, ctypes.c_void_p(0))
        lib.llama_backend_init()
        parameters = lib.llama_model_default_params()
        parameters.vocab_only = vocab_only
        parameters.progress_callback = self._on_progress
        handle = lib.llama_model_load_from_file(os.fsencode(path), parameters)
        if handle is None:
            raise Unusable(f"{path} cannot be loaded: {self.last_error()}")
        self.handle = handle
        vocab = lib.llama_model_get_vocab(handle)
        if vocab is None:
            raise Unusable(f"{path} holds no vocabulary")
        self.vocab = vocab
        # What a template writes between contents repeats in every prompt, and looking for special
        # tokens is the dearest part of a count.
        self._control = lru_cache(maxsize=256)(partial(self.tokenise, special=True))
        # A token's bytes never change, and every answer asks for them.
        self.piece = lru_cache(maxsize=None)(partial(self._piece, special=False))
        """The bytes of one token; control tokens have none."""
        self._spoken: OrderedDict[str, list[int]] = OrderedDict()
        self._spoken_tokens = 0
        self.name = self.metadata("general.name") or os.path.basename(path)
        self.tokenizer = "/".join(
            part
            for part in map(self.metadata, ("tokenizer.ggml.model", "tokenizer.ggml.pre"))
            if part
        )
        self.trained_context = int(lib.llama_model_n_ctx_train(handle))
        self._bos = lib.llama_vocab_bos(vocab) if lib.llama_vocab_get_add_bos(vocab) else None
        source = lib.llama_model_chat_template(handle, None)
        try:
            self._template = ChatTemplate(
                source.decode() if source else PLAIN,
                bos=self._special(lib.llama_vocab_bos(vocab)),
                eos=self._special(lib.llama_vocab_eos(vocab)),
            )
        except (UnicodeDecodeError, ValueError) as e:
            raise Unusable(f"{path}: {e}") from None

    def last_error(self) -> str:
        """What llama.cpp last complained of, on one line."""
        return "; ".join(self._errors) or "llama.cpp gives no reason"

    def metadata(self, key: str) -> str:
        """One value of the file's metadata (at most 1 KiB), empty where there is none."""
        buffer = ctypes.create_string_buffer(_META_BYTES)
        size = lib.llama_model_meta_val_str(self.handle, key.encode(), buffer, _META_BYTES)
        return buffer.value.decode(errors="replace") if size >= 0 else ""

    def tokenise(self, text: str, special: bool) -> list[int]:
        """Token ids of ``text``; control tokens are recognised only with ``special``."""
        data = text.encode()
        room = len(data) + 8  # a token holds at least one byte, but for a few that are added
        ids = (lib.llama_token * room)()
        size = lib.llama_tokenize(self.vocab, data, len(data), ids, room, False, special)
        if size < 0:
            ids = (lib.llama_token * -size)()
            size = lib.llama_tokenize(self.vocab, data, len(data), ids, -size, False, special)
        return list(ids[:size])

    def prompt(self, messages: Sequence[Message], *, spoken: bool = False) -> list[int]:
        """Token ids of the whole prompt. With ``spoken``, a turn that repeats an answer of this
        model has the tokens that the model chose, which its text need not be cut into when it is
        tokenised anew. Raises ``EINVAL`` where the template refuses the messages."""
        ids = [
            token
            for text, control in self._template.parts(messages)
            for token in (
                self._control(text)
                if control
                else (spoken and self._spoken.get(text)) or self.tokenise(text, special=False)
            )
        ]
        if self._bos is not None and ids[:1] != [self._bos]:
            ids.insert(0, self._bos)
        if not ids:
            raise CallerError("the model's chat template makes an empty prompt", field="messages")
        return ids

    def head(self, messages: Sequence[Message], tokens: Sequence[int]) -> int:
        """How many of the prompt's ``tokens`` stand before the first word of a conversation: what
        the template writes there, and the system turns that come first."""
        system = [m.content for m in takewhile(lambda m: m.role == "system", messages) if m.content]
        ids = [self._bos] if self._bos is not None else []
        for text, control in self._template.parts(messages):
            if not control and (not system or system.pop(0) != text):
                break
            more = self._control(text) if control else self.tokenise(text, special=False)
            # A template may begin with the token that is added where it does not.
            ids = more if ids == more[:1] else ids + more
        return len(ids) if list(tokens[: len(ids)]) == ids else 0

    def remember(self, text: str, tokens: Sequence[int]) -> None:
        """The model has written ``text`` with these tokens. The oldest are forgotten over
        :data:`SPOKEN` tokens in all."""
        if not text or len(tokens) > SPOKEN:
            return
        self._spoken_tokens += len(tokens) - len(self._spoken.pop(text, ()))
        self._spoken[text] = list(tokens)
        while self._spoken_tokens > SPOKEN:
            self._spoken_tokens -= len(self._spoken.popitem(last=False)[1])

    def forget(self) -> None:
        """Remember no answer any more."""
        self._spoken.clear()
        self._spoken_tokens = 0

    def is_end(self, token: int) -> bool:
        """True for the tokens by which the model ends its turn."""
        return bool(lib.llama_vocab_is_eog(self.vocab, token))

    def _special(self, token: int) -> str:
        return self._piece(token, special=True).decode(errors="replace") if token >= 0 else ""

    def _piece(self, token: int, special: bool) -> bytes:
        buffer = ctypes.create_string_buffer(64)
        size = lib.llama_token_to_piece(self.vocab, token, buffer, 64, 0, special)
        if size < 0:
            buffer = ctypes.create_string_buffer(-size)
            size = lib.llama_token_to_piece(self.vocab, token, buffer, -size, 0, special)
        return buffer.raw[:size]

    def _log(self, level: int, text: bytes, _: ctypes.c_void_p) -> None:
        """llama.cpp is silent on our stderr; its errors are kept for :meth:`last_error`."""
        if level == _ERROR_LEVEL and text:
            self._errors.append(text.decode(errors="replace").strip())


def _watch(progress: Callable[[float], None] | None) -> Callable[[float, object], bool]:
    """A callback for llama.cpp that reports each further tenth, and never stops the load."""
    last = 0.0

    def watch(fraction: float, _: object) -> bool:
        nonlocal last
        if progress is not None and (fraction - last >= 0.1 or fraction >= 1.0 > last):
            last = fraction
            progress(fraction)
        return True

    return watch
