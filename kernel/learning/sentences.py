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
    r"(?:the|this|our|that|a|an)\s+(?:user|customer|client|person|patient|owner|author|boss"
    r"|manager|"
    r"colleague|employee|member|man|woman|lady|gentleman)"
)
_FIRST = re.compile(r"\b(?:i|i'm|i've|i'd|i'll|me|my|mine|myself|we|our|ours|us)\b", re.I)
_PERSON = re.compile(
    r"\b(?:he|she|him|his|her|hers|himself|herself|"
    r"you|your|yours|yourself|mr|mrs|ms|dr|prof|sir|madam|someone|somebody|who|whose|"
    r"he's|she's|you're|we're|"
    r"ich|mich|mir|mein\w{0,2}|wir|uns|unser\w{0,2}|er|sein\w{0,2}|ihr\w{0,2}|herr|frau|"
    r"je|moi|mon|ma|mes|notre|nos|son|sa|ses|elle|monsieur|madame|"
    r"yo|mi|mis|nuestr[oa]s?|su|sus|ella|señora?|io|mio|mia|miei|mie|eu|meu|minha|meus|minhas|"
    r"ik|mijn|onze|hij|zij|я|мне|мой|моя|мои|меня|мы|наш\w{0,2})\b"
    rf"|\b{_PEOPLE}(?:'s\b|\s+(?:\w+ly\s+|also\s+|who\s+)?(?:is|was|has|had|lives?|works?|likes?|"
    r"prefers?|wants?|needs?|said|says|asked|asks|expects?|suffers?|takes?|owns?|drives?|speaks?|"
    r"studies|studied|earns?|moved|married|born|called|named|wishes|would|can't|cannot|does|did))"
    r"|\b(?:users?|customers?|clients?|persons?|patients?|employees?|owners?)'s?\s"
    r"|\b(?:the|this) (?:user|person)\b"
    r"|\b(?:they|their|theirs|them|themselves)\s+(?:is|was|are|were|have|had|lives?|works?"
    r"|likes?|"
    r"prefers?|wants?|needs?|said|says|asked|expects?)\b"
    r"|我|我们|您|你的|他|她|客户|用户|先生|女士|小姐|私|僕|俺|彼女?|さん|저는|제|나의|내|씨",
    re.I,
)
_PERSONAL = re.compile(
    r"\b(?:name[ds]?|surname|address|lives?|living|resid\w+|born|birth\w*|aged?|years? old"
    r"|married|"
    r"divorced|widow\w*|single|spouse|wife|husband|partner|fiancé?e?|son|daughter|child\w*|kids?|"
    r"mother|father|parents?|brother|sister|siblings?|grand\w+|uncle|aunt|cousin|nephew|niece|"
    r"family|pregnan\w+|diagnos\w+|disease|illness|syndrome|allerg\w+|diabet\w+|asthma\w*|"
    r"medic(?:ation|ine|al)\w*|doctor|hospital|clinic|therap\w+|insulin|vegan|vegetarian|diet\w*|"
    r"relig\w+|church|mosque|temple|faith|jewish|muslim|christian|catholic|protestant|hindu"
    r"|buddhist|atheist|"
    r"votes?|voted|voter|party|union member|politic\w*|salary|income|wage|earns?|debts?|mortgage|"
    r"loan|rent|employer|employed|unemployed|works (?:as|at|for|in)|job at|profession|occupation|"
    r"career|hobb\w+|plays?|pets?|dog|cat|nationality|citizen\w*|passport|visa|ethnic\w*|"
    r"gay|lesbian|bisexual|trans(?:gender)?|straight|gender|sex|male|female|"
    r"phone|telephone|mobile|e-?mail|birthday|anniversary|hometown|moved|retir\w+|student"
    r"|studies|"
    r"university|school|graduat\w+|convicted|arrest\w*|prison|criminal|lawsuit|insur\w+|"
    r"tax(?:payer)? (?:id|number)|social security|employee (?:id|number|no)|licen[cs]e plate|"
    r"blood (?:type|group)|disab\w+|wheelchair|depress\w+|anxiety|smok\w+|drink\w*|alcohol\w*|"
    r"favou?rite|nickname|confidential\w*|private\w*|personal\w*|secret\w*)\b",
    re.I,
)


def speaks_of_person(sentence: str, *, first: bool = True) -> bool:
    """Whether the sentence refers to a person: a pronoun, a title, "the customer is …"; not to
    who says it, unless ``first``."""
    return _PERSON.search(sentence) is not None or (first and _FIRST.search(sentence) is not None)


def looks_personal(sentence: str) -> bool:
    """Whether the sentence is of a kind that states something about a person: kin, health,
    belief, work, money, home."""
    return _PERSONAL.search(sentence) is not None


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
