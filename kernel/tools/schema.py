"""Python functions as tools: their annotations make the schema, and hold the arguments to it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, get_type_hints

import msgspec

from isovist.kernel.state.toolwords import MountedTool

GROUP = "isovist.tools"
"""Entry points by whose names a settings file may name a module or a function."""


class Function:
    """One function as a tool. Raises :class:`TypeError` where it can be none: an argument without
    a name or of a type that JSON does not know."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        hints = get_type_hints(function, include_extras=True)
        fields: list[Any] = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise TypeError(f"{function.__name__}: {parameter} has no name of its own")
            kind = hints.get(parameter.name, Any)
            if parameter.default is parameter.empty:
                fields.append((parameter.name, kind))
            else:
                default = msgspec.field(default_factory=partial(_same, parameter.default))
                fields.append((parameter.name, kind, default))
        self._arguments = msgspec.defstruct(
            "Arguments", fields, kw_only=True, forbid_unknown_fields=True
        )
        read_only = bool(getattr(function, "read_only", False))
        self.tool = MountedTool(
            name=function.__name__,
            description=inspect.getdoc(function) or "",
            parameters=msgspec.json.encode(_schema(self._arguments)).decode(),
            read_only=read_only,
            idempotent=read_only or bool(getattr(function, "idempotent", False)),
        )

    def call(self, arguments: str) -> str:
        """Its result as text. Raises what it raises, and :class:`msgspec.ValidationError` that
        names the argument at fault."""
        given = msgspec.json.decode(arguments, type=self._arguments)
        result = self._function(**{f: getattr(given, f) for f in given.__struct_fields__})
        if inspect.iscoroutine(result):
            import asyncio

            result = asyncio.run(result)
        return result if isinstance(result, str) else msgspec.json.encode(result).decode()


def functions(name: str) -> dict[str, Function]:
    """The tools of ``name``: an entry point's, ``module:function``, or a module, whose
    tools are those in its ``__all__``, else all public functions that it defines itself.

    Raises :class:`ImportError`, :class:`AttributeError` or :class:`TypeError`.
    """
    (found, *_) = [*entry_points(group=GROUP, name=name), None]
    if found is not None:
        name = found.value
    module_name, _, attribute = name.partition(":")
    module = import_module(module_name)
    if attribute:
        made = [Function(getattr(module, attribute))]
    else:
        listed = getattr(module, "__all__", None)
        made = [
            Function(value)
            for key, value in vars(module).items()
            if inspect.isfunction(value)
            and (key in listed if listed is not None else not key.startswith("_"))
            and (listed is not None or value.__module__ == module.__name__)
        ]
    return {function.tool.name: function for function in made}


def _same(value: Any) -> Any:
    return value


def _schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON schema of an object, which stands at the top and not behind a reference."""
    (_,), components = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    schema = dict(components.pop(kind.__name__))
    schema.pop("title", None)
    schema.setdefault("properties", {})
    if components:
        schema["$defs"] = components
    return schema
