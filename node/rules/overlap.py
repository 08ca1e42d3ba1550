"""Two rounds in flight (R5): what a round stands on, and what may be signed before what.

Pure deciders, for the model of `sim/exploration/overlap.py`, which says what lag and fragments must
be like. `RoundMachine` keeps the same rules by the views that it has: one that `is_beside` another
is opened by the seal that names it, and is SEALed once the one before it is there.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """What a member knows of the rounds that are sealed, and what it signed in them.

    `lag` is L of R1: how far a round is behind the seal that names its roster, which is also how
    many rounds may be in flight. `sealed` says of each round from 1 on that is final here whether
    its LIST named anybody or anything. `own_seals` are the rounds that this member has SEALed.
    """

    lag: int
    num_fragments: int
    sealed: tuple[bool, ...] = ()
    own_seals: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.num_fragments < self.lag:
            raise ValueError(
                f"{self.lag} rounds in flight need as many fragments, not {self.num_fragments}"
            )

    @property
    def final_round(self) -> int:
        """The last round that is final here; 0 is genesis."""
        return len(self.sealed)


def fragment_of(flight: Flight, round_index: int) -> int:
    """The fragment that a round is about: r mod F, whatever the rounds before it sealed.

    Were it the next one after the last that was summed, two members would work on different
    fragments as long as one of them has not heard whether the round before carried.
    """
    return round_index % flight.num_fragments


def naming_round(flight: Flight, round_index: int) -> int:
    """The round whose seal names roster, closer and slots: r - L, genesis for the first ones.

    Never the newest seal that happens to be here: the quorums of two rosters can be disjoint, so
    one round must have one roster for everybody.
    """
    return max(0, round_index - flight.lag)


def proof_round(flight: Flight, round_index: int) -> int:
    """The round whose own SEAL a voter's COMMIT carries; 0 where none is asked for.

    The round that names the roster. Were it the round before, nobody could COMMIT while that is in
    flight, and there would be no overlap.
    """
    return max(0, round_index - flight.lag)


def base_version(flight: Flight, round_index: int, *, delay: int = 0) -> int:
    """The version of the round's fragment that its COMMITs are relative to, `delay` rounds old.

    A version more for each earlier round on the fragment that was summed. All of these are final
    where the round may be opened, since there are at least as many fragments as rounds in flight.
    """
    fragment = fragment_of(flight, round_index)
    version = sum(
        was_summed
        for earlier, was_summed in enumerate(flight.sealed, start=1)
        if earlier < round_index and fragment_of(flight, earlier) == fragment
    )
    return max(0, version - delay)


def may_open(flight: Flight, round_index: int) -> bool:
    """Whether LIST and VOTE of the round may be signed: its roster is known, and it is not over.

    The seal of the round before need not be.
    """
    return naming_round(flight, round_index) <= flight.final_round < round_index


def may_commit(flight: Flight, round_index: int) -> bool:
    """Whether a voter may COMMIT in the round: it is open, and the own SEAL is there to carry.

    Genesis was SEALed by nobody.
    """
    proof = proof_round(flight, round_index)
    return may_open(flight, round_index) and (proof == 0 or proof in flight.own_seals)


def may_seal(flight: Flight, round_index: int) -> bool:
    """Whether the round may be SEALed, once its LIST is certified and its result is here.

    Only behind a final seal: its value names the seal before, and its root covers the fragments
    that the rounds before have changed.
    """
    return round_index == flight.final_round + 1
