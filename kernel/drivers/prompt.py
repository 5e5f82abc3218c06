"""A model's own chat template, rendered so that contents cannot become control tokens.

The template is rendered with a placeholder in place of each content, then cut at the
placeholders. What the template wrote is *control* text and is tokenised with special tokens on;
what a person, a memory or a tool wrote is tokenised with them off, so that ``<|im_end|>`` in a
content is ten plain characters. Driver and counter share this, so they count alike.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from isovist.kernel.drivers.turns import told_by_user, worded
from isovist.syscalls.errors import CallerError
from isovist.syscalls.records import Message

Part = tuple[str, bool]
"""Some text, and whether it is control text."""

PLAIN = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""For a model file that brings no template (a base model)."""

# Two characters of a private plane: no template holds them, and contents are never rendered.
_OPEN, _CLOSE = "\U0010f8f0", "\U0010f8f1"
_PLACEHOLDER = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


class ChatTemplate:
    """Compiled once a model. ``bos`` and ``eos`` are the texts of the model's own tokens.

    Raises :class:`ValueError` where ``source`` is no Jinja template.
    """

    def __init__(self, source: str, bos: str = "", eos: str = "") -> None:
        # A model file is data from elsewhere: its template runs in Jinja's sandbox.
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = time.strftime  # some models are told the date
        self._special = {"bos_token": bos, "eos_token": eos}
        try:
            self._template = environment.from_string(source)
        except TemplateError as e:
            raise ValueError(f"the model's chat template is broken: {e}") from None

    def parts(self, messages: Sequence[Message]) -> list[Part]:
        """Control and content texts in order, up to where the model's answer begins.

        A content of ``None`` is an empty turn. Calls of tools are words of their turn; a template
        that knows no results of tools has them as words of the user's. Raises ``EINVAL`` where the
        template refuses the messages (some models take no system turn, or want turns to alternate)
        or leaves a content out.
        """
        if not messages:
            raise CallerError("messages must hold at least one", field="messages")
        messages = worded(messages)
        try:
            return self._parts(messages)
        except CallerError:
            if any(message.role == "tool" for message in messages):
                with suppress(CallerError):
                    return self._parts(told_by_user(messages))
            raise

    def _parts(self, messages: Sequence[Message]) -> list[Part]:
        rendered = [
            {"role": message.role, "content": f"{_OPEN}{i}{_CLOSE}"}
            for i, message in enumerate(messages)
        ]
        try:
            text = self._template.render(
                messages=rendered, add_generation_prompt=True, **self._special
            )
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as e:
            raise CallerError(
                f"the model's chat template refuses the messages: {e}", field="messages"
            ) from None
        parts: list[Part] = []
        seen: set[int] = set()
        # split() with one group gives control, number, control, number, …, control.
        for at, piece in enumerate(_PLACEHOLDER.split(text)):
            if at % 2 == 0:
                parts.append((piece, True))
            else:
                seen.add(int(piece))
                parts.append((messages[int(piece)].content or "", False))
        for i, message in enumerate(messages):
            if message.content and i not in seen:
                raise CallerError(
                    f"the model's chat template has no place for messages[{i}] "
                    f"of role {message.role}",
                    field="messages",
                )
        return [part for part in parts if part[0]]


def _raise(message: str) -> None:
    """What templates call to refuse a conversation."""
    raise TemplateError(message)
