"""The two TOML files: their keys as they are declared, written with a comment each, and read.

What is wrong with a file is said in words that name file, section and key.
"""

import ast
import difflib
import inspect
import itertools
import json
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from node.text.shown import shown
from protocol.errors import ConfigError
from protocol.limits import KIB

TOML_BYTES_MAX = 64 * KIB
_ERRORS_SHOWN_MAX = 8
_VALUE_CHARACTERS_MAX = 60

_EXPECTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a text in quotes",
    "bool_type": "true or false",
    "list_type": "a list in brackets",
    "dict_type": "a section of its own",
    "model_type": "a section of its own",
}


class Section(BaseModel):
    """A section of a TOML file: no key too many, no value turned into another type."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


S = TypeVar("S", bound=Section)


def key(
    default: Any = None,  # noqa: ANN401 - of the key's own type, as with pydantic's Field
    *,
    example: object = None,
    gap: int = 0,
    is_first: bool = False,
    section: type[Section] | None = None,
) -> Any:  # noqa: ANN401
    """Declare a key that a template shows in a way of its own; the string below it is its comment.

    A key with an `example` is shown behind a mark, with that as its value. `gap` is the least
    number of blanks before its comment. `is_first` puts it before the others of its section; the
    keys of a `section` stand below a line of its own.
    """
    look: Any = {"example": example, "gap": gap, "is_first": is_first, "section": section}
    return Field(default, json_schema_extra=look)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateLook:
    """Where comments begin, the least blanks before them, and whether all keys are behind marks."""

    column: int
    gap: int
    is_marked: bool = False


def template_lines(
    kind: type[Section], look: TemplateLook, given: Mapping[str, object], within: str = ""
) -> Iterator[str]:
    """A file with every key of `kind` at its default, or as it is `given` by its section and name,
    such as `inner.batch`, and its comment.

    A key that is left out by default and has no example is not shown: it is for few.
    """
    comments = _comments(kind)
    subsections = []
    looks: dict[str, Any] = {
        name: field.json_schema_extra or {} for name, field in kind.model_fields.items()
    }
    for name in sorted(looks, key=lambda name: not looks[name].get("is_first")):
        field, own, comment = kind.model_fields[name], looks[name], comments.get(name, "")
        section, example = own.get("section") or field.annotation, own.get("example")
        if isinstance(section, type) and issubclass(section, Section):
            # One without keys of its own, or without a default, is for who wants it.
            mark = "# " * (field.default is None or section is Section)
            subsections.append((f"{mark}[{within}{name}]", comment, section, f"{within}{name}."))
            continue
        default = field.get_default(call_default_factory=True)
        where = f"{within}{name}"
        value = given.get(where, default if example is None else example)
        if value is not None:
            is_example = example is not None and where not in given
            mark = "# " * (look.is_marked or is_example)
            yield from _commented(f"{mark}{name} = {_toml(value)}", comment, look, own.get("gap"))
    for head, comment, section, inner in subsections:
        yield ""
        yield from _commented(head, comment, look)
        yield from template_lines(section, look, given, inner)


def _comments(kind: type[Section]) -> dict[str, str]:
    """By key the string that stands below its declaration."""
    tree = ast.parse(inspect.getsource(sys.modules[kind.__module__]))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    found = {}
    for before, node in itertools.pairwise(classes[kind.__name__].body):
        match before, node:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(comment))),
            ):
                found[name] = inspect.cleandoc(comment)
    return found


def _commented(
    head: str, comment: str, look: TemplateLook, gap: int | None = None
) -> Iterator[str]:
    """The comment of a key or a section beside it; behind a blank line in it a new one begins."""
    if not comment:
        yield head
    start = max(look.column, len(head) + (gap or look.gap))
    behind = ("#" * look.is_marked).ljust(look.column)
    for paragraph in filter(None, comment.split("\n\n")):
        first, later = f"{head.ljust(start)}# ", f"{behind}# "
        if len(first) + max(map(len, paragraph.split())) > 100:
            yield f"{first}{paragraph}"  # Behind a long value no word is cut in two.
        else:
            yield from textwrap.wrap(paragraph, 100, initial_indent=first, subsequent_indent=later)
        head, start = behind, look.column


def _toml(value: object) -> str:
    """Of the few kinds of value that a template has."""
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    # A JSON string is a TOML string: the same quotes and escapes.
    return json.dumps(value, ensure_ascii=False)


def read_toml(path: Path) -> dict[str, object]:
    """The content of a TOML file. Raises ConfigError naming the file, and line and column."""
    return parse_toml(read_toml_bytes(path), path)


def read_toml_bytes(path: Path) -> bytes:
    """A TOML file as it stands on the disk. Raises ConfigError naming it."""
    try:
        with path.open("rb") as file:
            data = file.read(TOML_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > TOML_BYTES_MAX:
        raise ConfigError(f"{path}: longer than {TOML_BYTES_MAX // KIB} KiB")
    return data


def parse_toml(data: bytes, path: Path) -> dict[str, object]:
    """The content of the bytes of a TOML file. Raises ConfigError, as `read_toml` does."""
    try:
        # Some editors begin a file with a mark that it is UTF-8.
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}: no UTF-8 text (at line {line})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: no TOML: {shown(str(error))}") from error


def parse_sections(kind: type[S], content: Mapping[str, object], path: Path) -> S:
    """`content` as a `kind`. Raises ConfigError, a line for each key that is wrong."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        found = [
            _explain(kind, tuple(one["loc"]), one["type"], one["msg"], one["input"])
            for one in error.errors(include_url=False)
        ]
        lines = [f"{path}: {line}" for line in found[:_ERRORS_SHOWN_MAX]]
        if len(found) > _ERRORS_SHOWN_MAX:
            lines.append(f"and {len(found) - _ERRORS_SHOWN_MAX} more")
        raise ConfigError("\n".join(lines)) from error


def key_text(location: Sequence[int | str]) -> str:
    """`[inner] learning_rate`, as one finds it in the file."""
    names: list[str] = []
    for part in location:
        if isinstance(part, int):
            names[-1] += f"[{part}]"
        else:
            names.append(shown(part))
    *sections, key = names or ["the file"]
    return f"[{'.'.join(sections)}] {key}" if sections else key


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """A question that names the closest known name, or the list of all where none is close."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"


def _explain(
    kind: type[Section], location: tuple[int | str, ...], error: str, message: str, value: object
) -> str:
    where = key_text(location)
    if error == "extra_forbidden":
        section = _section(kind, location[:-1])
        known = list(section.model_fields)
        name = str(location[-1])
        if isinstance(value, dict):
            path = shown(".".join(map(str, location)))
            return f"[{path}] is no section; {did_you_mean(name, known)}"
        homes = [] if len(location) > 1 else _sections_with(kind, name)
        guess = f"did you mean [{homes[0]}] {name}?" if homes else did_you_mean(name, known)
        return f"{where} is no key; {guess}"
    if error == "missing":
        return f"{where} is missing"
    if error in _EXPECTED:
        return (
            f"{where} must be {_EXPECTED[error]}, not {shown(repr(value), _VALUE_CHARACTERS_MAX)}"
        )
    # The library's own words, such as "Input should be 'friends' or 'open'".
    words = message.removeprefix("Value error, ").replace("Input should be", "must be")
    return f"{where} {words}, not {shown(repr(value), _VALUE_CHARACTERS_MAX)}"


def _section(kind: type[Section], location: Sequence[int | str]) -> type[Section]:
    for part in location:
        if isinstance(part, int):
            continue  # An item of a list of sections, of which all are of one kind.
        annotation = kind.model_fields[part].annotation
        arguments = get_args(annotation)
        while arguments:  # list[Section], or that or None.
            annotation = arguments[0]
            arguments = get_args(annotation)
        assert isinstance(annotation, type)
        assert issubclass(annotation, Section)
        kind = annotation
    return kind


def _sections_with(kind: type[Section], key: str) -> list[str]:
    """The sections that have a key of this name: it was written above its section's line."""
    sections = {name: field.annotation for name, field in kind.model_fields.items()}
    return [
        name
        for name, annotation in sections.items()
        if isinstance(annotation, type)
        and issubclass(annotation, Section)
        and key in annotation.model_fields
    ]
