"""The add-wins set: who removes a value removes the additions that it has seen, and no other.

Each addition is marked with a *dot*, its writer and that writer's next number. A replica knows by
its *context* which dots it has seen; a dot that was seen and marks nothing any more is removed. So
removals leave no tombstones: the context is one number per writer, and a cloud of dots that came
ahead of their predecessors. Source: Bieniusa, Zawirski, Preguiça, Shapiro, Baquero, Balegas and
Duarte, "An Optimized Conflict-free Replicated Set", 2012.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from protocol import limits
from protocol.crdt import Count, Value, Writer
from protocol.identity import PeerId
from protocol.wire import Size


@dataclass(frozen=True, slots=True, order=True)
class Dot:
    """One addition: the `number`-th of its writer, from 1."""

    writer: Writer
    number: Count


Dots = Annotated[tuple[Dot, ...], Size(0, limits.CRDT_ITEMS_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Dots that were seen: of each writer all up to a number, and a cloud beyond.

    What adjoins is never in the cloud, so that one set of dots has one form.
    """

    upto: Dots = ()
    cloud: Dots = ()

    def __post_init__(self) -> None:
        known = {dot.writer: dot.number for dot in self.upto}
        if list(self.upto) != sorted(self.upto) or len(known) != len(self.upto):
            raise ValueError("the writers of a context must ascend, none twice")
        if list(self.cloud) != sorted(set(self.cloud)):
            raise ValueError("the dots of a cloud must ascend, none twice")
        if any(dot.number <= known.get(dot.writer, 0) + 1 for dot in self.cloud):
            raise ValueError("a dot of the cloud adjoins what is known")

    @classmethod
    def of(cls, dots: Iterable[Dot], upto: Iterable[Dot] = ()) -> "Context":
        """The context of these dots, and of all up to those of `upto`."""
        known: dict[PeerId, int] = {}
        for dot in upto:
            known[dot.writer] = max(dot.number, known.get(dot.writer, 0))
        cloud = []
        for dot in sorted(set(dots)):
            number = known.get(dot.writer, 0)
            if dot.number == number + 1:
                known[dot.writer] = dot.number
            elif dot.number > number:
                cloud.append(dot)
        return cls(
            upto=tuple(Dot(writer, known[writer]) for writer in sorted(known)), cloud=tuple(cloud)
        )

    def merge(self, *others: "Context") -> "Context":
        """The union."""
        return Context.of(
            (dot for one in (self, *others) for dot in one.cloud),
            (dot for one in (self, *others) for dot in one.upto),
        )

    def next(self, writer: PeerId) -> Dot:
        """The dot of `writer`'s next addition."""
        numbers = [dot.number for dot in (*self.upto, *self.cloud) if dot.writer == writer]
        return Dot(writer, max(numbers, default=0) + 1)


class _SeenDots:
    """A context, made for many questions."""

    def __init__(self, context: Context) -> None:
        self._upto = {dot.writer: dot.number for dot in context.upto}
        self._cloud = frozenset(context.cloud)

    def __contains__(self, dot: Dot) -> bool:
        return dot.number <= self._upto.get(dot.writer, 0) or dot in self._cloud


@dataclass(frozen=True, slots=True, order=True)
class Tag:
    """A value, and one addition of it that nobody is known to have removed."""

    value: Value
    dot: Dot


@dataclass(frozen=True, slots=True, kw_only=True)
class OrSet:
    """An observed-remove set of byte strings. A value is in it while it has a tag."""

    tags: Annotated[tuple[Tag, ...], Size(0, limits.CRDT_ITEMS_MAX)] = ()
    context: Context = Context()

    def __post_init__(self) -> None:
        if list(self.tags) != sorted(set(self.tags)):
            raise ValueError("tags must ascend, none twice")
        seen = _SeenDots(self.context)
        if not all(tag.dot in seen for tag in self.tags):
            raise ValueError("a tag whose dot its own context has not seen")

    def add(self, value: bytes, writer: PeerId) -> "OrSet":
        """The delta by which `writer` adds `value`. No two may come of one state and writer."""
        dot = self.context.next(writer)
        # The new tag stands for all others of the value, so that it never has many.
        return OrSet(tags=(Tag(value, dot),), context=Context.of([dot, *self._dots(value)]))

    def remove(self, value: bytes) -> "OrSet":
        """The delta that takes away all additions of `value` seen here."""
        return OrSet(context=Context.of(self._dots(value)))

    def _dots(self, value: bytes) -> list[Dot]:
        return [tag.dot for tag in self.tags if tag.value == value]

    def merge(self, *others: "OrSet") -> "OrSet":
        """A tag stays if every side that has seen its dot still has it."""
        sides = [(frozenset(one.tags), _SeenDots(one.context)) for one in (self, *others)]
        tags = {
            tag
            for candidates, _ in sides
            for tag in candidates
            if all(tag in held or tag.dot not in seen for held, seen in sides)
        }
        context = self.context.merge(*(one.context for one in others))
        return OrSet(tags=tuple(sorted(tags)), context=context)

    @property
    def members(self) -> tuple[bytes, ...]:
        """The values, ascending."""
        return tuple(sorted({tag.value for tag in self.tags}))
