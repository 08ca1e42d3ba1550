"""Events and actions of reducers, the peers that sum a slice. `node.events` has all others."""

from dataclasses import dataclass

from protocol.identity import PeerId


@dataclass(frozen=True, slots=True)
class ListEntry:
    """One listed contribution, as an aggregator needs it; `weight` is by tokens, and by what its
    sender has earned."""

    sender: PeerId
    commit_digest: bytes
    weight: int


@dataclass(frozen=True, slots=True)
class Measure:
    """Find the partial Gram matrix of cells [first, stop); answer with Measured."""

    list_digest: bytes
    entries: tuple[ListEntry, ...]
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class Measured:
    """The partial Gram matrix of one slice; `stats` is its wire form (`training.numeric.gram`)."""

    list_digest: bytes
    first: int
    stop: int
    stats: bytes


@dataclass(frozen=True, slots=True)
class Reduce:
    """Sum cells [first, stop) of a certified LIST; answer with Reduced. Entries by sender.

    `grams` are the partial Gram matrices of all slices, where the rule judges whole vectors.
    """

    list_digest: bytes
    entries: tuple[ListEntry, ...]
    first: int
    stop: int
    grams: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Reduced:
    """The result of one slice is encoded and stored; `root` is over its cell roots."""

    list_digest: bytes
    first: int
    stop: int
    root: bytes
