"""What joiners may ask for: sealed states, and the results of the rounds behind them (R11).

A state is served from memory while it is one of the last, and then from its checkpoint. Whoever
began to fetch one is to come to its end: a state that is asked for stays for a while, with its
checkpoint's file mapped where there is one, else in memory.

`find` and the methods of what it gives block; one at a time, from threads or inline.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from node.holdings.journal import Journal
from node.holdings.result_cells import ResultCells
from node.holdings.shard_store import Item, ShardStore, State
from node.plane.gathered import split
from protocol import limits
from protocol.errors import StreamClosedError
from protocol.frames import Bulk
from protocol.messages import SealCertificate, SealValue

STATES_HELD_MAX = 2
"""States that are only there because somebody fetches them."""

HELD_S = 60.0
"""So long after somebody asked for a cell of it."""


class CellSource(Protocol):
    """SEAM: the cells of one subject."""

    @property
    def count(self) -> int:
        """How many there are."""
        ...

    def item(self, index: int) -> Item:
        """One of them, to be sent."""
        ...


FindCheckpoint = Callable[[SealCertificate], CellSource | None]
"""SEAM: the state of a seal from its checkpoint, if there is one and it is whole."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class StateInMemory:
    """The cells of a state; nobody writes to its arrays."""

    store: ShardStore
    state: State

    @property
    def count(self) -> int:
        """See Source."""
        return self.store.num_state_cells

    def item(self, index: int) -> Item:
        """See Source."""
        return self.store.state_item(self.state, index)


@dataclass(frozen=True, slots=True)
class Result:
    """The encoded result of a round, in memory or on the disk."""

    cells: ResultCells

    @property
    def count(self) -> int:
        """See Source."""
        return len(self.cells)

    def item(self, index: int) -> Item:
        """See Source. Raises StreamClosedError if the disk has lost the cell."""
        payload = self.cells.get(index)
        if payload is None:
            # Not what it has instead: who steps on wrong cells takes their sender for a liar.
            raise StreamClosedError(f"cell {index} of a result is not on the disk any more")
        return Item(index, payload, ())


@dataclass(slots=True)
class _Held:
    source: CellSource
    asked_s: float
    is_in_memory: bool


class Served:
    """The sources of one shard on one node."""

    def __init__(
        self, store: ShardStore, journal: Journal, find_checkpoint: FindCheckpoint
    ) -> None:
        self._store = store
        self._journal = journal
        self._find_checkpoint = find_checkpoint
        self._held: dict[bytes, _Held] = {}
        self._results: dict[bytes, ResultCells] = {}
        """By LIST those that were read and found whole. They are asked for in pieces, by some
        joiners at once, and none of them is in memory for that: only the roots of its cells."""

    def find(self, bulk: Bulk, certificate: SealCertificate, *, now_s: float) -> CellSource | None:
        """The cells of a state, or of the step to it; None if they are not here."""
        self.forget_old(now_s)
        if bulk is Bulk.STEP:
            return self._find_result(certificate)
        return self._find_state(certificate, now_s)

    def forget_old(self, now_s: float) -> None:
        """Let go of what nobody has asked for of late."""
        for root in [r for r, held in self._held.items() if now_s > held.asked_s + HELD_S]:
            del self._held[root]

    @property
    def num_held(self) -> int:
        """States that stay because they are asked for."""
        return len(self._held)

    def _find_state(self, certificate: SealCertificate, now_s: float) -> CellSource | None:
        root = certificate.value.root
        held, state = self._held.get(root), self._store.state_of(root)
        if held is None or (held.is_in_memory and state is None):
            found = self._find_checkpoint(certificate) if state is None else None
            if found is None and state is not None:
                found = StateInMemory(self._store, state)
            if found is not None:
                held = _Held(found, now_s, is_in_memory=state is not None)
        if held is None:
            return None
        held.asked_s = now_s
        self._held.pop(root, None)
        while len(self._held) >= STATES_HELD_MAX:
            # The one that nobody has asked for for the longest: dicts keep their order.
            del self._held[next(iter(self._held))]
        self._held[root] = held
        return held.source

    def _find_result(self, certificate: SealCertificate) -> CellSource | None:
        value = certificate.value
        digest = value.list_digest
        if not value.commits:
            return None  # Its state is the one before.
        sizes = self._store.result_sizes(self._store.layout.fragment_of(value.round))
        held = self._store.result_of(digest)
        if held is not None and len(held) == len(sizes):
            return Result(held)
        held = self._results.get(digest) or self._read_result(value, sizes)
        return None if held is None else Result(held)

    def _read_result(self, value: SealValue, sizes: Sequence[int]) -> ResultCells | None:
        digest = value.list_digest
        data = self._journal.results(value.round).get(digest, b"")
        read = self._journal.find_result(value.round, digest)
        if len(data) != sum(sizes) or read is None:
            return None
        held = ResultCells(split(data, sizes))
        held.leave_to_disk(read, sizes)
        self._results[digest] = held
        while len(self._results) > limits.RESULT_ROUNDS_KEPT:
            del self._results[next(iter(self._results))]
        return held
