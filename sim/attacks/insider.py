"""A member whose well-signed messages and frames are as they should be but for a field here and
there, which says something else.

What a field may be is read off its type, so that every field of every kind is reached, also one
that is new: numbers at and beside their bounds, other digests and keys of the run in place of one,
items left out, doubled and moved. What it signs itself is signed again, so only its meaning is
wrong; what no peer could decode is not sent, for that is found before anybody believes it.
"""

import random
import types
import typing
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from enum import IntEnum
from functools import cache
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin

from node.holdings.shard_store import Item
from node.plane.hooks import NodeHooks
from protocol.errors import DecodeError
from protocol.frames import Bulk, BulkHeader, Frame, Messages, decode_frame, encode_frame
from protocol.identity import PeerId, Signer
from protocol.messages import SignedMessage, body_digest, decode_body, message_preimage
from protocol.wire import OneOf, Range, Size, decode, encode
from sim.attacks.seam import Attack

RATES = (0.01, 0.05, 0.25)
"""Chances that a message or frame is bent; each insider draws one of them."""

TWO_FACED = 0.25
"""Chance that an insider bends what it sends to each peer by itself: most of that convicts it."""

TRIES = 16
"""For something that can be decoded."""

SEEN_MAX = 256
REMEMBERED_MAX = 4096
OF_BODY = 0.8
"""Of bends of a signed message so many are of its body; the others are of its slot."""

INT_FAR = 2**62

T = TypeVar("T")


class Insider(Attack):
    """The vectors are honest."""

    def hooks(self) -> NodeHooks:
        """See Attack."""
        return Bending(self.seed)


class Bender:
    """Other values of a type, by its annotations; what was looked at is taken for other things."""

    def __init__(self, luck: random.Random) -> None:
        self._luck = luck
        self._seen: dict[int, deque[bytes]] = {}
        """Bytes by their length."""
        self._items_seen: dict[object, deque[object]] = {}
        """All else by its type."""

    def look(self, value: object) -> None:
        """Remember what is in a value: taken for something else it looks right."""
        if isinstance(value, bytes):
            self._seen.setdefault(len(value), deque(maxlen=SEEN_MAX)).append(value)
        elif isinstance(value, tuple):
            for item in value:
                self.look(item)
        else:
            self._items_seen.setdefault(type(value), deque(maxlen=SEEN_MAX)).append(value)
        if is_dataclass(value):
            for field in fields(value):
                self.look(getattr(value, field.name))

    def bent(self, hint: object, value: object) -> object:
        """Something else of that type."""
        hint, bounds = _bare(hint)
        if get_origin(hint) in (typing.Union, types.UnionType):
            hint = type(value)
        match value:
            case bool():
                return not value
            case IntEnum():
                return self._luck.choice(list(type(value)))
            case int() | float() | str() if options := _of(OneOf, bounds):
                return self._luck.choice(options.values)
            case int() | float():
                return self._number(value, _of(Range, bounds) or Range(-INT_FAR, INT_FAR))
            case str():
                return self._bytes(value.encode(), _of(Size, bounds)).decode(errors="replace")
            case bytes():
                return self._bytes(value, _of(Size, bounds))
            case tuple():
                return self._items(hint, value)
            case _ if is_dataclass(value) and not isinstance(value, type):
                return self.field(value)
        raise AssertionError(f"no way to bend {hint}")

    def field(self, value: T) -> T:
        """The same with one field that is another."""
        hints = _hints(cast("Hashable", type(value)))
        if not hints:
            return value
        name = self._luck.choice(sorted(hints))
        other: T = replace(
            cast("Any", value), **{name: self.bent(hints[name], getattr(value, name))}
        )
        return other

    def _number(self, value: float, bounds: Range) -> float:
        steps = (value - 1, value + 1, 2 * value, -value, bounds.low, bounds.high, 0, 1)
        drawn = self._luck.choice((*steps, self._luck.uniform(bounds.low, bounds.high)))
        kept = min(max(drawn, bounds.low), bounds.high)
        return type(value)(kept)

    def _bytes(self, value: bytes, size: Size | None) -> bytes:
        luck, size = self._luck, size or Size(len(value), len(value))
        ways: list[Callable[[], bytes]] = [
            lambda: luck.choice(list(self._seen.get(len(value), ())) or [value]),
            lambda: luck.randbytes(len(value)),
            lambda: bytes(len(value)),
            lambda: self._flipped(value),
        ]
        if size.low < size.high:
            ways += [
                lambda: value[: luck.randint(size.low, max(size.low, len(value)))],
                lambda: (value + luck.randbytes(luck.randint(1, 64)))[: size.high],
                lambda: b"",
            ]
        return luck.choice(ways)()

    def _flipped(self, value: bytes) -> bytes:
        if not value:
            return value
        flipped = bytearray(value)
        flipped[self._luck.randrange(len(flipped))] ^= 1 << self._luck.randrange(8)
        return bytes(flipped)

    def _items(self, hint: object, value: tuple[object, ...]) -> tuple[object, ...]:
        luck, items = self._luck, list(value)
        if not items:
            return tuple(self._made_up(get_args(hint)[0]))
        at, to = luck.randrange(len(items)), luck.randrange(len(items))
        match luck.randrange(6):
            case 0:
                del items[at]
            case 1:
                items.insert(to, items[at])
            case 2:
                items[at], items[to] = items[to], items[at]
            case 3:
                items.clear()
            case 4:
                items = items[: at + 1]
            case _:
                items[at] = self.bent(get_args(hint)[0], items[at])
        return tuple(items)

    def _made_up(self, hint: object) -> Iterator[object]:
        """An item where there is none, out of what was seen."""
        kind, bounds = _bare(hint)
        size, found = _of(Size, bounds), list(self._items_seen.get(kind, ()))
        if kind is bytes and size is not None:
            lengths = [n for n in self._seen if size.low <= n <= size.high]
            found = [one for n in lengths for one in self._seen[n]]
        elif kind is int:
            found = [self._number(0, _of(Range, bounds) or Range(-INT_FAR, INT_FAR))]
        if found:
            yield self._luck.choice(found)


class Bending(NodeHooks):
    """One insider. What it draws follows from `seed` and its key."""

    name = "attack insider"
    bends_frames = True

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._begins_as(random.Random(seed))
        self._signer: Signer | None = None
        self._bent: dict[bytes, SignedMessage] = {}
        """What is said in place of each own message."""

    def _begins_as(self, luck: random.Random) -> None:
        self._luck, self._bender = luck, Bender(luck)
        self._rate, self._is_two_faced = luck.choice(RATES), luck.random() < TWO_FACED

    def began(self, signer: Signer) -> None:
        """See NodeHooks."""
        if self._signer is None:  # A process that starts again goes on drawing.
            self._begins_as(random.Random(f"{self._seed}/insider/{signer.peer_id.hex()}"))
        self._signer = signer

    def outgoing(self, peer: PeerId, frame: Frame) -> Iterable[tuple[float, Frame]]:
        """See NodeHooks."""
        del peer
        self._bender.look(frame)
        if isinstance(frame, Messages):
            frame = Messages(messages=tuple(self._said_instead(one) for one in frame.messages))
        if self._luck.random() < self._rate:
            frame = self._tried(frame, lambda: _again(self._bender.field(frame)))
        return ((0.0, frame),)

    def sent_header(self, header: BulkHeader) -> BulkHeader:
        """See NodeHooks; how many items follow is seen by the transport."""
        if self._luck.random() >= self._rate:
            return header

        def other() -> BulkHeader:
            bent = replace(self._bender.field(header), items=header.items)
            return decode(BulkHeader, encode(bent))

        return self._tried(header, other)

    def sent_item(self, bulk: Bulk, item: Item) -> Item:
        """See NodeHooks."""
        del bulk
        if self._luck.random() >= self._rate:
            return item
        luck, bender = self._luck, self._bender
        match luck.randrange(3):
            case 0:
                return Item(max(0, item.index + luck.choice((-1, 1))), item.payload, item.proof)
            case 1:
                payload = bender._flipped(item.payload)
                return Item(item.index, payload, item.proof)
            case _:
                proof = [bender._flipped(node) for node in item.proof]
                return Item(item.index, item.payload, tuple(proof))

    # Messages -----------------------------------------------------------------------------------

    def _said_instead(self, message: SignedMessage) -> SignedMessage:
        signer = self._signer
        if signer is None or message.sender != signer.peer_id:
            return message
        known = self._bent.get(message.digest)
        if known is None or self._is_two_faced:
            known = message
            self._bender.look(decode_body(message))
            if self._luck.random() < self._rate:
                known = self._tried(message, lambda: self._other(message, signer))
            self._bent[message.digest] = known
            while len(self._bent) > REMEMBERED_MAX:
                del self._bent[next(iter(self._bent))]
        return known

    def _other(self, message: SignedMessage, signer: Signer) -> SignedMessage:
        slot, body = message.slot, decode_body(message)
        if self._luck.random() < OF_BODY:
            body = self._bender.field(body)
        else:
            slot = self._bender.field(slot)
        encoded = encode(body)
        signature = signer.sign(message_preimage(slot, signer.peer_id, body_digest(encoded)))
        bent = SignedMessage(slot=slot, sender=signer.peer_id, body=encoded, signature=signature)
        again = decode(SignedMessage, encode(bent))
        decode_body(again)
        return again

    def _tried(self, value: T, other: Callable[[], T]) -> T:
        """Something that can be decoded; the value itself if none is found."""
        for _ in range(TRIES):
            try:
                return other()
            except (DecodeError, ValueError, AssertionError, OverflowError):
                continue
        return value


def _again(frame: Frame) -> Frame:
    """As the other side reads it. Raises DecodeError."""
    return decode_frame(encode_frame(frame))


def _bare(hint: object) -> tuple[object, tuple[object, ...]]:
    """A type without its annotations, and those."""
    bounds: tuple[object, ...] = ()
    while get_origin(hint) is Annotated or isinstance(hint, typing.NewType):
        if isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        else:
            hint, *more = get_args(hint)
            bounds = (*bounds, *more)
    return hint, bounds


def _of(kind: type[T], bounds: Iterable[object]) -> T | None:
    return next((bound for bound in bounds if isinstance(bound, kind)), None)


@cache
def _hints(kind: Hashable) -> dict[str, object]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(cast("Any", kind))}
