"""Credentials that show by their form alone: issued tokens, key blocks, passwords in addresses.

Most issuers begin their tokens with a literal of their own. A token is taken to the end of its
run of characters, longer than the issuer's own length too: half a key must not stay behind.
Every pattern is linear: runs are possessive, and no run can begin inside another of its kind.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from string import ascii_letters, digits

from isovist.storage.folding import Folded, Found

# type, literal, what follows. ``W`` stands for [A-Za-z0-9_-], ``A`` for [A-Za-z0-9].
_ISSUED = """
aws-key AKIA [A-Z0-9]{16,}
aws-key ASIA [A-Z0-9]{16,}
aws-key ABIA [A-Z0-9]{16,}
aws-key ACCA [A-Z0-9]{16,}
aws-key A3T [A-Z0-9]{17,}
aws-key ABSK [A-Za-z0-9+/=]{100,}
aws-key bedrock-api-key- [A-Za-z0-9+/=%]{20,}
gcp-key AIza W{30,}
gcp-key ya29. [A-Za-z0-9_.-]{20,}
gcp-key GOCSPX- W{20,}
azure-key Q~ [A-Za-z0-9_~.-]{30,}
github-token ghp_ A{30,}
github-token gho_ A{30,}
github-token ghu_ A{30,}
github-token ghs_ A{30,}
github-token ghr_ A{30,}
github-token github_pat_ [A-Za-z0-9_]{40,}
gitlab-token glpat- [A-Za-z0-9_.-]{20,}
gitlab-token gldt- W{20,}
gitlab-token glptt- W{40,}
gitlab-token glrt- [A-Za-z0-9_.-]{20,}
gitlab-token glrtr- W{20,}
gitlab-token glcbt- W{20,}
gitlab-token glimt- W{24,}
gitlab-token glft- W{20,}
gitlab-token glffct- W{20,}
gitlab-token glsoat- W{20,}
gitlab-token glagent- W{50,}
gitlab-token gloas- W{60,}
gitlab-token GR1348941 W{20,}
gitlab-token _gitlab_session= [0-9a-z]{32,}
slack-token xapp- W{12,}
slack-token hooks.slack.com/services/ [A-Za-z0-9_/-]{20,}
slack-token hooks.slack.com/workflows/ [A-Za-z0-9_/-]{20,}
slack-token hooks.slack.com/triggers/ [A-Za-z0-9_/-]{20,}
stripe-key sk_live_ A{10,}
stripe-key sk_test_ A{10,}
stripe-key sk_prod_ A{10,}
stripe-key rk_live_ A{10,}
stripe-key rk_test_ A{10,}
stripe-key rk_prod_ A{10,}
stripe-key whsec_ [A-Za-z0-9+/=]{24,}
sendgrid-key SG. W{16,}\\.W{16,}
sendgrid-key SG. [A-Za-z0-9=_.-]{60,}
npm-token npm_ A{30,}
pypi-token pypi-AgE W{40,}
openai-key sk- (?!ant-)(?=W{0,60}[0-9])W{32,}
anthropic-key sk-ant- W{24,}
huggingface-token hf_ A{30,}
huggingface-token api_org_ A{30,}
square-token sq0 (?:atp|csp|idp)-W{20,}
square-token EAAA (?=W{0,60}[0-9])W{22,}
meta-token EAAM A{90,}
meta-token EAAC A{90,}
databricks-token dapi [a-f0-9]{32,}
digitalocean-token doo_v1_ [a-f0-9]{40,}
digitalocean-token dop_v1_ [a-f0-9]{40,}
digitalocean-token dor_v1_ [a-f0-9]{40,}
shopify-token shpat_ [a-fA-F0-9]{32,}
shopify-token shpca_ [a-fA-F0-9]{32,}
shopify-token shppa_ [a-fA-F0-9]{32,}
shopify-token shpss_ [a-fA-F0-9]{32,}
vault-token hvs. W{24,}
vault-token hvb. W{24,}
vault-token hvr. W{24,}
grafana-token glsa_ [A-Za-z0-9_]{32,}
grafana-token glc_ [A-Za-z0-9+/=]{32,}
grafana-token eyJrIjoi [A-Za-z0-9+/=]{60,}
atlassian-token ATATT3 [A-Za-z0-9_=-]{60,}
atlassian-token ATCTT3 [A-Za-z0-9_=-]{60,}
atlassian-token ATBB A{28,}
alibaba-key LTAI A{16,}
tencent-key AKID A{30,}
yandex-key AQVN W{30,}
yandex-key YCAJE W{20,}
age-key AGE-SECRET-KEY-1 [A-Z0-9]{50,}
1password-key A3- [A-Z0-9]{6}-[A-Z0-9-]{20,}
1password-key ops_eyJ [A-Za-z0-9+/=]{100,}
doppler-token dp.pt. A{40,}
dynatrace-token dt0c01. A{20,}\\.A{40,}
easypost-key EZAK A{50,}
easypost-key EZTK A{50,}
duffel-token duffel_live_ [A-Za-z0-9_=-]{40,}
duffel-token duffel_test_ [A-Za-z0-9_=-]{40,}
flutterwave-key FLWSECK [A-Za-z0-9_-]{12,}
flyio-token fo1_ W{40,}
flyio-token fm1a_ [A-Za-z0-9+/=]{90,}
flyio-token fm1r_ [A-Za-z0-9+/=]{90,}
flyio-token fm2_ [A-Za-z0-9+/=]{90,}
frameio-token fio-u- [A-Za-z0-9_=-]{60,}
linear-key lin_api_ A{32,}
linear-key lin_oauth_ A{32,}
notion-token ntn_ A{40,}
notion-token secret_ (?=A{0,30}[0-9])A{40,}
newrelic-key NRAK- A{20,}
newrelic-key NRII- W{30,}
newrelic-key NRJS- A{18,}
newrelic-key NRRA- A{40,}
octopus-key API- [A-Z0-9]{25,}
openshift-token sha256~ W{40,}
perplexity-key pplx- A{40,}
planetscale-token pscale_tkn_ [A-Za-z0-9_=.-]{30,}
planetscale-token pscale_pw_ [A-Za-z0-9_=.-]{30,}
planetscale-token pscale_oauth_ [A-Za-z0-9_=.-]{30,}
postman-key PMAK- [A-Fa-f0-9-]{50,}
prefect-token pnu_ A{32,}
pulumi-token pul- [a-f0-9]{40,}
readme-token rdme_ [a-z0-9]{60,}
rubygems-token rubygems_ [a-f0-9]{40,}
scalingo-token tk-us- W{40,}
sendinblue-key xkeysib- [A-Za-z0-9-]{60,}
sentry-token sntrys_ [A-Za-z0-9_+/=]{40,}
sentry-token sntryu_ [a-f0-9]{60,}
settlemint-token sm_aat_ A{16,}
settlemint-token sm_pat_ A{16,}
settlemint-token sm_sat_ A{16,}
shippo-token shippo_live_ [A-Fa-f0-9]{32,}
shippo-token shippo_test_ [A-Fa-f0-9]{32,}
sourcegraph-token sgp_ (?:local_|[A-Fa-f0-9]{16}_)?[A-Fa-f0-9]{40,}
sonar-token squ_ A{40,}
sonar-token sqp_ A{40,}
sonar-token sqa_ A{40,}
supabase-key sbp_ [a-f0-9]{40,}
tailscale-key tskey- W{20,}
terraform-token .atlasv1. [A-Za-z0-9_=-]{60,}
typeform-token tfp_ [A-Za-z0-9_.=-]{40,}
clojars-token CLOJARS_ A{50,}
clickhouse-key 4b1d A{38,}
adobe-key p8e- A{32,}
airtable-token pat A{14}\\.[a-f0-9]{60,}
dnkey-token dnkey- [A-Za-z0-9_=-]{60,}
cloudflare-key v1.0- [a-f0-9]{24}-[a-f0-9]{100,}
artifactory-token AKCp A{40,}
artifactory-token cmVmd A{50,}
buildkite-token bkua_ A{32,}
groq-key gsk_ A{40,}
xai-key xai- A{60,}
replicate-token r8_ A{32,}
langchain-key lsv2_ [A-Za-z0-9_]{32,}
docker-token dckr_pat_ W{20,}
infracost-key ico- A{32,}
intra42-key s-s4t2ud- [a-f0-9]{60,}
intra42-key s-s4t2af- [a-f0-9]{60,}
harness-token pat. W{20,24}\\.A{20,}\\.A{18,}
harness-token sat. W{20,24}\\.A{20,}\\.A{18,}
heroku-key HRKU- W{30,}
hubspot-token pat-na1- [a-f0-9-]{36,}
hubspot-token pat-eu1- [a-f0-9-]{36,}
"""


def _issued() -> list[tuple[str, str, re.Pattern[str]]]:
    rules = []
    for line in _ISSUED.split("\n"):
        if line:
            type_, literal, body = line.split(" ", 2)
            body = re.sub(r"\bW\{", "[A-Za-z0-9_-]{", body)
            body = re.sub(r"\bA\{", "[A-Za-z0-9]{", body)
            first = re.escape(literal)
            # The literal comes first, so that the search for it is a plain one. Some literals
            # are short words: nothing of a word may stand before them.
            before = "" if literal in _INSIDE else rf"(?<![A-Za-z0-9]{first})"
            rules.append((type_, literal, re.compile(first + before + body + "+")))
    return rules


_INSIDE = {"Q~", ".atlasv1.", "hooks.slack.com/services/"}
_RULES = _issued()


# Forms without a literal of their own: type, a literal that must occur, the pattern.
def _forms(*rules: tuple[str, str, str]) -> list[tuple[str, str, re.Pattern[str]]]:
    return [(type_, literal, re.compile(pattern, re.ASCII)) for type_, literal, pattern in rules]


_SHORT = _forms(
    ("slack-token", "xox", r"xox[a-z][.-][\w.-]{9,}+"),
    ("artifactory-token", "AP", r"(?<![A-Za-z0-9])AP[0-9A-F](?=[A-Z0-9]*+[a-z])[A-Za-z0-9]{10,}+"),
    ("artifactory-token", "AKC", r"(?<![A-Za-z0-9])AKC(?=[A-Z0-9]*+[a-z])[A-Za-z0-9]{10,}+"),
    ("npm-token", ":_authToken", r"//[^\s/]++/:_authToken ?= ?([^\s\"'$]{8,}+)"),
    ("basic-auth", "curl", r"\s(?:-u|--user)[ =]{1,3}[\"']?[^\s:\"']{1,64}+:([^\s\"']{3,}+)"),
)
"""Forms of fewer characters than :data:`_LONG` asks for."""

_FORMS = _forms(
    ("jwt", "eyJ", r"(?<![\w.-])(eyJ[\w-]{8,}+)\.eyJ[\w-]{8,}+(?:\.[\w-]*+)?"),
    # A bot's id in base64, a time, a signature: the id's first letter is M, N or O.
    ("discord-token", ".", r"[MNO][\w-]{23,25}\.[\w-]{6}\.[\w-]{27,}+"),
    ("telegram-token", ":A", r"(?<![0-9])[0-9]{8,10}:A[\w-]{34,}+"),
    ("mailchimp-key", "-us", r"(?<![0-9a-f])[0-9a-f]{32}-us[0-9]{1,2}(?![0-9])"),
    ("mailgun-key", "key-", r"(?<![\w-])key-[0-9a-f]{32,}+"),
    ("twilio-key", "SK", r"(?<![A-Za-z0-9])SK(?:[0-9a-z]{32}|[0-9a-fA-F]{32})(?![A-Za-z0-9])"),
    ("twilio-key", "AC", r"(?<![A-Za-z0-9])AC[0-9a-z]{32}(?![A-Za-z0-9])"),
    ("maxmind-key", "_mmk", r"(?<![A-Za-z0-9])[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk"),
    ("authress-key", ".acc", r"(?<![\w.])(?:sc|ext|scauth|authress)_[\w.-]{10,}+[+/=\w.-]*+"),
    ("azure-key", "sig=", r"[?&;]sig=([A-Za-z0-9%+/=_-]{30,}+)"),
    ("teams-webhook", ".webhook.office.com/", r"\.webhook\.office\.com/([\w@/-]{60,}+)"),
    ("meta-token", "|", r"(?<![0-9])[0-9]{15,16}\|[\w-]{27,}+"),
    ("vault-token", "s.", r"(?<![\w.])s\.(?=[a-z]*+[0-9A-Z])[A-Za-z0-9]{24}(?![\w.])"),
)
_ADDRESS = re.compile(r"://[^\s/:@?#\"'<>]*+:([^\s/\"'<>]+)@(?=[\w\[%$-])")
_BEGIN = re.compile(r"-{4,5} ?BEGIN[ A-Z0-9_]{0,60}?PRIVATE KEY(?: BLOCK)?-{4,5}")
_END = re.compile(r"-{4,5} ?END[ A-Z0-9_]{0,80}-{4,5}")
_BODY = re.compile(r"(?:\s|\\[nr]|[A-Za-z0-9+/=]{16,}+)*+[A-Za-z0-9+/=]*+")
_PUTTY = re.compile(r"Private-Lines:\s*+[0-9]+\s++(?:[A-Za-z0-9+/=]{8,}+\s*+)++")
_FORTY = re.compile(r"(?<![A-Za-z0-9/+=])[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])")
_LONG = b"x" * 18
"""So many characters of those that tokens are made of, as :data:`_TOKEN` shows them: all forms
but :data:`_SHORT` hold such a run."""
_TOKEN = bytes(ord("x") if chr(c) in f"{ascii_letters}{digits}_-./~+=" else 0 for c in range(256))

TYPES = frozenset(
    {t for t, _, _ in [*_RULES, *_SHORT, *_FORMS]} | {"private-key", "basic-auth", "aws-secret"}
)


def credentials(folded: Folded) -> Iterator[Found]:
    """All credentials of ``folded`` that show by their form; stretches may overlap."""
    text = folded.text
    if "PRIVATE KEY" in text or "Private-Lines" in text:
        yield from _key_blocks(text)
    if "://" in text and "@" in text:
        for m in _ADDRESS.finditer(text):
            if not stands_in(m[1]):
                yield Found(m.start(1), m.end(1), "basic-auth")
    yield from _in_form(text, _SHORT)
    if _LONG not in text.encode("latin-1", "replace").translate(_TOKEN):
        return
    for type_, literal, pattern in _RULES:
        if literal in text:
            for m in pattern.finditer(text):
                start = m.start() - 4 if literal == "Q~" else m.start()
                yield Found(max(start, 0), m.end(), type_)
    yield from _in_form(text, _FORMS)
    if "aws" in folded.lower or "AKIA" in text or "ASIA" in text:
        for m in _FORTY.finditer(text):
            if classes(m[0]) == 3 and entropy(m[0]) >= 4:
                yield Found(m.start(), m.end(), "aws-secret")


def _in_form(text: str, forms: list[tuple[str, str, re.Pattern[str]]]) -> Iterator[Found]:
    for type_, literal, pattern in forms:
        if literal in text:
            for m in pattern.finditer(text):
                if type_ == "jwt":
                    if _is_header(m[1]):
                        yield Found(m.start(), m.end(), type_)
                elif not pattern.groups or not stands_in(m[1]):
                    yield Found(*m.span(pattern.groups), type_)


def _key_blocks(text: str) -> Iterator[Found]:
    """Whole key blocks. One without an end takes the lines of base64 that follow its head."""
    at, ended = 0, True
    while begin := _BEGIN.search(text, at):
        end = _END.search(text, begin.end()) if ended else None
        ended = end is not None  # where no end follows here, none follows later
        body = _BODY.match(text, begin.end())
        at = end.end() if end else body.end() if body else begin.end()
        yield Found(begin.start(), at, "private-key")
    for m in _PUTTY.finditer(text):
        yield Found(m.start(), m.end(), "private-key")


def _is_header(segment: str) -> bool:
    """Whether ``segment`` is base64 of a JSON object, as a token's header is."""
    try:
        decoded = base64.urlsafe_b64decode(segment[:4096] + "=" * (-len(segment[:4096]) % 4))
        return isinstance(json.loads(decoded), dict)
    except (binascii.Error, ValueError, RecursionError):
        return False


_STANDS_IN = re.compile(
    r"\$\{?\w+\}?|\$\(.*|\{\{.*|\{\w*\}?|%\(?\w*\)?[sd%]?|<.*|\[.*|\(.*|\*+|\.+|[xX•●█#?_\-]{3,}"
)


def stands_in(value: str) -> bool:
    """Whether ``value`` is not a secret but stands for one: ``${NAME}``, ``<key>``, ``****``."""
    return _STANDS_IN.fullmatch(value) is not None


def entropy(value: str) -> float:
    """Shannon entropy of the characters of ``value`` in bits a character, from its first 256."""
    counts = Counter(value[:256])
    total = counts.total()
    return -sum(n / total * math.log2(n / total) for n in counts.values())


def classes(value: str) -> int:
    """How many of these occur in ``value``: small letters, capitals, digits."""
    return (
        (re.search("[a-z]", value) is not None)
        + (re.search("[A-Z]", value) is not None)
        + (re.search("[0-9]", value) is not None)
    )
