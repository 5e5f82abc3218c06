"""How a person wants things done: told from what they state, and what each wish is about."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from isovist.kernel.learning.facts import words_of
from isovist.kernel.learning.lexicon import FUNCTION, stems

_STRONG = re.compile(
    r"\b(?:i|we)(?:'d| would)?\s+(?:\w+ly\s+|also\s+|always\s+|never\s+|do\s+"
    r"|don't\s+)*(?:prefer|"
    r"like|love|hate|dislike|expect|insist|rather|always|never|wish|"
    r"want (?:all|any|every|my|each|them|it|dates|numbers|the (?:dates|numbers|amounts)))\b"
    r"|\bmy (?:own |usual |personal |house |preferred )?(?:preferences?|style|convention"
    r"|house style|"
    r"habit|reports?|documents?|letters?|e-?mails?|notes?|summaries|slides|tables|readers|texts?|"
    r"outputs?|sign-?off|signature|dates?|headings?|numbers?|amounts?)\b.{0,60}?\b(?:is|are"
    r"|should|"
    r"must|have|has|need|use|go|end|start|begin|always|never|in|as|with|to be)\b"
    r"|\bplease (?:always|never)\b"
    r"|\b(?:from now on|in (?:the )?future|as a rule|whenever you|for all (?:my|future)|"
    r"every (?:report|document|letter|text|file|output) (?:you|for me|i))\b"
    r"|\b(?:documents?|reports?|anything|everything|whatever|outputs?|texts?|letters?)\b.{0,40}"
    r"\b(?:for me|to me|i (?:get|receive|read)|you (?:write|send|give|produce|make) me)\b"
    r"|\b(?:call|address) me\b|\bhouse style\b|\bi sign\b"
    r"|\b(?:ich bevorzuge|ich möchte|ich mag|bitte (?:immer|nie|keine?)|je préfère|toujours"
    r"|prefiero|"
    r"siempre|preferisco)\b|我(?:喜欢|偏好|习惯|希望)|请(?:总是|始终|不要|一律|用)",
    re.I,
)
_SOFT = re.compile(
    r"\b(?:always|never)\s+\w+|\bplease (?:keep|avoid|stick to|prefer|use|write|put|don't"
    r"|do not|no|mark|set|start|begin|end|sign|format|name|give|make|leave|add|number|spell"
    r"|separate|open|close)\b"
    r"|\bi (?:want|need|expect)\b"
    r"|\bsign(?:ed)?[ -]?off\b|\b(?:by default|in general|every time|generally)\b",
    re.I,
)
_ONCE = re.compile(
    r"\b(?:today|tomorrow|now|this time|once)\b|(?<![\w.])[\w-]+\.[a-z][a-z0-9]{1,4}\b", re.I
)
"""What makes a demand one for the task at hand: a day, or a file by its name."""
_HEADING = re.compile(
    r"(?:^[\s>*#-]*|[.!?]\s+)(?:how i (?:like|want|prefer)\b[^:\n]{0,60}"
    r"|(?:(?:my|our|user|style|document|documents?'|house|writing|formatting|format|output|general|"
    r"standing|personal|some|the)\s+)*(?:preferences?|conventions?|style(?: guide)?|wishes|"
    r"house (?:rules|style)|rules|habits)(?:\s+(?:for|of|about|on|in)\s+[^:\n]{1,60})?)"
    r"\**\s*[:：—]\s*(.*)$",
    re.I,
)
_PARTS = re.compile(r";|[.!]\s")
_ITEM = re.compile(
    r"^\s*(?:[-*•+]|\(?[0-9]{1,2}[.)])\s+(\S.*)$"
    r"|^\s*([A-Za-z][\w /-]{1,40}[:=]\s*\S.*)$"
)
_AGENT = re.compile(
    r"\b(?:when you\b|from (?:this|you)\b.{0,12}\b(?:assistant|agent|tool)?|in this (?:tool"
    r"|assistant|harness|editor|app|chat|terminal)|"
    r"with (?:this (?:tool|assistant|agent|harness)|you)\b|(?:here|this assistant|this agent"
    r"|this harness|this tool)\b|"
    r"^in (?:the|this) (?!reports?|documents?|letters?|texts?|titles?|tables?|summar|files?"
    r"|e?-?mails?|headings?|headers?|first|last|end|body|notes?|beginning|start)[\w-]+\b.{0,40}\byou\b|"
    r"when (?:using|working (?:with|in)) (?:this|you)\b|you,? (?:in particular|as an? \w+))",
    re.I,
)
_TOPICS: dict[str, str] = {
    "sign-off": r"sign(?:ed)?[ -]?off|closing|signature|regards"
    r"|end (?:each|every|the|my) (?:letter|mail|report|document)",
    "date": r"\bdates?\b|\bday first\b|\b(?:dd|mm|yyyy)\b|iso 8601",
    "decimal": r"decimal|thousands|\bnumbers?\b.*\b(?:comma|dot|point)",
    "currency": r"currenc|\beuros?\b|\bdollars?\b|\bEUR\b|\bUSD\b",
    "unit": r"\bunits?\b|metric|imperial|celsius|fahrenheit|kilomet",
    "language": r"\b(?:language|english|german|french|spanish|italian|chinese|dutch|british"
    r"|american|spelling)\b",
    "length": r"\b(?:short|brief|concise|long|length|detailed|pages?|sentences?|words)\b",
    "heading": r"\bheadings?|headers?|titles?\b",
    "opening": r"\b(?:begins?|starts?|opens?) with\b|\bfirst line\b|\bsummary\b",
    "list": r"bullets?|numbered|\blists?\b",
    "table": r"\btables?\b|columns?",
    "tone": r"\btone\b|formal|informal|polite|casual|emojis?|humou?r",
    "address": r"call me|address me|greet|salutation",
    "time": r"\b(?:24|12)[- ]?hour|\btime ?zone|\btimes?\b",
    "file": r"file ?names?|\bextension|\bformat\b",
}
_TOPIC = {name: re.compile(pattern, re.I) for name, pattern in _TOPICS.items()}


def is_wish(sentence: str) -> bool:
    """Whether a user's sentence states a lasting preference, not what this one task asks for."""
    if sentence.endswith((":", "：")):
        return False
    if _STRONG.search(sentence):
        return True
    if _ONCE.search(sentence):
        return False
    return _SOFT.search(sentence) is not None and bool(topic(sentence))


def listed(lines: Sequence[str]) -> Iterator[str]:
    """The wishes that stand under a heading that says so (``My preferences:``), or beside it."""
    under = False
    for line in lines:
        if heading := _HEADING.search(line):
            under = not heading[1]
            yield from (part.strip() for part in _PARTS.split(heading[1]) if part.strip())
        elif under and (item := _ITEM.match(line)):
            yield (item[1] or item[2]).strip()
        elif line.strip():
            under = False


def echoes(sentence: str, wishes: Sequence[frozenset[str]]) -> bool:
    """Whether ``sentence`` says again what a wish says, or says that one was kept."""
    if _REQUESTED.search(sentence):
        return True
    said = marks(sentence)
    return any(
        len(said & wished) >= 0.6 * len(wished)
        or any(len(mark) > 3 and not mark.isalpha() for mark in said & wished)
        for wished in wishes
        if wished
    )


def marks(text: str) -> frozenset[str]:
    """What a wish is known by: stems of its words, and patterns as written (``dd.mm.yyyy``)."""
    words = [word for word in words_of(text) if word not in FUNCTION and word not in _WISHING]
    return frozenset(stems(words)) | {m[0].lower() for m in _PATTERN.finditer(text)}


_WISHING = frozenset(
    ("prefer", "prefers", "like", "likes", "want", "wants", "always", "never", "please", "date",
     "dates")
)  # fmt: skip
_PATTERN = re.compile(r"\b[DdMmYyHhSs]{1,4}(?:[./:\s-]{1,2}[DdMmYyHhSs]{1,4})+\b")
_REQUESTED = re.compile(
    r"\bas (?:you |the user |they )?(?:requested|asked|preferred|wished|specified by the user)\b"
    r"|\b(?:per|following|according to|respecting) (?:your|their|the user's|his|her|the stated)\b"
    r"|\bpreferen(?:ce|ces|tially)\b|\bprefers?\b|\bsign[- ]?off\b",
    re.I,
)


def of_agent(sentence: str) -> bool:
    """Whether the wish is for the agent at hand only."""
    return _AGENT.search(sentence) is not None


def topic(text: str) -> str:
    """What a wish is about; empty where nothing tells."""
    return next((name for name, pattern in _TOPIC.items() if pattern.search(text)), "")


_SEVERAL = frozenset(("heading", "list", "table", "file", "sign-off"))


def several(about: str) -> bool:
    """Whether one may well have more than one wish about this."""
    return about in _SEVERAL


_PERSONS = (
    (r"^(?:please note(?: that)?|note that|btw|by the way|also|and|oh,?)[:,]?\s+", ""),
    (
        r"^i(?:'d| would)? (?:really |much |strongly )?(like|prefer|want|expect|love|hate"
        r"|dislike|need)\b",
        r"\1s",
    ),
    (r"^i (always|never) (\w+)", r"\1 \2s"),
    (r"\bmy\b", "their"),
    (r"\bme\b", "them"),
    (r"\bi am\b|\bi'm\b", "they are"),
    (r"\bi\b", "they"),
)
_REWRITE = [(re.compile(pattern, re.I), by) for pattern, by in _PERSONS]


def wish(sentence: str) -> str:
    """The wish said of its owner: ``I prefer dates as …`` is ``Prefers dates as …``."""
    for pattern, by in _REWRITE:
        sentence = pattern.sub(by, sentence)
    return sentence[:1].upper() + sentence[1:]
