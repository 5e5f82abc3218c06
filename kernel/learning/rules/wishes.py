"""How a person wants things done: told from what they state, and what each wish is about."""

from __future__ import annotations

import re

_WISH = re.compile(
    r"\b(?:i|we)(?:'d| would)?\s+(?:\w+ly\s+|also\s+|always\s+|never\s+|really\s+)*(?:prefer"
    r"|like|love|hate|dislike|"
    r"expect|insist|rather|always|never|wish|want (?:all|any|every|my|each|them|it|dates"
    r"|numbers|the (?:dates|numbers|amounts)))\b"
    r"|\bmy (?:own |usual |personal |house )?(?:preferences?|style|convention|house style"
    r"|habit|preferred|reports?|documents?|"
    r"letters?|e-?mails?|notes?|summaries|files|slides|tables|readers|texts?|outputs?"
    r"|sign-?off|signature)\b.{0,60}?"
    r"\b(?:is|are|should|must|have|has|need|use|go|end|start|begin|always|never|in|as|with"
    r"|to be)\b"
    r"|\b(?:please\s+)?(?:always|never)\s+\w+"
    r"|\b(?:from now on|in (?:the )?future|as a rule|by default|in general|whenever you"
    r"|every time|for all (?:my|future))\b"
    r"|\b(?:call|address) me\b|\bsign(?:ed)?[ -]?off\b|\bhouse style\b"
    r"|\bplease (?:keep|avoid|stick to|prefer|don't|do not|no)\b"
    r"|\b(?:preferences?|conventions?|style)\s*[:—-]\s*\S"
    r"|\b(?:ich bevorzuge|ich möchte|ich mag|bitte (?:immer|nie|keine?)|je préfère|toujours"
    r"|prefiero|siempre|preferisco)\b"
    r"|我(?:喜欢|偏好|习惯|希望)|请(?:总是|始终|不要|一律|用)",
    re.I,
)
_AGENT = re.compile(
    r"\b(?:when you\b|from (?:this|you)\b.{0,12}\b(?:assistant|agent|tool)?|in this (?:tool"
    r"|assistant|harness|editor|app|chat|terminal)|"
    r"with (?:this (?:tool|assistant|agent|harness)|you)\b|(?:here|this assistant|this agent"
    r"|this harness|this tool)\b|"
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
    return _WISH.search(sentence) is not None


def of_agent(sentence: str) -> bool:
    """Whether the wish is for the agent at hand only."""
    return _AGENT.search(sentence) is not None


def topic(text: str) -> str:
    """What a wish is about; empty where nothing tells."""
    return next((name for name, pattern in _TOPIC.items() if pattern.search(text)), "")


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
