"""A splitter by rules: what a sentence comes from, and what it says, decide where it goes.

Reusable is only what the agent said itself, the verifier's last words and the task, and of these
only sentences that speak of the work in ordinary and technical words and of no person. Words that
stand in what tools gave or the user said are *tainted*: they are nobody's to share. All else that
is worth keeping is protected: what the user states, what the agent remarks of it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Set

import trio

from isovist.kernel.learning.facts import words_of
from isovist.kernel.learning.lexicon import FUNCTION
from isovist.kernel.learning.rules.generalise import PLACEHOLDER, General, generalise
from isovist.kernel.learning.rules.spoken import Spoken, sentences_of, spoken_in
from isovist.kernel.learning.rules.wishes import echoes, is_wish, listed, of_agent, topic, wish
from isovist.kernel.learning.sentences import looks_personal, speaks_of_person, states_private
from isovist.kernel.state.lessons import ESTABLISHED, Attempt, Streams
from isovist.storage import guard

MAX_TASK = 240
MAX_STREAM = 12_000
"""Characters of the generalised task, and of one stream's text."""
MAX_FINDINGS = 12
MAX_SENTENCE = 400
"""Characters of a sentence that is kept; one of more than twice as many is not looked at."""

_NARRATION = re.compile(
    r"(?:(?:ok(?:ay)?|now|next|then|first|finally|alright|great|good|perfect|done"
    r"|sure)[,.!]?\s+)*"
    r"(?:let me|let's|i'll|i will|i am going|i'm going|going to|i should|i need to|i want to|"
    r"i can see|i see|looking at|here is|here's|reading|opening|checking|running|writing|"
    r"done|sure|great|okay|all done|task complete|the task is complete)\b",
    re.I,
)
_FIRST = re.compile(r"(?:(?:so|then|and|next|now)\s+)?(?:i|we)\b", re.I)
_SAYS = re.compile(
    r"\b(?:because|causes?|caused|reason|must|should|never|always|instead|avoid|works?|worked|"
    r"fail(?:s|ed|ure)?|errors?|wrong|broken?|requires?|needs?|expects?|only|not|rather"
    r"|otherwise|"
    r"unless|until|when|if|hence|therefore|fixed|solved|by)\b",
    re.I,
)
_STRONG = re.compile(
    r"\b(?:lesson|learned|learnt|finding|root cause|trap|gotcha|pitfall|turns? out|turned out|"
    r"the fix|the cause|the problem|the reason|the key|the trick|the catch|solution|beware|"
    r"must|never|always|instead of|remember|note that|important|found that)\b",
    re.I,
)
_LEAD = re.compile(
    r"^(?:(?:so|and|but|also|then|thus|hence|in fact|actually|overall|in short|finally)[,:]?\s+)?"
    r"(?:(?:lessons?(?: learned| learnt)?|finding|note|fix|root cause|conclusion|summary"
    r"|takeaway|"
    r"tip)\s*[:—-]\s*"
    r"|(?:i|we)\s+(?:found|noticed|learned|learnt|saw|realised|realized|discovered|concluded|"
    r"think|believe|see|confirmed|observed)\s+(?:out\s+)?that\s+"
    r"|it turn(?:s|ed) out that\s+|note that\s+|please note that\s+|remember that\s+)",
    re.I,
)
_OWN = re.compile(
    r"\b(?:(?:this|the) harness|this agent|my (?:own )?(?:edit|editor|shell|tools?|search|read|"
    r"write|terminal|sandbox|environment|harness|python|apply|patch)\w*|"
    r"(?:shell|tool|editor|terminal|sandbox|python|environment|interpreter)s? here|"
    r"this (?:shell|sandbox|tool|editor|terminal|environment|assistant))\b",
    re.I,
)
_NOISE = re.compile(
    r"\s*(?:File \"|Traceback|at [\w.$]+\(|={3,}|-{3,}|\*{3,}|\^+$|~+$|collected \d|platform |"
    r"rootdir|plugins:|cachedir|\.+\s*\[|\d+ (?:passed|failed|errors?)\b.{0,40}$|ok$|"
    r"E?\s*assert\b|FAIL(?:ED)?[.!:]?$|PASS(?:ED)?[.!:]?$|exit (?:code|status) \d+\.?$)"
)
_DELIVERED = re.compile(
    r"(?:[\w'’./<>-]+\s+){1,6}(?:is|are|was|were|stands?|lies|goes|went)\s+(?:now\s+|all\s+)?"
    r"(?:(?:(?:saved|written|stored|there)\s+)?(?:in|at|under|to)\s+[`'\"]?[\w<>/~-]*"
    r"(?:/|\.[a-z])[\w./<>-]*[`'\"]?|ready|done|completed?|attached|written|saved)[.!]?$",
    re.I,
)
"""Where something is now, or that it is done: no one learns from that."""
_LEAST = 4
"""Ordinary words beside its placeholders that a sentence must have to tell anything."""
_LABELS = {"passed": "lesson", "failed": "tried", "unknown": "perhaps"}


class RuleSplitter:
    """:class:`isovist.kernel.learning.roles.Splitter` by rules; its work is done in a thread."""

    async def split(self, attempt: Attempt) -> Streams:
        return await trio.to_thread.run_sync(split, attempt)


def split(attempt: Attempt) -> Streams:
    """Both streams of ``attempt``, each made of typed lines (``task: …``, ``lesson: …``).

    Reusable: ``task``; ``lesson`` of a passed attempt, ``tried`` of a failed one, ``perhaps`` of
    one that nobody judged; ``check said``; ``own`` for what is about this one agent. Protected:
    ``preference``, ``here`` (with this agent), ``context``, ``about`` (the task of remarks) and
    ``remark``. Deterministic, linear in the attempt's length; raises nothing.
    """
    said = spoken_in(attempt)
    doubtful: list[str] = []
    reusable: list[str] = []
    task = _task(said)
    if attempt.outcome in _LABELS:
        lines = list(_reusable(attempt, said, doubtful))
        if task and lines:
            reusable = [f"task: {task}", *lines]
    if doubtful and task:
        doubtful.insert(0, f"about: {task}")
    streams = [guard.clean(_bounded(lines)) for lines in (reusable, [*_stated(said), *doubtful])]
    secrets = Counter(streams[0].counts) + Counter(streams[1].counts)
    return Streams(
        reusable=streams[0].text, protected=streams[1].text, by="rules", secrets=dict(secrets)
    )


def _task(said: Spoken) -> str:
    """The task in general words, at most :data:`MAX_TASK` characters; empty where none is left."""
    kept: list[str] = []
    size = 0
    under = set(listed(said.task.split("\n")))
    for sentence in sentences_of(said.task):
        if len(sentence) > 2 * MAX_SENTENCE or sentence in under or is_wish(sentence):
            continue
        if echoes(sentence, said.wishes):
            continue
        sentence = re.sub(r"\b(?:for|to) (?:me|us)\b", "", sentence)
        sentence = re.sub(r"\b(?:my|our|your)\b", "the", sentence)
        if speaks_of_person(sentence, second=False) or states_private(sentence):
            continue
        general = generalise(sentence, said.public, said.private, blank=True)
        if not general.terms or size + len(general.text) > MAX_TASK:
            continue
        kept.append(general.text)
        size += len(general.text) + 1
    return " ".join(kept)


def _reusable(attempt: Attempt, said: Spoken, doubtful: list[str]) -> Iterator[str]:
    """The typed lines of the reusable stream but the task. Sentences that may not stand there and
    are worth keeping are added to ``doubtful``."""
    if attempt.outcome in ESTABLISHED:
        yield from _said_by_check(said, doubtful)
    label = _LABELS[attempt.outcome]
    nobodys = said.tainted | said.private
    tools = {call.name for message in attempt.trajectory for call in message.calls}
    for sentence in _findings(said):
        bare = _LEAD.sub("", sentence).strip()
        bare = bare[:1].upper() + bare[1:]
        general = generalise(bare, said.public, nobodys)
        if general.terms and not _of_work(general, nobodys):
            blanked = generalise(bare, said.public, nobodys, blank=True)
            general = blanked if _tells(blanked) else general
        if _about_person(sentence, general) or echoes(bare, said.wishes):
            doubtful.append(f"remark: {_short(sentence)}")
        elif not general.terms or not _of_work(general, nobodys):
            if attempt.outcome == "passed" and general.terms:
                doubtful.append(f"remark: {_short(sentence)}")
        else:
            # How its tools behave an agent sees whatever comes of the attempt.
            seen = attempt.outcome in ESTABLISHED
            own = seen and (_OWN.search(sentence) or _of_tool(sentence, tools))
            yield f"{'own' if own else label}: {_short(general.text)}"


def _of_work(general: General, nobodys: Set[str]) -> bool:
    """Whether unknown words are few beside those of the work, and none was said or read."""
    few = len(general.unknown) <= general.terms // 2
    return not general.unknown or (few and not general.unknown & nobodys)


def _about_person(sentence: str, general: General) -> bool:
    """Whether an agent's sentence speaks of a person. Its *I* is the agent; its *you* is anybody
    who does such work, unless the sentence is of private things."""
    if speaks_of_person(sentence, first=False, second=False) or states_private(sentence):
        return True
    if not looks_personal(sentence):
        return False
    named = PLACEHOLDER.search(general.text) is not None
    return named or bool(general.unknown) or speaks_of_person(sentence, first=False)


def _findings(said: Spoken) -> list[str]:
    """The agent's sentences that say what works or fails, in order: those that say so plainly, and
    of the last turn all that are no tale of what it did."""
    found: list[tuple[int, int, str]] = []
    seen: set[str] = set()
    for turn, own in enumerate(said.agent):
        for number, sentence in enumerate(own):
            key = sentence.lower()
            if len(sentence) > 2 * MAX_SENTENCE or _NARRATION.match(sentence) or key in seen:
                continue
            tale = _FIRST.match(sentence) or _DELIVERED.match(sentence)
            told = tale and not _SAYS.search(sentence)
            if (
                (turn == 0 and not told)
                or _STRONG.search(sentence)
                or _OWN.search(sentence)
                or speaks_of_person(sentence, first=False, second=False)
                or states_private(sentence)
            ):
                seen.add(key)
                found.append((turn, number, sentence))
        if len(found) >= 4 * MAX_FINDINGS:
            break
    found.sort(key=lambda f: (-f[0], f[1]))
    return [sentence for _, _, sentence in found]


def _tells(general: General) -> bool:
    """Whether a sentence says anything without its unknown words."""
    gaps = len(PLACEHOLDER.findall(general.text))
    words = [w for w in words_of(PLACEHOLDER.sub(" ", general.text)) if w not in FUNCTION]
    return general.terms > 0 and gaps <= 2 and len(words) >= _LEAST


def _of_tool(sentence: str, tools: Collection[str]) -> bool:
    """Whether a sentence names a tool that the agent has called, by a name that is no plain
    word: what it says is of this agent's surroundings."""
    return any(
        re.search(rf"(?<!\w){re.escape(tool)}(?!\w)", sentence)
        for tool in tools
        if not tool.isalpha() and len(tool) > 3
    )


def _said_by_check(said: Spoken, doubtful: list[str]) -> Iterator[str]:
    """What the verifier's last words say of the work. What they say of the person is a wish that
    was not met: it is added to ``doubtful``."""
    lines = said.tail.split("\n")[-60:]
    for sentence in (one for line in lines for one in sentences_of(line)):
        if _NOISE.match(sentence) or len(sentence) > 2 * MAX_SENTENCE:
            continue
        if speaks_of_person(sentence, second=False) or states_private(sentence):
            label = "preference" if topic(sentence) else "remark"
            doubtful.append(f"{label}: {_short(sentence)}")
            continue
        if echoes(sentence, said.wishes):
            continue
        general = generalise(sentence, said.public, said.private, blank=True)
        if general.terms:
            yield f"{'own' if _OWN.search(sentence) else 'check said'}: {_short(general.text)}"


def _stated(said: Spoken) -> Iterator[str]:
    """What the user states of wishes and of themselves."""
    for sentence in said.stated:
        if len(sentence) <= 2 * MAX_SENTENCE:
            yield f"{'here' if of_agent(sentence) else 'preference'}: {_short(wish(sentence))}"
    stated = set(said.stated)
    for sentence in said.user:
        if (
            len(sentence) <= 2 * MAX_SENTENCE
            and sentence not in stated
            and speaks_of_person(sentence, second=False)
            and looks_personal(sentence)
        ):
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
