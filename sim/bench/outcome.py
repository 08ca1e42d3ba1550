"""What the records of a run say about a fault: how fast, how equal, and whom it cost. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from node.reporting.tracing import Adopted, Record, Synced
from protocol.identity import PeerId
from sim.bench.exactness import commits_of, sealed_rounds


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
