"""A row's text comes back as it was put in, and its size is told without reading it."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isovist.storage import texts


@given(st.text(st.characters(exclude_categories=("Cs",))), st.integers(1, 40))
def test_any_text_comes_back(text: str, times: int) -> None:
    whole = text * times
    held = texts.pack(whole)
    assert texts.unpack(held) == whole
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE units (text TEXT NOT NULL)")
        db.execute("INSERT INTO units VALUES (?)", (held,))
        read, size = db.execute(f"SELECT text, {texts.SIZE} FROM units").fetchone()
        assert texts.unpack(read) == whole
        assert size == len(whole.encode())


@pytest.mark.parametrize(("text", "deflated"), [("tea " * 100, True), ("tea " * 10, False)])
def test_long_texts_alone_are_deflated(text: str, deflated: bool) -> None:
    assert isinstance(texts.pack(text), bytes) is deflated
    assert len(texts.pack(text)) <= len(text)
