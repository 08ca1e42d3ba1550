"""Strict, canonical msgpack for frozen dataclasses.

A dataclass travels as the array of its fields in order; a last one that came later and is at its
default is left out (`LEFT_OUT`). One value has one encoding: what decodes
must encode to the same bytes again, so a digest over bytes is a digest over the value. Unknown or
missing fields, wrong types, non-finite floats and everything over a limit are DecodeErrors.

The type drives the reading: an array is opened only where the type has one, and its length is
measured before an item of it is read. So bytes never decide how deep we go or what we allocate.
"""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, cached_property
from types import MappingProxyType
from typing import Annotated, Any, NewType, TypeVar, cast, get_args, get_origin, get_type_hints

import msgpack

from protocol import limits
from protocol.errors import DecodeError
from protocol.identity import PEER_ID_BYTES, SIGNATURE_BYTES, PeerId

# Bounds -------------------------------------------------------------------------------------------
#
# What fields of wire types are annotated with: their bounds, and what may be left out.


@dataclass(frozen=True, slots=True)
class Size:
    """Annotation: fewest and most bytes (of a text, its UTF-8 bytes) or items."""

    low: int
    high: int


@dataclass(frozen=True)
class Spelled:
    """Annotation of a text that is a name: made of these characters alone, and of so many.

    `characters` is what stands between the brackets of a regular expression, all of it ASCII. So a
    name that a stranger chose is one harmless word wherever it is shown.
    """

    characters: str
    low: int
    high: int

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """What matches the whole name."""
        return re.compile(f"[{self.characters}]{{{self.low},{self.high}}}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Range:
    """Annotation: smallest and largest number."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class OneOf:
    """Annotation: the closed set of strings or numbers."""

    values: tuple[str | int, ...]


LEFT_OUT: Mapping[str, bool] = MappingProxyType({"is_left_out": True})
"""Metadata of a last field that came later: it travels only where it differs from its default, so
that values from before have the bytes that they had."""


# Encoding -----------------------------------------------------------------------------------------

T = TypeVar("T")
INT_MAX = 2**63 - 1


DIGEST_BYTES = 32
Digest = Annotated[bytes, Size(DIGEST_BYTES, DIGEST_BYTES)]
"""A BLAKE3 digest."""

DigestOrEmpty = Annotated[bytes, Size(0, 32)]
"""A digest, or no bytes where there is none; whoever uses it refuses the lengths between."""

Signature = Annotated[bytes, Size(SIGNATURE_BYTES, SIGNATURE_BYTES)]

Peer = Annotated[PeerId, Size(PEER_ID_BYTES, PEER_ID_BYTES)]
"""A peer's id where a message carries it."""
Scalar = int | float | str | bool


def encode(value: object) -> bytes:
    """The canonical bytes of a dataclass. Raises DecodeError if the value breaks its own limits."""
    kind: Any = type(value)
    try:
        plain = _form(kind).plain(value)
    except _Wrong as wrong:
        raise DecodeError(wrong.under(kind.__name__)) from wrong
    return cast("bytes", msgpack.packb(plain))


def decode(kind: type[T], data: bytes, *, max_bytes: int = limits.CONTROL_FRAME_BYTES_MAX) -> T:
    """The `kind` that `data` encodes. Raises DecodeError for all other bytes.

    Nothing is allocated beyond `max_bytes` and the limits of `kind`'s fields.
    """
    name = kind.__name__
    if len(data) > max_bytes:
        raise DecodeError(f"{name}: {len(data)} bytes, at most {max_bytes} allowed")
    hint: Any = kind
    form = _form(hint)
    reader = _Reader(data)
    try:
        value = form.read(reader)
        reader.end()
    except _Wrong as wrong:
        raise DecodeError(wrong.under(name)) from wrong
    # msgpack has several spellings of most numbers, lengths and texts: ours is the one.
    if msgpack.packb(form.bare(value)) != data:
        raise DecodeError(f"{name}: not the canonical encoding")
    return cast("T", value)


def leading_scalars(data: bytes, *, depth: int, count: int) -> list[object]:
    """What stands first within so many arrays, in bytes that need not be of a type of ours: of
    those of another version, which it is. Less where there is less."""
    reader, found = _Reader(data), list[object]()
    try:
        for _ in range(depth):
            reader.array()
        while len(found) < count:
            found.append(reader.scalar())
    except _Wrong:
        pass
    return found


class _Wrong(Exception):
    """What is wrong with a value. Where it is, is put together on the way out: it costs nothing
    while all is well."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._text = text
        self._place = ""

    def at(self, step: str) -> "_Wrong":
        """The same, seen from one level further out."""
        self._place = step + self._place
        return self

    def under(self, name: str) -> str:
        """The message for people."""
        return f"{name}{self._place}: {self._text}"


class _Reader:
    """Takes msgpack apart, one item at a time, as the types ask for it."""

    def __init__(self, data: bytes) -> None:
        self._size = len(data)
        # Arrays are opened by `array` alone: one where a scalar belongs is refused unread.
        self._unpacker: Any = msgpack.Unpacker(
            max_buffer_size=max(1, len(data)),
            max_array_len=0,
            max_map_len=0,
            max_ext_len=0,
            max_str_len=limits.STRING_BYTES_MAX,
        )
        self._unpacker.feed(data)

    def array(self) -> int:
        """Opens an array: the number of items that it claims to have."""
        try:
            length: int = self._unpacker.read_array_header()
        except (ValueError, msgpack.exceptions.UnpackException) as error:
            raise _Wrong(f"no list: {error}") from error
        return length

    def scalar(self) -> object:
        """The next item, which is no array."""
        try:
            item: object = self._unpacker.unpack()
        except (ValueError, msgpack.exceptions.UnpackException) as error:
            raise _Wrong(f"not msgpack: {error}") from error
        return item

    def end(self) -> None:
        """Refuse bytes behind the value."""
        if self._unpacker.tell() != self._size:
            raise _Wrong("bytes behind the end")


@dataclass(frozen=True, slots=True)
class _Form:
    """How one type travels.

    `plain` checks a value and gives what msgpack packs; `read` takes one off the wire and checks
    it; `bare` gives what msgpack packs for a value that is checked already. `depth` counts arrays
    within arrays.
    """

    plain: Callable[[Any], object]
    read: Callable[[_Reader], object]
    bare: Callable[[Any], object]
    depth: int = 0
    is_scalar: bool = False
    """Whether `read` is no more than `plain` of the next scalar."""


_Check = Callable[[object], object]
"""Gives back the value that it was asked about, or raises _Wrong."""


def _wrong(expected: str, value: object) -> _Wrong:
    return _Wrong(f"expected {expected}, got {type(value).__name__}")


def _sized(size: Size, length: int) -> int:
    if not size.low <= length <= size.high:
        raise _Wrong(f"length {length} is outside {size.low}..{size.high}")
    return length


# Each check asks for the exact type: a bool is an int to Python, and not to us.


def _check_bool(value: object) -> object:
    if type(value) is not bool:
        raise _wrong("bool", value)
    return value


def _int_check(bound: Range) -> _Check:
    low, high = bound.low, bound.high

    def check(value: object) -> object:
        if type(value) is not int:
            raise _wrong("int", value)
        if not low <= value <= high:
            raise _Wrong(f"{value} is not within {low}..{high}")
        return value

    return check


def _float_check(bound: Range) -> _Check:
    def check(value: object) -> object:
        if type(value) is not float:
            raise _wrong("float", value)
        if not (bound.low <= value <= bound.high and math.isfinite(value)):
            raise _Wrong(f"{value} is not within {bound.low}..{bound.high}")
        # It equals 0.0 and has other bytes, so two equal values would have two digests.
        if value == 0.0 and math.copysign(1.0, value) < 0.0:
            raise _Wrong("negative zero")
        return value

    return check


def _str_check(size: Size) -> _Check:
    def check(value: object) -> object:
        if type(value) is not str:
            raise _wrong("str", value)
        try:
            length = len(value.encode())
        except UnicodeEncodeError as error:
            raise _Wrong("no Unicode text") from error
        _sized(size, length)
        return value

    return check


def _name_check(spelled: Spelled) -> _Check:
    plain = _str_check(Size(spelled.low, spelled.high))
    pattern = spelled.pattern

    def check(value: object) -> object:
        plain(value)
        if pattern.fullmatch(cast("str", value)) is None:
            raise _Wrong(f"{value!a:.80} has other characters than {spelled.characters}")
        return value

    return check


def _bytes_check(size: Size) -> _Check:
    low, high = size.low, size.high

    def check(value: object) -> object:
        if type(value) is not bytes:
            raise _wrong("bytes", value)
        if not low <= len(value) <= high:
            _sized(size, len(value))
        return value

    return check


def _one_of(check: _Check, allowed: OneOf) -> _Check:
    def check_both(value: object) -> object:
        check(value)
        if value not in allowed.values:
            raise _Wrong(f"{value!r:.80} is not one of {allowed.values}")
        return value

    return check_both


def _scalar_check(kind: type, limit: object) -> _Check:
    size = limit if isinstance(limit, Size) else None
    bound = limit if isinstance(limit, Range) else None
    if kind is bool:
        check: _Check = _check_bool
    elif kind is int:
        check = _int_check(bound or Range(0, INT_MAX))
    elif kind is float:
        check = _float_check(bound or Range(-math.inf, math.inf))
    elif isinstance(limit, Spelled):
        assert kind is str, "names are texts"
        check = _name_check(limit)
    elif kind is str:
        check = _str_check(size or Size(0, limits.STRING_BYTES_MAX))
    else:
        check = _bytes_check(size or Size(0, limits.CONTROL_FRAME_BYTES_MAX))
    return _one_of(check, limit) if isinstance(limit, OneOf) else check


_ANY_SCALAR: Mapping[type, _Check] = {
    bool: _check_bool,
    int: _int_check(Range(-INT_MAX, INT_MAX)),
    float: _scalar_check(float, None),
    str: _scalar_check(str, None),
}


def _check_any_scalar(value: object) -> object:
    check = _ANY_SCALAR.get(type(value))
    if check is None:
        raise _wrong("int, float, str or bool", value)
    return check(value)


def _itself(value: object) -> object:
    return value


def _scalar_form(check: _Check) -> _Form:
    def read(reader: _Reader) -> object:
        return check(reader.scalar())

    return _Form(check, read, _itself, is_scalar=True)


def _enum_form(kind: type[IntEnum]) -> _Form:
    def plain(value: object) -> object:
        if type(value) is not kind:
            raise _wrong(kind.__name__, value)
        return int(value)

    def read(reader: _Reader) -> object:
        value = reader.scalar()
        if type(value) is not int:
            raise _wrong("int", value)
        try:
            return kind(value)
        except ValueError as error:
            raise _Wrong(f"{value} is no {kind.__name__}") from error

    return _Form(plain, read, int)


def _tuple_form(item: _Form, size: Size) -> _Form:
    def plain(value: object) -> object:
        if type(value) is not tuple:
            raise _wrong("tuple", value)
        _sized(size, len(value))
        plains: list[object] = []
        try:
            for entry in value:
                plains.append(item.plain(entry))  # noqa: PERF401 - its length says which one failed
        except _Wrong as wrong:
            raise wrong.at(f"[{len(plains)}]") from None
        return plains

    def read(reader: _Reader) -> object:
        length = _sized(size, reader.array())
        items: list[object] = []
        take, check, is_scalar = reader.scalar, item.plain, item.is_scalar
        try:
            for _ in range(length):
                # Without a step between for scalars: the nine digests of each cell's proof.
                items.append(check(take()) if is_scalar else item.read(reader))  # noqa: PERF401
        except _Wrong as wrong:
            raise wrong.at(f"[{len(items)}]") from None
        return tuple(items)

    def bare(value: tuple[object, ...]) -> object:
        # msgpack packs a tuple as it packs a list.
        return value if item.bare is _itself else [item.bare(entry) for entry in value]

    return _Form(plain, read, bare, 1 + item.depth)


def _struct_form(kind: type) -> _Form:
    hints = get_type_hints(kind, include_extras=True)
    forms = {field.name: _form(hints[field.name]) for field in dataclasses.fields(kind)}
    plain_of = [(name, form.plain) for name, form in forms.items()]
    read_of = [(name, form.read) for name, form in forms.items()]
    defaults = [field.default for field in dataclasses.fields(kind) if field.metadata == LEFT_OUT]
    fewest = len(forms) - len(defaults)
    assert all(f.metadata == LEFT_OUT for f in dataclasses.fields(kind)[fewest:]), "they come last"

    def shortened(items: list[object]) -> list[object]:
        """Without the last fields that are at their defaults; whose they are, is checked."""
        while len(items) > fewest and items[-1] == defaults[len(items) - 1 - fewest]:
            del items[-1]
        return items

    def plain(value: object) -> object:
        if type(value) is not kind:
            raise _wrong(kind.__name__, value)
        plains: list[object] = []
        try:
            for name, field_plain in plain_of:
                plains.append(field_plain(getattr(value, name)))
        except _Wrong as wrong:
            raise wrong.at(f".{plain_of[len(plains)][0]}") from None
        return shortened(plains) if defaults else plains

    def read(reader: _Reader) -> object:
        length = reader.array()
        if not fewest <= length <= len(forms):
            raise _Wrong(f"{length} fields instead of {len(forms)}")
        fields: dict[str, object] = {}
        try:
            for name, field_read in read_of[:length]:
                fields[name] = field_read(reader)
        except _Wrong as wrong:
            raise wrong.at(f".{read_of[len(fields)][0]}") from None
        try:
            return kind(**fields)
        except ValueError as error:
            raise _Wrong(str(error)) from error

    def bare(value: object) -> object:
        bares = [form.bare(getattr(value, name)) for name, form in forms.items()]
        return shortened(bares) if defaults else bares

    depth = 1 + max((form.depth for form in forms.values()), default=0)
    assert depth <= limits.NESTING_MAX, f"{kind.__name__} nests {depth} deep"
    return _Form(plain, read, bare, depth)


@cache
def _form(hint: Any) -> _Form:  # noqa: ANN401 - annotations of fields have no common type
    limit: object = None
    while get_origin(hint) is Annotated or isinstance(hint, NewType):
        if isinstance(hint, NewType):
            hint = hint.__supertype__
        else:
            hint, limit = get_args(hint)
    if hint in (bool, int, float, str, bytes):
        return _scalar_form(_scalar_check(hint, limit))
    if get_origin(hint) is tuple:
        size = limit if isinstance(limit, Size) else Size(0, limits.LIST_ITEMS_MAX)
        return _tuple_form(_form(get_args(hint)[0]), size)
    if get_origin(hint) in (typing.Union, types.UnionType):
        return _scalar_form(_check_any_scalar)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _struct_form(hint)
    if isinstance(hint, type) and issubclass(hint, IntEnum):
        return _enum_form(hint)
    raise AssertionError(f"no wire form for {hint!r}")
