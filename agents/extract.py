"""Facts from what a user said: a model proposes, a check disposes, rules do the rest.

A proposal counts only if its value is a verbatim span of the sentence, and its attribute is made
of words of the sentence and is no word of the schema: a small model likes to echo both schema and
examples. Where it does not count, the sentence itself is the fact. So nothing that a user stated
is lost to a poor model, and nothing is stored that the user did not say.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal

from isovist.syscalls.records import Message

INSTRUCTION = 'Write the fact in the sentence as JSON with "attribute" and "value".'
EXAMPLES = (
    (
        "My sister plays the violin.",
        '{"attribute": "instrument of my sister", "value": "violin"}',
    ),
    ("The demo starts at 9 am.", '{"attribute": "start of the demo", "value": "9 am"}'),
)
MAX_TOKENS = 48
"""Of a proposal."""
LONGEST = 400
"""Characters of a sentence for which the model is asked."""
LONGEST_ATTRIBUTE, LONGEST_VALUE = 48, 160

Extractor = Literal["model", "rules"]


@dataclass(frozen=True)
class Fact:
    """What is stored: the sentence as it was said, and what a model read in it, if that holds."""

    sentence: str
    attribute: str = ""
    value: str = ""

    @property
    def extractor(self) -> Extractor:
        return "model" if self.attribute else "rules"

    @property
    def text(self) -> str:
        """The unit's text: the words in which it will be asked for stay in it."""
        if not self.attribute:
            return self.sentence
        return f"{self.sentence} ({self.attribute}: {self.value})"

    @property
    def meta(self) -> dict[str, str]:
        if not self.attribute:
            return {"extractor": "rules"}
        return {"extractor": "model", "attribute": self.attribute, "value": self.value}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# -- what the user said ------------------------------------------------------------------------

_STOP = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s|$)|[。！？]+[\"”’」』）]*|\n+")
_TITLES = _words(
    "mr mrs ms dr prof st rev hon gen sgt mt ft vs approx e.g i.e cf fig dept jan feb mar apr jun "
    "jul aug sep sept oct nov dec"
)
_BEFORE_NUMBERS = _words("no nr vol p pp ca")


def sentences(text: str) -> list[str]:
    """The sentences of ``text``, in order, trimmed; English and Chinese punctuation."""
    found: list[str] = []
    start = 0
    for stop in _STOP.finditer(text):
        if stop[0] == "." and _abbreviates(text[start : stop.start()], text[stop.end() :]):
            continue
        found.append(text[start : stop.end()])
        start = stop.end()
    found.append(text[start:])
    return [trimmed for s in found if (trimmed := re.sub(r"^[\s>*•–-]+|\s+$", "", s))]


def _abbreviates(before: str, after: str) -> bool:
    """Whether the full stop between the two belongs to an abbreviation."""
    words = before.split()
    if not words or not after.strip():
        return False
    last = words[-1].lstrip("(\"'“‘")
    if last.lower() in _TITLES:
        return True
    if last.lower() in _BEFORE_NUMBERS:
        return after.lstrip()[:1].isdigit()
    # An initial: one capital, first or behind a name.
    is_initial = len(last) == 1 and last.isupper() and last != "I"
    return is_initial and (len(words) == 1 or words[-2][:1].isupper())


# -- which sentences state something -----------------------------------------------------------

_LEAD = re.compile(
    r"(?:(?:please|kindly)\s+)?(?:(?:remember|note|know|be aware|keep in mind|bear in mind|"
    r"don[’']t forget)(?:\s+that\b|\s*:|\s*,|(?=\s+(?:my|i|i[’']m|our|we|the)\b))|"
    r"(?:for the record|fyi|by the way|btw|just so you know|also|oh|well|so|actually|anyway|"
    r"and|but|ok|okay|hi|hello|hey|good (?:morning|afternoon|evening)|thanks|thank you|"
    r"yes|no|sure)\b(?:\s+(?:there|all|everyone|again))?[\s,:;–-]*)",
    re.IGNORECASE,
)
_QUESTION = re.compile(
    r"(?:(?:what|where|when|who|whom|whose|which|why|how)(?:[’']s)?\s+"
    r"(?:is|are|was|were|am|do|does|did|can|could|should|would|will|shall|has|have|had|"
    r"many|much|long|old|far|often|big|about|a|an)\b|"
    r"(?:what|where|who|how)[’']s\b|"
    r"(?:is|are|was|were|am|do|does|did|can|could|would|will|should|shall|have|has|had)(?:n[’']t)?"
    r"\s+(?:i|you|we|they|he|she|it|there|my|your|our|the|this|that|any\w*|some\w*)\b)",
    re.IGNORECASE,
)
_COMMANDS = _words(
    "add answer ask book bring call cancel change check choose compare compute convert copy count "
    "create define delete describe do draft email explain fetch fill find fix forget generate get "
    "give go help ignore imagine keep let let's list look make move open order pick plan play "
    "please print put read recommend remember remind remove repeat reply rewrite run save say "
    "search send set show sort start stop suggest summarise summarize take tell think translate "
    "try turn update use wait write"
)
_VERBS = _words("is are was were has have had will would can must should am")
_SMALL_TALK = re.compile(
    r"(?:good (?:night|bye|luck)|goodbye|bye(?: bye)?|see you\b.*|"
    r"(?:thanks|thank you)(?: (?:a lot|a million|so much|very much|again|for [^,;]*))?|"
    r"you[’']re welcome|sounds good|got it|i see|i understand|never ?mind|no problem|"
    r"nice|great|cool|perfect|sorry|excuse me|welcome|cheers)",
    re.IGNORECASE,
)
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


def states(sentence: str) -> bool:
    """Whether ``sentence`` tells something: no question, greeting, command or fragment."""
    bare = sentence.strip("\"'“”‘’() ")
    if bare.endswith(("?", "？")):
        return False
    if _SMALL_TALK.fullmatch(bare.rstrip(".!… ")):
        return False
    while (lead := _LEAD.match(bare)) and lead.end():
        bare = bare[lead.end() :].lstrip(" ,:;")
    words = re.findall(r"[^\W_][\w’'-]*", bare)
    if len(_CJK.findall(bare)) >= 4:
        return True
    if len(words) < 2 or not any(c.isalpha() for c in bare):
        return False
    if _QUESTION.match(bare) or _SMALL_TALK.fullmatch(bare.rstrip(".!… ")):
        return False
    # "Show me the list" is a command, "Show jumping is my hobby" is not.
    first = words[0].lower().replace("’", "'")
    return first not in _COMMANDS or any(w.lower() in _VERBS for w in words[1:3])


# -- what a model may add ----------------------------------------------------------------------

_SCHEMA = frozenset(re.findall(r"[a-z]+", INSTRUCTION.lower()))
_EMPTY = _words(
    "i me my mine we us our you your it its he she they a an the this that is am are was were be "
    "been have has had do does did of in on at to for and or not with by from as"
)


def messages(sentence: str) -> tuple[Message, ...]:
    """What the model is asked. The examples are turns, and the part that all calls share comes
    first, so that a driver's prefix cache serves it."""
    asked = [Message("system", INSTRUCTION)]
    for said, noted in EXAMPLES:
        asked += [Message("user", said), Message("assistant", noted)]
    return (*asked, Message("user", sentence))


def accept(proposal: str, sentence: str) -> Fact | None:
    """The fact that a model proposes for ``sentence``, if it holds; see the head of the module."""
    start = proposal.find("{")
    try:
        given = json.JSONDecoder().raw_decode(proposal, start)[0] if start >= 0 else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, dict):
        return None
    attribute, value = given.get("attribute"), given.get("value")
    if not isinstance(attribute, str) or not isinstance(value, str):
        return None
    attribute, value = " ".join(attribute.split()), value.strip(" .,;:!")
    if not (0 < len(attribute) <= LONGEST_ATTRIBUTE and 0 < len(value) <= LONGEST_VALUE):
        return None
    if not (_said(attribute, sentence) and _verbatim(value, sentence)):
        return None
    told = set(re.findall(r"\w+", attribute.lower())) | _EMPTY
    if told.issuperset(re.findall(r"\w+", value.lower())):
        return None  # the value says nothing beyond its attribute
    return Fact(sentence, attribute, value)


def _said(attribute: str, sentence: str) -> bool:
    """Whether all words of ``attribute`` that say something stand in ``sentence``, in whatever
    form, and not all of them are the schema's."""
    words = [w for w in re.findall(r"[^\W\d_]+", attribute.lower()) if w not in _EMPTY]
    heard = sentence.lower()
    stems = [w.rstrip("s") or w for w in words]
    return (
        any(w not in _SCHEMA and stem not in _SCHEMA for w, stem in zip(words, stems, strict=True))
        and all(stem in heard for stem in stems)
    )  # fmt: skip


def _verbatim(value: str, sentence: str) -> bool:
    """Whether ``value`` is a span of whole words of ``sentence``, and not all of it."""
    if value == sentence.strip(" .,;:!"):
        return False
    at = sentence.find(value)
    while at >= 0:
        before, after = sentence[:at][-1:], sentence[at + len(value) :][:1]
        if not (_joined(before, value[0]) or _joined(value[-1], after)):
            return True
        at = sentence.find(value, at + 1)
    return False


def _joined(left: str, right: str) -> bool:
    """Whether two neighbouring characters belong to one word (Chinese has no gaps)."""
    return left.isalnum() and right.isalnum() and not (_CJK.match(left) or _CJK.match(right))
