"""What the records of a run say: how exact it was, how equal, how fast, and whom a fault cost.

Whether what was sealed is the exact aggregate of what the listed peers contributed: an independent
check in the directing process makes every contribution again from the seed, sums them with
`sim.checks.reference`, takes the step, and compares roots: of each listed COMMIT, and of the
state. Equal roots are equal bits, of every cell.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from node.holdings.shard_store import ShardStore
from node.reporting.tracing import Adopted, Record, Signed, Synced
from protocol.grid import cell_root, merkle_root
from protocol.identity import PeerId, short_id
from protocol.manifest import RunManifest
from protocol.messages import Commit, Kind, SealValue, decode_body
from sim.bench.trainer import Numbers
from sim.checks.reference import (
    DTYPES,
    Expected,
    Vector,
    aggregate,
    outer_step,
    slices_after,
)
from training.compression import make_codec
from training.models.genesis import genesis_weights
from training.numeric.arithmetic import joined

SHARD = 0


@dataclass(frozen=True, slots=True)
class Sealed:
    """A seal, and every root that a node went on from with it."""

    value: SealValue
    roots: Mapping[PeerId, bytes]


def sealed_rounds(records: Sequence[Record]) -> list[list[Sealed]]:
    """By ascending round all different seals that nodes have adopted; one, if all is well."""
    found: dict[int, dict[bytes, tuple[SealValue, dict[PeerId, bytes]]]] = {}
    for record in records:
        if isinstance(record, Adopted | Synced):
            value = record.certificate.value
            _, roots = found.setdefault(value.round, {}).setdefault(value.digest, (value, {}))
            roots[record.peer] = record.root
    return [
        [Sealed(value, roots) for _, (value, roots) in sorted(found[index].items())]
        for index in sorted(found)
    ]


def commits_of(records: Sequence[Record]) -> dict[bytes, tuple[float, PeerId, Commit]]:
    """When and by whom each COMMIT was signed, by digest."""
    found = {}
    for record in records:
        if isinstance(record, Signed) and record.message.slot.kind is Kind.COMMIT:
            body = decode_body(record.message)
            assert isinstance(body, Commit)
            found[record.message.digest] = (record.at_s, record.peer, body)
    return found


class Exactness:
    """Checks the rounds of one run in order."""

    def __init__(self, manifest: RunManifest, names: Mapping[PeerId, str]) -> None:
        """`names` are those under which the peers' trainers make up their numbers."""
        anchor_N = joined(genesis_weights(manifest, SHARD))
        self._manifest = manifest
        self._layout = manifest.layout(SHARD)
        self._store = ShardStore(manifest, SHARD, anchor_N)
        self._numbers = {peer: Numbers(name, len(anchor_N)) for peer, name in names.items()}
        slots = {name: np.zeros_like(anchor_N) for name in self._store.slot_names}
        self._state = Expected(anchor_N, slots)
        self._before: SealValue | None = None
        """The seal before; round 1 is cut by the founder alone."""
        self.max_error = 0.0
        """The largest distance of an element of a sum from the same sum in float64."""

        self.num_rounds = 0

    def faults(
        self, records: Sequence[Record], tell: Callable[[int], None] = lambda _: None
    ) -> Iterator[str]:
        """What is not exact, in words; `tell` hears of each round that was looked at."""
        commits = commits_of(records)
        rounds = sealed_rounds(records)
        for number, sealed in enumerate(rounds, start=1):
            if len(sealed) > 1:
                yield f"{len(sealed)} different seals of round {sealed[0].value.round}"
                return
            if sealed[0].value.round != number:
                yield f"nobody told of round {number}"
                return
            yield from self._round(sealed[0], commits)
            tell(number)

    def _round(
        self, sealed: Sealed, commits: Mapping[bytes, tuple[float, PeerId, Commit]]
    ) -> Iterator[str]:
        value, listed = sealed.value, []
        self.num_rounds += 1
        for digest in value.commits:
            if digest not in commits:
                yield f"round {value.round} lists a COMMIT that nobody signed"
                return
            _, peer, body = commits[digest]
            wire_N = self._numbers[peer].contribution(value.round)
            root, decoded_N = self._on_the_wire(wire_N)
            if root != body.root:
                yield f"round {value.round} lists other bytes than {short_id(peer)} contributed"
            listed.append((peer, body.tokens, decoded_N))
        if listed:
            run = self._manifest
            cells = self._layout.num_cells(0)
            laws = run.trust, run.outer.topology
            cuts = slices_after(self._before, cells, *laws) if self._before else ()
            sum_N = aggregate(run.outer, listed, run.cell_elements, cuts)
            self.max_error = max(self.max_error, _error(sum_N, listed))
            self._state = outer_step(self._manifest.outer, self._state, sum_N, value.round)
        self._before = value
        expected = self._store.make_state(self._state.anchor_N, self._state.slots).root
        if value.root != expected:
            yield f"round {value.round} sealed another state than its contributions give"
        for peer, root in sorted(sealed.roots.items()):
            if root != expected:
                yield f"{short_id(peer)} goes on from another state after round {value.round}"

    def _on_the_wire(self, drift_N: Vector) -> tuple[bytes, Vector]:
        """The root of a contribution, and what its bytes stand for."""
        name = self._manifest.outer.codec
        codec, roots, decoded_N = make_codec(self._manifest.outer), [], np.empty_like(drift_N)
        for cell in range(self._layout.num_cells(0)):
            start, stop = self._layout.cell_range(0, cell)
            cell_N = drift_N[start:stop]
            if name in DTYPES:
                payload = cell_N.astype(DTYPES[name]).tobytes()
                decoded_N[start:stop] = np.frombuffer(payload, DTYPES[name])
            else:
                payload = codec.encode(cell_N)
                decoded_N[start:stop] = codec.decode(payload, len(cell_N))
            roots.append(cell_root(payload))
        return merkle_root(roots), decoded_N


def _error(sum_N: Vector, listed: Sequence[tuple[PeerId, int, Vector]]) -> float:
    """Against float64; of the mean only, which is the rule that benches measure."""
    total = sum(tokens for _, tokens, _ in listed)
    worst, step = 0.0, 1 << 22
    for start in range(0, len(sum_N), step):
        span = slice(start, start + step)
        exact_N = np.zeros(len(sum_N[span]))
        for _, tokens, wire_N in listed:
            exact_N += wire_N[span].astype(np.float64) * (tokens / total)
        worst = max(worst, float(np.abs(exact_N - sum_N[span]).max()))
    return worst


# Faults -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchFault:
    """A fault that was dealt: to whom, and when, as the records count time."""

    victim: PeerId
    at_s: float


def first_seals_s(records: Iterable[Record], dealt: BenchFault) -> dict[PeerId, float]:
    """When each survivor had its first seal after the fault."""
    found: dict[PeerId, float] = {}
    for record in records:
        is_behind = isinstance(record, Adopted | Synced) and record.at_s > dealt.at_s
        if is_behind and record.peer != dealt.victim:
            found[record.peer] = min(record.at_s, found.get(record.peer, record.at_s))
    return found


def recovered_s(
    records: Iterable[Record], dealt: BenchFault, survivors: Collection[PeerId]
) -> float | None:
    """From the fault until the last survivor had its first seal; None if one of them never had."""
    found = first_seals_s(records, dealt)
    if not found.keys() >= set(survivors):
        return None
    return max(found[peer] for peer in survivors) - dealt.at_s


def next_round_s(
    records: Sequence[Record], dealt: BenchFault, survivors: Collection[PeerId]
) -> float | None:
    """From the fault until all survivors had a round that was begun without the victim.

    The first seal after a fault may need no more than what the victim had given before. This one
    is behind every round that the victim could still have signed in.
    """
    before = [
        record.certificate.value.round
        for record in records
        if isinstance(record, Adopted | Synced) and record.at_s <= dealt.at_s
    ]
    goal = max(before, default=0) + 2
    found: dict[PeerId, float] = {}
    for record in records:
        if isinstance(record, Adopted | Synced) and record.certificate.value.round >= goal:
            found[record.peer] = min(record.at_s, found.get(record.peer, record.at_s))
    if not found.keys() >= set(survivors):
        return None
    return max(found[peer] for peer in survivors) - dealt.at_s


def are_equal(records: Sequence[Record]) -> bool:
    """Whether all that adopted a round adopted the same seal and went on from the same state."""
    rounds = sealed_rounds(records)
    return bool(rounds) and all(
        len(sealed) == 1 and set(sealed[0].roots.values()) == {sealed[0].value.root}
        for sealed in rounds
    )


def false_exclusions(records: Sequence[Record], dealt: BenchFault | None) -> list[str]:
    """Live members that a sealed COMMIT suspects, or that a seal dropped from the roster.

    Nobody leaves a bench by itself. The victim is live until it is struck: who suspects it later is
    right.
    """
    commits = commits_of(records)
    struck_s: Mapping[PeerId, float] = {} if dealt is None else {dealt.victim: dealt.at_s}
    found = []
    seats: frozenset[PeerId] = frozenset()
    for sealed in sealed_rounds(records):
        value = sealed[0].value
        for digest in value.commits:
            if digest not in commits:
                continue
            at_s, sender, body = commits[digest]
            found += [
                f"round {value.round}: {sender.hex()[:8]} suspects {peer.hex()[:8]}"
                for peer in body.suspects
                if at_s < struck_s.get(peer, float("inf"))
            ]
        members = frozenset(value.roster.members)
        found += [
            f"round {value.round}: drops {peer.hex()[:8]}"
            for peer in sorted(seats - members)
            if peer not in struck_s
        ]
        seats = members
    return found


def is_together(records: Iterable[Record], num_peers: int) -> int:
    """The last round that listed all peers and made all of them voters; 0 if none did."""
    found = 0
    for record in records:
        if isinstance(record, Adopted):
            value = record.certificate.value
            voters = sum(seat.voter_since >= 0 for seat in value.roster.seats)
            if len(value.commits) == voters == num_peers:
                found = max(found, value.round)
    return found


def adopted_round(records: Iterable[Record]) -> dict[PeerId, int]:
    """The newest round that each node has."""
    found: dict[PeerId, int] = {}
    for record in records:
        if isinstance(record, Adopted | Synced):
            found[record.peer] = max(record.certificate.value.round, found.get(record.peer, 0))
    return found
