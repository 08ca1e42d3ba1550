"""Two rounds in flight (R5): what a round stands on, and what may be signed before what.

Pure deciders, for the model of `sim/exploration/overlap.py`, which says what lag and fragments must
be like. `RoundMachine` keeps the same rules by the views that it has: one that `is_beside` another
is opened by the seal that names it, and is SEALed once the one before it is there.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsInFlight:
    """What a member knows of the rounds that are sealed, and what it signed in them.

    `lag` is L of R1: how far a round is behind the seal that names its roster, which is also how
    many rounds may be in flight. `sealed` says of each round from 1 on that is final here whether
    its LIST named anybody or anything. `own_seals` are the rounds that this member has SEALed.
    """

    lag: int
    num_fragments: int
    sealed: tuple[bool, ...] = ()
    own_seals: frozenset[int] = frozenset()

    @property
    def final_round(self) -> int:
        """The last round that is final here; 0 is genesis."""
        return len(self.sealed)


def fragment_of(flight: RoundsInFlight, round_index: int) -> int:
    """The fragment that a round is about: r mod F, whatever the rounds before it sealed.

    Were it the next one after the last that was summed, two members would work on different
    fragments as long as one of them has not heard whether the round before carried.
    """
    return round_index % flight.num_fragments


def naming_round(flight: RoundsInFlight, round_index: int) -> int:
    """The round whose seal names roster, closer and slots: r - L, genesis for the first ones.

    Never the newest seal that happens to be here: the quorums of two rosters can be disjoint, so
    one round must have one roster for everybody.
    """
    return max(0, round_index - flight.lag)


def proof_round(flight: RoundsInFlight, round_index: int) -> int:
    """The round whose own SEAL a voter's COMMIT carries; 0 where none is asked for.

    The round that names the roster. Were it the round before, nobody could COMMIT while that is in
    flight, and there would be no overlap.
    """
    return max(0, round_index - flight.lag)


def base_version(flight: RoundsInFlight, round_index: int) -> int:
    """The version of the round's fragment that its COMMITs are relative to: that which the seal
    left that names the round.

    A version more for each round up to that seal that was about the fragment and summed. With as
    many fragments as rounds in flight none of those between is about it, and this is the version
    that the round steps on. With fewer it is a round or more older (one-step delay). Never the
    newest that happens to be here: the round before may be sealed for one member and not for
    another, and their COMMITs would be relative to different weights.
    """
    named_by, fragment = naming_round(flight, round_index), fragment_of(flight, round_index)
    return sum(
        was_summed
        for earlier, was_summed in enumerate(flight.sealed[:named_by], start=1)
        if fragment_of(flight, earlier) == fragment
    )


def may_open(flight: RoundsInFlight, round_index: int) -> bool:
    """Whether LIST and VOTE of the round may be signed: its roster is known, and it is not over.

    The seal of the round before need not be.
    """
    return naming_round(flight, round_index) <= flight.final_round < round_index


def may_commit(flight: RoundsInFlight, round_index: int) -> bool:
    """Whether a voter may COMMIT in the round: it is open, and the own SEAL is there to carry.

    Genesis was SEALed by nobody.
    """
    proof = proof_round(flight, round_index)
    return may_open(flight, round_index) and (proof == 0 or proof in flight.own_seals)


def may_seal(flight: RoundsInFlight, round_index: int) -> bool:
    """Whether the round may be SEALed, once its LIST is certified and its result is here.

    Only behind a final seal: its value names the seal before, and its root covers the fragments
    that the rounds before have changed.
    """
    return round_index == flight.final_round + 1
