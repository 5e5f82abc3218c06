"""A splitter by rules: what a sentence comes from, and what it says, decide where it goes.

Reusable is only what the agent said itself, the verifier's last words and the task, and of these
only sentences that speak of the work in ordinary and technical words and of no person. Words that
stand in what tools gave or the user said are *tainted*: they are nobody's to share. All else that
is worth keeping is protected: what the user states, what the agent remarks of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import trio

from isovist.kernel.learning.rules.generalise import content, generalise
from isovist.kernel.learning.rules.wishes import is_wish, of_agent, wish
from isovist.kernel.learning.sentences import looks_personal, sentences, speaks_of_person
from isovist.kernel.state.lessons import ESTABLISHED, Attempt, Streams
from isovist.storage import guard
from isovist.storage.folding import fold

MOST = 400_000
"""Characters of an attempt's own words that are looked at, the last ones."""
MAX_TASK = 240
MAX_STREAM = 12_000
"""Characters of the generalised task, and of one stream's text."""
MAX_FINDINGS = 12
MAX_SENTENCE = 400

_NARRATION = re.compile(
    r"(?:(?:ok(?:ay)?|now|next|then|first|finally|alright|great|good|perfect|done"
    r"|sure)[,.!]?\s+)*"
    r"(?:let me|let's|i'll|i will|i am going|i'm going|going to|i should|i need to|i want to|"
    r"i can see|i see|looking at|here is|here's|reading|opening|checking|running|writing|"
    r"done|sure|great|okay|all done|task complete|the task is complete)\b",
    re.I,
)
_FINDING = re.compile(
    r"\b(?:lesson|learn(?:ed|t)|note|notice|remember|because|cause[ds]?|reason|must|should|shall|"
    r"never|always|instead|avoid|beware|careful|trap|gotcha|pitfall|turns? out|turned out"
    r"|in fact|actually|"
    r"fix(?:ed|es)?|solution|solved|works?|worked|fail(?:s|ed|ure)?|errors?|wrong|broken?|"
    r"requires?|needs?|expects?|only|not|use[ds]?|using|do|don't|does|doesn't|before|after|"
    r"rather|otherwise|unless|until|when|if|so|hence|therefore|skip|strip|keep|treat|sort"
    r"|quote|escape|"
    r"encode[ds]?|decode[ds]?|parse[ds]?|replace[ds]?|convert(?:s|ed)?)\b",
    re.I,
)
_STRONG = re.compile(
    r"\b(?:lesson|learned|learnt|finding|root cause|trap|gotcha|pitfall|turns? out|turned out|"
    r"the fix|the cause|the problem|the reason|the key|the trick|the catch|solution|beware|"
    r"must|never|always|instead of|remember|note that|important)\b",
    re.I,
)
_LEAD = re.compile(
    r"^(?:(?:so|and|but|also|then|thus|hence|in fact|actually|overall|in short|finally)[,:]?\s+)?"
    r"(?:(?:lesson(?:s)?(?: learned| learnt)?|finding|note|fix|root cause|conclusion|summary"
    r"|takeaway|tip)\s*[:—-]\s*"
    r"|(?:i|we)\s+(?:found|noticed|learned|learnt|saw|realised|realized|discovered|concluded"
    r"|think|"
    r"believe|see|confirmed|observed)\s+(?:out\s+)?that\s+"
    r"|it turn(?:s|ed) out that\s+|note that\s+|please note that\s+|remember that\s+)",
    re.I,
)
_OWN = re.compile(
    r"\b(?:this harness|the harness|this agent|my (?:own )?(?:edit|editor|shell|tool|tools"
    r"|search|"
    r"read|write|terminal|sandbox|environment|harness|python|apply|patch)\w*|"
    r"(?:shell|tool|editor|terminal|sandbox|python|environment|interpreter)s? here|"
    r"this (?:shell|sandbox|tool|editor|terminal|environment|assistant))\b",
    re.I,
)
_NOISE = re.compile(
    r"^\s*(?:File \"|Traceback|at [\w.$]+\(|={3,}|-{3,}|\*{3,}|\^+$|~+$|collected \d"
    r"|platform |rootdir|plugins:|"
    r"cachedir|\.+\s*\[|\d+ (?:passed|failed|errors?)\b.{0,40}$|ok$|FAIL(?:ED)?[.!:]?$"
    r"|PASS(?:ED)?[.!:]?$|exit (?:code|status) \d+\.?$)"
)
_QUIRK = re.compile(r"\b(?:i|my|mine|we|our)\b", re.I)


class RuleSplitter:
    """:class:`isovist.kernel.learning.roles.Splitter` by rules; its work is done in a thread."""

    async def split(self, attempt: Attempt) -> Streams:
        return await trio.to_thread.run_sync(split, attempt)


def split(attempt: Attempt) -> Streams:
    """Both streams of ``attempt``. Deterministic, linear in its length; raises nothing."""
    spoken = _Spoken.of(attempt)
    reusable: list[str] = []
    protected: list[str] = []
    task = _task(attempt, spoken)
    held = attempt.outcome in ESTABLISHED
    if held or attempt.outcome == "unknown":
        lines = list(_reusable(attempt, spoken, protected))
        if task and lines:
            reusable = [f"task: {task}", *lines]
    protected = [*_stated(attempt), *protected]
    texts = []
    secrets: dict[str, int] = {}
    for lines in (reusable, protected):
        cleaned = guard.clean(_bounded(lines))
        for type_, count in cleaned.counts.items():
            secrets[type_] = secrets.get(type_, 0) + count
        texts.append(cleaned.text)
    return Streams(reusable=texts[0], protected=texts[1], by="rules", secrets=secrets)


class _Spoken(NamedTuple):
    """The attempt's texts by who they are from. ``agent`` is the agent's own prose, the last turn
    last; ``public`` are stems that the task and the verifier use."""

    agent: list[str]
    public: frozenset[str]
    tainted: frozenset[str]
    private: frozenset[str]

    @classmethod
    def of(cls, attempt: Attempt) -> _Spoken:
        agent = [m.content for m in attempt.trajectory if m.role == "assistant" and m.content]
        if attempt.claim:
            agent.append(attempt.claim)
        given = [
            fold(m.content).text
            for m in attempt.trajectory
            if m.role in ("user", "tool", "system") and m.content
        ]
        task = _sentences(attempt.task)
        tainted: set[str] = set()
        private: set[str] = set()
        for text in given:
            for line in text.split("\n"):
                words = content(line)
                tainted |= words
                if words and (looks_personal(line) or speaks_of_person(line)):
                    private |= words
        private |= {s for t in task if speaks_of_person(t) or looks_personal(t) for s in content(t)}
        public = content(attempt.task) | content(attempt.tail)
        return cls(
            agent, frozenset(public - private), frozenset(tainted - public), frozenset(private)
        )


def _sentences(text: str) -> list[str]:
    text = fold(text).text[-MOST:]
    return [text[s.start : s.stop] for s in sentences(text)]


def _task(attempt: Attempt, spoken: _Spoken) -> str:
    """The task in general words, at most :data:`MAX_TASK` characters; empty where none is left."""
    kept: list[str] = []
    size = 0
    for sentence in _sentences(attempt.task):
        if is_wish(sentence):
            continue
        sentence = re.sub(r"\b(?:my|our)\b", "the", sentence)
        sentence = re.sub(r"\b(?:for|to|from) (?:me|us)\b", "", sentence)
        if speaks_of_person(sentence) or looks_personal(sentence):
            continue
        general = generalise(sentence, spoken.public, spoken.private)
        if general.unknown or not general.text or size + len(general.text) > MAX_TASK:
            continue
        kept.append(general.text)
        size += len(general.text) + 1
    return " ".join(kept)


def _reusable(attempt: Attempt, spoken: _Spoken, protected: list[str]) -> Iterator[str]:
    """The typed lines of the reusable stream but the task; the doubtful go to ``protected``."""
    if attempt.outcome in ESTABLISHED:
        yield from _said_by_check(attempt, spoken)
    label = {"passed": "lesson", "failed": "tried", "unknown": "perhaps"}[attempt.outcome]
    for sentence in _findings(spoken):
        bare = _LEAD.sub("", sentence).strip()
        bare = bare[:1].upper() + bare[1:]
        general = generalise(bare, spoken.public - spoken.tainted, spoken.tainted | spoken.private)
        personal = speaks_of_person(bare, first=False) or looks_personal(bare)
        if personal or general.unknown:
            if attempt.outcome == "passed" or personal:
                protected.append(f"remark: {_short(sentence)}")
        elif general.terms:
            own = label == "lesson" and _OWN.search(sentence)
            yield f"{'own' if own else label}: {_short(general.text)}"


def _findings(spoken: _Spoken) -> list[str]:
    """The agent's sentences that say what works or fails, in order: those that say so plainly, and
    of the last turn all that may."""
    found: list[tuple[int, int, str]] = []
    seen: set[str] = set()
    number = 0
    size = 0
    for turn, text in enumerate(reversed(spoken.agent)):
        size += len(text)
        if size > MOST:
            break
        for sentence in _sentences(text):
            number += 1
            if len(sentence) > 2 * MAX_SENTENCE or _NARRATION.match(sentence):
                continue
            key = sentence.lower()
            if key in seen:
                continue
            strong = bool(_STRONG.search(sentence) or _OWN.search(sentence))
            personal = speaks_of_person(sentence, first=False) or looks_personal(sentence)
            if strong or personal or (turn == 0 and _FINDING.search(sentence)):
                seen.add(key)
                found.append((turn, number, sentence))
    found = found[: 4 * MAX_FINDINGS]
    found.sort(key=lambda f: (-f[0], f[1]))
    return [sentence for _, _, sentence in found]


def _said_by_check(attempt: Attempt, spoken: _Spoken) -> Iterator[str]:
    for sentence in _sentences(attempt.tail)[-40:]:
        if _NOISE.match(sentence) or len(sentence) > 2 * MAX_SENTENCE:
            continue
        if speaks_of_person(sentence) or looks_personal(sentence):
            continue
        general = generalise(sentence, spoken.public, spoken.private)
        if general.unknown or len(general.text) < 8:
            continue
        yield f"check said: {_short(general.text)}"


def _stated(attempt: Attempt) -> Iterator[str]:
    """What the user states of wishes and of themselves, as typed lines."""
    seen: set[str] = set()
    for text in (attempt.task, *(m.content for m in attempt.trajectory if m.role == "user")):
        for sentence in _sentences(text or ""):
            if sentence in seen or len(sentence) > 2 * MAX_SENTENCE:
                continue
            seen.add(sentence)
            if is_wish(sentence):
                yield f"{'here' if of_agent(sentence) else 'preference'}: {_short(wish(sentence))}"
            elif speaks_of_person(sentence) and looks_personal(sentence):
                yield f"context: {_short(sentence)}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    if len(text) <= MAX_SENTENCE:
        return text
    return text[:MAX_SENTENCE].rsplit(" ", 1)[0] + " …"


def _bounded(lines: Iterable[str]) -> str:
    kept: list[str] = []
    size = 0
    for line in dict.fromkeys(lines):
        size += len(line) + 1
        if size > MAX_STREAM:
            break
        kept.append(line)
    return "\n".join(kept)
