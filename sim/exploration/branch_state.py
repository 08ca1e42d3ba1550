"""The states of the model of branches: peers, links, and how far to go."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from protocol.messages import Kind
from protocol.rounds.branches import Lock

Signed = tuple[Kind, int, int]
"""SEAL or PSEAL, the attempt, the seal signed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchBounds:
    """How far the model goes.

    Of `peers`, the first `voters` vote in genesis; the others join. `rounds` may become final,
    branches grow `ahead` seals behind the last final one, links change `changes` times, a basis
    sees `attempts` (one more where it is provisional).
    """

    peers: int
    voters: int
    rounds: int = 2
    ahead: int = 2
    changes: int = 2
    attempts: int = 2

    is_partial: bool = True
    """Whether single peers may hear of a seal before the others of their group."""

    has_late: bool = True
    """Whether a LIST may leave out the last contributor, whose parts came too late."""

    everybody_seals: bool = False
    """Only attempts that all voters of a group SEAL, not some."""


class BranchPeerState(NamedTuple):
    """One peer: last final seal, head, lock, and what it signed that may still matter.

    `attempts` are (basis, latest attempt entered); `commits` numbers of its COMMITs; `drifts` those
    it could bring into a LIST.
    """

    final: int
    head: int
    lock: Lock | None
    attempts: tuple[tuple[int, int], ...]
    commits: tuple[int, ...]
    signed: tuple[Signed, ...]
    drifts: frozenset[int]


class Swarm(NamedTuple):
    """All peers; `links` gives each its group; `finals` are all seals that ever became final,
    whoever heard of it; `fault` says what went wrong on the way here."""

    links: tuple[int, ...]
    peers: tuple[BranchPeerState, ...]
    finals: frozenset[int]
    changes_left: int
    fault: str


def groups(links: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Who hears whom."""
    return [tuple(i for i, at in enumerate(links) if at == side) for side in sorted(set(links))]


def put(state: Swarm, changed: dict[int, BranchPeerState], final: int | None = None) -> Swarm:
    """The state with these peers in the place of the old ones."""
    peers = tuple(changed.get(index, peer) for index, peer in enumerate(state.peers))
    finals = state.finals if final is None else state.finals | {final}
    return state._replace(peers=peers, finals=finals)


def partitions(num_peers: int, prefix: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Every way of parting peers into groups that hear each other."""
    if len(prefix) == num_peers:
        yield prefix
        return
    for side in range(max(prefix, default=-1) + 2):
        yield from partitions(num_peers, (*prefix, side))
