"""Looser wordings of R4 and R5, one decider loosened at a time: what the explorer must find.

The library holds no wrong rule. Each of these puts one in its place for the length of a `with`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from protocol.messages import Kind
from protocol.rounds import branches, overlap
from protocol.rounds import branches as branch_tree
from protocol.rounds.branches import Opening, Position
from protocol.rounds.roster import has_quorum
from sim.exploration import branches as explored


@contextmanager
def _instead(module, name: str, loosen: Callable[..., Any]) -> Iterator[None]:
    """`loosen` gets the real decider and gives the one that stands in its place."""
    with patch.object(module, name, loosen(getattr(module, name))):
        yield


@contextmanager
def slots_without_the_branch() -> Iterator[None]:
    """6: a slot is (shard, round, attempt, kind), whatever seal the round stands on."""

    def loosen(real):
        def slot_of(before, kind, attempt=0):
            slot = real(before, kind, attempt)
            return replace(slot, basis=bytes(32), subject=slot.subject and bytes(32))

        return slot_of

    with _instead(branches, "slot_of", loosen):
        yield


@contextmanager
def finality_by_the_roster_of_the_branch() -> Iterator[None]:
    """7: a quorum of the voters that the branch names makes its seals final."""

    def loosen_round(real):
        def next_round(position, reachable, *, trust, survive):
            opening = real(position, reachable, trust=trust, survive=survive)
            if opening and not opening.is_provisional:
                return opening
            if has_quorum(position.head.roster, reachable, trust=trust):
                return Opening(position.head, is_provisional=False)
            return opening

        return next_round

    def loosen_final(real):
        def is_final(position, value, sealed, *, trust):
            sealed = list(sealed)
            on_branch = Position(position.head, position.head)
            return real(position, value, sealed, trust=trust) or real(
                on_branch, value, sealed, trust=trust
            )

        return is_final

    with (
        _instead(branches, "next_round", loosen_round),
        _instead(branches, "is_final", loosen_final),
    ):
        yield


@contextmanager
def finality_by_counting() -> Iterator[None]:
    """8: whoever PSEALed counts like a SEAL: SEALs of one attempt, and all PSEALs beside them."""

    def loosen(real):
        def is_final(position, value, sealed, *, trust):
            heard = list(sealed)
            seals = [seen for seen in heard if seen.kind is Kind.SEAL]
            counted = [
                replace(seen, kind=Kind.SEAL, attempt=attempt)
                for attempt in sorted({seen.attempt for seen in seals} | {0})
                for seen in heard
                if seen.kind is Kind.PSEAL
            ]
            return real(position, value, [*seals, *counted], trust=trust)

        return is_final

    with _instead(branches, "is_final", loosen):
        yield


@contextmanager
def every_loser_brings_the_drift() -> Iterator[None]:
    """9: each loser brings what it lost; only a drift of the very same name is not listed again."""

    def loosen(_):
        def is_new(tree, head, drift, parts):
            rest = tree.branch(head, tree.fork(head, drift.fork))
            counted = {commit for value in rest for commit in value.commits}
            named = {name for value in rest for name in value.drifts}
            return drift.digest not in named and not parts & counted

        return is_new

    with _instead(branch_tree, "_is_new", loosen):
        yield


@contextmanager
def drift_inside_the_commit() -> Iterator[None]:
    """9, the other reading: a loser adds what it lost to its payload, which its COMMIT binds."""

    def loosen(real):
        def contribution_root(own, pending):
            return real(own, pending) if not pending else repr(sorted(pending)).encode().ljust(32)

        return contribution_root

    with _instead(explored, "contribution_root", loosen):
        yield


@contextmanager
def merge_by_tokens() -> Iterator[None]:
    """10: when branches meet, locks have no say."""

    def loosen(real):
        def better_head(tree, positions, locks):
            return real(tree, positions, ())

        return better_head

    with _instead(branches, "better_head", loosen):
        yield


@contextmanager
def barren_heads() -> Iterator[None]:
    """A side goes on from its head though that head's roster names nobody in reach."""

    def loosen(real):
        def next_round(position, reachable, *, trust, survive):
            opening = real(position, reachable, trust=trust, survive=survive)
            if opening is None or not opening.is_provisional:
                return opening
            return Opening(position.head, is_provisional=True)

        return next_round

    with _instead(branches, "next_round", loosen):
        yield


@contextmanager
def attempts_that_start_anew() -> Iterator[None]:
    """Each try in a round begins with attempt 0, whatever was tried on the same basis before."""

    def loosen(real):
        def next_attempt(entered):
            return real(())

        return next_attempt

    with _instead(branches, "next_attempt", loosen):
        yield


@contextmanager
def locks_of_provisional_seals() -> Iterator[None]:
    """PSEAL locks like SEAL."""

    def loosen(real):
        def lock_after(held, kind, signing):
            return real(held, Kind.SEAL, signing)

        return lock_after

    with _instead(branches, "lock_after", loosen):
        yield


@contextmanager
def commit_carries_the_seal_of_the_round_before() -> Iterator[None]:
    """13: R1 as first written: the COMMIT of r + 1 carries the own SEAL of r."""

    def loosen(_):
        def proof_round(flight, round_index):
            return round_index - 1

        return proof_round

    with _instead(overlap, "proof_round", loosen):
        yield


@contextmanager
def rosters_by_the_newest_seal() -> Iterator[None]:
    """13: each member takes roster, closer and slots from the newest seal that it knows."""

    def loosen(real):
        def naming_round(flight, round_index):
            return max(real(flight, round_index), min(flight.final_round, round_index - 1))

        return naming_round

    with _instead(overlap, "naming_round", loosen):
        yield


@contextmanager
def fragment_advances_with_sums() -> Iterator[None]:
    """13: the next fragment comes only after a round that was summed."""

    def loosen(_):
        def fragment_of(flight, round_index):
            later = round_index - flight.final_round if round_index > flight.final_round else 0
            return (sum(flight.sealed[: round_index - 1]) + later) % flight.num_fragments

        return fragment_of

    with _instead(overlap, "fragment_of", loosen):
        yield


@contextmanager
def base_is_the_newest_version() -> Iterator[None]:
    """R5: a COMMIT is relative to the newest version of the fragment that is known."""

    def loosen(_):
        def base_version(flight, round_index):
            fragment = overlap.fragment_of(flight, round_index)
            earlier = enumerate(flight.sealed[: round_index - 1], start=1)
            return sum(
                was for number, was in earlier if overlap.fragment_of(flight, number) == fragment
            )

        return base_version

    with _instead(overlap, "base_version", loosen):
        yield


@contextmanager
def seals_out_of_order() -> Iterator[None]:
    """13: a round is SEALed as soon as its result is here."""

    def loosen(_):
        return overlap.may_open

    with _instead(overlap, "may_seal", loosen):
        yield
