"""An embedder out of an ONNX file and its tokenizer (extra ``[onnx]``)."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from isovist.storage.choice import Choice, clean, fingerprint, lacking, unit
from isovist.storage.dense import Vector
from isovist.syscalls.errors import WorldError

MODEL, TOKENIZER = "model.onnx", "tokenizer.json"
_KNOWN_INPUTS = {"input_ids", "attention_mask", "token_type_ids"}


class OnnxEmbedder:
    """``onnx:/path/dir``, a folder with ``model.onnx`` (and the data files beside it, where its
    weights lie outside) and ``tokenizer.json``.

    An output of shape (1, dim) is the text's vector; else one of (1, tokens, dim) is pooled: by
    its mean, unless the choice says ``cls`` (the first token) or ``last``. One thread, the CPU.

    Raises :class:`WorldError` where the folder cannot be used.
    """

    def __init__(self, choice: Choice) -> None:
        try:
            # Untyped on purpose: the checkers must pass where the extra is not installed.
            runtime: Any = importlib.import_module("onnxruntime")
            tokenizers: Any = importlib.import_module("tokenizers")
        except ImportError as e:
            raise lacking("onnx", e) from None
        folder = Path(choice.target)
        beside = sorted(p for p in folder.glob(f"{MODEL}*") if p.name != MODEL)
        mark = fingerprint([folder / MODEL, folder / TOKENIZER, *beside])
        self.name = choice.named(f"onnx:{folder.resolve().name}@{mark}")
        self._choice = choice
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        try:
            self._session: Any = runtime.InferenceSession(
                str(folder / MODEL), options, providers=["CPUExecutionProvider"]
            )
            self._tokenizer: Any = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER))
        except Exception as e:  # both raise types of their own, some of them plain Exception
            raise WorldError(f"{folder} cannot be loaded: {e}", field="embedder") from None
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(choice.tokens)
        self._inputs = [given.name for given in self._session.get_inputs()]
        if unknown := set(self._inputs) - _KNOWN_INPUTS:
            raise WorldError(
                f"{folder}: the model wants an input {min(unknown)!r}", field="embedder"
            )
        self._output = self._choose_output(folder)
        self.dim = len(self.embed("dimension"))

    def embed(self, text: str) -> Vector:
        return self._embed(self._choice.passage + text)

    def embed_query(self, text: str) -> Vector:
        return self._embed(self._choice.query + text)

    def _choose_output(self, folder: Path) -> str:
        ranks = {out.name: len(out.shape) for out in self._session.get_outputs()}
        pooled = self._choice.pooling in ("mean", "cls", "last")
        for rank in (3,) if pooled else (2,) if self._choice.pooling else (2, 3):
            for name, found in ranks.items():
                if found == rank:
                    return str(name)
        raise WorldError(f"{folder}: no output of the model is a vector", field="embedder")

    def _embed(self, text: str) -> Vector:
        text = clean(text)
        ids = self._tokenizer.encode(text).ids or self._tokenizer.encode(" ").ids or [0]
        shape = (1, len(ids))
        given = {
            "input_ids": np.asarray(ids, np.int64).reshape(shape),
            "attention_mask": np.ones(shape, np.int64),
            "token_type_ids": np.zeros(shape, np.int64),
        }
        try:
            (out,) = self._session.run([self._output], {name: given[name] for name in self._inputs})
        except Exception as e:  # the runtime raises types of its own
            raise WorldError(f"a text cannot be embedded: {type(e).__name__}") from None
        # One text a call, unpadded: every token counts.
        rows = np.asarray(out, np.float32)[0]
        if rows.ndim == 1:
            return unit(rows)
        if self._choice.pooling == "cls":
            return unit(rows[0])
        return unit(rows[-1] if self._choice.pooling == "last" else rows.mean(axis=0))
