"""An embedder out of a GGUF file, over llama-cpp-python's low-level interface (extra ``[llama]``).

Only processes of their own make one: an assert in llama.cpp ends the process that holds it.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from isovist.storage.choice import Choice, clean, fingerprint, lacking, unit
from isovist.storage.dense import Vector
from isovist.syscalls.errors import Errno, WorldError

_ERROR_LEVEL = 4
_UNSPECIFIED, _NONE = -1, 0
_POOLING = {"mean": 1, "cls": 2, "last": 3}
_UNSAID = "llama.cpp gives no reason"

_kept: list[Any] = []
"""Log callbacks: llama.cpp holds a raw pointer to the last one set, whatever became of its model,
so each lives as long as the process."""


class GgufEmbedder:
    """``gguf:/path/model.gguf``. The file says how it pools; one that does not (a model made for
    chat) takes the mean. One thread, so that a vector's bits are the same on every call.

    Raises :class:`WorldError` where the file cannot be used.
    """

    def __init__(self, choice: Choice) -> None:
        try:
            # Untyped on purpose: the checkers must pass where the extra is not installed.
            lib: Any = importlib.import_module("llama_cpp.llama_cpp")
        except ImportError as e:
            raise lacking("llama", e) from None
        path = Path(choice.target)
        self.name = choice.named(f"gguf:{path.stem}@{fingerprint([path])}")
        self._lib, self._choice = lib, choice
        self._errors: deque[str] = deque(maxlen=4)
        on_log = lib.llama_log_callback(self._log)
        _kept.append(on_log)
        lib.llama_log_set(on_log, ctypes.c_void_p(0))
        lib.llama_backend_init()
        self._model = lib.llama_model_load_from_file(
            os.fsencode(path), lib.llama_model_default_params()
        )
        if self._model is None:
            raise self._unusable(path)
        self.dim = int(lib.llama_model_n_embd(self._model))
        self._vocab = lib.llama_model_get_vocab(self._model)
        trained = int(lib.llama_model_n_ctx_train(self._model))
        self._tokens = min(choice.tokens, trained) if trained > 0 else choice.tokens
        self._context = self._open(_POOLING.get(choice.pooling, _UNSPECIFIED))
        if self._context and lib.llama_pooling_type(self._context) == _NONE:
            lib.llama_free(self._context)
            self._context = self._open(_POOLING["mean"])
        if not self._context:
            raise self._unusable(path)
        if lib.llama_pooling_type(self._context) not in _POOLING.values():
            raise WorldError(f"{path} ranks texts, it does not embed them", field="embedder")

    def embed(self, text: str) -> Vector:
        return self._embed(self._choice.passage + text)

    def embed_query(self, text: str) -> Vector:
        return self._embed(self._choice.query + text)

    def _open(self, pooling: int) -> Any:
        parameters = self._lib.llama_context_default_params()
        parameters.embeddings = True
        parameters.pooling_type = pooling
        # A text is one batch: pooling needs all of its tokens together.
        parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = self._tokens
        parameters.n_seq_max = 1
        parameters.n_threads = parameters.n_threads_batch = 1
        return self._lib.llama_init_from_model(self._model, parameters)

    def _embed(self, text: str) -> Vector:
        lib = self._lib
        ids = self._tokenise(clean(text)) or self._tokenise(" ")
        memory = lib.llama_get_memory(self._context)
        if memory:  # a model that reads both ways keeps none
            lib.llama_memory_clear(memory, True)
        array = (lib.llama_token * len(ids))(*ids)
        if lib.llama_decode(self._context, lib.llama_batch_get_one(array, len(ids))):
            raise WorldError(f"a text cannot be embedded: {self._reason()}", errno=Errno.EIO)
        found = lib.llama_get_embeddings_seq(self._context, 0)
        if not found:
            raise WorldError("the model gave no vector", errno=Errno.EIO)
        return unit(np.ctypeslib.as_array(found, shape=(self.dim,)).copy())

    def _tokenise(self, text: str) -> list[int]:
        """At most as many tokens as the model reads; nothing in a text is a control token."""
        data = text.encode()
        room = len(data) + 8
        ids = (self._lib.llama_token * room)()
        size = self._lib.llama_tokenize(self._vocab, data, len(data), ids, room, True, False)
        return list(ids[: min(max(size, 0), self._tokens)])

    def _unusable(self, path: Path) -> WorldError:
        return WorldError(f"{path} cannot be loaded: {self._reason()}", field="embedder")

    def _reason(self) -> str:
        return "; ".join(self._errors) or _UNSAID

    def _log(self, level: int, text: bytes, _: ctypes.c_void_p) -> None:
        """llama.cpp is silent on our stderr; its last errors are kept."""
        if level == _ERROR_LEVEL and text:
            self._errors.append(text.decode(errors="replace").strip())
