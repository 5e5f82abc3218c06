"""Kinds of values that identify: where they stand in a text, and what stands for them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_MONTHS = (
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
)  # fmt: skip
_MONTH = (
    r"(?:jan(?:uary|uar)?|feb(?:ruary|ruar)?|mar(?:ch)?|märz|apr(?:il)?|ma[iy]|june?|juni"
    r"|july?|juli|"
    r"aug(?:ust)?|sept?(?:ember)?|o[ck]t(?:ober)?|nov(?:ember)?|de[cz](?:ember)?)"
)
_DATE = (
    r"(?<![0-9A-Za-z])(?:[0-9]{4}\s?[-/.年]\s?[0-9]{1,2}\s?[-/.月]\s?[0-9]{1,2}日?"
    r"|[0-9]{1,2}\s?[-/.]\s?[0-9]{1,2}\s?[-/.]\s?(?:[0-9]{4}|[0-9]{2})"
    rf"|[0-9]{{1,2}}(?:st|nd|rd|th)?[.\s-]{{0,2}}(?:of\s)?{_MONTH}\.?[,\s-]{{0,2}}[0-9]{{4}}"
    rf"|{_MONTH}\.?\s[0-9]{{1,2}}(?:st|nd|rd|th)?,?\s[0-9]{{4}}"
    r"|(?:19|20)[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01]))(?![0-9A-Za-z])"
)
_VALUE = re.compile(
    r"(?P<url>\b[a-z][a-z0-9+.]{1,14}://[^\s<>\"'`)\]]{1,400}+)"
    r"|(?P<email>[\w.+%-]{1,64}+@[\w-]{1,63}(?:\.[\w-]{1,63}+){1,5})"
    rf"|(?P<date>{_DATE})"
    r"|(?P<path>(?<![\w<>/.~:])(?:[A-Za-z]:\\|\\\\|~/|(?:\.{1,2})?/(?=[\w.@~-]))"
    r"(?:[\w.@+~$%-]{1,80}+[/\\]){0,16}+[\w.@+~$%-]{0,80}+"
    r"|(?<![\w<>/.~:])(?:[\w.@+~-]{1,80}+[/\\]){1,16}+[\w@+~-][\w.@+~-]{0,80}+)"
    r"|(?P<ip>(?<![\w.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![\w.])"
    r"|(?<![\w:])(?:[0-9a-f]{1,4}:){5,7}[0-9a-f]{1,4}(?![\w:]))"
    r"|(?P<host>\b(?:[a-z0-9][a-z0-9-]{0,62}\.){1,5}(?:com|org|net|io|de|fr|uk|ch|at|nl|es|it"
    r"|eu|us|"
    r"cn|jp|ru|info|biz|edu|gov|app|dev|ai|local|internal|intranet|lan|corp|home|test"
    r"|example)\b(?!\())"
    r"|(?P<handle>(?<![\w.@])@[A-Za-z_][\w.-]{2,40}+)"
    r"|(?P<number>(?<![\w.])\+?\(?[0-9](?:[ ()/.,'-]{0,2}[0-9]){2,24}+(?![A-Za-z0-9_]))"
    r"|(?P<id>(?<![\w-])(?=[A-Za-z0-9_-]{0,40}?[0-9])(?=[A-Za-z0-9_-]{0,40}?[A-Za-z])[A-Za-z0-9]{1,40}+(?:[-_][A-Za-z0-9]{1,40}+){0,8}+)",
    re.I,
)
_DATES = re.compile(_DATE, re.I)
# Letters and digits in one word that name a technique, not a thing of somebody's.
_TECHNICAL_ID = re.compile(
    r"(?:utf|cp|iso|latin|base|sha|md|blake|ipv?|x|python|py|http|html|css|es|crc|aes|rsa|int"
    r"|uint|"
    r"float|i|u|f|h|mp|s|ec|k|r|v|vs|gpt|sqlite|neo|java|jdk|php|node|win|amd|arm|utc|gmt|rfc"
    r"|koi|"
    r"windows|bzip|bz|lz|7z|zip|level|step|line|col|column|row|field|file|test|case|page|part|"
    r"chunk|q|h|n|t|a|b|c|d|e|w|m|l|exit|code|errno|rev|ver|version|phase|stage|round|day|week|"
    r"attempt|option|item|arg|var|tmp|x86|i18n|l10n|k8s|oauth|utf8|p|sort|grep|awk)[-_]?"
    r"[0-9]{1,4}(?:[-_.]?(?:bit|le|be|sig|bom|lf|crlf|le|[0-9]{1,2}))*"
    r"|[0-9]{1,4}(?:st|nd|rd|th|s|ms|us|ns|x|k|m|g|kb|mb|gb|kib|mib|gib|b|bit|bits|byte|bytes|px|"
    r"pt|em|rem|d|h|min|sec|hz|khz|mhz|ghz|am|pm|e|f|l|u|ul)"
    r"|0x[0-9a-f]{1,4}|\\x[0-9a-f]{2}|x86[-_]64|[0-9]{1,2}[a-z][0-9]?|[a-z][0-9]",
    re.I,
)
_CODES = """
    100 101 111 123 127 137 139 143 180 200 201 204 206 300 301 302 304 307 308 360 365 366 400 401
    403 404 405 408 409 410 412 413 415 418 422 425 429 500 501 502 503 504 600 640 644 655 664 700
    750 755 775 777 800 900 999 1000 1001 1234 1250 1251 1252 1900 1970 2000 3000 3306 3339 3600
    5000 5432 6379 8000 8080 8443 8601 8859 9999 10000 12345 50000 86400 100000 1000000
"""
_PLAIN_NUMBERS = (
    frozenset(_CODES.split())
    | {str((1 << n) - less) for n in range(6, 17) for less in (0, 1)}
    | {str(year) for year in range(2000, 2100)}
)


class Value(NamedTuple):
    """A value of a kind (``url email date path ip host handle number id``) at [start, stop)."""

    kind: str
    start: int
    stop: int
    text: str


def values(text: str) -> Iterator[Value]:
    """The values that stand in ``text`` (folded), in order, disjoint. Technical ones (``utf-8``,
    ``404``, ``0x1f``) and numbers of less than three digits are none."""
    for m in _VALUE.finditer(text):
        kind, found = m.lastgroup or "", m[0]
        digits = sum(map(str.isdigit, found))
        if kind == "id" and digits <= 4 and _TECHNICAL_ID.fullmatch(found):
            continue
        if kind == "id" and digits < 2 and len(found) < 8:
            continue
        if kind == "number" and plain_number(found):
            continue
        if kind == "path" and not re.search(r"[A-Za-z]{2}", found):
            continue
        yield Value(kind, m.start(), m.end(), found)


def dates(text: str) -> Iterator[Value]:
    """The dates alone."""
    for m in _DATES.finditer(text):
        yield Value("date", m.start(), m.end(), m[0])


def plain_number(text: str) -> bool:
    """Whether a number says nothing of whom it comes from: short, round, or a technical one."""
    digits = re.sub(r"[^0-9]", "", text)
    return len(digits) < 3 or digits in _PLAIN_NUMBERS or len(set(digits)) == 1


def days(text: str) -> set[tuple[int, int, int]]:
    """The days (year, month, day) that a date can mean, whatever its order of parts."""
    lowered = text.lower().replace("märz", "mar").replace("okt", "oct").replace("dez", "dec")
    lowered = lowered.replace("mai", "may")
    month = next((i for i, name in enumerate(_MONTHS, 1) if name in lowered), 0)
    parts = [p for p in re.split(r"[^0-9]+", lowered) if p]
    if len(parts) == 1 and len(parts[0]) == 8:
        parts = [parts[0][:4], parts[0][4:6], parts[0][6:]]
    numbers = [(int(p), len(p)) for p in parts]
    found: set[tuple[int, int, int]] = set()
    if month:
        years = [n for n, size in numbers if size == 4]
        small = [n for n, size in numbers if size <= 2]
        if years and small:
            found.add((years[0], month, small[0]))
    elif len(numbers) == 3:
        (a, a_size), (b, _), (c, c_size) = numbers
        if a_size == 4:
            found |= {(a, b, c), (a, c, b)}
        elif c_size == 4:
            found |= {(c, b, a), (c, a, b)}
        else:
            for century in (1900, 2000):
                found |= {(century + c, b, a), (century + c, a, b), (century + a, b, c)}
    return {(y, m, d) for y, m, d in found if 1 <= m <= 12 and 1 <= d <= 31 and 1800 <= y < 2200}
