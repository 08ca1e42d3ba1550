"""Forks of running machines, and keys by which two of them are the same.

Both walk over whatever an object is made of, so that a field which is added to a shipped class is
copied and compared without a change here. What is shared is immutable: messages, seals, signers.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import FunctionType, MethodType
from typing import Any, TypeVar, cast

from blake3 import blake3

from node.rules.ballots import Entry
from protocol.messages import SealCertificate, SealValue, SignedMessage

ObjectT = TypeVar("ObjectT")
Ignored = Mapping[type, Collection[str]]
"""Fields that make no difference to anything that follows, by class."""

KEY_BYTES = 16

_ATOMS = (bytes, str, int, float, bool, type(None), frozenset, Enum, range)
_SHARED = (*_ATOMS, type, FunctionType, MethodType)


_known_shared: dict[type, bool] = {}
_known_names: dict[type, tuple[str, ...]] = {}


def _is_shared(kind: type) -> bool:
    """Whether objects of this class never change: two forks may have them in common."""
    known = _known_shared.get(kind)
    if known is None:
        parameters = getattr(kind, "__dataclass_params__", None)
        is_frozen = parameters is not None and bool(parameters.frozen)
        known = _known_shared[kind] = issubclass(kind, _SHARED) or is_frozen
    return known


def _slots(kind: type) -> tuple[str, ...]:
    """The names of all slots, those of a dataclass in the order of its fields."""
    known = _known_names.get(kind)
    if known is None:
        names = [field.name for field in fields(kind)] if is_dataclass(kind) else []
        for base in kind.__mro__:
            slots = base.__dict__.get("__slots__", ())
            names += [slots] if isinstance(slots, str) else slots
        hidden = ("__dict__", "__weakref__")
        unique = tuple(name for name in dict.fromkeys(names) if name not in hidden)
        known = _known_names[kind] = unique if hasattr(kind, "__slots__") else ()
    return known


def fork(thing: ObjectT) -> ObjectT:
    """A copy that shares nothing with the original that either can change."""
    return cast("ObjectT", _fork(thing, {}))


def _fork(thing: object, done: dict[int, object]) -> object:
    kind = type(thing)
    if _is_shared(kind):
        return thing
    if id(thing) in done:
        return done[id(thing)]
    if kind is dict:
        pairs: dict[object, object] = {}
        done[id(thing)] = pairs
        for key, value in cast("dict[object, object]", thing).items():
            pairs[key] = value if _is_shared(type(value)) else _fork(value, done)
        return pairs
    if kind is tuple:
        # Not remembered: an empty tuple is one object everywhere, and the parts are remembered.
        return tuple([_fork(part, done) for part in cast("tuple[object, ...]", thing)])
    copied: object
    if isinstance(thing, set):
        copied = set(thing)
    elif isinstance(thing, list):
        copied = [_fork(part, done) for part in thing]
    elif isinstance(thing, deque):
        copied = deque((_fork(part, done) for part in thing), maxlen=thing.maxlen)
    else:
        return _fork_object(thing, done)
    done[id(thing)] = copied
    return copied


def _fork_object(thing: object, done: dict[int, object]) -> object:
    kind = type(thing)
    copied = object.__new__(kind)
    done[id(thing)] = copied
    for name in _slots(kind):
        if hasattr(thing, name):
            object.__setattr__(copied, name, _fork(getattr(thing, name), done))
    for name, value in getattr(thing, "__dict__", {}).items():
        copied.__dict__[name] = value if _is_shared(type(value)) else _fork(value, done)
    return copied


def key_of(thing: object, ignored: Ignored) -> bytes:
    """KEY_BYTES that are equal for equal objects, whatever the order of their sets and dicts."""
    return blake3(repr(_form(thing, ignored)).encode()).digest()[:KEY_BYTES]


_NAMED: dict[type, Callable[[Any], object]] = {
    SignedMessage: lambda message: message.digest,
    Entry: lambda entry: entry.message.digest,
    SealValue: lambda value: value.digest,
    # By which SEALs it was proved makes no difference to anybody.
    SealCertificate: lambda certificate: certificate.value.digest,
}


def _form(thing: object, ignored: Ignored) -> object:
    """What `thing` is made of, as nested tuples of atoms."""
    kind = type(thing)
    if isinstance(thing, frozenset | set):
        return "set", tuple(sorted(repr(_form(part, ignored)) for part in thing))
    if issubclass(kind, _ATOMS):
        return thing
    if kind in _NAMED:
        return _NAMED[kind](thing)
    if isinstance(thing, dict):
        pairs = ((_form(k, ignored), _form(v, ignored)) for k, v in thing.items())
        return "dict", tuple(sorted(pairs, key=repr))
    if isinstance(thing, tuple | list | deque):
        return tuple(_form(part, ignored) for part in thing)
    if issubclass(kind, type | FunctionType | MethodType):
        return kind.__name__, getattr(thing, "__qualname__", "")
    left_out = ignored.get(kind, ())
    names = [name for name in _slots(kind) if hasattr(thing, name)]
    names += sorted(getattr(thing, "__dict__", ()))
    kept = [name for name in names if name not in left_out]
    return kind.__name__, tuple((name, _form(getattr(thing, name), ignored)) for name in kept)
