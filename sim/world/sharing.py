"""What all nodes of a world work out alike, worked out once: each then takes what the first found.

Keyed by all that it follows from, never by a node: by the digests and roots that name the inputs to
the bit, or by the bytes themselves. A node that holds anything else finds no entry, and works its
own out. So nobody is said to hold what it would not hold; what is not seen is a node whose own
arithmetic goes wrong on equal inputs. That is why some worlds share nothing (`shares`).

The rules ask a seam for what follows from seals (`round_config.Derived`) and know no
more of it; the rest lies at the edge. A real node has nothing like it.
"""

from collections.abc import Callable, Iterable, Sequence

from node.holdings.record_log import packed_record
from node.holdings.recovery import StoredState
from node.holdings.shard_store import ShardStore, State, Step, Vector
from protocol.identity import PeerId, Signer
from protocol.leases import Lease
from protocol.manifest import RunManifest
from protocol.messages import Roster, SealValue
from protocol.rounds.chain import seal_value
from protocol.rounds.reducers import Slice, slices
from protocol.rounds.roster import ClockRules, leased_for
from protocol.rounds.round_view import RoundView
from training.compression import Codec
from training.files.durable import Bytes

UNSHARED_EACH = 8
"""Of so many seeds of a sweep one shares nothing."""

DECODED_MAX = 4096
"""So many payloads are kept decoded; then all of them are let go."""

RECORDS_MAX = 8192
"""The same of records of the logs."""

Pack = Callable[[StoredState], Sequence[Bytes]]


def shares(seed: int) -> bool:
    """Whether the nodes of that seed's world share results in a sweep."""
    return seed % UNSHARED_EACH != 0


class Shared:
    """The results of one world. All its nodes follow one manifest, and sign by one kind of key."""

    def __init__(self) -> None:
        self.states: dict[tuple[bytes, int, tuple[bytes, ...]], State] = {}
        """By the root of the state before, the round, and the encoded result."""
        self.decoded: dict[bytes, Vector] = {}
        self.decoded_results: dict[bytes, Vector] = {}
        self.proofs: dict[tuple[bytes, PeerId, bytes], bytes] = {}
        """Of seats: by the root of the state that is proved, who proves it, and for which seal."""
        self._slices: dict[tuple[bytes, int], tuple[Slice, ...]] = {}
        self._leased: dict[tuple[int, bytes], dict[PeerId, Lease]] = {}
        self._values: dict[tuple[bytes, bytes, bytes, bytes], SealValue] = {}
        self._records: dict[bytes, bytes] = {}
        self._continuing: dict[bytes, bytes] = {}
        self._packed: dict[tuple[int, bytes], tuple[StoredState, Sequence[Bytes]]] = {}

    def seal_value(
        self, view: RoundView, digest: bytes, signer: Signer, rules: ClockRules
    ) -> SealValue | None:
        """As `chain.seal_value`. Both seals are named by digest, and so is the LIST."""
        body = view.ballots.list_of(digest)
        root = view.outcome.applied.get(digest)
        if body is None or root is None or view.listed(body) is None:
            return None
        key = (view.basis, view.seals.before, digest, root)
        found = self._values.get(key)
        if found is None:
            found = seal_value(view, digest, signer, rules)
            if found is not None:
                self._values[key] = found
        return found

    def slices(
        self, roster: Roster, basis: bytes, num_cells: int, *, trust: str
    ) -> tuple[Slice, ...]:
        """As `reducers.slices`; the seal `basis` names the roster."""
        key = (basis, num_cells)
        found = self._slices.get(key)
        if found is None:
            found = self._slices[key] = slices(roster, basis, num_cells, trust=trust)
        return found

    def leased_for(
        self, round_index: int, basis: SealValue, samples_each: int
    ) -> dict[PeerId, Lease]:
        """As `roster.leased_for`."""
        key = (round_index, basis.digest)
        found = self._leased.get(key)
        if found is None:
            found = self._leased[key] = leased_for(round_index, basis, samples_each)
        return found

    def pack_record(self, record: bytes, *, continues: bool) -> bytes:
        """See PackRecord: what one has signed stands in the logs of many."""
        known = self._continuing if continues else self._records
        found = known.get(record)
        if found is None:
            if len(known) >= RECORDS_MAX:
                known.clear()
            found = known[record] = packed_record(record, continues=continues)
        return found

    def packed(self, state: StoredState, pack: Pack) -> Sequence[Bytes]:
        """A checkpoint as it is written. The seal names the state; the very vectors must be it."""
        key = (state.round, state.seal)
        found = self._packed.get(key)
        if found is not None:
            known = found[0]
            if known.anchor_N is state.anchor_N and known.slots is state.slots:
                return found[1]
        packed = tuple(pack(state))
        self._packed[key] = state, packed
        return packed


class SharedStore(ShardStore):
    """A store that looks its outer steps and decoded cells up before it works them out."""

    def __init__(self, manifest: RunManifest, shard: int, anchor_N: Vector, shared: Shared) -> None:
        self._shared = shared
        super().__init__(manifest, shard, anchor_N)

    def step_ahead(
        self, digest: bytes, cells: Iterable[int], *, round_index: int, base: bytes
    ) -> None:
        """See ShardStore. Nothing is to be had from it where most steps are looked up."""

    def _prove(self, state: State, peer: PeerId, basis: bytes) -> bytes:
        key = (state.root, peer, basis)
        found = self._shared.proofs.get(key)
        if found is None:
            found = self._shared.proofs[key] = super()._prove(state, peer, basis)
        return found

    def _take(self, digest: bytes, step: Step) -> State:
        before = self._states.get(step.base, self.final)
        if step.is_empty:
            return before
        key = (before.root, step.round, tuple(self.result_cells(digest)))
        states = self._shared.states
        found = states.get(key)
        if found is None:
            found = states[key] = super()._take(digest, step)
        return found

    def _decode_part(self, payload: bytes, row_N: Vector) -> None:
        row_N[:] = self._decoded(self._codec, payload, len(row_N), is_checked=True)

    def _check(self, codec: Codec, payload: bytes, numel: int) -> None:
        self._decoded(codec, payload, numel)

    def _decoded(
        self, codec: Codec, payload: bytes, numel: int, *, is_checked: bool = False
    ) -> Vector:
        is_part = codec is self._codec
        known = self._shared.decoded if is_part else self._shared.decoded_results
        found = known.get(payload)
        if found is None or len(found) != numel:
            found = super()._decoded(codec, payload, numel)
            found.flags.writeable = False
            if len(known) >= DECODED_MAX:
                known.clear()
            known[payload] = found
        return found
