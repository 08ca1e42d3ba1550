"""The model of overlap (R5): a few peers, all of them voters, and two rounds in flight.

What may be signed, and what it says, is decided by `protocol.rounds.overlap`. A round's agreement
is one step: it is certified, with a sum or empty. Peers SEAL, and hear of what is final, one by
one, late or never. All must SEAL: with smaller quorums only the slow would fall further behind.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

from protocol.rounds import overlap
from protocol.rounds.overlap import RoundsInFlight
from sim.exploration.explorer import Model

T = TypeVar("T")
NAMES = "ABCD"
Certified = Literal["", "a sum", "nothing"]


class SaidCommit(NamedTuple):
    """What a COMMIT says of its round: the seal that named the roster, fragment and version."""

    named_by: int
    fragment: int
    version: int


class OverlapPeer(NamedTuple):
    """How many rounds are final here, and the COMMITs of each round."""

    final_round: int
    commits: tuple[SaidCommit | None, ...]


class Overlapping(NamedTuple):
    """Per round from 1 on what is certified and who SEALed it; the peers; rounds in flight at once
    at some peer, ever."""

    certified: tuple[Certified, ...]
    sealed_by: tuple[frozenset[int], ...]
    peers: tuple[OverlapPeer, ...]
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapBounds:
    """How far the model goes; `lag` is L of R1."""

    peers: int = 2
    rounds: int = 5
    lag: int = 2
    fragments: int = 2


class Overlap(Model[Overlapping]):
    """R5 over a few peers, for `sim.exploration.explorer`."""

    def __init__(self, bounds: OverlapBounds) -> None:
        self.bounds = bounds

    def start(self) -> Overlapping:
        """Genesis is final everywhere."""
        rounds = self.bounds.rounds
        peer = OverlapPeer(0, (None,) * rounds)
        nobody: tuple[frozenset[int], ...] = (frozenset(),) * rounds
        nothing: tuple[Certified, ...] = tuple("" for _ in range(rounds))
        return Overlapping(nothing, nobody, (peer,) * self.bounds.peers, 0)

    def flight(self, state: Overlapping, index: int) -> RoundsInFlight:
        """What a peer knows."""
        known = state.peers[index].final_round
        return RoundsInFlight(
            lag=self.bounds.lag,
            num_fragments=self.bounds.fragments,
            sealed=tuple(what == "a sum" for what in state.certified[:known]),
            own_seals=frozenset(
                number for number, who in enumerate(state.sealed_by, start=1) if index in who
            ),
        )

    def moves(self, state: Overlapping) -> Iterator[tuple[str, Overlapping]]:
        """A peer signs or hears of a final seal; a round is certified."""
        for index in range(self.bounds.peers):
            yield from self._acts(state, index)
        flights = [self.flight(state, index) for index in range(self.bounds.peers)]
        for number in range(1, self.bounds.rounds + 1):
            if state.certified[number - 1]:
                continue
            if all(peer.commits[number - 1] for peer in state.peers):
                yield f"round {number} is certified", self._certify(state, number, "a sum")
            if any(overlap.may_open(flight, number) for flight in flights):
                yield f"round {number} is certified empty", self._certify(state, number, "nothing")

    def _acts(self, state: Overlapping, index: int) -> Iterator[tuple[str, Overlapping]]:
        flight, peer = self.flight(state, index), state.peers[index]
        for number in range(1, self.bounds.rounds + 1):
            who = state.sealed_by[number - 1]
            if peer.commits[number - 1] is None and overlap.may_commit(flight, number):
                said = SaidCommit(
                    overlap.naming_round(flight, number),
                    overlap.fragment_of(flight, number),
                    overlap.base_version(flight, number),
                )
                commits = _put(peer.commits, number, said)
                label = f"{NAMES[index]} COMMITs round {number}"
                after = self._with(state, index, peer._replace(commits=commits))
                yield f"{label} for version {said.version} of fragment {said.fragment}", after
            if (
                state.certified[number - 1]
                and index not in who
                and overlap.may_seal(flight, number)
            ):
                sealed_by = _put(state.sealed_by, number, who | {index})
                yield f"{NAMES[index]} SEALs round {number}", state._replace(sealed_by=sealed_by)
        known = peer.final_round
        if known < self.bounds.rounds and len(state.sealed_by[known]) == self.bounds.peers:
            after = self._with(state, index, peer._replace(final_round=known + 1))
            yield f"{NAMES[index]} hears that round {known + 1} is final", after

    def _with(self, state: Overlapping, index: int, peer: OverlapPeer) -> Overlapping:
        peers = (*state.peers[:index], peer, *state.peers[index + 1 :])
        flying = sum(
            said is not None
            and number > peer.final_round
            and index not in state.sealed_by[number - 1]
            for number, said in enumerate(peer.commits, start=1)
        )
        return state._replace(peers=peers, in_flight=max(state.in_flight, flying))

    def _certify(self, state: Overlapping, number: int, what: Certified) -> Overlapping:
        return state._replace(certified=_put(state.certified, number, what))

    def check(self, state: Overlapping) -> str:
        """S4: one roster a round. R5: one fragment and version, seals in order. L1: never stuck."""
        for number in range(1, self.bounds.rounds + 1):
            said = {peer.commits[number - 1] for peer in state.peers} - {None}
            wrong = _disagreement(number, {one for one in said if one is not None})
            if wrong:
                return wrong
            is_final = len(state.sealed_by[number - 1]) == self.bounds.peers
            if is_final and number > 1 and len(state.sealed_by[number - 2]) < self.bounds.peers:
                return f"R5: round {number} is final before the round before it"
        is_over = all(len(who) == self.bounds.peers for who in state.sealed_by)
        if not is_over and next(self.moves(state), None) is None:
            return "L1: nobody can do anything"
        return ""


def _disagreement(number: int, said: set[SaidCommit]) -> str:
    if len({one.named_by for one in said}) > 1:
        rounds = " and ".join(str(one.named_by) for one in sorted(said))
        return f"S4: the roster of round {number} is named by the seals of rounds {rounds}"
    if len(said) > 1:
        what = " and ".join(f"version {o.version} of fragment {o.fragment}" for o in sorted(said))
        return f"R5: COMMITs of round {number} are for {what}"
    return ""


def _put(items: tuple[T, ...], number: int, item: T) -> tuple[T, ...]:
    return (*items[: number - 1], item, *items[number:])
