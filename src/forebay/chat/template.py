"""Messages to text: the chat templates that models ship, rendered in a sandbox with bounded output."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from forebay.chat.messages import Message
from forebay.errors import ModelError

MAX_TEMPLATE_CHARACTERS: Final = 1 << 18
MAX_TEXT_CHARACTERS: Final = 1 << 24


class ChatTemplate:
    """A chat template in the format of Hugging Face tokenizers.

    Args:
        source: Jinja2 source; sees `messages`, `add_generation_prompt` and the variables.
        variables: More names for the template, such as `bos_token`.

    Raises:
        ModelError: The source is too long or is not a template.

    Example:
        >>> template = ChatTemplate("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")
        >>> template.render([Message("user", "hello")], add_generation_prompt=False)
        '[user]hello'
    """

    def __init__(self, source: str, variables: Mapping[str, str] | None = None) -> None:
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise ModelError("chat template too long", got=len(source), limit=MAX_TEMPLATE_CHARACTERS)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ModelError(f"chat template does not parse: {error}") from error
        self._variables = dict(variables or {})

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """Return the text of a conversation.

        Args:
            messages: The conversation so far.
            add_generation_prompt: Whether the model speaks next.

        Raises:
            ModelError: The template refuses this order of roles, fails, or writes too much.
        """
        parts: list[str] = []
        num_characters = 0
        try:
            for part in self._template.generate(
                messages=[{"role": message.role, "content": message.content} for message in messages],
                add_generation_prompt=add_generation_prompt,
                **self._variables,
            ):
                parts.append(part)
                num_characters += len(part)
                if num_characters > MAX_TEXT_CHARACTERS:
                    raise ModelError("chat template writes too much", limit=MAX_TEXT_CHARACTERS)
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            roles = ",".join(message.role for message in messages[-8:])
            raise ModelError(
                f"chat template cannot render this conversation: {error}",
                got=f"roles ...{roles}",
                remedy="Let the environment speak in roles and an order that the model's template knows.",
            ) from error
        return "".join(parts)


def _to_json(value: Any, indent: int | None = None) -> str:
    # Jinja's own filter escapes HTML characters; templates of models expect plain JSON.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
