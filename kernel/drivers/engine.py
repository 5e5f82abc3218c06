"""llama.cpp with one context of many sequences: decode, and move what they hold.

The cells are *split*: each sequence has room for a whole context of its own. Against one pool for
all that costs memory, and gains two things: attention reads the sequence's own cells alone, so
that a sequence's numbers do not depend on where its neighbours' cells lie, and decoding many long
conversations stays quick.

What a sequence holds is copied and moved as a *state*: bytes in host memory, as long as its
tokens. (``llama_memory_seq_cp`` between split sequences copies the whole of the room instead.)
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isovist.kernel.drivers.batch import Row
from isovist.kernel.drivers.gguf import Model, lib
from isovist.kernel.drivers.peer import Unusable
from isovist.syscalls.errors import WorldError

CHUNK = 512
"""Prompt tokens that one step reads at most, all sequences together."""
DECODE_THREADS = 1
PREFILL_THREADS = 2
# One thread decodes as fast as two on two cores, and does not stall when a neighbour is busy.
F16_BYTES = 2

State = NDArray[np.uint8]
"""What a sequence holds, as bytes: good for this model file and these settings alone."""


class Engine:
    """A context of ``sequences`` sequences of ``context`` tokens each.

    Raises :class:`~isovist.kernel.drivers.peer.Unusable` where there is no memory for it.
    """

    def __init__(self, model: Model, context: int, sequences: int) -> None:
        self.context = min(context, model.trained_context) if model.trained_context else context
        self.sequences = sequences
        self.vocabulary = int(lib.llama_vocab_n_tokens(model.vocab))
        parameters = lib.llama_context_default_params()
        parameters.n_ctx = self.context * sequences
        parameters.n_batch = parameters.n_ubatch = min(CHUNK, self.context) + sequences
        parameters.n_seq_max = sequences
        parameters.n_outputs_max = sequences
        parameters.kv_unified = False
        parameters.n_threads = DECODE_THREADS
        parameters.n_threads_batch = PREFILL_THREADS
        parameters.no_perf = True
        handle = lib.llama_init_from_model(model.handle, parameters)
        if handle is None:
            raise Unusable(
                f"no memory for {sequences} sequences of {self.context} tokens: "
                f"{model.last_error()}"
            )
        self._handle = handle
        self._model = model
        self._memory = lib.llama_get_memory(handle)
        if self._memory is None:
            raise Unusable(f"{model.name} generates no text")
        self._batch = _Batch(parameters.n_batch)
        self.room = min(CHUNK, self.context)
        self._spare: State | None = None
        """Memory of a state that nobody needs any more. The first touch of fresh memory takes
        longer than to fill it: 46 MB took 7 ms where they had been used before, else 13 to 190."""
        self.partial = not (
            lib.llama_model_is_recurrent(model.handle) or lib.llama_model_is_hybrid(model.handle)
        )
        """Whether the end of a sequence can be cut off. A recurrent state cannot be rewound."""
        # One decode touches all weights, so that the first caller does not wait for the disk.
        self.decode([Row(0, 0, [0], choose=True)])
        self.cut(0, 0)

    def decode(self, rows: Sequence[Row]) -> dict[int, NDArray[np.float32]]:
        """One step. Returns the logits, shape (vocabulary,), by sequence, good until the next
        step. Each sequence stands in one row at most; all tokens together are at most ``room``
        and one a sequence.

        Raises ``EIO`` where llama.cpp fails; what the sequences of the rows hold is then unknown.
        """
        batch, outputs = self._batch, {}
        batch.clear()
        # llama.cpp puts sequences into one matrix product only where their numbers are
        # consecutive and rising.
        for row in sorted(rows, key=lambda row: row.sequence):
            last = batch.add(row)
            if row.choose:
                outputs[row.sequence] = last
        status = lib.llama_decode(self._handle, batch.struct)
        if status != 0:
            raise WorldError(f"llama.cpp could not decode ({status}): {self._model.last_error()}")
        return {sequence: self._logits(at) for sequence, at in outputs.items()}

    def cut(self, sequence: int, keep: int) -> int:
        """Drop all but the first ``keep`` tokens; returns how many are left: ``keep``, or 0 where
        the model cannot drop a part."""
        if lib.llama_memory_seq_rm(self._memory, sequence, keep or -1, -1):
            return keep
        lib.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        return 0

    def save(self, sequence: int) -> State:
        """A copy of what the sequence holds."""
        size = lib.llama_state_seq_get_size(self._handle, sequence)
        spare, self._spare = self._spare, None
        if spare is None or not size <= len(spare) <= 2 * size:
            spare = np.empty(size, np.uint8)
        state: State = spare[:size]
        got = lib.llama_state_seq_get_data(self._handle, _bytes(state), size, sequence)
        if got != size:
            raise WorldError(f"llama.cpp saved {got} of {size} bytes of a sequence")
        return state

    def spare(self, state: State) -> None:
        """What was saved is needed no more: its memory may hold the next."""
        whole = state.base  # as `save` made it; what came from a file lies in memory of its own
        if isinstance(whole, np.ndarray) and (self._spare is None or len(whole) > len(self._spare)):
            self._spare = whole

    def flush(self) -> None:
        """Give back what was spared, with what it still holds."""
        self._spare = None

    def load(self, sequence: int, state: State) -> bool:
        """Let the sequence hold what was saved, in place of what it held. False, and the
        sequence is empty, where llama.cpp refuses."""
        self.cut(sequence, 0)
        if lib.llama_state_seq_set_data(self._handle, _bytes(state), len(state), sequence):
            return True
        self.cut(sequence, 0)
        return False

    def _logits(self, at: int) -> NDArray[np.float32]:
        address = lib.llama_get_logits_ith(self._handle, at)
        if not address:
            raise WorldError(f"llama.cpp gave no logits: {self._model.last_error()}")
        return np.ctypeslib.as_array(address, shape=(self.vocabulary,))


class _Batch:
    """llama.cpp's batch, over numpy's memory: at most ``size`` tokens, each of one sequence."""

    def __init__(self, size: int) -> None:
        self._size = 0
        self._token = np.zeros(size, np.int32)
        self._position = np.zeros(size, np.int32)
        self._sequence = np.zeros(size, np.int32)
        self._one = np.ones(size, np.int32)
        self._output = np.zeros(size, np.int8)
        # Each token names its sequences by a pointer; here to its own place in one array.
        self._pointers = self._sequence.ctypes.data + 4 * np.arange(size, dtype=np.uintp)
        self.struct = lib.llama_batch(
            0,
            _pointer(self._token, lib.llama_token),
            None,
            _pointer(self._position, lib.llama_pos),
            _pointer(self._one, ctypes.c_int32),
            _pointer(self._pointers, ctypes.POINTER(lib.llama_seq_id)),
            _pointer(self._output, ctypes.c_int8),
        )

    def clear(self) -> None:
        self._size = self.struct.n_tokens = 0

    def add(self, row: Row) -> int:
        """Returns the place of the row's last token."""
        size, start = len(row.tokens), self._size
        end = start + size
        self._token[start:end] = row.tokens
        self._position[start:end] = np.arange(row.start, row.start + size)
        self._sequence[start:end] = row.sequence
        self._output[start:end] = 0
        self._output[end - 1] = row.choose
        self._size = self.struct.n_tokens = end
        return end - 1


def cell_bytes(model: Model) -> int:
    """Bytes that one token takes in a sequence: keys and values of all layers, 16 bits each."""
    handle = model.handle
    heads = max(1, lib.llama_model_n_head(handle))
    architecture = model.metadata("general.architecture")
    width = model.metadata(f"{architecture}.attention.key_length")
    size = int(width) if width.isdigit() else lib.llama_model_n_embd(handle) // heads
    layers, shared = lib.llama_model_n_layer(handle), lib.llama_model_n_head_kv(handle)
    return max(1, int(2 * F16_BYTES * layers * shared * size))


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))


def _bytes(state: State) -> Any:
    return _pointer(state, ctypes.c_uint8)
