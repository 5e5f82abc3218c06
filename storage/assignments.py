"""Secrets told by what is said before them: ``password: …``, ``API_KEY=…``, ``密码是…``.

Two strengths. After a word that names nothing but a secret (*password*, *passphrase*) any value
that could be one counts; after a word with other uses (*key*, *token*, an issuer's name) only a
value that looks random. Talk *about* passwords must stay: a value of letters alone counts only
where it is bound as programs bind it (``NAME=value``, or in quotes).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from isovist.storage.credentials import stands_in
from isovist.storage.folding import Folded, Found

TYPES = frozenset({"password", "api-key", "bearer-token", "pin", "card-code", "one-time-code"})

_STRONG = (
    "password", "passwd", "passwort", "passcode", "passphrase", "pwd", "contraseña", "mot de passe",
    "senha", "пароль", "kennwort", "wachtwoord", "密码", "密碼", "口令", "パスワード", "비밀번호",
)  # fmt: skip
_WEAK = (
    "secret", "token", "apikey", "api key", "api_key", "api-key", "accesskey", "access key",
    "access_key", "access-key", "accountkey", "sharedaccesskey", "private key", "privatekey",
    "private_key", "private-key", "credential", "creds", "密钥", "密鑰", "令牌", "私钥", "凭证",
)  # fmt: skip

_NAMED = re.compile("|".join(map(re.escape, sorted(_STRONG + _WEAK, key=len, reverse=True))))
_NAMING = [w for w in _STRONG + _WEAK if not any(o in w and o != w for o in _STRONG + _WEAK)]
"""Of those words the ones that hold no other: where none is in a text, none of all is."""
# What may stand between the word and its value: the rest of a name, then one that binds. Prose
# binds with a verb, programs with a sign.
_REST = r"[\w\-.\]]{0,40}+[\"'`)]{0,3}+"
_BINDS = re.compile(
    _REST + r"(?:[ \t]{0,3}+(?P<sign>value[ \t]?=|:=|=>|->|={1,3}|:{1,2}=?|\|\||\?=|>|"
    r",(?=[ \t]*[\"']))[ \t=]{0,3}+"
    r"|(?P<prose>(?:[ \t]+(?:(?:for|of|to|on|at|in)[ \t]+(?:[\w'.@\-]{1,30}[ \t]+){1,4}?))?"
    r"[ \t]*(?:\b(?:is|was|are|will be|set to|to|as|ist|es|est|é)\b|[-—]|是|为|為|改为|改成|设为)"
    r"(?:[ \t]*(?::|now|still|just)){0,2}[ \t]{0,3}))"
)
_CHINESE = re.compile(r"[\u4e00-\u9fff]{0,4}+(?P<sign>[:=])?[ \t]{0,3}+")
_QUOTED = re.compile(r"\\?\"(?P<d>[^\"\n]*+)\"|'(?P<s>[^'\n]*+)'|`(?P<b>[^`\n]*+)`")
_BARE = re.compile(r"[^\s\"'`<>;,\u3001\u3002\u4e00-\u9fff]++")
_TRAIL = ".:)]}。）"

_BEARER = re.compile(
    r"\b(?:bearer|basic|apikey|authorization: *token|x-api-key:|api-token:)[ \t]{1,3}"
    r"([a-z0-9._~+/=%\-]{10,}+)"
)
_PIN = re.compile(
    r"\b(?P<pin>pin(?:[ -]?(?:code|number))?)\b(?:[ \t]*(?:is|was|to|[:=#])){1,2}[ \t]*[\"']?"
    r"([0-9]{4,8})(?![0-9\w.:/-])"
    r"|\b(?P<card>cvv2?|cvc2?|card security code|security code)\b\W{0,3}(?:(?:is|was)\W{1,2})?"
    r"([0-9]{3,4})(?![0-9\w.:/-])"
    r"|(?P<once>\b(?:otp|2fa code|verification code|one-time (?:code|password)|验证码))"
    r"(?:[ \t]*(?:is|was|是|为|[:=#])){0,2}[ \t]*([0-9]{4,8})(?![0-9\w.:/-])"
)
_PIN_WORDS = (
    "pin",
    "cvv",
    "cvc",
    "security code",
    "otp",
    "2fa",
    "verification code",
    "one-time",
    "验证码",
)

# A random-looking value that a name is bound to; the name is looked at afterwards.
_RANDOM = re.compile(r"[=:>,|](?:(?<!\|)|(?<=\|)\|)[ \t\"'`=]{0,6}([A-Za-z0-9_\-.+/=~%|:]{12,}+)")
_ISSUERS = re.compile(
    r"adafruit|adobe|airtable|algolia|alibaba|aliyun|anthropic|artifactory|asana|atlassian|"
    r"azure|beamer|bitbucket|bittrex|client_?id|cloudant|cloudflare|codecov|cohere|co_api|coinbase|"
    r"confluence|confluent|contentful|contribsys|datadog|digitalocean|discord|dnkey|drone|dropbox|"
    r"etsy|facebook|fastly|finicity|finnhub|flickr|freshbooks|freemius|gitlab|gitter|gocardless|"
    r"google|grafana|hashicorp|heroku|hubspot|huggingface|ibm|intercom|jfrog|jira|kraken|kucoin|"
    r"launchdarkly|linear|linkedin|lob|looker|mailchimp|mailgun|mapbox|mattermost|meraki|"
    r"message_?-?bird|mistral|netlify|new-?_?relic|npm|nytimes|new_?-?york_?-?times|okta|openai|paypal|plaid|private_?-?ai|"
    r"rapidapi|sendbird|sendgrid|sentry|shodan|shopify|slack|snyk|softlayer|sonar|xray|square|stripe|sumo|"
    r"telegr|travis|trello|twilio|twitch|twitter|vault|yandex|zendesk|aws|"
    r"bintray|linked_?-?in|notion|supabase|vercel"
)
_NAMES = re.compile(
    r"auth|access|secret|token|key|cred|login|signature|hmac|salt|iam|密钥|令牌|" + _ISSUERS.pattern
)
# Names whose values are random and public.
_PUBLIC = re.compile(
    r"(?:sha\d*|md5|hash|commit|digest|checksum|etag|uuid|guid|revision|fingerprint|pubkey|"
    r"public_?-?key|integrity|version|primary_?key|foreign_?key|keyboard|keyword|hotkey|monkey|"
    r"turkey|key_?point|author|href|src|url|uri|path|file|image|https?|max_?tokens|tokenizer)"
    r"[\w\- ]{0,12}$"
)
_FIELD = re.compile(r"[^\n,;{(]++$")
_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
# Words that say "put yours here". A value of digits and these is one as well.
_SAMPLE = re.compile(
    r"fake|example|dummy|sample|insert|your|placeholder|changeme|change_me|redacted|hidden|"
    r"not_|doesnt|required|optional|none|null|true|false|undefined|_here|<|\$\{"
)
_CODE = re.compile(r"[a-z_][\w.]*[(\[]|(?:self|this|os|process|env|config|settings|args)\.\w", re.I)


def assignments(folded: Folded) -> Iterator[Found]:
    """All values of ``folded`` that are bound to the name of a secret; they may overlap."""
    text, lower = folded.text, folded.lower
    if any(word in lower for word in _NAMING):
        at = 0
        while named := _NAMED.search(lower, at):
            at = named.end()
            if found := _bound(text, lower, named):
                yield found
                at = max(at, found.stop)
    if "bearer" in lower or "basic" in lower or "api" in lower or "authorization" in lower:
        for m in _BEARER.finditer(lower):
            if _random(text[m.start(1) : m.end(1)]):
                yield Found(m.start(1), m.end(1), "bearer-token")
    if any(word in lower for word in _PIN_WORDS):
        for m in _PIN.finditer(lower):
            type_ = "pin" if m["pin"] else "card-code" if m["card"] else "one-time-code"
            yield Found(m.start(m.lastindex or 0), m.end(m.lastindex or 0), type_)
    for m in _RANDOM.finditer(text):
        if _random(m[1]):
            before = lower[max(0, m.start() - 48) : m.start()].rstrip(" \t'\"`=:,|?>")
            name = _FIELD.search(before)
            telling = _ISSUERS if _UUID.fullmatch(m[1]) else _NAMES
            if name and telling.search(name[0]) and not _PUBLIC.search(name[0]):
                yield Found(m.start(1), m.end(1), "api-key")


def _bound(text: str, lower: str, named: re.Match[str]) -> Found | None:
    """The value that the word ``named`` is bound to, if it could be a secret."""
    strong = named[0] in _STRONG
    binds = _BINDS.match(lower, named.end())
    if binds is None and named[0][0] >= "\u3000":
        binds = _CHINESE.match(lower, named.end())
    if binds is None or binds.end() == len(text) or not text[binds.end()].isascii():
        return None
    sign = binds["sign"]
    quoted = _QUOTED.match(text, binds.end())
    if quoted:
        start, stop = quoted.span(quoted.lastgroup or 0)
    else:
        bare = _BARE.match(text, binds.end())
        if not bare:
            return None
        start, stop = bare.span()
        while stop > start and text[stop - 1] in _TRAIL:
            stop -= 1
    value = text[start:stop]
    if not value or stands_in(value) or _CODE.match(value) or value.startswith(("http:", "https:")):
        return None
    programs = bool(sign) and (quoted is not None or binds[0].endswith(sign))
    if _password(value, programs) if strong else _key(value, lower[binds.start() : start]):
        return Found(start, stop, "password" if strong else "api-key")
    return None


def _password(value: str, programs: bool) -> bool:
    """Whether ``value`` could be somebody's password, bound by a program's sign or by prose."""
    if len(value) < 4 or _masked(value) or (" " in value and value.replace(" ", "").isalpha()):
        return False
    inner = value[1:] != value[1:].lower() and value != value.upper()
    if any(c.isdigit() for c in value):
        return len(value) >= 6 or not value.isalnum() or value.isdigit() or inner
    lower = value.lower()
    if _SAMPLE.search(lower):
        return False
    if any(c in "!@#$%^&*+=~|\\?" for c in value[:-1]):
        return True
    if programs:
        return len(value) >= 6 and lower not in _WORDS and not lower.startswith(_WORDS_START)
    return inner and len(value) >= 8 and "-" not in value and "/" not in value


_WORDS = frozenset(
    ("string", "password", "passwd", "prompt", "hashed", "bcrypt", "argon2", "secret")
)
_WORDS_START = ("password", "user_pass", "get_pass", "type=")


def _key(value: str, between: str) -> bool:
    if len(value) < 8 or " " in value or _masked(value) or _PUBLIC.search(between.strip(" :=\"'")):
        return False
    return _random(value)


def _masked(value: str) -> bool:
    """Whether one character, as a mask is, makes up more than half of ``value``."""
    return max(map(value.lower().count, "x*•.#_-?")) * 2 > len(value)


def _random(value: str) -> bool:
    """Whether ``value`` looks drawn by a machine: kinds of characters mixed, no words."""
    distinct = len(set(value))
    if not any(map(str.isdigit, value)):
        signs = sum(not c.isalnum() and c not in "/._-: " for c in value)
        return len(value) >= 16 and distinct >= 10 and (_mixed(value) or signs * 5 >= len(value))
    if value.translate(_JOINERS).isdigit():
        return len(value) >= 15 and value.isdigit()
    return distinct >= (5 if len(value) < 20 else 6) and not _SAMPLE.search(value.lower())


_JOINERS = dict.fromkeys(map(ord, ".-:/"))


def _mixed(value: str) -> bool:
    """Small letters and capitals alternate more often than names written together let them."""
    turns = sum(a.islower() and b.isupper() for a, b in pairwise(value))
    return turns * 5 >= len(value)
