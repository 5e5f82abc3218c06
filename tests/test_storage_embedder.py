"""Embedders."""

from __future__ import annotations

import numpy as np
import pytest

from isovist.storage.embedder import Embedder, HashEmbedder, UniversalEmbedder, make_embedder
from isovist.storage.universal import Pieces
from isovist.syscalls.errors import CallerError


@pytest.fixture(scope="module")
def universal() -> UniversalEmbedder:
    return UniversalEmbedder()


def check(embedder: Embedder) -> None:
    for text in ("", "tea", "Ana deploys on Tuesdays", "部署在星期二", "\ud800", "x" * 9000, "😀"):
        vector = embedder.embed(text)
        assert vector.dtype == np.float32
        assert vector.shape == (embedder.dim,)
        assert abs(float((vector * vector).sum()) - 1.0) < 1e-5
        assert vector.tobytes() == embedder.embed(text).tobytes()


def test_the_hash_embedder_gives_unit_vectors() -> None:
    check(HashEmbedder())


def test_the_universal_embedder_gives_unit_vectors(universal: UniversalEmbedder) -> None:
    check(universal)


def test_the_universal_embedder_knows_meaning(universal: UniversalEmbedder) -> None:
    def near(a: str, b: str) -> float:
        return float((universal.embed(a) * universal.embed(b)).sum())

    fact = "Ana ships her software every Tuesday"
    assert near("On which weekday does Ana release?", fact) > near("What does Bob eat?", fact)
    assert near("安娜每周二发布软件", fact) > near("鲍勃喜欢喝茶", fact)


TEXTS = (
    "",
    "a",
    "When should I book the release review?",
    "部署在星期二",
    "My cat is called Ozzy. " * 8,
    "x_y-z v2.0 \u00e9 😀",
    " ".join(f"Note {n}: the harbour ferry leaves at {n % 24}:{n % 60:02}." for n in range(24)),
)


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_has_the_packages_own_vector(universal: UniversalEmbedder, text: str) -> None:
    ours, theirs = universal._encode(text), universal._package(text)
    assert ours is not theirs, "both are the package's: its arrays were not as expected"
    assert float(np.abs(ours - theirs).max()) < 1e-5


def test_what_was_embedded_before_changes_no_bit(universal: UniversalEmbedder) -> None:
    package = universal._package.__self__
    fresh = [Pieces(package._model).embed(text).tobytes() for text in TEXTS]
    used = Pieces(package._model)
    for text in reversed(TEXTS):
        used.embed(text + " and then some")
    assert [used.embed(text).tobytes() for text in TEXTS] == fresh


def test_a_bounded_number_of_pieces_is_kept(
    universal: UniversalEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isovist.storage.universal.KEPT", 4)
    small = Pieces(universal._package.__self__._model)
    text = "Ana ships her software every Tuesday"
    vector = small.embed(text)
    assert len(small._rows) == 4
    assert small.embed(text).tobytes() == vector.tobytes()


def test_a_package_that_is_built_otherwise_is_used_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(weights: object) -> None:
        raise AttributeError("w1")

    monkeypatch.setattr("isovist.storage.embedder.Pieces", refuse)
    plain = UniversalEmbedder()
    assert plain._encode == plain._package
    check(plain)


def test_an_unknown_embedder_is_named() -> None:
    with pytest.raises(CallerError, match="no embedder 'nope'"):
        make_embedder("nope")
    assert make_embedder("hash").name == "hash-256"
