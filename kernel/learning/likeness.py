"""Whether two entries say the same thing: by rules alone, and when in doubt they do not.

Two entries are the same iff the same words stand in their situations and in their lessons
(inflection, function words and the order of clauses aside), nothing turns one of them round that
does not turn the other (a negation, a condition, a bound, a hedge, a value), and no two words
stand in each other's place (``copy a to b``, ``copy b to a``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations

import msgspec

from isovist.kernel.learning.reading import AND, BREAK, ENDS, PAUSE, is_word, names, tokens

BOUND = frozenset({"+not", "+unless", "+except", "+even", "+before", "+after", "+until", "+only",
                   "+or", "+than", "+else", "+<=", "+>=", "+>", "+<"})  # fmt: skip
"""Marks that both of two entries hold, or neither; so does ``+if`` where its condition is not the
situation's own."""
BINDING = frozenset({"+if", "+unless", "+except", "+even", "+before", "+after", "+until", "+than"})
"""Marks that a condition follows."""
_MOVED = 80
"""Words that may stand elsewhere; of two texts in which more do nothing is known."""
_EXCHANGED = 2
"""By how many things beside them two words must have changed places to count as exchanged."""

Beside = tuple[str, str, str]
"""On which side, behind which marks, which word."""
Places = dict[str, frozenset[Beside]]
Lists = frozenset[frozenset[str]]


class Features(msgspec.Struct, frozen=True):
    """What one entry says. Sets of tokens: words by their stems, ``=`` before an exact value.

    ``repeated`` are words that stand in the lesson more than once.

    ``marks`` are those of situation and lesson, each with ``s`` or ``l`` before it, and ``clauses``
    the words that follow a binding one. ``denied`` are the words that follow a negation, ``inner``
    those of them that do so in a condition, ``subject`` those that stand before one, ``only`` those
    that an ``only`` stands before. Of either part, ``places`` says beside what each word stands
    that stands there once, and ``lists`` which words are items of one list. ``names`` are words
    that are written large.
    """

    situation: frozenset[str]
    lesson: frozenset[str]
    repeated: frozenset[str]
    marks: frozenset[str]
    hedges: frozenset[str]
    clauses: dict[str, frozenset[str]]
    denied: frozenset[str]
    inner: frozenset[str]
    subject: frozenset[str]
    only: frozenset[str]
    places: tuple[Places, Places]
    lists: tuple[Lists, Lists]
    names: frozenset[str]

    @property
    def words(self) -> frozenset[str]:
        return self.situation | self.lesson

    @property
    def values(self) -> frozenset[str]:
        """Numbers, code, options, quoted symbols: what is right to the letter or wrong."""
        return frozenset(word for word in self.words if word[0] == "=")


def features(situation: str, lesson: str) -> Features:
    """What an entry says, for comparison."""
    # A situation is a condition as it stands: "when exporting" and "exporting" are one.
    at = [token for token in tokens(situation) if token != "+if"]
    to = tokens(lesson)
    where, what = _words(at), _words(to)
    marks = {f"s{token}" for token in at if token in BOUND}
    marks |= {f"l{token}" for token in to if token in BOUND}
    clauses = {f"s{mark}": clause for mark, clause in _clauses(at).items()}
    clauses |= {f"l{mark}": clause for mark, clause in _clauses(to).items()}
    denied, inner, subject = zip(_denied(at), _denied(to), strict=True)
    if not clauses.get("l+if", where) <= where:  # else the situation says so already
        marks.add("l+if")
    return Features(
        situation=where,
        lesson=what,
        repeated=frozenset(word for word, count in Counter(to).items() if count > 1) & what,
        marks=frozenset(marks),
        hedges=frozenset(token for token in (*at, *to) if token[0] == "~"),
        clauses=clauses,
        denied=frozenset().union(*denied),
        inner=frozenset().union(*inner),
        subject=frozenset().union(*subject),
        only=frozenset((*_only(at), *_only(to))),
        places=(_places(at), _places(to)),
        lists=(frozenset(_lists(at)), frozenset(_lists(to))),
        names=frozenset(names(situation) | names(lesson)),
    )


def likeness(a: Features, b: Features) -> float:
    """The share of their words that two entries have in common, 0 to 1."""
    either = len(a.words | b.words)
    return len(a.words & b.words) / either if either else 0.0


def same(a: Features, b: Features) -> bool:
    """Whether the two say the same thing. Symmetric; in doubt false."""
    if not (a.lesson and b.lesson) or conflict(a, b) or a.only != b.only:
        return False
    slack = frozenset() if a.denied else frozenset({"%all"})  # "not all" is not "none"
    return (
        a.situation ^ b.situation <= slack
        and _more(a, b) <= slack
        and _more(b, a) <= slack
        and _agree(a, b)
        and not _swapped(a, b)
    )


def _more(a: Features, b: Features) -> frozenset[str]:
    """Words that the lesson of ``a`` has more than that of ``b``. It may say again what the
    situation has said, but not in place of a word that the other one repeats."""
    more = a.lesson - b.lesson
    return more - a.situation if b.repeated <= a.repeated else more


def conflict(a: Features, b: Features) -> str:
    """Why the two can never be one, whoever asks; empty where no rule forbids it. Both must hold
    the same values, be bound by the same kinds of condition, deny something or nothing, and be
    equally sure."""
    if a.values != b.values:
        return "values"
    if a.hedges != b.hedges:
        return "hedge"
    apart = a.marks ^ b.marks
    if apart and not (apart == {"l+if"} and "l+if" in a.clauses.keys() & b.clauses.keys()):
        return "condition"
    return ""


def covers(whole: Features, parts: Sequence[Features]) -> bool:
    """Whether ``whole`` can stand in place of all ``parts``, whoever wrote it: no part is in
    conflict with it, it has a word of each one's situation, lesson and conditions, and at least
    two of three of its words and all its names are words of theirs."""
    theirs = frozenset().union(*(part.words for part in parts))
    added = whole.words - theirs
    return (
        3 * len(added) <= len(whole.words)
        and not added & whole.names
        and all(
            not conflict(part, whole)
            and part.situation & whole.situation
            and part.lesson & whole.lesson
            and all(not words or words & whole.words for words in part.clauses.values())
            for part in parts
        )
    )


def _agree(a: Features, b: Features) -> bool:
    """Whether what follows each mark can be the same in both. Of two conditions one holds all
    words of the other, as a word may be an ``it`` there. The same is denied; but what is denied in
    one alone may stand in a condition of the other, or before its negation ("do not salt it", "it
    must not be salted")."""
    shared = a.clauses.keys() & b.clauses.keys()
    if not all(_within(a.clauses[mark], b.clauses[mark]) for mark in shared):
        return False
    if a.denied == b.denied:
        return True
    if "%all" in a.denied ^ b.denied:
        return False
    less = min((a, b), key=lambda one: len(one.denied))
    beyond = a.denied ^ b.denied
    return (
        a.inner == b.inner
        and _within(a.denied, b.denied)
        and (beyond <= less.inner.union(*less.clauses.values()) or beyond <= less.subject)
    )


def _within(a: frozenset[str], b: frozenset[str]) -> bool:
    return a <= b or b <= a


# -- from tokens to features


def _words(found: Iterable[str]) -> frozenset[str]:
    return frozenset(filter(is_word, found))


def _clauses(found: Sequence[str]) -> dict[str, frozenset[str]]:
    """By binding mark: the words from there to the end of the clause."""
    clauses: dict[str, set[str]] = {}
    mark = ""
    for token in found:
        if token in BINDING:
            mark = token
            clauses.setdefault(mark, set())
        elif token in ENDS or token == "+not":
            mark = ""
        elif mark and is_word(token) and token != "%all":
            clauses[mark].add(token)
    return {mark: frozenset(clause) for mark, clause in clauses.items()}


def _denied(found: Sequence[str]) -> tuple[set[str], set[str], set[str]]:
    """The words that follow a negation in its clause, those where it is in a condition, and those
    that stand before it in its clause."""
    denied: set[str] = set()
    inner: set[str] = set()
    subject: set[str] = set()
    bound = negated = False
    before: set[str] = set()
    for token in found:
        if token in ENDS or token in BINDING or token == AND:
            before = set()
        if token in ENDS:
            bound = negated = False
        elif token in BINDING:
            bound, negated = True, False
        elif token == "+not":
            negated = True
            subject |= before
        elif is_word(token):
            before.add(token)
            if negated:
                denied.add(token)
                if bound:
                    inner.add(token)
    return denied, inner, subject


def _only(found: Sequence[str]) -> Iterable[str]:
    for at, token in enumerate(found):
        if token == "+only":
            yield next((word for word in found[at + 1 :] if is_word(word)), "")


def _places(found: Sequence[str]) -> Places:
    """By word that stands here once: the next word to its left (``<``) and to its right (``>``) in
    its clause, with the marks on the way there. Of a list, each item stands beside what the whole
    list does."""
    counts = Counter(filter(is_word, found))
    listed = {item: items for items in _lists(found) for item in items}
    places: Places = {}
    for at, token in enumerate(found):
        if not is_word(token) or counts[token] > 1:
            continue
        own = listed.get(token)
        ends = {BREAK} if own else {BREAK, PAUSE, AND}
        passed = own | {PAUSE, AND, "+or"} if own else frozenset()
        beside: list[Beside] = []
        for side, way in (("<", reversed(found[:at])), (">", found[at + 1 :])):
            marks = ""
            for other in way:
                if other in ends:
                    break
                if is_word(other) and other not in passed:
                    beside.append((side, marks, other))
                    break
                if other not in passed:
                    marks += other
        places[token] = frozenset(beside)
    return places


def _lists(found: Sequence[str]) -> list[frozenset[str]]:
    """Single words that ``and`` or ``or`` joins, and those before them that pauses part."""
    lists: list[frozenset[str]] = []
    for at, token in enumerate(found):
        if token not in (AND, "+or") or at + 1 == len(found) or not is_word(found[at + 1]):
            continue
        items = {found[at + 1]}
        last = at - 1 - (found[at - 1] == PAUSE)
        while last >= 0 and is_word(found[last]):
            first = last
            while first and found[first - 1] not in (BREAK, PAUSE, AND):
                first -= 1
            parted = first > 0 and found[first - 1] == PAUSE
            if first < last and parted and len(items) == 1:
                break  # "last name, first name and age": items of more than a word
            items.add(found[last])
            if not parted:
                break
            last = first - 2
        if len(items) > 1:
            lists.append(frozenset(items))
    return lists


def _swapped(a: Features, b: Features) -> bool:
    """Whether two words stand in each other's place: each beside what the other one is beside
    there, and more so than beside what it is beside there itself."""
    return any(map(_exchanged, a.places, b.places, a.lists, b.lists))


def _exchanged(a: Places, b: Places, lists: Lists, others: Lists) -> bool:
    both = lists & others
    moved = sorted(x for x in a.keys() & b.keys() if a[x] != b[x])
    if len(moved) > _MOVED:
        return True
    for x, y in combinations(moved, 2):
        if any(x in items and y in items for items in both):
            continue
        if _adjoin(a, x, y) and _adjoin(b, x, y):
            continue  # "sort the sheets", "the sheets are sorted"
        ax, ay, bx, by = (_beyond(place, x, y) for place in (a[x], a[y], b[x], b[y]))
        # One thing alone may be the trace of a word that is an "it" in one of them.
        if len(ax & by) + len(ay & bx) >= len(ax & bx) + len(ay & by) + _EXCHANGED:
            return True
    return False


def _beyond(place: frozenset[Beside], x: str, y: str) -> frozenset[Beside]:
    """A place as it is for either of the two: which of them stands beside is left out."""
    return frozenset((side, marks, "" if word in (x, y) else word) for side, marks, word in place)


def _adjoin(places: Places, x: str, y: str) -> bool:
    """Whether nothing stands between the two."""
    return any((side, "", y) in places[x] for side in "<>")
