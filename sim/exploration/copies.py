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

from protocol.messages import SealCertificate, SealValue, SignedMessage
from protocol.rounds.ballots import BallotEntry

ObjectT = TypeVar("ObjectT")
Ignored = Mapping[type, Collection[str]]
"""Fields that make no difference to anything that follows, by class."""

KEY_BYTES = 16

_ATOMS = (bytes, str, int, float, bool, type(None), frozenset, Enum, range)
_SHARED = (*_ATOMS, type, FunctionType, MethodType)


_PLAIN = frozenset({bytes, str, int, float, bool, type(None)})
_UNSET = object()

_known_shared: dict[type, bool] = {}
_known_kept: dict[tuple[type, int], tuple[str, ...]] = {}
_seen_ignored: list[Ignored] = []
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
    if _known_shared.get(kind) or _is_shared(kind):
        return thing
    known = done.get(id(thing))
    if known is not None:
        return known
    if kind is dict:
        pairs = cast("dict[object, object]", thing)
        if all(_known_shared.get(type(value)) for value in pairs.values()):
            done[id(thing)] = pairs = pairs.copy()
            return pairs
        copies: dict[object, object] = {}
        done[id(thing)] = copies
        for key, value in pairs.items():
            copies[key] = value if _known_shared.get(type(value)) else _fork(value, done)
        return copies
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
        value = getattr(thing, name, _UNSET)
        if value is not _UNSET:
            is_shared = _known_shared.get(type(value))
            object.__setattr__(copied, name, value if is_shared else _fork(value, done))
    for name, value in getattr(thing, "__dict__", {}).items():
        copied.__dict__[name] = value if _is_shared(type(value)) else _fork(value, done)
    return copied


def key_of(thing: object, ignored: Ignored) -> bytes:
    """KEY_BYTES that are equal for equal objects, whatever the order of their sets and dicts."""
    return blake3(repr(_form(thing, ignored)).encode()).digest()[:KEY_BYTES]


_NAMED: dict[type, Callable[[Any], object]] = {
    SignedMessage: lambda message: message.digest,
    BallotEntry: lambda entry: entry.message.digest,
    SealValue: lambda value: value.digest,
    # By which SEALs it was proved makes no difference to anybody.
    SealCertificate: lambda certificate: certificate.value.digest,
}


def _form(thing: object, ignored: Ignored) -> object:
    """What `thing` is made of, as nested tuples of atoms."""
    kind = type(thing)
    if kind in _PLAIN:
        return thing
    if kind in _NAMED:
        return _NAMED[kind](thing)
    if isinstance(thing, frozenset | set):
        return "set", tuple(sorted([repr(_form(part, ignored)) for part in thing]))
    if issubclass(kind, _ATOMS):
        return thing
    if isinstance(thing, dict):
        # Keys differ, so their forms alone give an order.
        forms = [(repr(k if type(k) in _PLAIN else _form(k, ignored)), v) for k, v in thing.items()]
        forms.sort(key=_first)
        return "dict", tuple([(k, _form(v, ignored)) for k, v in forms])
    if isinstance(thing, tuple | list | deque):
        return tuple([_form(part, ignored) for part in thing])
    if issubclass(kind, type | FunctionType | MethodType):
        return kind.__name__, getattr(thing, "__qualname__", "")
    found: list[object] = [kind.__name__]
    for name in _kept(kind, ignored):
        value = getattr(thing, name, _UNSET)
        if value is not _UNSET:
            found += (name, value if type(value) in _PLAIN else _form(value, ignored))
    left_out = ignored.get(kind, ())
    for name, value in sorted(getattr(thing, "__dict__", {}).items()):
        if name not in left_out:
            found += (name, _form(value, ignored))
    return tuple(found)


def _first(pair: tuple[str, object]) -> str:
    return pair[0]


def _kept(kind: type, ignored: Ignored) -> tuple[str, ...]:
    """The slots that make a difference."""
    known = _known_kept.get((kind, id(ignored)))
    if known is None:
        left_out = ignored.get(kind, ())
        known = tuple(name for name in _slots(kind) if name not in left_out)
        _known_kept[kind, id(ignored)] = known
        _seen_ignored.append(ignored)  # Its number stays its own.
    return known
