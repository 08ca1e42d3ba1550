"""Chats as texts: a list of messages, each with a role and a content, written out by a template."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from protocol.errors import CorpusError
from protocol.limits import KIB, MIB

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
)
_BYTES_MAX = 64 * KIB
"""A store keeps its template in `corpus.json`, which has a bound; known ones have 5 KB."""

_FILE_BYTES_MAX = MIB


def read_template(where: str) -> str:
    """`chatml`, a file with a template of Jinja, or a tokenizer_config.json that has one.

    Raises CorpusError.
    """
    if where == "chatml":
        return CHATML
    try:
        with Path(where).expanduser().open("rb") as file:
            text = file.read(_FILE_BYTES_MAX + 1).decode("utf-8")
        if len(text) > _FILE_BYTES_MAX:
            raise CorpusError(f"{where} has more than {_FILE_BYTES_MAX // MIB} MiB")
        if where.endswith(".json"):
            text = json.loads(text)["chat_template"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorpusError(
            f"no chat template can be read from {where}: {error}; name a template of Jinja, a "
            "tokenizer_config.json with a chat_template, or chatml"
        ) from None
    if not isinstance(text, str):
        raise CorpusError(f"the chat_template of {where} is no text")
    if len(text.encode("utf-8", "surrogatepass")) > _BYTES_MAX:
        raise CorpusError(f"the chat template {where} has more than {_BYTES_MAX // KIB} KiB")
    return text


def chat_renderer(template: str) -> Callable[[object], str]:
    """What makes a text of a list of messages; that raises ValueError for messages that the
    template does not take. Raises CorpusError for a template that is none."""
    # It comes with torch. Sandboxed: a template may be a stranger's, and is a program.
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> NoReturn:
        raise ValueError(message)

    world = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    world.globals["raise_exception"] = refuse
    try:
        compiled = world.from_string(template)
    except TemplateError as error:
        raise CorpusError(f"the chat template is none: {error}") from None

    def render(messages: object) -> str:
        if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
            raise ValueError("no list of messages")
        if not all(isinstance(one.get("role"), str) and "content" in one for one in messages):
            raise ValueError("a message without role and content")
        try:
            return compiled.render(messages=messages, add_generation_prompt=False)
        except (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError) as error:
            raise ValueError(str(error)) from error

    return render
