"""The ways in which a value may be written so that it is not seen at a glance.

Each disguise that is undone gives a *guise*: a text with, for each of its characters, the stretch
of the original that it came from. Together they are at most a fixed number of times as long as the
text, whatever it is.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import html
import re
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import unquote

DEPTH = 3
"""Encodings inside one another that are undone."""
SHARE = 4
"""How many times its own length is decoded of a text, at most."""
ROT13 = str.maketrans({chr(i): codecs.encode(chr(i), "rot13") for i in range(65, 123)})
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{8,}+")
_CHUNK = re.compile(r"[A-Za-z0-9+/_-]++")
_WORDLIKE = re.compile(r"[a-z]+|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_BASE32 = re.compile(r"[A-Z2-7]{8,}+|[a-z2-7]{16,}+")
_HEX = re.compile(r"(?:(?:\\x|0x|%|&#x)?[0-9A-Fa-f]{2}[ \t:,;-]{0,2}+){4,}+")
_CODES = re.compile(r"(?<![0-9])[0-9]{2,3}(?:[ \t,;]{1,2}+[0-9]{2,3}(?![0-9])){3,}+")
_BITS = re.compile(r"(?<![0-9])[01]{8}(?:[ \t,;]{0,2}+[01]{8}(?![2-9])){3,}+")
_ESCAPE = re.compile(
    r"\\u\{?([0-9A-Fa-f]{4,6})\}?|\\x([0-9A-Fa-f]{2})|=([0-9A-F]{2})|U\+([0-9A-Fa-f]{4,6})\s?"
)
_PRINTED = re.compile(r"[^\x00-\x08\x0e-\x1f\x7f-\x9f\ufffd]{4,}+")


class Guise(NamedTuple):
    """``text`` that came from [start, stop) of the original; with ``step`` 1 or -1 its characters
    stand there one by one (forward, or from ``stop`` backward), with 0 somewhere in it."""

    text: str
    start: int
    stop: int
    step: int

    def back(self, start: int, stop: int) -> tuple[int, int]:
        """Where [start, stop) of ``text`` stands in the original."""
        if self.step == 1:
            return self.start + start, self.start + stop
        if self.step == -1:
            return self.stop - stop, self.stop - start
        return self.start, self.stop


def turned(text: str) -> Iterator[Guise]:
    """``text`` in rot13, and backwards."""
    yield Guise(text.translate(ROT13), 0, len(text), 1)
    yield Guise(text[::-1], 0, len(text), -1)


def decoded(text: str) -> Iterator[Guise]:
    """What is encoded in ``text`` (folded), and what is encoded in that. After :data:`SHARE` times
    its own length nothing more is undone: what is left has an empty text, and whoever asks had
    better trust none of it."""
    budget = SHARE * len(text) + 4096
    waiting = [(text, 0, len(text), 0)]
    seen: set[str] = set()
    while waiting:
        coded, begin, end, depth = waiting.pop()
        for start, stop, raw in _encoded(coded):
            if depth:
                start, stop = begin, end
            if not raw or raw in seen:
                continue
            budget -= len(raw)
            if budget < 0:
                yield Guise("", start, stop, 0)
                continue
            seen.add(raw)
            yield Guise(raw, start, stop, 0)
            if depth + 1 < DEPTH:
                waiting.append((raw, start, stop, depth + 1))


def _encoded(text: str) -> Iterator[tuple[int, int, str]]:
    if "%" in text:
        yield from _lines(text, unquote)
    if "&" in text:
        yield from _lines(text, html.unescape)
    if "\\" in text or "=" in text or "U+" in text:
        yield from _lines(text, lambda line: _ESCAPE.sub(_unescaped, line))
    for m in _HEX.finditer(text):
        digits = re.sub(r"\\x|0x|&#x|[^0-9A-Fa-f]", "", m[0])
        for phase in (0, 1):
            even = digits[phase : phase + (len(digits) - phase) // 2 * 2]
            yield m.start(), m.end(), _printed(bytes.fromhex(even))
    for m in _CODES.finditer(text):
        codes = [int(n) for n in re.findall(r"[0-9]+", m[0])]
        yield m.start(), m.end(), _printed(bytes(n for n in codes if n < 256))
    for m in _BITS.finditer(text):
        bits = re.findall("[01]{8}", m[0])
        yield m.start(), m.end(), _printed(bytes(int(byte, 2) for byte in bits))
    for m in _BASE64.finditer(text):
        if not _WORDLIKE.fullmatch(m[0]) or len(m[0]) > 24:
            for said in _base64(m[0]):
                yield m.start(), m.end(), said
    for m in _BASE32.finditer(text):
        word = m[0].upper()
        word = word[: len(word) // 8 * 8] + word[len(word) // 8 * 8 :].ljust(8, "=")
        try:
            yield m.start(), m.end(), _printed(base64.b32decode(word.removesuffix("=" * 8)))
        except (ValueError, binascii.Error):
            continue
    yield from _chunked(text)


def _lines(text: str, decode: object) -> Iterator[tuple[int, int, str]]:
    at = 0
    for line in text.split("\n"):
        decoded: str = decode(line)  # type: ignore[operator] # of a table of codes
        if decoded != line:
            yield at, at + len(line), decoded
        at += len(line) + 1


def _unescaped(m: re.Match[str]) -> str:
    code = int(m[m.lastindex or 0], 16)
    return chr(code) if code <= 0x10FFFF else ""


def _chunked(text: str) -> Iterator[tuple[int, int, str]]:
    """Base64 and hex in pieces: chunks with white space or signs between, at least two of which
    are no words."""
    run: list[re.Match[str]] = []
    odd = 0
    last = -1
    for m in _CHUNK.finditer(text):
        strange = not _WORDLIKE.fullmatch(m[0]) or len(m[0]) <= 2
        if run and (m.start() - run[-1].end() > 4 or len(run) - last > 3):
            yield from _joined(run, odd)
            run, odd = [], 0
        if strange:
            odd += 1
            last = len(run)
        elif not odd:
            run, last = run[-1:], 0  # one word before the first chunk may belong to it
        run.append(m)
    yield from _joined(run, odd)


def _joined(run: list[re.Match[str]], odd: int) -> Iterator[tuple[int, int, str]]:
    word = "".join(m[0] for m in run)
    if odd >= 2 and len(word) >= 8:
        for said in _base64(word):
            yield run[0].start(), run[-1].end(), said


def _base64(word: str) -> Iterator[str]:
    """What ``word`` may say in base64, wherever in it the code begins."""
    word = word.replace("-", "+").replace("_", "/")
    for phase in range(4):
        part = word[phase:]
        part = part[: len(part) - 1] if len(part) % 4 == 1 else part
        yield _printed(base64.b64decode(part + "=" * (-len(part) % 4)))


def _printed(raw: bytes) -> str:
    """The readable stretches of ``raw``."""
    text = raw.decode("utf-8", "replace")
    if raw[1::2].count(0) * 2 > len(raw) // 2:
        text = raw.decode("utf-16-le", "replace")
    return "\n".join(_PRINTED.findall(text))
