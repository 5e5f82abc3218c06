"""Whose turn it is between two rounds."""

from __future__ import annotations

from isovist.kernel.work import Piece, Work


def order(work: Work[Piece]) -> list[str]:
    done: list[str] = []
    while work:
        piece = work.pop()
        piece()
        done.append(NAMES[piece])
    return done


NAMES: dict[Piece, str] = {}


def piece(name: str) -> Piece:
    def do() -> bool:
        return True

    NAMES[do] = name
    return do


def test_writes_go_first_and_channels_take_turns() -> None:
    work: Work[Piece] = Work()
    for i in range(3):
        work.add(1, piece(f"greedy {i}"))
    work.add(2, piece("modest"))
    work.first(piece("write 0"))
    work.first(piece("write 1"))
    assert len(work) == 6
    assert order(work) == ["write 0", "write 1", "greedy 0", "modest", "greedy 1", "greedy 2"]
    assert not work
