"""Lessons that mean something: what each says is known apart from how it is said.

A :class:`Meaning` is drawn from the words of a domain; :func:`say` words it in one of several
ways (order of clauses, inflection, function words), and :func:`changed` makes one that is nearly
the same and means something else. No two meanings of one draw are equal, so that which entries say
the same is known without any judge.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Literal, NamedTuple

Change = Literal["negated", "condition", "number", "hedged", "other"]
CHANGES: tuple[Change, ...] = ("negated", "condition", "number", "hedged", "other")


class Domain(NamedTuple):
    """``situations``: (activity, of what); ``deeds``: (verb, its past participle); ``things`` are
    done to, ``means`` done with; ``states``: (thing, in which state) of a condition."""

    situations: tuple[tuple[str, str], ...]
    deeds: tuple[tuple[str, str], ...]
    things: tuple[str, ...]
    means: tuple[str, ...]
    states: tuple[tuple[str, str], ...]
    units: tuple[str, ...]


class Meaning(NamedTuple):
    """What a lesson says, by indices into its domain's words. ``kind`` of the condition: none, if,
    unless, before or after; ``number`` of ``unit``; hedged or flat; to do or not to do."""

    domain: int
    situation: int
    deed: int
    thing: int
    means: int
    kind: str
    state: int
    number: int
    unit: int
    hedged: bool
    denied: bool


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    found = []
    for line in text.strip().split(","):
        first, _, second = line.strip().partition(" ")
        found.append((first, second))
    return tuple(found)


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


DOMAINS: tuple[Domain, ...] = (
    Domain(
        _pairs("exporting ledgers, importing ledgers, merging tables, cleaning tables, sorting"
               " registers, splitting reports, joining reports, checking totals"),
        _pairs("quote quoted, trim trimmed, pad padded, round rounded, mask masked, drop dropped,"
               " rename renamed, sort sorted, copy copied, flag flagged"),
        _list("the empty cells, the date column, the price column, the header row, duplicate rows,"
              " the footer, foreign characters, the account names, negative amounts, the totals"),
        _list("a script, the formula bar, the import wizard, a pivot table, a regular expression"),
        _pairs("ledger locked, currency missing, column hidden, sheet protected, encoding unknown,"
               " delimiter doubled, period closed, total rounded"),
        _list("rows, digits, columns"),
    ),
    Domain(
        _pairs("deploying services, restarting services, migrating databases, patching servers,"
               " rotating certificates, scaling clusters, draining nodes, tracing outages"),
        _pairs("drain drained, tag tagged, snapshot snapshotted, throttle throttled, pin pinned,"
               " warm warmed, cordon cordoned, archive archived, notify notified, rebuild rebuilt"),
        _list("the old replica, the load balancer, the message queue, the audit log, the release"
              " branch, the health probe, idle workers, the cache, the schema, the standby"),
        _list("the runbook, a feature toggle, the deploy bot, a canary, the admin console"),
        _pairs("queue full, replica stale, disk encrypted, probe red, certificate revoked, region"
               " degraded, lock held, release frozen"),
        _list("minutes, retries, replicas"),
    ),
    Domain(
        _pairs("baking bread, roasting coffee, brewing beer, curing ham, pickling cabbage, drying"
               " herbs, smoking trout, steaming dumplings"),
        _pairs("stir stirred, chill chilled, salt salted, strain strained, weigh weighed, knead"
               " kneaded, skim skimmed, season seasoned, soak soaked, score scored"),
        _list("the dough, the brine, the rack, the second batch, the skin, the crust, the beans,"
              " the starter, the broth, the leaves"),
        _list("a wooden spoon, cold water, a cloth, coarse salt, a fine sieve"),
        _pairs("oven cold, dough sticky, broth cloudy, kitchen humid, salt damp, yeast tired,"
               " kettle crowded, knife blunt"),
        _list("grams, minutes, spoons"),
    ),
    Domain(
        _pairs("booking flights, planning tours, hosting guests, renting vans, shipping crates,"
               " insuring parcels, clearing customs, charting ferries"),
        _pairs("confirm confirmed, label labelled, weigh weighed, photograph photographed,"
               " seal sealed, list listed, insure insured, stack stacked, reserve reserved,"
               " scan scanned"),
        _list("the boarding pass, the heavy crate, the passport page, the window seat, the return"
              " leg, the customs form, fragile parcels, the deposit, the waybill, the itinerary"),
        _list("a courier, the mobile app, a paper form, the loyalty card, a spring scale"),
        _pairs("ferry late, border busy, weather rough, passport damaged, hotel overbooked, van"
               " dented, parcel wet, fare refundable"),
        _list("days, euros, copies"),
    ),
    Domain(
        _pairs("treating burns, dosing infants, taking samples, reading scans, changing dressings,"
               " triaging patients, storing vaccines, recording allergies"),
        _pairs("rinse rinsed, weigh weighed, label labelled, cool cooled, record recorded, isolate"
               " isolated, measure measured, warm warmed, cover covered, count counted"),
        _list("the wound, the vial, the left arm, the sample tube, the chart, the dressing, the"
              " ampoule, the pulse, the cannula, the cold box"),
        _list("sterile gauze, saline, a second nurse, the ward scanner, a fresh glove"),
        _pairs("patient asleep, fever high, vial cracked, fridge open, chart blank, wound dry,"
               " bandage loose, pulse weak"),
        _list("millilitres, hours, drops"),
    ),
)  # fmt: skip


def meanings(rng: random.Random) -> Iterator[Meaning]:
    """Meanings without end, no two equal."""
    seen: set[Meaning] = set()
    while True:
        one = _drawn(rng)
        if one not in seen:
            seen.add(one)
            yield one


def _drawn(rng: random.Random) -> Meaning:
    number = rng.randrange(len(DOMAINS))
    domain = DOMAINS[number]
    kind = rng.choice(("", "if", "if", "unless", "before", "after"))
    counted = rng.random() < 0.4
    return Meaning(
        domain=number,
        situation=rng.randrange(len(domain.situations)),
        deed=rng.randrange(len(domain.deeds)),
        thing=rng.randrange(len(domain.things)),
        means=rng.randrange(len(domain.means) + 1) - 1,
        kind=kind,
        state=rng.randrange(len(domain.states))
        if kind in ("if", "unless")
        else _other(rng, domain)
        if kind
        else -1,
        number=rng.randrange(2, 40) if counted else 0,
        unit=rng.randrange(len(domain.units)) if counted else -1,
        hedged=rng.random() < 0.15,
        denied=rng.random() < 0.25,
    )


def _other(rng: random.Random, domain: Domain) -> int:
    return rng.randrange(len(domain.deeds) * len(domain.things))


def changed(one: Meaning, how: Change, rng: random.Random) -> Meaning:
    """A meaning near ``one`` that is not it. What cannot be changed so is denied instead."""
    domain = DOMAINS[one.domain]
    if how == "condition" and one.kind in ("if", "unless"):
        if rng.random() < 0.3:
            return one._replace(kind="unless" if one.kind == "if" else "if")
        state = (one.state + rng.randrange(1, len(domain.states))) % len(domain.states)
        return one._replace(state=state)
    if how == "condition" and one.kind:
        return one._replace(kind="after" if one.kind == "before" else "before")
    if how == "condition":
        return one._replace(kind="if", state=rng.randrange(len(domain.states)))
    if how == "number" and one.number:
        return one._replace(number=one.number + rng.randrange(1, 9))
    if how == "hedged":
        return one._replace(hedged=not one.hedged)
    if how == "other":
        thing = (one.thing + rng.randrange(1, len(domain.things))) % len(domain.things)
        return one._replace(thing=thing)
    return one._replace(denied=not one.denied)


def say(one: Meaning, rng: random.Random) -> tuple[str, str]:
    """A situation and a lesson that mean ``one``, in one of the ways in which people say it."""
    domain = DOMAINS[one.domain]
    activity, of = domain.situations[one.situation]
    situation = rng.choice((f"{activity} {of}", f"you are {activity} {of}", f"when {activity} {of}",
                            f"{activity} the {of}"))  # fmt: skip
    deed = _deed(one, domain, rng)
    condition = _condition(one, domain, rng)
    if not condition:
        lesson = deed
    elif rng.random() < 0.5:
        lesson = f"{condition}, {deed}"
    else:
        lesson = f"{deed} {condition}"
    return situation, f"{lesson[0].upper()}{lesson[1:]}."


def _deed(one: Meaning, domain: Domain, rng: random.Random) -> str:
    verb, done = domain.deeds[one.deed]
    thing = domain.things[one.thing]
    tail = f" {rng.choice(('with', 'using', 'by means of'))} {domain.means[one.means]}" * (
        one.means >= 0
    )
    if one.number:
        tail += f" for {one.number} {domain.units[one.unit]}"
    if rng.random() < 0.25:  # "the dough must be salted"
        must = rng.choice(("must", "should", "has to" if not one.denied else "should"))
        plural = thing.split()[-1].endswith("s") and not thing.endswith("ss")
        must = "have to" if plural and must == "has to" else must
        words = [thing, must, "not" * one.denied, "perhaps" * one.hedged, "be", done]
        return " ".join(filter(None, words)) + tail
    if one.denied:
        before = rng.choice(("do not", "never", "don't"))
    else:
        before = rng.choice(("", "", "always", "make sure to", "please", "you should"))
    if one.hedged:
        before = f"{rng.choice(('perhaps', 'maybe', 'possibly'))} {before}".strip()
    return f"{before} {verb} {thing}{tail}".strip()


def _condition(one: Meaning, domain: Domain, rng: random.Random) -> str:
    if not one.kind:
        return ""
    if one.kind in ("before", "after"):
        deed, thing = divmod(one.state, len(domain.things))
        verb, done = domain.deeds[deed]
        ways = {
            "before": (f"before {_gerund(verb)}", f"prior to {_gerund(verb)}",
                       f"before you {verb}"),
            "after": (f"after {_gerund(verb)}", f"as soon as you have {done}",
                      f"after you have {done}"),
        }[one.kind]  # fmt: skip
        return f"{rng.choice(ways)} {domain.things[thing]}"
    noun, state = domain.states[one.state]
    word = rng.choice(("if", "when", "whenever", "in case")) if one.kind == "if" else "unless"
    return f"{word} the {noun} is {state}"


def _gerund(verb: str) -> str:
    if verb.endswith("e"):
        return f"{verb[:-1]}ing"
    short = (
        len(verb) <= 5 and verb[-1] in "mnptgdr" and verb[-2] in "aiou" and verb[-3] not in "aiou"
    )
    return f"{verb}{verb[-1] * short}ing"
