"""English as a rule can weigh it: which words say nothing here, which say the same, and which turn
a sentence round.

A rule has no idea of meaning, so the tables are short and every word that stands in none of them
counts as itself. What they hold is closed (articles, negations, hedges, conjunctions) or a matter
of spelling and inflection; the few synonyms are those that nobody tells apart in an instruction.
Other languages pass through: each of their words counts, negations among them.
"""

from __future__ import annotations

DROPPED = frozenset(
    """
    a an the this that these those there here it its itself i me my mine we us our ours you your
    yours yourself he him his she her hers they them their theirs themselves one's
    be is are am was were been being do does did doing done have has had having will would shall
    should must ought use uses used utilize utilizes utilized utilise utilises utilised
    employ employs employed as per about
    also both either whether so thus therefore hence which who whom whose what where how ever
    however though although yet because since any very quite really just simply please always
    definitely certainly too such perform performs performed performing
    """.split()  # noqa: SIM905 # a list of words reads better as words
)
"""Words that change nothing about what is to be done. ``must`` and ``should`` are flat: an
instruction without them is as strong."""

PLACING: dict[str, str] = {
    word: kin.split()[0]
    for kin in ("in on at within inside among", "to for into onto toward towards", "of",
                "with by via using through utilizing utilising employing")
    for word in kin.split()
}  # fmt: skip
"""Words of place and means, and the one that stands for them: they say nothing alone."""

AFTER_NAME = PLACING.keys() | frozenset(
    """
    and but or then than if when unless before after until is are was has must should may can will
    """.split()  # noqa: SIM905 # a list of words reads better as words
)
"""What stands behind an ``a`` that is a name and no article."""

PHRASES: dict[str, str] = {
    # conditions
    "when": "+if", "whenever": "+if", "if": "+if", "while": "+if", "whilst": "+if", "during": "+if",
    "in case": "+if", "in case of": "+if", "in the case of": "+if", "in the event of": "+if",
    "in the event that": "+if", "provided": "+if", "provided that": "+if", "as long as": "+if",
    "so long as": "+if", "assuming": "+if", "assuming that": "+if", "each time": "+if",
    "every time": "+if", "any time": "+if", "unless": "+unless", "except if": "+unless",
    "except when": "+unless", "except": "+except", "except for": "+except", "other than": "+except",
    "apart from": "+except", "aside from": "+except", "excluding": "+except", "only": "+only",
    "solely": "+only", "exclusively": "+only", "merely": "+only", "even if": "+even",
    "even when": "+even", "even though": "+even", "even": "+even", "regardless of": "+even",
    "no matter": "+even", "before": "+before", "prior to": "+before", "ahead of": "+before",
    "after": "+after", "as soon as": "+after", "subsequent to": "+after", "until": "+until",
    "till": "+until", "up until": "+until", "or": "+or", "and/or": "+or", "then": "+then",
    "than": "+than", "else": "+else", "otherwise": "+else", "if not": "+if +not",
    # bounds
    "at most": "+<=", "no more than": "+<=", "not more than": "+<=", "a maximum of": "+<=",
    "maximum of": "+<=", "at least": "+>=", "no less than": "+>=", "not less than": "+>=",
    "no fewer than": "+>=", "a minimum of": "+>=", "minimum of": "+>=", "more than": "+>",
    "greater than": "+>", "larger than": "+>", "bigger than": "+>", "longer than": "+>",
    "above": "+>", "exceeding": "+>", "less than": "+<", "fewer than": "+<", "smaller than": "+<",
    "shorter than": "+<", "below": "+<",
    # negation
    "not": "+not", "never": "+not", "no": "+not", "cannot": "+not", "can not": "+not",
    "can't": "+not", "can never": "+not", "could not": "+not", "couldn't": "+not",
    "without": ", +not", "w/o": ", +not", "avoid": "+not", "avoids": "+not", "avoiding": "+not",
    "avoided": "+not", "refrain from": "+not", "nor": "+not", "neither": "+not", "none": "+not",
    "nothing": "+not", "nobody": "+not", "no one": "+not", "under no circumstances": "+not",
    "in no case": "+not", "on no account": "+not", "by no means": "+not", "unable to": "+not",
    "not able to": "+not", "instead of": ", +not", "rather than": ", +not", "in place of": ", +not",
    "in lieu of": ", +not", "as opposed to": ", +not", "non": "+not", "instead": "", "not only": "",
    "but also": "", "whether or not": "",
    # what looks like a negation, and is none
    "do not forget to": "", "don't forget to": "", "never forget to": "", "do not fail to": "",
    "don't fail to": "", "without fail": "", "without exception": "",
    # hedges
    "may": "~may", "might": "~may", "can": "~may", "could": "~may", "perhaps": "~may",
    "maybe": "~may", "possibly": "~may", "probably": "~may", "likely": "~may", "presumably": "~may",
    "potentially": "~may", "optionally": "~may", "able to": "~may", "usually": "~usually",
    "often": "~usually", "generally": "~usually", "typically": "~usually", "normally": "~usually",
    "mostly": "~usually", "mainly": "~usually", "commonly": "~usually", "frequently": "~usually",
    "in general": "~usually", "in most cases": "~usually", "most of the time": "~usually",
    "as a rule": "~usually", "for the most part": "~usually", "tend to": "~usually",
    "tends to": "~usually", "almost always": "~usually", "sometimes": "~sometimes",
    "occasionally": "~sometimes", "at times": "~sometimes", "from time to time": "~sometimes",
    "now and then": "~sometimes", "in some cases": "~sometimes", "rarely": "~rarely",
    "seldom": "~rarely", "hardly": "~rarely", "hardly ever": "~rarely", "almost never": "~rarely",
    "prefer": "~prefer", "prefers": "~prefer", "preferred": "~prefer", "preferably": "~prefer",
    "preferable": "~prefer", "ideally": "~prefer", "consider": "~prefer", "considering": "~prefer",
    "try to": "~prefer", "trying to": "~prefer", "attempt to": "~prefer", "aim to": "~prefer",
    "if possible": "~prefer", "when possible": "~prefer", "where possible": "~prefer",
    "whenever possible": "~prefer", "if you can": "~prefer", "recommended": "~prefer",
    "it is best to": "~prefer", "it is better to": "~prefer", "it's best to": "~prefer",
    "it's better to": "~prefer", "better to": "~prefer", "best to": "~prefer", "worth": "~prefer",
    "suggest": "~prefer", "suggested": "~prefer", "it may help to": "~prefer", "seems to": "~seem",
    "seem to": "~seem", "appears to": "~seem", "appear to": "~seem", "seems": "~seem",
    "seem": "~seem", "apparently": "~seem", "i think": "~seem", "i believe": "~seem",
    "i guess": "~seem", "not sure": "~seem", "unsure": "~seem", "supposedly": "~seem",
    "allegedly": "~seem", "roughly": "~about", "approximately": "~about", "approx": "~about",
    "nearly": "~about", "almost": "~about", "circa": "~about",
    # strength that an instruction has anyway
    "need to": "", "needs to": "", "have to": "", "has to": "", "be sure to": "",
    "make sure to": "", "make certain to": "", "remember to": "", "take care to": "",
    "be careful to": "", "it is important to": "", "it is necessary to": "",
    "it is essential to": "", "it's important to": "", "be certain to": "", "make sure": "",
    "make certain": "", "be sure": "", "see to it": "", "ensure": "", "note that": "",
    "remember that": "", "keep in mind that": "", "bear in mind that": "", "be aware that": "",
    "it is required to": "", "going to": "", "at all": "",
    # words that hold nothing together
    "such as": "like", "the task asks for": "ask", "a task asks for": "ask",
    "the task is to": "", "you are asked to": "", "the task asks you to": "",
    "in order to": "@to", "so as to": "@to", "so that": "", "as well as": "&", "as well": "",
    "due to": "", "owing to": "", "because of": "", "in addition": "", "by means of": "@with",
    "with the help of": "@with", "e.g": "", "i.e": "", "etc": "", "out of": "from",
    "off of": "from",
    # quantity
    "all of": "%all", "all": "%all", "every": "%all", "each": "%all", "each and every": "%all",
    "each of": "%all", "every one of": "%all", "one or more": "some", "a lot of": "many",
    "lots of": "many", "a number of": "several", "a few": "few", "once again": "again",
    "enough": "sufficient",
    # one word for what several say
    "turn on": "enable", "switch on": "enable", "turned on": "enable", "switched on": "enable",
    "turn off": "disable", "switch off": "disable", "turned off": "disable",
    "switched off": "disable", "set up": "setup", "sets up": "setup", "setting up": "setup",
    "look for": "search", "looking for": "search", "search for": "search", "leave out": "omit",
    "leaving out": "omit", "carry out": "", "carrying out": "", "throw away": "discard",
    "try again": "retry", "right away": "immediate", "straight away": "immediate",
    "at once": "immediate", "by hand": "manual", "in advance": "beforehand",
    "in parallel": "parallel", "white space": "whitespace", "ask for": "ask", "asks for": "ask",
    "asked for": "ask", "asking for": "ask", "wait for": "wait", "depend on": "depend",
}  # fmt: skip
"""By words, the longest first: what stands in their place, in words. ``+`` marks what turns a
sentence round or binds it to a condition, ``~`` a hedge by its kind, ``%all`` a whole."""

COMPOUNDS: dict[str, tuple[str, ...]] = {
    "filename": ("file", "name"), "filenames": ("file", "name"), "timestamp": ("time", "stamp"),
    "timestamps": ("time", "stamp"), "lowercase": ("lower", "case"),
    "uppercase": ("upper", "case"), "newline": ("new", "line"), "newlines": ("new", "line"),
    "username": ("user", "name"), "usernames": ("user", "name"), "timezone": ("time", "zone"),
    "timezones": ("time", "zone"), "hostname": ("host", "name"), "checksum": ("check", "sum"),
    "checksums": ("check", "sum"), "codebase": ("code", "base"), "runtime": ("run", "time"),
    "spreadsheet": ("spread", "sheet"), "backup": ("back", "up"), "backups": ("back", "up"),
}  # fmt: skip

SAME: dict[str, str] = {
    word: kin.split()[0]
    for kin in (
        "delete remove erase", "run execute", "check verify confirm validate",
        "create generate produce", "start begin commence", "finish complete", "stop halt cease",
        "show display", "choose select pick", "get fetch retrieve obtain", "buy purchase",
        "need require", "ask request", "help assist aid", "big large", "small little",
        "fast quick rapid", "fix repair", "wrong incorrect", "change modify alter",
        "keep retain preserve", "put place", "folder directory dir", "picture image",
        "reply respond response answer", "doc document", "config configuration",
        "app application", "db database", "repo repository", "env environment",
        "info information", "spec specification", "admin administrator", "omit skip",
        "allow permit", "forbid prohibit disallow", "enable activate", "disable deactivate",
        "search seek", "discard", "happen occur", "immediate instant", "manual",
        "maximum max", "minimum min", "number num", "parallel concurrent",
        "sufficient", "many numerous", "percent pct", "customer client",
        "employee worker", "mail email", "convert transform", "write", "quote", "join",
    )
    for word in kin.split()
}  # fmt: skip
"""Words of one meaning, and the one that stands for them."""

IRREGULAR: dict[str, str] = {
    form: base
    for base, forms in {
        "begin": "began begun", "break": "broke broken", "bring": "brought", "build": "built",
        "buy": "bought", "catch": "caught", "choose": "chose chosen", "come": "came",
        "draw": "drew drawn", "drive": "drove driven", "eat": "ate eaten", "fall": "fell fallen",
        "feed": "fed", "feel": "felt", "find": "found", "forget": "forgot forgotten",
        "get": "got gotten", "give": "gave given", "go": "went gone goes", "grow": "grew grown",
        "hear": "heard", "hide": "hid hidden", "hold": "held", "keep": "kept",
        "know": "knew known", "lay": "laid", "lead": "led", "leave": "left", "lend": "lent",
        "lose": "lost", "make": "made", "mean": "meant", "meet": "met", "overwrite":
        "overwrote overwritten", "pay": "paid", "rebuild": "rebuilt", "ride": "rode ridden",
        "ring": "rang rung", "rise": "rose risen", "run": "ran running", "say": "said",
        "see": "saw seen", "seek": "sought", "sell": "sold", "send": "sent", "shake":
        "shook shaken", "show": "shown", "sing": "sang sung", "sleep": "slept", "speak":
        "spoke spoken", "spend": "spent", "stand": "stood", "stick": "stuck", "take":
        "took taken", "teach": "taught", "tell": "told", "think": "thought", "throw":
        "threw thrown", "understand": "understood", "wear": "wore worn", "win": "won",
        "write": "wrote written", "rewrite": "rewrote rewritten", "child": "children",
        "person": "people", "index": "indices indexes", "matrix": "matrices", "vertex":
        "vertices", "man": "men", "woman": "women", "foot": "feet", "leaf": "leaves",
        "datum": "data", "medium": "media", "criterion": "criteria", "analysis": "analyses",
        "reply": "replied replies", "try": "tries tried", "retry": "retries retried",
        "colour": "color colors colours colored", "behaviour": "behavior", "centre": "center",
        "grey": "gray", "license": "licence", "catalogue": "catalog",
        "dialogue": "dialog", "cancel": "cancelled cancelling canceled",
        "label": "labelled labelling",
    }.items()
    for form in forms.split()
}  # fmt: skip
"""Forms that no stemmer brings home, and spellings of two shores."""

UNITS: dict[str, str] = {
    word: kin.split()[0]
    for kin in (
        "ms millisecond milliseconds msec", "s sec secs second seconds",
        "min mins minute minutes", "h hr hrs hour hours", "d day days", "week weeks",
        "month months", "year years", "kb kilobyte kilobytes", "mb megabyte megabytes",
        "gb gigabyte gigabytes", "kib kibibytes", "mib mebibytes", "gib gibibytes",
        "byte bytes", "% percent pct", "px pixel pixels", "cm centimetre centimeters centimetres",
        "mm millimetre millimeters millimetres", "m metre metres meter meters", "km kilometres",
        "kg kilogram kilograms", "g gram grams", "l litre litres liter liters", "ml millilitres",
        "time times", "character characters char chars", "line lines", "°c celsius",
    )
    for word in kin.split()
}  # fmt: skip
"""What may stand behind a number as its unit, and the one name of it."""

NUMBERS: dict[str, str] = {
    word: str(number)
    for number, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve".split()  # noqa: SIM905 # a list of words reads better as words
    )
    if word != "one"
} | {"hundred": "100", "thousand": "1000", "twice": "2time"}
"""Numbers that are written as words. ``one`` is more often something else."""

BEFORE_NUMBER: dict[tuple[str, ...], tuple[str, ...]] = {
    ("about",): ("roughly",), ("around",): ("roughly",), ("over",): ("above",),
    ("under",): ("below",), ("up", "to"): ("at", "most"),
}  # fmt: skip
"""Words that mean something of their own before a number, and what."""
