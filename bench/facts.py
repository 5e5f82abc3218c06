"""Facts that nobody can guess, questions about them, and decoys that look like them.

Everything is drawn from the seed. A fact is a sentence that a user says; its value is a made-up
name or a number that occurs in no other text of the run. The twenty kinds each have one sentence
and one question, written before any was asked and never adjusted to an answer. Decoys speak of
neighbouring subjects in partly the same words, with values of their own.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Literal

from bench.text import made_up

FACTS_EACH = 8
Listener = Literal["profile", "task"]


@dataclass(frozen=True)
class Kind:
    """``value`` is what goes in for ``{}``: a ``name``, or a ``number`` of four to six digits."""

    listener: Listener
    says: str
    question: str
    value: Literal["name", "number"] = "name"


KINDS = (
    # What stays true of a person.
    Kind("profile", "My cat is called {}.", "What is my cat called?"),
    Kind(
        "profile",
        "My locker at the gym has the number {}.",
        "Which number has my locker at the gym?",
        "number",
    ),
    Kind(
        "profile",
        "My office badge is a blue one with the number {}.",
        "What is the number of my office badge?",
        "number",
    ),
    Kind("profile", "My sister lives in a town called {}.", "In which town does my sister live?"),
    Kind("profile", "My piano teacher is Mrs {}.", "Who is my piano teacher?"),
    Kind("profile", "I live in {} Street, above the pharmacy.", "In which street do I live?"),
    Kind("profile", "I prefer a tea called {}.", "Which tea do I prefer?"),
    Kind("profile", "I have named my bicycle {}.", "How have I named my bicycle?"),
    Kind(
        "profile",
        "My library card carries the number {}.",
        "What number does my library card carry?",
        "number",
    ),
    Kind("profile", "I buy bread at a bakery called {}.", "At which bakery do I buy bread?"),
    # What a task is about at the moment.
    Kind(
        "task",
        "The code name of our new project is {}.",
        "What is the code name of our new project?",
    ),
    Kind(
        "task",
        "The glass for the exhibition comes from a supplier in {}.",
        "Where does the glass for the exhibition come from?",
    ),
    Kind(
        "task",
        "The build server has been moved to a host called {}.",
        "To which host has the build server been moved?",
    ),
    Kind(
        "task",
        "The invoice for the printers has the number {}.",
        "What is the number of the invoice for the printers?",
        "number",
    ),
    Kind(
        "task",
        "The weekly review takes place in room {}.",
        "In which room does the weekly review take place?",
        "number",
    ),
    Kind(
        "task",
        "I am working on the branch {} this week.",
        "On which branch am I working this week?",
    ),
    Kind(
        "task",
        "Our contact at the insurance company is Mr {}.",
        "Who is our contact at the insurance company?",
    ),
    Kind(
        "task",
        "The leak in the pump is tracked in ticket {}.",
        "In which ticket is the leak in the pump tracked?",
        "number",
    ),
    Kind(
        "task",
        "The draft of the annual report is in the folder {}.",
        "In which folder is the draft of the annual report?",
    ),
    Kind(
        "task",
        "The deposit for the boat hire was {} crowns.",
        "How many crowns was the deposit for the boat hire?",
        "number",
    ),
)


@dataclass(frozen=True)
class Fact:
    user: str
    kind: int
    """Index into :data:`KINDS`."""
    value: str

    @property
    def listener(self) -> Listener:
        return KINDS[self.kind].listener

    @property
    def says(self) -> str:
        return KINDS[self.kind].says.format(self.value)

    @property
    def question(self) -> str:
        return KINDS[self.kind].question


DECOYS = (
    "The cat food in the big bag costs {number} a kilo.",
    "The neighbour's dog is called {name} and barks at night.",
    "The gym has new lockers, but locker {number} does not close.",
    "The lost and found at the gym has the telephone number {number}.",
    "Visitors get a yellow badge from Mr {name} at the door.",
    "The badge printer in the office needs the spare part {number}.",
    "A brother of the caretaker lives in {name}.",
    "The town of {name} has a market on Saturdays.",
    "The piano in the hall was tuned by Mr {name}.",
    "The violin teacher {name} has moved to another school.",
    "The pharmacy in {name} Street closes at noon.",
    "Roadworks in {name} Street will last for {number} hours.",
    "The canteen has replaced the old tea with {name}.",
    "Coffee from {name} is out of stock.",
    "The bicycle shop {name} gives a discount in winter.",
    "A bicycle with the frame number {number} was found at the station.",
    "The library is closed on Monday; its shelf {number} is being painted.",
    "A bakery called {name} has opened beside the station.",
    "The bread oven of the canteen is a model {name}.",
    "The old project {name} was wound up last year.",
    "Somebody proposed {name} as the name of the next conference.",
    "The exhibition in {name} had {number} visitors.",
    "A glass supplier called {name} went out of business.",
    "The mail server is a host called {name}.",
    "The build of {name} failed {number} times.",
    "The printers on the third floor are of the make {name}.",
    "An invoice for chairs with the number {number} has been paid.",
    "The monthly review of the sales team was cancelled by {name}.",
    "Room {number} has a broken projector.",
    "The branch {name} was merged long ago.",
    "The insurance company {name} has raised its prices.",
    "The insurance of the van has the policy number {number}.",
    "Ticket {number} about the broken window is closed.",
    "The pump in the garden is made by {name}.",
    "The annual report of {name} is {number} pages long.",
    "Old drafts belong in the folder {name}.",
    "The boat trip to {name} starts at the pier.",
    "The deposit on a crate of bottles is {number} cents.",
    "The printer paper comes in boxes of {number} sheets.",
    "The weekly newsletter is edited by {name}.",
)


class Drawer:
    """Draws facts and decoys; no value is drawn twice, nor is any a word of a template."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"facts {seed}")
        written = [k.says + " " + k.question for k in KINDS] + list(DECOYS)
        self._used = {w.casefold() for text in written for w in re.findall(r"\w+", text)}

    def facts(self, users: list[str], each: int = FACTS_EACH) -> list[Fact]:
        """``each`` facts of as many kinds for each user, half for either agent."""
        facts: list[Fact] = []
        for user in users:
            for listener, count in (("profile", (each + 1) // 2), ("task", each // 2)):
                kinds = [i for i, kind in enumerate(KINDS) if kind.listener == listener]
                facts += [
                    Fact(user, kind, self.value(KINDS[kind].value))
                    for kind in self._random.sample(kinds, count)
                ]
        return facts

    def decoys(self, count: int) -> list[str]:
        """``count`` different texts, each template about as often as any other."""
        texts: list[str] = []
        while len(texts) < count:
            texts += [
                template.format(name=self.value("name"), number=self.value("number"))
                for template in self._random.sample(DECOYS, min(len(DECOYS), count - len(texts)))
            ]
        return texts

    def value(self, what: str) -> str:
        while True:
            if what == "name":
                drawn = made_up(self._random).capitalize()
            else:
                drawn = str(self._random.randint(1_000, 999_999))
            if len(drawn) > 3 and drawn.casefold() not in self._used:
                self._used.add(drawn.casefold())
                return drawn


def holds_word(text: str, value: str) -> bool:
    """Whether ``value`` stands in ``text`` as a whole word, in whatever case."""
    return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text, re.IGNORECASE) is not None
