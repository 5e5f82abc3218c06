"""The reference page is made from the Structs, and the committed one is up to date."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.test_wire import REPLIES, REQUESTS

from isovist.syscalls import messages as m
from isovist.syscalls import reference
from isovist.syscalls.errors import Errno


def test_the_page_in_the_documents_is_up_to_date():
    committed = Path(__file__).parent.parent / "docs" / "syscalls.md"
    assert committed.read_text() == reference.page(), "python -m isovist.syscalls.reference"


def test_the_page_names_every_syscall_reply_field_and_error():
    page = reference.page()
    for name in m.NAMES.values():
        assert f"\n### {name}\n" in page
    for kind in [*REQUESTS, *REPLIES]:
        section = page.partition(f"`{kind.__name__}`, tag {kind.__struct_config__.tag}.")[2]
        rows = section.partition("\n### ")[0]
        skip = 2 if issubclass(kind, m.Call) else 0
        for at, field in enumerate(msgspec.structs.fields(kind)[skip:], skip + 1):
            assert f"| {at} | `{field.name}` | " in rows, (kind, field.name)
    for number in Errno:
        assert f"| {number.value} | `{number.name}` | " in page


def test_a_stale_or_missing_page_is_found(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(reference, "PAGE", tmp_path / "syscalls.md")
    assert reference.main(["--check"]) == 1
    assert reference.main([]) == 0
    assert reference.main(["--check"]) == 0
    reference.PAGE.write_text("old")
    assert reference.main(["--check"]) == 1
    assert "not up to date" in capsys.readouterr().err
    assert reference.main(["--wrong"]) == 2


def test_a_type_without_words_is_an_error():
    with pytest.raises(TypeError, match="no words"):
        reference._type(complex)
