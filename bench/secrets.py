"""Whether the secrets guard finds what it should, and leaves what it should.

Needs ``leaktest/`` of the data folder; ``locomo/`` and ``longmemeval/`` where they are there.

- *vectors*: strings that detect-secrets' own tests flag, or must not (addresses on the internet
  left out: they are no credential). A text counts as flagged iff the guard changed it.
- *rules*: for each rule of gitleaks, strings drawn from its regular expression; found iff the
  secret itself is no longer there in whole.
- *sentences*: Presidio's, with spans. Cards, bank accounts, social security and licence numbers
  should go; every other replacement is a false one.
- *numbers*: Chinese identity numbers with right and wrong check digits.
- *ordinary*: replacements in dialogues that hold no secret, a thousand units.
- *speed*: processor time of a text of 1,000 characters. Of hostile texts, long of what the
  detectors look for: the slowest of 64 KiB, the longest text there may be; and how many times as
  long the worst of them takes at 128 KiB as at 16 KiB. Eight times is linear, 64 times the square,
  by which a longer text would block the writer: so that ratio has the bar, twice linear for a
  machine that does other work. Each time is the best of five.

Reference: detect-secrets with its own settings, where it can be imported.
"""

from __future__ import annotations

import argparse
import importlib
import json
import lzma
import random
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.machine import machine
from bench.regex_strings import Drawn
from bench.report import CannotRun, Figure, Progress, Report, figure, percentile
from isovist.storage.guard import clean, find

SHOULD_GO = {"CREDIT_CARD", "IBAN_CODE", "US_SSN", "US_DRIVER_LICENSE"}
NO_SECRETS = {"ip_public"}
NUMBERS = {"cn_resident_id": True, "payment_card": True, "cn_uscc": True, "cn_mobile": False}
"""Kinds of the made-up numbers: whether a valid one should go."""

Flags = Callable[[str], bool]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--draws", type=int, default=5, help="strings a rule (default 5)")
    parser.add_argument(
        "--show", action="store_true", help="print every miss and every false one on standard error"
    )


def run(options: argparse.Namespace, progress: Progress) -> Report:
    if options.data is None or not (options.data / "leaktest").is_dir():
        raise CannotRun("needs --data: a folder that holds leaktest/")
    bench = _Bench(options, progress)
    bench.all()
    return Report(
        bench="secrets",
        machine=machine(Path.cwd()),
        config={
            "seed": options.seed,
            "draws a rule": bench.draws,
            "reference": "detect-secrets" if bench.reference else "detect-secrets: not installed",
            **bench.counted,
        },
        figures=bench.figures,
    )


class _Tally:
    """Right and wrong, ours and the reference's."""

    def __init__(self) -> None:
        self.found, self.missed, self.false, self.left = 0, 0, 0, 0

    def add(self, should: bool, flagged: bool) -> None:
        if should:
            self.found += flagged
            self.missed += not flagged
        else:
            self.false += flagged
            self.left += not flagged

    @property
    def recall(self) -> float:
        return self.found / max(1, self.found + self.missed)

    @property
    def precision(self) -> float:
        return self.found / max(1, self.found + self.false)


class _Bench:
    def __init__(self, options: argparse.Namespace, progress: Progress) -> None:
        self.data: Path = options.data / "leaktest"
        self.around: Path = options.data
        self.show: bool = options.show
        self.quick: bool = options.quick
        self.seed: int = options.seed
        self.draws = 1 if options.quick else options.draws
        self.progress = progress
        self.figures: list[Figure] = []
        self.counted: dict[str, object] = {}
        self.reference = _detect_secrets()

    def all(self) -> None:
        for name in ("vectors", "rules", "sentences", "numbers", "ordinary", "speed"):
            self.progress(name)
            getattr(self, f"_{name}")()

    def _vectors(self) -> None:
        kinds: dict[str, tuple[_Tally, _Tally]] = {}
        total = (_Tally(), _Tally())
        with lzma.open(self.data / "detect_secrets_vectors.jsonl.xz", "rt") as lines:
            for line in lines:
                case = json.loads(line)
                if case["detector"] in NO_SECRETS:
                    continue
                should = case["flag"] is not False
                pair = kinds.setdefault(case["detector"], (_Tally(), _Tally()))
                self._judge(case["text"], should, f"vectors {case['detector']}", pair, total)
        for kind, pair in sorted(kinds.items()):
            if pair[0].found + pair[0].missed:
                self._figure(f"vectors.{kind}.recall", pair[0].recall, pair[1].recall)
        self._both("vectors", total, ">= 0.95", None)

    def _rules(self) -> None:
        rules = tomllib.loads((self.data / "gitleaks.toml").read_text())["rules"]
        dice = random.Random(f"rules {self.seed}")
        total, whole, missed = (_Tally(), _Tally()), 0, Counter[str]()
        for i, rule in enumerate(r for r in rules if "regex" in r):
            self.progress("rules", i, len(rules))
            for _ in range(self.draws):
                drawn = Drawn(rule["regex"], dice)
                secret = drawn.secret.strip(" \t'\"`\\;")
                found = secret not in clean(drawn.text).text
                total[0].add(True, found)
                if self.reference:
                    total[1].add(True, self.reference(drawn.text))
                if not found:
                    missed[rule["id"]] += 1
                    self._say(f"rules {rule['id']}: missed", drawn.text)
            whole += missed[rule["id"]] == 0
        self._figure("rules.recall", total[0].recall, total[1].recall, ">= 0.9")
        self.counted["rules"] = sum("regex" in r for r in rules)
        self.counted["rules found always"] = whole
        self.counted["rules missed"] = " ".join(f"{k}:{n}" for k, n in sorted(missed.items()))

    def _sentences(self) -> None:
        with lzma.open(self.data / "presidio_synth_dataset_v2.json.xz", "rt") as file:
            sentences = json.load(file)
        kinds = {kind: (_Tally(), _Tally()) for kind in sorted(SHOULD_GO)}
        total = (_Tally(), _Tally())
        wrong: Counter[str] = Counter()
        for sentence in sentences:
            text = sentence["full_text"]
            found = find(text)
            theirs = bool(self.reference and self.reference(text))
            held = False
            for span in sentence["spans"]:
                if span["entity_type"] in SHOULD_GO:
                    low, high = span["start_position"], span["end_position"]
                    gone = any(f.start <= low and high <= f.stop for f in found)
                    kinds[span["entity_type"]][0].add(True, gone)
                    kinds[span["entity_type"]][1].add(True, theirs)
                    total[0].add(True, gone)
                    total[1].add(True, theirs)
                    held = True
                    if not gone:
                        self._say(f"sentences {span['entity_type']}: missed", text)
            if not held:
                total[1].add(False, theirs)
            for f in found:
                over = [
                    s["entity_type"] for s in sentence["spans"]
                    if s["start_position"] < f.stop and f.start < s["end_position"]
                ]  # fmt: skip
                if not SHOULD_GO & set(over):
                    total[0].add(False, True)
                    wrong[(over or ["plain text"])[0]] += 1
                    self._say(f"sentences: false {f.type} over {over}", text[f.start - 30 : f.stop])
        for kind, pair in kinds.items():
            self._figure(f"sentences.{kind}.recall", pair[0].recall, pair[1].recall)
        self._both("sentences", total, ">= 0.95", ">= 0.97")
        self.counted["sentences"] = len(sentences)
        self.counted["sentences false over"] = dict(wrong)

    def _numbers(self) -> None:
        total = (_Tally(), _Tally())
        for case in json.loads((self.data / "cn_id_vectors.json").read_text()):
            if case["valid"] is None:
                continue
            should = NUMBERS[case["kind"]] and case["valid"] is not False
            self._judge(case["text"], should, f"numbers {case['kind']}", None, total)
        self._both("numbers", total, ">= 0.98", ">= 0.98")

    def _ordinary(self) -> None:
        for name, texts in (("locomo", _locomo), ("longmemeval", _longmemeval)):
            replaced: Counter[str] = Counter()
            units = hits = theirs = size = 0
            try:
                for text in texts(self.around):
                    if units == (300 if self.quick else 20_000):
                        break
                    units += 1
                    size += len(text)
                    found = find(text)
                    hits += bool(found)
                    if self.reference and units <= 300:
                        theirs += self.reference(text)
                    for f in found:
                        replaced[f.type] += 1
                        self._say(f"{name} {f.type}", text[max(0, f.start - 40) : f.stop + 10])
            except FileNotFoundError:
                self.counted[name] = "not there"
                continue
            self.figures.append(
                figure(
                    f"ordinary.{name}", hits * 1000 / units, "changed of 1,000 units",
                    reference=("detect-secrets, first 300", theirs * 1000 / min(units, 300))
                    if self.reference else None,
                    bar="<= 2",
                )
            )  # fmt: skip
            self.counted[name] = {"units": units, "characters": size, **replaced}

    def _speed(self) -> None:
        texts = list(_thousands(self.around)) or ["Plain words and nothing else. " * 34]
        rounds = 200 if self.quick else 2000
        times = [_timed(clean, texts[i % len(texts)]) for i in range(rounds)]
        theirs = None
        if self.reference:
            theirs = percentile([_timed(self.reference, t) for t in texts[:20]], 0.5) * 1e3
        self.figures.append(
            figure("speed.thousand.p50", percentile(times, 0.5) * 1e3, "ms", bar="<= 0.3",
                   reference=("detect-secrets", theirs) if theirs else None)
        )  # fmt: skip
        self.figures.append(figure("speed.thousand.p99", percentile(times, 0.99) * 1e3, "ms"))
        self._hostile()

    def _hostile(self) -> None:
        best = 2 if self.quick else 5
        times = {
            size: {n: min(_timed(clean, t) for _ in range(best)) for n, t in hostile(size << 10)}
            for size in (16, 64, 128)
        }
        slowest = max(times[64], key=times[64].__getitem__)
        growth = {name: times[128][name] / times[16][name] for name in times[16]}
        steepest = max(growth, key=growth.__getitem__)
        self.counted["slowest hostile text"] = slowest
        self.counted["steepest hostile text"] = steepest
        self.figures += [
            figure("speed.hostile", times[64][slowest] * 1e3, "ms"),
            figure("speed.hostile.growth", growth[steepest], "times as long for 8 times the text",
                   bar="<= 16", reference=("linear", 8.0)),
        ]  # fmt: skip

    def _judge(
        self,
        text: str,
        should: bool,
        what: str,
        kind: tuple[_Tally, _Tally] | None,
        total: tuple[_Tally, _Tally],
    ) -> None:
        ours = bool(clean(text).counts)
        theirs = bool(self.reference and self.reference(text))
        for pair in (kind, total) if kind else (total,):
            pair[0].add(should, ours)
            pair[1].add(should, theirs)
        if ours != should:
            self._say(f"{what}: {'missed' if should else 'false'}", text)

    def _both(
        self, id: str, total: tuple[_Tally, _Tally], recall: str, precision: str | None
    ) -> None:
        self._figure(f"{id}.recall", total[0].recall, total[1].recall, recall)
        self._figure(f"{id}.precision", total[0].precision, total[1].precision, precision)

    def _figure(self, id: str, ours: float, theirs: float, bar: str | None = None) -> None:
        reference = ("detect-secrets", theirs) if self.reference else None
        self.figures.append(figure(id, ours, "share", reference=reference, bar=bar))

    def _say(self, what: str, text: str) -> None:
        if self.show:
            print(f"  {what}: {text[:200]!r}", file=sys.stderr)


def _detect_secrets() -> Flags | None:
    """Whether detect-secrets with its own settings flags a text, line by line as it reads."""
    try:
        # By name: it ships no types, and most machines lack it.
        scan_line = importlib.import_module("detect_secrets.core.scan").scan_line
        default_settings = importlib.import_module("detect_secrets.settings").default_settings
    except ImportError:
        return None

    def flags(text: str) -> bool:
        with default_settings():
            return any(any(True for _ in scan_line(line)) for line in text.splitlines())

    return flags


def _timed(call: Callable[[str], Any], text: str) -> float:
    start = time.process_time()
    call(text)
    return time.process_time() - start


def _locomo(data: Path) -> Iterator[str]:
    for file in sorted((data / "locomo").glob("*.json")) or [data / "locomo" / "*.json"]:
        for dialogue in json.loads(file.read_text()):
            talk = dialogue["conversation"]
            for key in sorted(k for k in talk if k.startswith("session_")):
                if isinstance(talk[key], list):
                    for turn in talk[key]:
                        yield turn["text"]


def _longmemeval(data: Path) -> Iterator[str]:
    files = sorted((data / "longmemeval").glob("*_s_*.jsonl.xz"))
    for file in files or [data / "longmemeval" / "*"]:
        with lzma.open(file, "rt") as lines:
            for line in lines:
                for session in json.loads(line)["haystack_sessions"]:
                    for turn in session:
                        yield turn["content"]


def _thousands(data: Path) -> Iterator[str]:
    """Pieces of 1,000 characters of ordinary dialogue."""
    try:
        for i, text in enumerate(t for t in _longmemeval(data) if len(t) >= 1000):
            if i == 500:
                return
            yield text[:1000]
    except FileNotFoundError:
        return


def hostile(size: int) -> Iterator[tuple[str, str]]:
    """Texts of ``size`` characters that are long of what the detectors look for."""
    pieces = {
        "one letter": "a",
        "one digit": "4",
        "digits apart": "4 ",
        "pairs": "41 ",
        "fours": "4111 ",
        "triples": "123-",
        "dates": "2024-01-02 ",
        "keys": "ghp_",
        "password": "password",
        "password is": "password is a ",
        "password for": "password for a ",
        "assignments": "token=a1",
        "bound": "key=abcdefgh12345678 ",
        "heads": "eyJhbGci.",
        "addresses": "://a:",
        "one address": "://aaaaaaaa",
        "at": "://a:b@",
        "blocks": "-----BEGIN PRIVATE KEY-----",
        "begins": "-----BEGIN ",
        "labels": "passport ssn card ",
        "labels and numbers": "ssn 123456789 ",
        "all labels": "sin tfn bsn nif cpf egn 123 456 782 ",
        "ids": "110101199003070 ",
        "invisible": "1\u200b",
        "full width": "４１",
        "chinese": "密码是",
        "iban": "GB82 WEST 1234 ",
        "letters and digits": "A1B2",
        "placeholders": "[secret:aws-key]",
        "dots": "a.b.",
        "quotes": 'password="',
        "spaces": "password =    ",
        "secrets": "AKIA" + "A1" * 8 + " ",
        "glued": "AKIA" + "A1" * 8 + "/",
    }
    for name, piece in pieces.items():
        yield name, (piece * (size // len(piece) + 1))[:size]
