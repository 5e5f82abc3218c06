"""Sentences of a text, and what speaks for a sentence being about a person."""

from __future__ import annotations

import re
from typing import NamedTuple


class Sentence(NamedTuple):
    """The stretch [start, stop) of a text, without the mark of a list item and a label (``note:``).
    ``line`` is where the line begins in which it stands, marks included; a line that is wrapped
    over several is one."""

    start: int
    stop: int
    line: int


_LINE = re.compile(r"[^\r\n\u2028\u2029\x0b\x0c\x85]++")
MARK = re.compile(
    r"\s*+(?:[-*•>|#]{1,6}\s+|\(?[0-9]{1,3}[.)]\s+)?+(?:[A-Za-z][A-Za-z ]{1,24}:(?=\s)\s*+)?+"
)
"""What may stand before the first sentence of a line: a list's mark, a label."""
_END = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’)\]]{0,4}+(?=\s)|[。！？；]++[”’」』）]{0,4}+")
_ABBREVIATED = re.compile(
    r"(?:\b(?:e\.g|i\.e|mr|mrs|ms|dr|prof|vs|etc|no|nr|st|approx|ca|cf|fig|incl|z\.b|d\.h|bzw)"
    r"|\b(?-i:[A-Z]))\.$",
    re.I,
)
_OPEN = re.compile(r"[.!?:;。！？：；|}\]>]\s*+$")


def sentences(text: str) -> list[Sentence]:
    """All sentences of ``text`` in order, disjoint, without what is white space, mark or label
    alone. A line that goes on in the next (no full stop, then a small letter) is joined to it."""
    found: list[Sentence] = []
    number, goes_on = 0, False
    for line in _LINE.finditer(text):
        begin = MARK.match(text, line.start(), line.end())
        at = begin.end() if begin else line.start()
        if at >= line.end():
            if not text[line.start() : line.end()].strip():
                goes_on = False
                continue
            at = line.start()
        wrapped = goes_on and at == line.start() and text[at].islower()
        if not wrapped:
            number = line.start()
        first = True
        for start, stop in _of_line(text, at, line.end()):
            if first and wrapped and found:
                found[-1] = Sentence(found[-1].start, stop, number)
            else:
                found.append(Sentence(start, stop, number))
            first = False
        goes_on = not first and not _OPEN.search(
            text, max(line.start(), line.end() - 40), line.end()
        )
    return found


def _of_line(text: str, start: int, end: int) -> list[tuple[int, int]]:
    spans = []
    for stop in _END.finditer(text, start, end):
        after = text[stop.end() : stop.end() + 12].lstrip()[:1]
        if after.islower() or _ABBREVIATED.search(
            text[max(start, stop.start() - 8) : stop.start() + 1]
        ):
            continue
        spans.append((start, stop.end()))
        start = stop.end()
    spans.append((start, end))
    trimmed = []
    for a, b in spans:
        while a < b and text[a].isspace():
            a += 1
        while b > a and text[b - 1].isspace():
            b -= 1
        if a < b:
            trimmed.append((a, b))
    return trimmed


_PEOPLE = (
    r"(?:the|this|our|that|a|an)\s+(?:user|customer|client|person|patient|owner|author|boss|"
    r"manager|colleague|employee|member|man|woman|lady|gentleman|requester|submitter)"
)
_DOES = (
    r"(?:is|was|has|had|lives?|works?|likes?|prefers?|wants?|needs?|said|says|asked|asks|expects?|"
    r"suffers?|takes?|owns?|drives?|speaks?|studies|studied|earns?|moved|married|born|called|named|"
    r"wishes|would|can't|cannot|does|did|loves?|hates?|plays?|eats?|drinks?|attends?)"
)
_FIRST = re.compile(
    r"\b(?:i|i'm|i've|i'd|i'll|me|my|mine|myself|we|our|ours|us|ich|mich|mir|mein\w{0,2}|wir|uns|"
    r"unser\w{0,2})\b|我|我们|私|僕|俺|저는|나의",
    re.I,
)
_SECOND = re.compile(r"\b(?:you|you're|you've|your|yours|yourself)\b|您|你", re.I)
_THIRD = re.compile(
    r"\b(?:he|she|him|his|her|hers|himself|herself|he's|she's|sir|madam|someone|"
    r"somebody|sein\w{1,2}|ihr\w{0,2}|herr|frau|elle|moi|notre|monsieur|madame|nuestr[oa]s?|ella|"
    r"señora?|minha|mijn|hij|мой|моя|меня|он|она)\b"
    r"|\b(?-i:Mr|Mrs|Ms|Dr|Prof)\.?\s+(?-i:[A-Z])"
    rf"|\b{_PEOPLE}(?:'s\b|\s+(?:\w+ly\s+|also\s+|who\s+)?{_DOES}\b)"
    r"|\b(?:users?|customers?|clients?|persons?|patients?|employees?|owners?)'(?:s\b|\s)"
    r"|\b(?:the|this) (?:user|person|patient|owner)\b"
    rf"|\b(?:they|them|themselves)\s+(?:\w+ly\s+|also\s+)?{_DOES.replace('is|was', 'are|were')}\b"
    r"|他|她|客户|用户|先生|女士|小姐|彼女?|さん|씨",
    re.I,
)
# Words that have no other use; and those that programs use as well (a parent folder).
_PRIVATE = re.compile(
    r"\b(?:surname|lives|living|resid(?:es?|ent|ence)\w*|birth\w*|aged|years old|married|divorced|"
    r"widow\w*|spouse|wife|husband|fianc\w+|daughters?|sons?|kids?|mothers?|fathers?|brothers?|"
    r"sisters?|siblings?|grand(?:ma|pa|mother|father|parents?|son|daughter|child\w*)|uncle|aunt|"
    r"cousin|nephew|niece|pregnan\w+|diagnos(?:is|ed)|disease|illness|syndrome|allerg\w+|diabet\w+|"
    r"asthma\w*|medications?|medicine|doctor|hospital|clinic|therap\w+|insulin|vegan|vegetarian|"
    r"diet\w*|relig\w+|church|mosque|synagogue|faith|jewish|muslim|christian|catholic|protestant|"
    r"hindu|buddhist|atheist|politic\w*|salary|wages?|earns?|debts?|mortgage|loans?|"
    r"unemployed|employer|profession|occupation|career|hobb\w+|nationality|citizen\w*|passport|"
    r"visa|ethnic\w*|gay|lesbian|bisexual|transgender|birthdays?|anniversary|hometown|retired|"
    r"graduat\w+|convicted|arrest\w*|prison|lawsuit|blood|disab(?:ility|led person)|wheelchair|"
    r"depress\w+|anxiety|smok(?:es?|er|ing)|alcohol\w*|favou?rite|nickname|confidential\w*|"
    r"social security|licen[cs]e plate|club|choir|plays (?:the|for)|works (?:as|at|for))\b",
    re.I,
)
_PERSONAL = re.compile(
    r"\b(?:name[ds]?|address|born|old|single|partner|child|children|parents?|family|medical|party|"
    r"votes?|voted|voter|income|rent|employed|job|plays?|pets?|dog|cat|temple|gender|sex|male|female|"
    r"phone|telephone|mobile|e-?mail|moved|student|studies|university|school|criminal|insur\w+|tax|"
    r"employee|private\w*|personal\w*|secret\w*|live|lived|union|owner|drinks?|member)\b",
    re.I,
)


def speaks_of_person(sentence: str, *, first: bool = True, second: bool = True) -> bool:
    """Whether the sentence refers to a person: a pronoun, a title, "the customer is …"; to who
    says it where ``first``, to whom it is said where ``second``."""
    return (
        _THIRD.search(sentence) is not None
        or (first and _FIRST.search(sentence) is not None)
        or (second and _SECOND.search(sentence) is not None)
    )


def states_private(sentence: str) -> bool:
    """Whether the sentence has a word of private life: kin, health, belief, work, money, home."""
    return _PRIVATE.search(sentence) is not None


def looks_personal(sentence: str) -> bool:
    """The same, with words that programs use as well (``name``, ``address``, a ``parent``)."""
    return states_private(sentence) or _PERSONAL.search(sentence) is not None


_PREFERS = re.compile(
    r"\b(?:prefers?|preferred|preferences?|prefer(?:ring|ably)|likes?|loves?|hates?|dislikes?|"
    r"wants?|wishes|wish|expects?|insists?|always|never|please|would rather|rather than|"
    r"sign(?:ed)? off|keep (?:it|them|my|the)|from now on|in future|in the future|style|"
    r"bevorzug\w*|bitte|immer|niemals|préfère|toujours|jamais|prefiero|siempre|nunca|por favor)\b"
    r"|请|總是|总是|喜欢|不要|习惯",
    re.I,
)


def states_wish(sentence: str) -> bool:
    """Whether the sentence states how somebody likes things done."""
    return _PREFERS.search(sentence) is not None
