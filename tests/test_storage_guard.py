"""The secrets guard. Whatever looks like a live secret is put together at run time."""

from __future__ import annotations

import base64
import json
import random
import re
import string
import sys
from collections.abc import Callable
from itertools import pairwise
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stdnum import luhn, verhoeff

from isovist.storage import assignments, credentials, identities
from isovist.storage.check_digits import has_luhn, has_verhoeff, is_cn_resident
from isovist.storage.folding import fold
from isovist.storage.guard import IDENTITIES, SECRETS, clean, clean_op, find, placeholder
from isovist.storage.identity_rules import CODE, CODED
from isovist.syscalls.operations import Drop, Put, Replace
from isovist.syscalls.records import partition_of

dice = random.Random(7)


def drawn(length: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    """A random string that holds a digit and, where the alphabet has any, a letter."""
    while True:
        text = "".join(dice.choices(alphabet, k=length))
        if any(map(str.isdigit, text)) and (alphabet.isdigit() or not text.isdigit()):
            return text


def segment(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def cn_id(born: str = "19900307") -> str:
    body = f"110101{born}123"
    return next(body + c for c in "0123456789X" if is_cn_resident(body + c))


def card(first: str = "4", length: int = 16) -> str:
    body = first + "".join(dice.choices(string.digits, k=length - 1 - len(first)))
    return body + luhn.calc_check_digit(body)


HEX = "0123456789abcdef"
KEY_LINES = "\n".join(drawn(64) for _ in range(4))
HEAD = f"-----BEGIN RSA PRIVATE {'KEY'}-----"
SSN = "-".join(("512", "48", "7719"))

CREDENTIALS: list[tuple[str, str]] = [
    ("aws-key", "AKIA" + drawn(16, string.ascii_uppercase + string.digits)),
    ("gcp-key", "AI" + "za" + drawn(35)),
    ("github-token", "gh" + "p_" + drawn(36)),
    ("github-token", "github" + "_pat_" + drawn(60)),
    ("gitlab-token", "gl" + "pat-" + drawn(20)),
    ("slack-token", "xo" + "xb-" + drawn(12, string.digits) + "-" + drawn(24)),
    ("stripe-key", "sk" + "_live_" + drawn(24)),
    ("twilio-key", "S" + "K" + drawn(32, HEX)),
    ("sendgrid-key", "S" + "G." + drawn(22) + "." + drawn(43)),
    ("npm-token", "np" + "m_" + drawn(36)),
    ("pypi-token", "pypi-" + "AgE" + drawn(90)),
    ("openai-key", "s" + "k-" + drawn(48)),
    ("anthropic-key", "sk-" + "ant-api03-" + drawn(90)),
    ("huggingface-token", "h" + "f_" + drawn(34)),
    ("telegram-token", drawn(10, string.digits).replace("0", "1") + ":A" + "A" + drawn(33)),
    ("mailchimp-key", drawn(32, HEX) + "-us" + "12"),
    ("jwt", ".".join((segment({"alg": "HS256"}), segment({"sub": "1234"}), drawn(40)))),
    ("private-key", f"{HEAD}\n{KEY_LINES}\n{HEAD.replace('BEGIN', 'END')}"),
]  # fmt: skip

NUMBERS: list[tuple[str, str]] = [
    ("us-ssn", SSN),
    ("us-itin", "-".join(("912", "71", "3344"))),
    ("cn-resident-id", cn_id()),
    ("card", card()),
    ("card", card("37", 15)),
    ("iban", "GB82" + "WEST12345698765432"),
    ("uk-nino", "AB" + "123456" + "C"),
    ("es-dni", "12345678" + "Z"),
    ("es-nie", "X1234567" + "L"),
    ("it-cf", "RSSMRA85T10" + "A562S"),
    ("ch-ahv", "756.9217" + ".0769.85"),
]

LABELLED: list[tuple[str, str, str]] = [
    ("password", "my password is {}, keep it", "hunter" + "2x!"),
    ("password", "password: {}", "Blue" + "Fish42"),
    ("password", "密码：{}。", "abc" + "12345"),
    ("password", "我的密码是{}", "abc" + "12345"),
    ("password", '{{"db_password": "{}"}}', "correct" + "horse"),
    ("password", "Server=db;User Id=sa;Password={};Encrypt=yes", drawn(14)),
    ("basic-auth", "postgres://ana:{}@db.example.org/app", drawn(12)),
    ("api-key", "api_key={}", drawn(32)),
    ("api-key", "export DATADOG_APP_TOKEN='{}'", drawn(40, HEX)),
    ("aws-secret", "aws_secret_access_key = {}", drawn(40)),
    ("api-key", "DefaultEndpointsProtocol=https;AccountKey={};", drawn(86) + "=="),
    ("bearer-token", "Authorization: Bearer {}", drawn(40)),
    ("us-ssn", "my social security number is {}", SSN.replace("-", "")),
    ("cn-resident-id", "身份证号 {}", cn_id()[:6] + cn_id()[8:17]),
    ("passport", "Passport No. {} expires soon", "E" + "12345678"),
    ("passport", "护照号码：{}", "E" + "12345678"),
    ("driver-licence", "my driver's license number is {}", "F" + drawn(12, string.digits)),
    ("insurance", "insurance policy number: {}", "XK-" + drawn(9, string.digits)),
    ("insurance", "社保号：{}", drawn(10, string.digits)),
    ("bank-account", "account number {}", drawn(11, string.digits)),
    ("pin", "the pin is {}", "48" + "21"),
    ("card-code", "cvv: {}", "4" + "21"),
]


@pytest.mark.promise("secrets.never")
@pytest.mark.parametrize(("type_", "secret"), CREDENTIALS + NUMBERS)
@pytest.mark.parametrize("frame", ["{}", "Ana said: use {} for this.", "用{}登录", '"{}"'])
def test_a_secret_gives_way_and_all_else_stays(type_: str, secret: str, frame: str) -> None:
    cleaned = clean(frame.format(secret))
    assert cleaned.counts == {type_: 1}
    assert cleaned.text == frame.format(placeholder(type_))


@pytest.mark.promise("secrets.never")
@pytest.mark.parametrize(("type_", "frame", "secret"), LABELLED)
def test_a_secret_is_told_by_what_is_said_before_it(type_: str, frame: str, secret: str) -> None:
    cleaned = clean(frame.format(secret))
    assert cleaned.counts == {type_: 1}
    assert cleaned.text == frame.format(placeholder(type_))


@pytest.mark.promise("secrets.never")
@pytest.mark.parametrize(
    "text",
    [
        "I forgot my password yesterday.",
        "The password is secure and strong.",
        "Password: required",
        "Please reset your password to continue, it is important.",
        "password = os.environ['DB_PASSWORD']",
        "api_key=${API_KEY}",
        "token: <your-token-here>",
        "the secret is patience",
        "The key is to start early; key: C major",
        "密码忘记了，怎么办？",
        "commit 3f786850e387550fdab836ed7e6dc881de23001b fixes it",
        "sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "id 123e4567-e89b-12d3-a456-426614174000",
        "call +1 905-674-3793 or 13800138000",
        "order number 4111111111111111",
        "2026-11-30 12:45:00 and 30.11.2026",
        "version 1.22.333.4444, build 20261130",
        "ISBN 978-3-16-148410-0",
        "pi is 3.14159265358979",
        "https://example.org:8080/a@b",
        "see http://localhost:5000/x and ana@example.org",
        "passport office opens in 2026",
        "my account number of followers grew to 120000",
        "A3 paper, SK Telecom, AC adapters, sk-learn",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert clean(text).text == text
    assert clean(text).counts == {}


WIDE = {ord(d): ord(d) + 0xFEE0 for d in string.digits}
DISGUISES: dict[str, Callable[[str], str]] = {
    "full width": lambda digits: digits.translate(WIDE),
    "arabic": lambda digits: "".join(chr(0x0660 + int(d)) for d in digits),
    "spaces": lambda digits: " ".join(digits[i : i + 4] for i in range(0, len(digits), 4)),
    "no-break spaces": lambda digits: "\u00a0".join(digits[i : i + 4] for i in (0, 4, 8, 12)),
    "en dashes": lambda digits: "–".join(digits[i : i + 4] for i in (0, 4, 8, 12)),
    "dots": lambda digits: ".".join(digits[i : i + 4] for i in (0, 4, 8, 12)),
    "zero width": "\u200b".join,
    "soft hyphens": lambda digits: digits[:7] + "\u00ad" + digits[7:],
    "a date before": lambda digits: f"2026-01-02 {digits}",
}


@pytest.mark.promise("secrets.never")
@pytest.mark.parametrize("disguise", DISGUISES)
def test_separators_and_other_digits_hide_nothing(disguise: str) -> None:
    number = DISGUISES[disguise](card())
    cleaned = clean(f"ｐay: {number}\u200b, é")
    assert cleaned.counts == {"card": 1}
    assert cleaned.text.startswith("ｐay: ")
    assert cleaned.text.endswith("[secret:card]\u200b, é")


def test_a_wrong_check_digit_is_no_identity_number() -> None:
    right = cn_id()
    wrong = right[:-1] + ("1" if right[-1] != "1" else "2")
    assert clean(right).counts
    assert not clean(wrong).counts


@given(st.text(string.digits, min_size=2, max_size=16))
def test_our_check_digits_are_those_of_stdnum(digits: str) -> None:
    assert has_luhn(digits) == luhn.is_valid(digits)
    assert has_verhoeff(digits) == verhoeff.is_valid(digits)
    assert has_verhoeff(digits + verhoeff.calc_check_digit(digits[:15])) or len(digits) > 15


@pytest.mark.parametrize("type_", sorted(SECRETS | IDENTITIES))
def test_no_placeholder_matches_a_detector(type_: str) -> None:
    for frame in ("{}", "password: {}", "api_key={}", "https://a:{}@b.org", "ssn {}", "{}{}"):
        text = frame.format(placeholder(type_), placeholder(type_))
        assert clean(text).counts == {}


@pytest.mark.parametrize("fake", ["[secret:{}]", "[id:{}]"])
def test_a_made_up_placeholder_shelters_nothing(fake: str) -> None:
    assert clean(fake.format(SSN)).counts == {"us-ssn": 1}


SNIPPETS = [s for _, s in CREDENTIALS + NUMBERS] + [
    "password", "is", ":", "=", "token", "://", "@", "-----BEGIN PRIVATE KEY-----", "[secret:jwt]",
    "[id:us-ssn]", " ", "\n", "-", "密码", "ssn", "\u200b", "４", '"', "4111", "/", ".",
]  # fmt: skip


@settings(max_examples=200)
@given(st.lists(st.sampled_from(SNIPPETS) | st.text(max_size=6), max_size=12).map("".join))
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    once = clean(text)
    twice = clean(once.text)
    assert twice.text == once.text
    assert twice.counts == {}
    assert (once.text == text) == (not once.counts)


@given(st.text(alphabet=st.characters(), max_size=200))
def test_any_string_is_legal_and_stretches_are_ordered(text: str) -> None:
    found = find(text)
    assert all(0 <= f.start < f.stop <= len(text) for f in found)
    assert all(a.stop <= b.start for a, b in pairwise(found))
    clean(text + "\ud800")


def put(text: str = "x", **meta: str) -> Put:
    return Put(
        partition=partition_of("pair", "ana", "notes"), seq=1, id="u1", text=text, kind="note",
        agent="notes", user="ana", stream="protected", said_at=0, stored_at=0,
        session=SSN, meta=meta,
    )  # fmt: skip


@pytest.mark.promise("secrets.never")
def test_all_free_text_of_a_write_is_cleaned() -> None:
    token = CREDENTIALS[2][1]
    op = put(f"ssn {SSN}", source=token, password="correct" + "horse", **{token: "plain"})
    cleaned, counts = clean_op(op)
    assert isinstance(cleaned, Put)
    assert cleaned.text == "ssn [id:us-ssn]"
    assert cleaned.meta == {
        "source": "[secret:github-token]",
        "password": "[secret:password]",
        "[secret:github-token]": "plain",
    }
    assert counts == {"us-ssn": 1, "github-token": 2, "password": 1}
    assert cleaned.session == SSN, "a session is a name"


def test_meta_keys_that_were_secrets_stay_apart() -> None:
    cleaned, _ = clean_op(put(**{CREDENTIALS[2][1]: "a", CREDENTIALS[3][1]: "b"}))
    assert isinstance(cleaned, Put)
    assert sorted(cleaned.meta.values()) == ["a", "b"]


def test_other_operations() -> None:
    where = partition_of("pair", "ana", "notes")
    replace = Replace(partition=where, seq=2, id="u", version=1, text=SSN, stored_at=0)
    cleaned, counts = clean_op(replace)
    assert isinstance(cleaned, Replace)
    assert (cleaned.text, counts) == ("[id:us-ssn]", {"us-ssn": 1})
    drop = Drop(partition=where, seq=3, id="u")
    assert clean_op(drop) == (drop, {})
    plain = put("nothing here", note="nor here")
    assert clean_op(plain)[0] is plain


HOSTILE = [
    "a", "4", "4 ", "41 ", "4111 ", "123-", "2024-01-02 ", "gh" + "p_", "password",
    "password is a ",
    "password for a ", "token=a1", "eyJhbGci.", "://a:", "://aaaaaaaa",
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN ", "passport ssn card ", "ssn 123456789 ", "1\u200b", "密码是", "GB82 WEST 1234 ",
    "A1B2", "[secret:jwt]", 'password="', "password =    ",
]  # fmt: skip


def lines_run(text: str) -> int:
    """How many lines of Python the guard runs for ``text``: its work, whatever the machine."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Callable[..., object] | None:
        nonlocal count
        if "storage" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        clean(text)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("piece", HOSTILE)
def test_work_grows_with_the_length_of_the_text_only(piece: str) -> None:
    small, large = (lines_run((piece * n)[:n]) for n in (1000, 4000))
    assert large <= 6 * small + 2000


# -- what rules a text out

NUMBER = re.compile(r"[0-9](?:[ \-./·_()]{0,3}[0-9]){7}")
SIX = re.compile(r"[0-9](?:[ .\-]?[0-9]){5}")
LETTERS = re.compile(r"[0-9](?<=[A-Za-z]{2}[0-9])[0-9]|[0-9](?<=[A-Za-z] [0-9])[0-9]")
FIVE = re.compile(r"[0-9](?:[ \-./·_()]{0,3}[A-Za-z]?[0-9]){4}")
LONG = re.compile(r"[A-Za-z0-9_\-./~+=]{18,}+")
IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}[ \-]?[0-9]{2}(?:[ \-]?[A-Za-z0-9]){11,30}")

pieces = st.one_of(
    st.text("0123456789aAzZıİ .-/_()·=~+é?#", max_size=24),
    st.sampled_from([code.pattern for code in CODED]).flatmap(
        lambda pattern: st.from_regex(re.sub(r"\(\?<?[!=][^()]*\)", "", pattern.pattern))
    ),
    st.sampled_from(["password", "API-key", "token", "密码", "senha", "x" * 18, "||", "\ud800"]),
)
hostile = st.lists(pieces, max_size=6).flatmap(
    lambda parts: st.sampled_from(["", " ", ", "]).map(lambda glue: glue.join(parts))
)


@settings(max_examples=400)
@given(hostile)
def test_what_rules_a_text_out_is_what_it_stands_for(text: str) -> None:
    marks = identities._marks(text)
    assert len(marks) == len(text)
    for quick, whole in (
        (identities._NUMBER, NUMBER),
        (identities._SIX, SIX),
        (identities._LETTERS, LETTERS),
        (identities._FIVE, FIVE),
    ):
        assert (quick.search(marks) is None) == (whole.search(text) is None)
    if CODE.search(text):
        assert identities._coded(text, marks)
    if IBAN.search(text):
        assert identities._BANK.search(marks)
    run = credentials._LONG in text.encode("latin-1", "replace").translate(credentials._TOKEN)
    assert run == (LONG.search(text) is not None)
    lower = fold(text).lower
    named = any(word in lower for word in assignments._NAMING)
    assert named == (assignments._NAMED.search(lower) is not None)
