"""A value that matches a JSON schema, made without a model: what the scripted driver answers.

The smallest that is sensible: required properties alone, as few items as may be, the number
nearest to 0, and ``words`` wherever a text is wanted. A keyword that could make such a value wrong
and that nothing here knows is refused, so what is made does match.
"""

from __future__ import annotations

import json
import math
from typing import Any

from isovist.syscalls.errors import CallerError

TEXT = 200
"""Characters of a text, where the schema does not ask for more."""
DEPTH = 64
MADE = 1000
"""Values in all: more are not worth waiting for."""

_NOTES = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly",
     "$schema", "$id", "$comment", "$defs", "definitions"}
)  # fmt: skip
"""Keywords that demand nothing."""
_KNOWN = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength", "format"}),
    "number": frozenset(
        {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    ),
    "boolean": frozenset(),
    "null": frozenset(),
}
_KINDS = {str: "string", bool: "boolean", type(None): "null", dict: "object", list: "array",
          int: "number", float: "number"}  # fmt: skip
_FORMATS = {
    "date": "2026-01-31",
    "time": "09:00:00Z",
    "date-time": "2026-01-31T09:00:00Z",
    "email": "ana@example.org",
    "uri": "https://example.org/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def sample(text: str, words: str, field: str = "schema", kind: str = "") -> str:
    """JSON that matches the schema ``text``, an object's where ``kind`` says so. Raises ``EINVAL``
    naming the keyword that stands in the way."""
    try:
        root = json.loads(text or "{}")
    except (ValueError, RecursionError):
        root = None
    if not isinstance(root, dict):
        raise CallerError("a JSON schema must be an object", field=field)
    node = {"type": kind, **root} if kind else root
    try:
        return json.dumps(_Maker(node, words.strip() or "text").value(node), ensure_ascii=False)
    except ValueError as e:
        raise CallerError(f"the scripted model cannot answer: {e}", field=field) from None
    except (TypeError, AttributeError, RecursionError):
        raise CallerError("not a JSON schema", field=field) from None


class _Maker:
    """Makes values; :class:`ValueError` says what it cannot."""

    def __init__(self, root: dict[str, Any], words: str) -> None:
        self._root, self._words = root, words
        self._made = 0

    def value(self, node: Any, depth: int = 0) -> Any:
        self._made += 1
        if depth > DEPTH or self._made > MADE:
            raise ValueError("the schema asks for too much")
        if node is True:
            return self._words[:TEXT]
        if node is False:
            raise ValueError("the schema allows nothing")
        rules = {name: rule for name, rule in node.items() if name not in _NOTES}
        for name in ("$ref", "anyOf", "oneOf"):
            if name in rules:
                return self._referred(rules, name, depth)
        kinds = rules.pop("type", None)
        if "const" in rules or "enum" in rules:
            return self._listed(rules, kinds)
        kind = (kinds[0] if isinstance(kinds, list) else kinds) or _guess(rules)
        known = _KNOWN.get("number" if kind == "integer" else kind)
        if known is None:
            raise ValueError(f"no type is called {kind!r}")
        if strange := sorted(rules.keys() - known):
            raise ValueError(f"it does not know the keyword {strange[0]!r}")
        match kind:
            case "object":
                return self._object(rules, depth)
            case "array":
                return self._array(rules, depth)
            case "string":
                return self._string(rules)
            case "integer" | "number":
                return _number(rules, whole=kind == "integer")
            case "boolean":
                return True
            case _:
                return None

    def _referred(self, rules: dict[str, Any], name: str, depth: int) -> Any:
        if len(rules) > 1:
            raise ValueError(f"it does not know {name!r} beside other keywords")
        if name == "$ref":
            return self.value(self._at(rules[name]), depth + 1)
        if name == "oneOf":
            kinds = [one.get("type") for one in rules[name]]
            plain = ["number" if kind == "integer" else kind for kind in kinds]
            if not all(isinstance(kind, str) for kind in plain) or len(set(plain)) < len(plain):
                raise ValueError("it does not know 'oneOf' but for values of different types")
        return self.value(rules[name][0], depth + 1)

    def _at(self, pointer: str) -> Any:
        """What a reference into the schema itself points at."""
        if pointer != "#" and not pointer.startswith("#/"):
            raise ValueError(f"a schema may refer to itself alone, not to {pointer!r}")
        node: Any = self._root
        for step in pointer.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, dict) or step not in node:
                raise ValueError(f"{pointer!r} points at nothing")
            node = node[step]
        return node

    @staticmethod
    def _listed(rules: dict[str, Any], kinds: Any) -> Any:
        if len(rules) > 1:
            raise ValueError("it does not know 'enum' or 'const' beside other keywords")
        allowed = {"number" if kind == "integer" else kind
                   for kind in ([kinds] if isinstance(kinds, str) else kinds or ())}  # fmt: skip
        for value in [rules["const"]] if "const" in rules else rules["enum"]:
            if not allowed or _KINDS[type(value)] in allowed:
                return value
        raise ValueError("no value listed has the type")

    def _object(self, rules: dict[str, Any], depth: int) -> dict[str, Any]:
        named, rest = rules.get("properties", {}), rules.get("additionalProperties", True)
        return {
            name: self.value(named.get(name, rest), depth + 1) for name in rules.get("required", ())
        }

    def _array(self, rules: dict[str, Any], depth: int) -> list[Any]:
        least, most = rules.get("minItems", 0), rules.get("maxItems", math.inf)
        if least > most:
            raise ValueError("minItems is above maxItems")
        if least > MADE:
            raise ValueError("the schema asks for too much")
        return [self.value(rules.get("items", True), depth + 1) for _ in range(least)]

    def _string(self, rules: dict[str, Any]) -> str:
        least, most = rules.get("minLength", 0), rules.get("maxLength", math.inf)
        if least > most:
            raise ValueError("minLength is above maxLength")
        if least > MADE:
            raise ValueError("the schema asks for too much")
        if (form := rules.get("format")) is not None:
            text = _FORMATS.get(form, "")
            if not text or not least <= len(text) <= most:
                raise ValueError(f"it does not know the format {form!r}")
            return text
        return self._words[: int(min(most, max(TEXT, least)))].ljust(least, ".")


def _guess(rules: dict[str, Any]) -> str:
    """The type that keywords without one speak of; a text where they say nothing."""
    return next((kind for kind, known in _KNOWN.items() if rules.keys() & known), "string")


def _number(rules: dict[str, Any], whole: bool) -> int | float:
    """The number nearest to 0 that the rules allow, of those that are found by steps."""
    step = rules.get("multipleOf", 1)
    low = max(rules.get("minimum", -math.inf), rules.get("exclusiveMinimum", -math.inf))
    high = min(rules.get("maximum", math.inf), rules.get("exclusiveMaximum", math.inf))
    near = low if low > 0 else high if high < 0 else 0
    tried = [n * step for n in range(math.floor(near / step) - 1, math.floor(near / step) + 3)]
    if not whole and "multipleOf" not in rules:
        tried += [near, (low + high) / 2]
    for value in sorted(tried, key=abs):
        sound = low <= value <= high and not (whole and value != int(value))
        if sound and value not in (rules.get("exclusiveMinimum"), rules.get("exclusiveMaximum")):
            return int(value) if value == int(value) else value
    raise ValueError("it finds no number that the rules allow")
