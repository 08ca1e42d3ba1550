"""Reading the two TOML files, and saying what is wrong in words that name file, section and key."""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from node.reporting.shown import shown
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
