"""Which numbers are identity numbers: their forms, their check digits, the words beside them.

Check digits come from python-stdnum where it knows them. A rule whose form and check digits are
rare enough stands alone; the others need one of their words nearby.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from stdnum.at import vnr
from stdnum.au import tfn
from stdnum.be import nn
from stdnum.bg import egn
from stdnum.br import cpf
from stdnum.ch import ssn as ahv
from stdnum.cl import rut
from stdnum.cn import uscc
from stdnum.co import nit
from stdnum.cz import rc
from stdnum.de import idnr
from stdnum.dk import cpr
from stdnum.ee import ik
from stdnum.es import dni, nie
from stdnum.fi import hetu
from stdnum.fr import nir
from stdnum.gb import nhs
from stdnum.hr import oib
from stdnum.il import idnr as teudat
from stdnum.it import codicefiscale
from stdnum.mx import curp
from stdnum.nl import bsn
from stdnum.no import fodselsnummer
from stdnum.pl import pesel
from stdnum.pt import cc as cartao
from stdnum.ro import cnp
from stdnum.se import personnummer
from stdnum.th import pin as thai
from stdnum.tr import tckimlik

from isovist.storage.check_digits import (
    anything,
    dated,
    has_luhn,
    has_verhoeff,
    is_any_card,
    is_card,
    is_cn_resident,
    is_hkid,
    is_itin,
    is_kr_resident,
    is_my_number,
    is_nric,
    is_old_cn_resident,
    is_sa_id,
    is_snils,
    is_ssn,
    is_twid,
    varied,
)

Check = Callable[[str], bool]

LABELS: dict[str, str] = {
    "card": r"card|visa|master ?card|amex|american express|maestro|cc|卡号|信用卡|银行卡|储蓄卡|卡",
    "ssn": r"ssn|social security|soc sec|itin|taxpayer",
    "cn": (
        r"身份证|身份證|证件号|公民身份|"
        r"identity card|id card|id number|id no|resident id|national id"
    ),
    "nhs": r"nhs",
    "aadhaar": r"aadhaar|aadhar|uidai|आधार",
    "sin": r"social insurance|s\.i\.n\.|sin|nas",
    "tfn": r"tfn|tax file",
    "medicare": r"medicare (?:card|number|no|id|#)",
    "bsn": r"bsn|burgerservice\w*|sofinummer",
    "se": r"personnummer|person number|samordningsnummer|swedish id",
    "dk": r"cpr\w*|personnummer",
    "no": r"fødselsnummer|fodselsnummer|personnummer|d-nummer",
    "pl": r"pesel",
    "de": r"steuer\w*|idnr|tin|tax id\w*",
    "br": r"cpf|cadastro de pessoas",
    "pt": r"nif|contribuinte|cartão de cidadão|cartao de cidadao",
    "ro": r"cnp|cod numeric personal",
    "bg": r"egn|егн",
    "il": r"teudat zehut|israeli id|תעודת זהות",
    "tr": r"t\.?c\.? kimlik\w*|kimlik no|tckn",
    "th": r"บัตรประชาชน|thai id|national id",
    "za": r"south african id|sa id|rsa id|id number|identity number",
    "cz": r"rodn[éeá] číslo\w*|rodne cislo|birth number",
    "hr": r"oib",
    "ee": r"isikukood|asmens kodas|personal code",
    "cl": r"rut|run",
    "co": r"nit|cédula|cedula",
    "id": r"nik|ktp",
    "jp": r"マイナンバー|個人番号|my number",
    "ru": r"инн|снилс|snils",
    "at": r"svnr|sozialversicherungs\w*",
    "pan": r"pan|permanent account",
    "ein": r"ein|employer identification|tax id\w*|federal tax",
    "uk": r"national insurance|nino|ni number|ni no",
    "iban": r"iban",
    "passport": (
        r"passports?|护照|護照|pasaporte|passeport|passaporto|reisepass\w*|paspoort|паспорт|"
        r"パスポート|여권"
    ),
    "licence": (
        r"driv(?:er|ing)(?:'?s|s'|’s)? ?licen[cs]e|driver(?:'?s|s'|’s)? permit|dl|dln|"
        r"驾驶证|驾照|駕照|"
        r"führerschein\w*|permis de conduire|carnet de conducir|patente di guida|водительск\w+"
    ),
    "insurance": (
        r"insurance (?:policy|member|card|id|number|no)\w*|policy|member id|membership id|"
        r"subscriber id|"
        r"health card|health insurance|medicaid|社保|社会保障|社會保險|社会保险|医保|醫保|"
        r"保险单|保单|"
        r"versicherungs\w+|krankenversicher\w*|numéro de sécurité sociale"
    ),
    "account": (
        r"account (?:number|no|nr|num)|acct(?: (?:number|no))?|routing (?:number|no)|sort code|"
        r"账号|帳號|"
        r"银行账户|银行帐号|bank account|kontonummer"
    ),
    "national": (
        r"national (?:id|identity|identification)|identity (?:card|number)|id card|state id|"
        r"government id|alien (?:registration )?number|a-number|green card|visa number|"
        r"residence permit|voter id|taxpayer id\w*|tax id\w*|ein|nationalid|证件号\w{0,2}|"
        r"港澳通行证|"
        r"通行证|居留证|personalausweis\w*|ausweisnummer|dni|cédula|cedula|curp|nric"
    ),
}
"""Words that stand beside a number of each kind, small letters (regular expressions)."""

OTHER = re.compile(
    r"(?:order|tracking|invoice|ticket|订单|运单|快递|isbn|imei|phone|tel|mobile|手机|电话|reference|ref|"
    r"sku|serial|hash|flight|confirmation|booking|timestamp)\w{0,3}"
    r"(?:[ :#=.]|number|no|num|id|is|号|码|是|为){0,6}+$"
)
"""Matches what stands right before a number of another kind."""

# A word ends where a letter ends; that it begins there is checked by who finds it (a pattern that
# begins with a literal is searched much faster).
PATTERNS = {kind: re.compile(rf"(?:{words})(?![a-z])") for kind, words in LABELS.items()}


class Rule(NamedTuple):
    """``shapes``: lengths of the groups of digits that need no label, ``"3-2-4"``; ``"*"``: any.
    ``labels``: with one of these beside it any shape will do. ``marked``: the last may be X."""

    type: str
    lengths: tuple[int, ...]
    valid: Check
    shapes: frozenset[str]
    labels: frozenset[str]
    marked: bool = False


def _rule(
    type_: str, lengths: str, valid: Check, shapes: str, labels: str, marked: bool = False
) -> Rule:
    return Rule(
        type_,
        tuple(map(int, lengths.split())),
        valid,
        frozenset(shapes.split()),
        frozenset(labels.split()),
        marked,
    )


NUMBERS: list[Rule] = [
    _rule("us-ssn", "9", is_ssn, "3-2-4", "ssn"),
    _rule("us-itin", "9", is_itin, "3-2-4", "ssn"),
    _rule("us-ssn", "9", varied, "", "ssn"),
    _rule("cn-resident-id", "18", is_cn_resident, "*", "cn", marked=True),
    _rule("cn-resident-id", "15", is_old_cn_resident, "", "cn national"),
    _rule("cn-resident-id", "18 15", varied, "", "cn", marked=True),
    _rule("fr-nir", "15", nir.is_valid, "13-2 1-2-2-2-3-3-2 1-2-2-2-6-2 15", ""),
    _rule("kr-rrn", "13", is_kr_resident, "6-7", ""),
    _rule("za-id", "13", is_sa_id, "", "za national"),
    _rule("th-id", "13", thai.is_valid, "1-4-5-2-1", "th"),
    _rule("ro-cnp", "13", cnp.is_valid, "", "ro"),
    _rule("ch-ahv", "13", lambda d: d.startswith("756") and ahv.is_valid(d), "3-4-4-2 13", ""),
    _rule("in-aadhaar", "12", lambda d: d[0] > "1" and has_verhoeff(d), "4-4-4", "aadhaar"),
    _rule("jp-my-number", "12", is_my_number, "", "jp"),
    _rule("ru-inn", "12 10", varied, "", "ru"),
    _rule("br-cpf", "11", cpf.is_valid, "3-3-3-2", "br"),
    _rule("de-idnr", "11", idnr.is_valid, "2-3-3-3", "de"),
    _rule("be-nn", "11", nn.is_valid, "2-2-2-3-2", "national"),
    _rule("ru-snils", "11", is_snils, "3-3-3-2", "ru"),
    _rule("pl-pesel", "11", pesel.is_valid, "", "pl"),
    _rule("no-fnr", "11", fodselsnummer.is_valid, "6-5", "no"),
    _rule("tr-id", "11", tckimlik.is_valid, "", "tr"),
    _rule("hr-oib", "11", oib.is_valid, "", "hr"),
    _rule("ee-ik", "11", ik.is_valid, "", "ee"),
    _rule("uk-nhs", "10", nhs.is_valid, "", "nhs"),
    _rule("bg-egn", "10", egn.is_valid, "", "bg"),
    _rule("dk-cpr", "10", cpr.is_valid, "", "dk"),
    _rule("se-pnr", "10 12", personnummer.is_valid, "", "se"),
    _rule("cz-rc", "9 10", rc.is_valid, "", "cz"),
    _rule("at-vnr", "10", vnr.is_valid, "", "at"),
    _rule("co-nit", "10", nit.is_valid, "", "co"),
    _rule("ca-sin", "9", has_luhn, "", "sin"),
    _rule("au-tfn", "8 9", tfn.is_valid, "", "tfn"),
    _rule("au-medicare", "10 11", anything, "", "medicare"),
    _rule("nl-bsn", "9", bsn.is_valid, "", "bsn"),
    _rule("pt-nif", "9", anything, "", "pt"),
    _rule("il-id", "9", teudat.is_valid, "", "il"),
    _rule("us-ein", "9", varied, "", "ein"),
    _rule("id-nik", "16", lambda d: varied(d), "", "id"),
    _rule("card", "13 14 15 16 17 18 19", is_card,
          "13 14 15 16 18 19 4-4-4-4 4-6-5 4-6-4 4-4-4-4-3 4-4-4-4-2 4-4-4-1 6-13 6-10 8-8",
          "card"),
    _rule("card", "12 13 14 15 16 17 18 19", is_any_card, "", "card"),
]  # fmt: skip
"""Rules about digits alone (the last of a resident id may be X), the most telling first."""


class Coded(NamedTuple):
    """An identity with letters in it: a pattern over the folded text, without separators inside
    unless it says so; ``labels`` empty: it stands alone."""

    type: str
    pattern: re.Pattern[str]
    valid: Check
    labels: frozenset[str] = frozenset()


def _coded(type_: str, pattern: str, valid: Check = anything, labels: str = "") -> Coded:
    return Coded(
        type_,
        re.compile(rf"(?<![A-Za-z0-9])(?:{pattern})(?![A-Za-z0-9])"),
        valid,
        frozenset(labels.split()),
    )


_S = "[ .-]?"
_NINO = (
    r"(?!BG|GB|NK|KN|TN|NT|ZZ)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z]"
    rf"{_S}[0-9]{{2}}{_S}[0-9]{{2}}{_S}[0-9]{{2}}{_S}[A-D]"
)


CODED: list[Coded] = [
    _coded("uk-nino", _NINO),
    _coded("uk-nino", rf"(?i:{_NINO})", anything, "uk"),
    _coded("it-cf", r"(?i:[A-Z]{6}[0-9LMNP-V]{2}[A-EHLMPRST][0-9LMNP-V]{2}[A-Z]"
           r"[0-9LMNP-V]{3}[A-Z])", codicefiscale.is_valid),
    _coded("mx-curp", r"[A-Z]{4}[0-9]{6}[HMX][A-Z]{5}[A-Z0-9][0-9]", curp.is_valid),
    _coded("es-nie", rf"(?i:[XYZ]){_S}[0-9]{{7}}{_S}(?i:[A-Z])", nie.is_valid),
    _coded("es-dni", rf"[0-9]{{2}}{_S}[0-9]{{3}}{_S}[0-9]{{3}}{_S}(?i:[A-HJ-NP-TV-Z])",
           dni.is_valid),
    _coded("pt-cc", rf"[0-9]{{8}}{_S}[0-9]{_S}[A-Z0-9]{{2}}[0-9]", cartao.is_valid, "pt"),
    _coded("fi-hetu", r"[0-9]{6}[-+A-FU-Y][0-9]{3}[0-9A-Y]", hetu.is_valid),
    _coded("sg-nric", r"[STFGM][0-9]{7}[A-Z]", is_nric),
    _coded("hk-id", r"[A-Z]{1,2}[0-9]{6}\([0-9A]\)", is_hkid),
    _coded("tw-id", r"[A-Z][1289][0-9]{8}", is_twid),
    _coded("in-pan", r"[A-Z]{3}P[A-Z][0-9]{4}[A-Z]"),
    _coded("in-pan", r"(?i:[A-Z]{5}[0-9]{4}[A-Z])", anything, "pan"),
    _coded("cn-uscc", r"[1-9ANY][1-9][0-9]{6}[0-9A-HJ-NP-RT-UW-Y]{10}",
           lambda c: not c.isdigit() and uscc.is_valid(c)),
    _coded("cl-rut", r"[0-9]{1,2}\.[0-9]{3}\.[0-9]{3}-[0-9Kk]", rut.is_valid),
    _coded("cl-rut", r"[0-9]{7,8}-[0-9Kk]", rut.is_valid, "cl"),
    _coded("se-pnr", r"[0-9]{6}[-+][0-9]{4}", personnummer.is_valid, "se"),
    _coded("dk-cpr", r"[0-9]{6}-[0-9]{4}", anything, "dk"),
    _coded("my-nric", r"[0-9]{6}-[0-9]{2}-[0-9]{4}", dated),
    _coded("us-ein", r"[0-9]{2}-[0-9]{7}", anything, "ein"),
    _coded("us-mbi", r"[1-9][AC-HJKMNP-RT-Y][0-9AC-HJKMNP-RT-Y][0-9]-?[AC-HJKMNP-RT-Y]"
           r"[0-9AC-HJKMNP-RT-Y][0-9]-?[AC-HJKMNP-RT-Y]{2}[0-9]{2}"),
]  # fmt: skip
"""Rules about codes of letters and digits."""

CODE = re.compile(
    r"(?<![A-Za-z0-9])(?=[A-Za-z][ .\-]|[A-Za-z0-9][A-Za-z0-9.])(?:"
    + "|".join(f"(?:{c.pattern.pattern})" for c in CODED)
    + ")"
)
"""Matches wherever one of :data:`CODED` does."""

_VALUE = r"[a-z]{0,4}(?:[ \-]?[a-z0-9]*[0-9][a-z0-9]*){1,6}"


class Labelled(NamedTuple):
    """A value that any number right after its label is. ``stems``: one occurs in each label.
    ``value`` matches small letters; ``digits``: how many it has at least."""

    label: str
    type: str
    stems: tuple[str, ...]
    value: re.Pattern[str]
    digits: int


LABELLED = [
    Labelled(
        "passport",
        "passport",
        ("passp", "pasap", "passa", "reisepass", "paspoort", "护照", "護照",
         "паспорт", "パスポート", "여권"),
        re.compile(r"[a-z]{0,3}[ \-]?[0-9][a-z0-9]{5,9}(?![a-z0-9])"),
        6,
    ),
    Labelled(
        "licence",
        "driver-licence",
        ("driv", "dl", "驾", "駕", "führersch", "conduire", "conducir", "guida", "водит"),
        re.compile(rf"(?=[a-z]{{0,6}}[ \-*]{{0,2}}[0-9]){_VALUE}"),
        5,
    ),
    Labelled(
        "insurance",
        "insurance",
        ("policy", "insur", "member", "subscriber", "health", "medic", "社", "医保", "醫保", "保险",
         "保单",
         "versicher", "sécurité"),
        re.compile(rf"(?=[a-z\-]{{0,6}}[0-9]){_VALUE}"),
        6,
    ),
    Labelled(
        "account",
        "bank-account",
        ("account", "acct", "routing", "sort code", "账", "帳號", "帐", "kontonummer"),
        re.compile(r"[0-9](?:[ \-]?[0-9]){5,19}(?![a-z0-9])"),
        6,
    ),
    Labelled(
        "national",
        "national-id",
        ("national", "identity", "id card", "state id", "government id", "alien", "a-number",
         "green card", "visa", "permit", "voter", "tax", "ein", "证",
         "ausweis", "dni", "dula", "curp", "nric"),
        re.compile(rf"(?=[a-z\-]{{0,4}}[0-9]){_VALUE}"),
        6,
    ),
]  # fmt: skip
