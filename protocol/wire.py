"""Strict, canonical msgpack for frozen dataclasses.

A dataclass travels as the array of its fields in order. One value has one encoding: what decodes
must encode to the same bytes again, so a digest over bytes is a digest over the value. Unknown or
missing fields, wrong types, non-finite floats and everything over a limit are DecodeErrors.

The type drives the reading: an array is opened only where the type has one, and its length is
measured before an item of it is read. So bytes never decide how deep we go or what we allocate.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, NewType, TypeVar, cast, get_args, get_origin, get_type_hints

import msgpack

from protocol import limits
from protocol.errors import DecodeError

T = TypeVar("T")
INT_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Size:
    """Annotation: fewest and most bytes (of a text, its UTF-8 bytes) or items."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Range:
    """Annotation: smallest and largest number."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class OneOf:
    """Annotation: the closed set of strings or numbers."""

    values: tuple[str | int, ...]


Digest = Annotated[bytes, Size(32, 32)]
"""A BLAKE3 digest."""

DigestOrEmpty = Annotated[bytes, Size(0, 32)]
"""A digest, or no bytes where there is none; whoever uses it refuses the lengths between."""

Signature = Annotated[bytes, Size(64, 64)]
Scalar = int | float | str | bool


def encode(value: object) -> bytes:
    """The canonical bytes of a dataclass. Raises DecodeError if the value breaks its own limits."""
    kind: Any = type(value)
    return cast("bytes", msgpack.packb(_form(kind).plain(value, kind.__name__)))


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
    value = form.read(reader, name)
    reader.end(name)
    # msgpack has several spellings of most numbers, lengths and texts: ours is the one.
    if msgpack.packb(form.plain(value, name)) != data:
        raise DecodeError(f"{name}: not the canonical encoding")
    return cast("T", value)


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

    def array(self, path: str) -> int:
        """Opens an array: the number of items that it claims to have."""
        try:
            return cast("int", self._unpacker.read_array_header())
        except (ValueError, msgpack.exceptions.UnpackException) as error:
            raise DecodeError(f"{path}: no list: {error}") from error

    def scalar(self, path: str) -> object:
        """The next item, which is no array."""
        try:
            return cast("object", self._unpacker.unpack())
        except (ValueError, msgpack.exceptions.UnpackException) as error:
            raise DecodeError(f"{path}: not msgpack: {error}") from error

    def end(self, path: str) -> None:
        """Refuse bytes behind the value."""
        if self._unpacker.tell() != self._size:
            raise DecodeError(f"{path}: bytes behind the end")


@dataclass(frozen=True, slots=True)
class _Form:
    """How one type travels.

    `plain` checks a value and gives what msgpack packs; `read` takes one off the wire and checks
    it. `depth` counts arrays within arrays.
    """

    plain: Callable[[Any, str], object]
    read: Callable[[_Reader, str], object]
    depth: int = 0


_Check = Callable[[object, str], None]


def _wrong(path: str, expected: str, value: object) -> DecodeError:
    return DecodeError(f"{path}: expected {expected}, got {type(value).__name__}")


def _check_size(size: Size, path: str, length: int) -> None:
    if not size.low <= length <= size.high:
        raise DecodeError(f"{path}: length {length} is outside {size.low}..{size.high}")


# Each check asks for the exact type: a bool is an int to Python, and not to us.


def _check_bool(value: object, path: str) -> None:
    if type(value) is not bool:
        raise _wrong(path, "bool", value)


def _int_check(bound: Range) -> _Check:
    def check(value: object, path: str) -> None:
        if type(value) is not int:
            raise _wrong(path, "int", value)
        if not bound.low <= value <= bound.high:
            raise DecodeError(f"{path}: {value} is not within {bound.low}..{bound.high}")

    return check


def _float_check(bound: Range) -> _Check:
    def check(value: object, path: str) -> None:
        if type(value) is not float:
            raise _wrong(path, "float", value)
        if not (bound.low <= value <= bound.high and math.isfinite(value)):
            raise DecodeError(f"{path}: {value} is not within {bound.low}..{bound.high}")
        # It equals 0.0 and has other bytes, so two equal values would have two digests.
        if value == 0.0 and math.copysign(1.0, value) < 0.0:
            raise DecodeError(f"{path}: negative zero")

    return check


def _str_check(size: Size) -> _Check:
    def check(value: object, path: str) -> None:
        if type(value) is not str:
            raise _wrong(path, "str", value)
        try:
            length = len(value.encode())
        except UnicodeEncodeError as error:
            raise DecodeError(f"{path}: no Unicode text") from error
        _check_size(size, path, length)

    return check


def _bytes_check(size: Size) -> _Check:
    def check(value: object, path: str) -> None:
        if type(value) is not bytes:
            raise _wrong(path, "bytes", value)
        _check_size(size, path, len(value))

    return check


def _one_of(check: _Check, allowed: OneOf) -> _Check:
    def check_both(value: object, path: str) -> None:
        check(value, path)
        if value not in allowed.values:
            raise DecodeError(f"{path}: {value!r:.80} is not one of {allowed.values}")

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


def _check_any_scalar(value: object, path: str) -> None:
    check = _ANY_SCALAR.get(type(value))
    if check is None:
        raise _wrong(path, "int, float, str or bool", value)
    check(value, path)


def _scalar_form(check: _Check) -> _Form:
    def plain(value: object, path: str) -> object:
        check(value, path)
        return value

    def read(reader: _Reader, path: str) -> object:
        value = reader.scalar(path)
        check(value, path)
        return value

    return _Form(plain, read)


def _enum_form(kind: type[int]) -> _Form:
    def plain(value: object, path: str) -> object:
        if type(value) is not kind:
            raise _wrong(path, kind.__name__, value)
        return int(value)

    def read(reader: _Reader, path: str) -> object:
        value = reader.scalar(path)
        if type(value) is not int:
            raise _wrong(path, "int", value)
        try:
            return kind(value)
        except ValueError as error:
            raise DecodeError(f"{path}: {value} is no {kind.__name__}") from error

    return _Form(plain, read)


def _tuple_form(item: _Form, size: Size) -> _Form:
    def plain(value: object, path: str) -> object:
        if type(value) is not tuple:
            raise _wrong(path, "tuple", value)
        _check_size(size, path, len(value))
        return [item.plain(entry, f"{path}[{index}]") for index, entry in enumerate(value)]

    def read(reader: _Reader, path: str) -> object:
        length = reader.array(path)
        _check_size(size, path, length)
        return tuple([item.read(reader, f"{path}[{index}]") for index in range(length)])

    return _Form(plain, read, 1 + item.depth)


def _struct_form(kind: type) -> _Form:
    hints = get_type_hints(kind, include_extras=True)
    forms = {field.name: _form(hints[field.name]) for field in dataclasses.fields(kind)}

    def plain(value: object, path: str) -> object:
        if type(value) is not kind:
            raise _wrong(path, kind.__name__, value)
        return [form.plain(getattr(value, name), f"{path}.{name}") for name, form in forms.items()]

    def read(reader: _Reader, path: str) -> object:
        length = reader.array(path)
        if length != len(forms):
            raise DecodeError(f"{path}: {length} fields instead of {len(forms)}")
        fields = {name: form.read(reader, f"{path}.{name}") for name, form in forms.items()}
        try:
            return kind(**fields)
        except ValueError as error:
            raise DecodeError(f"{path}: {error}") from error

    depth = 1 + max((form.depth for form in forms.values()), default=0)
    assert depth <= limits.NESTING_MAX, f"{kind.__name__} nests {depth} deep"
    return _Form(plain, read, depth)


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
    if isinstance(hint, type) and issubclass(hint, int):  # an IntEnum
        return _enum_form(hint)
    raise AssertionError(f"no wire form for {hint!r}")
