"""Where forgotten units leave traces: files byte by byte, SQLite, the shared index, graphs, and the
memory of processes. For :mod:`bench.erase`, whose canaries have words that no other text holds."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tantivy
from numpy.typing import NDArray

from isovist.storage import forward, graph
from isovist.storage.inverted import SCHEMA

WORD = re.compile(rb"zq[bcdfghjklmnp]{12}")
WIDE = re.compile(rb"z\0q\0(?:[bcdfghjklmnp]\0){12}")
"""A canary's word, in UTF-8 and in UTF-16. Folding and stemming leave it as it is."""


@dataclass
class Numbers:
    """What the file called the canaries, read before they were forgotten. ``pieces``: stretches of
    8 bytes of their vectors and of their texts, where these are deflated, that no other vector or
    text has (uint64, sorted)."""

    tids: set[int]
    uids: set[int]
    rows: set[int]
    pieces: NDArray[np.uint64]


def words_in(data: bytes) -> Iterator[str]:
    for match in WORD.finditer(data):
        yield match.group().decode()
    for match in WIDE.finditer(data):
        yield match.group().decode("utf-16-le")


def pieces_of(vectors: Iterable[bytes]) -> NDArray[np.uint64]:
    """All stretches of 8 bytes, one after the other, that hold four values other than 0."""
    joined = b"".join(vectors)
    pieces = np.frombuffer(joined, "<u8")
    whole = (np.frombuffer(joined, "<f2").reshape(-1, 4) != 0).all(axis=1)
    return np.unique(pieces[whole])


def pieces_of_texts(deflated: Iterable[bytes]) -> NDArray[np.uint64]:
    """All stretches of 8 bytes of each stream, from its third on: first comes the text's size."""
    cut = (held[16 : len(held) - len(held) % 8] for held in deflated)
    return np.unique(np.frombuffer(b"".join(cut), "<u8"))


def count_pieces(data: bytes, pieces: NDArray[np.uint64]) -> int:
    count = 0
    for shift in range(8):
        words = np.frombuffer(data[shift : len(data) - (len(data) - shift) % 8], "<u8")
        at = np.minimum(np.searchsorted(pieces, words), len(pieces) - 1)
        count += int((pieces[at] == words).sum())
    return count


def in_sqlite(path: Path, numbers: Numbers) -> Iterator[str]:
    with closing(sqlite3.connect(path)) as db:
        (free,) = db.execute("PRAGMA freelist_count").fetchone()
        if free:
            yield f"{free} free pages"
        for table, column, gone in (
            ("units", "uid", numbers.uids),
            ("chunks", "row", numbers.rows),
            ("vectors", "row", numbers.rows),
            ("next_vectors", "row", numbers.rows),
            ("terms", "tid", numbers.tids),
            ("frequencies", "tid", numbers.tids),
        ):
            held = {n for (n,) in db.execute(f"SELECT DISTINCT {column} FROM {table}")}
            yield from (f"{table} holds {column} {n}" for n in sorted(held & gone)[:5])
        for row, terms in db.execute("SELECT row, terms FROM chunks"):
            if numbers.tids & forward.unpack(terms).keys():
                yield f"the forward index of row {row} holds a canary's term"


def in_index(path: Path, numbers: Numbers) -> Iterator[str]:
    meta: dict[str, Any] = json.loads((path / "meta.json").read_bytes())
    live = {segment["segment_id"].replace("-", "") for segment in meta["segments"]}
    for segment in meta["segments"]:
        if segment["deletes"]:
            yield f"a segment has {segment['deletes']} deleted documents"
    for entry in meta["schema"]:
        if entry["options"].get("stored"):
            yield f"the field {entry['name']} is stored"
    for file in path.iterdir():
        if file.suffix != ".json" and "." in file.name.lstrip("."):
            stem = file.name.split(".")[0]
            if stem and stem not in live:
                yield f"the file {file.name} is of no live segment"
    searcher = tantivy.Index(SCHEMA, str(path)).searcher()
    # Frequencies count deleted documents too: at 0 there is no entry in any dictionary.
    yield from (f"row {n}" for n in sorted(numbers.rows) if searcher.doc_freq("row", n))
    yield from (f"term {n}" for n in sorted(numbers.tids) if searcher.doc_freq("terms", str(n)))


def graph_rows(folder: Path) -> Iterator[tuple[Path, set[int]]]:
    for path in sorted(folder.glob("*.graph")):
        data = path.read_bytes()
        stamp = data[graph._HASHED : graph._HASHED + 32]
        start = graph._HASHED + 36
        size = int.from_bytes(data[start - 4 : start], "little")
        dim = json.loads(data[start : start + size])["dim"]
        made = graph.Graph.load(path, stamp, dim)
        yield path, set() if made is None else set(made.rows.tolist())


def in_graphs(folder: Path, numbers: Numbers) -> Iterator[str]:
    for path in folder.iterdir():
        if path.suffix != ".graph":
            yield f"the file {path.name} was left"
    for path, rows in graph_rows(folder):
        yield from (f"{path.name} holds row {n}" for n in sorted(rows & numbers.rows)[:5])


def processes(pid: int) -> Iterator[tuple[str, int]]:
    """The kernel and its descendants, by what they are."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError, ValueError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                parents[int(folder.name)] = int(fields[1])
    yield "kernel", pid
    for child in sorted(parents):
        above = child
        while above in parents and above != pid:
            above = parents[above]
        if above == pid and child != pid:
            with suppress(OSError):
                words = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
                modules = [word for word in words if word.startswith("isovist")]
                yield (modules[0].removeprefix("isovist.") if modules else "forked"), child


def words_in_memory(pid: int) -> Iterator[str]:
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            place, rights, _, _, inode, *_ = line.split()
            if not rights.startswith("rw") or inode != "0":
                continue
            start, end = (int(number, 16) for number in place.split("-"))
            for at in range(start, end, 16 << 20):
                with suppress(OSError, OverflowError):
                    memory.seek(at)
                    yield from words_in(memory.read(min(end - at, (16 << 20) + 64)))
