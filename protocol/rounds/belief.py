"""Whose equal words make a sum believed, so that liars among the voters cannot (R2, R8).

A *word* is what a member says of a slice: its AGG, or its GRAM. Friends believe one. Open runs
believe what more voters say than may lie, so that one of them is honest and summed it itself. Words
of members without a vote count for nothing by themselves: seats cost nothing yet, votes take time.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from protocol.evidence import words_needed
from protocol.identity import PeerId
from protocol.messages import Roster

OPEN_VOTERS_MIN = 4
"""With fewer voters not one of them may lie, and an open run decides as friends do."""


def liars(num_voters: int, trust: str) -> int:
    """b: how many voters may lie and nothing final be wrong; less than a third in open runs."""
    return words_needed(num_voters) - 1 if trust == "open" else 0


def copies(trust: str) -> int:
    """How many members sum each cell at least."""
    return 2 if trust == "open" else 1


@dataclass(frozen=True, slots=True)
class Belief:
    """Believed is what `least` members say alike, `words` of `voters` among them."""

    least: int
    words: int
    voters: frozenset[PeerId]

    @property
    def holders(self) -> int:
        """How many besides the sender must say that they hold its parts, before it may be listed.

        An honest sender serves them itself. Of who lies one fewer than may lie are left to say that
        they hold what they do not: so many words have an honest one among them.
        """
        return max(self.least, self.words - 1)

    def counts(self, peer: PeerId) -> bool:
        """Whether that peer's word on what it holds counts: where some may lie, a voter's alone."""
        return self.words < 2 or peer in self.voters

    def is_enough(self, peers: Collection[PeerId]) -> bool:
        """Whether what these members say alike is believed."""
        if len(peers) < self.least:
            return False
        return not self.words or len(self.voters.intersection(peers)) >= self.words

    def num_needed(self, ranks: Sequence[PeerId]) -> int:
        """How many of the first are enough if they say the same; all of them where that is not
        enough."""
        num_voters = 0
        for index, peer in enumerate(ranks):
            num_voters += peer in self.voters
            if index + 1 >= self.least and num_voters >= self.words:
                return index + 1
        return len(ranks)


def belief_of(roster: Roster, trust: str, *, without: Collection[str] = ()) -> Belief:
    """What a run of that trust believes in a round of that roster.

    `without` "words" two members are enough, whoever they are: a defence that tests switch off.
    """
    least = copies(trust)
    words = liars(len(roster.voters), trust) + 1 if least > 1 and "words" not in without else 0
    return Belief(least, words, roster.voter_set)


# Bit maps -----------------------------------------------------------------------------------------
#
# Sets of members as bits over a roster, as COMMITs and HAVEs carry them.


def pack_senders(senders: Collection[PeerId], members: tuple[PeerId, ...]) -> bytes:
    """A bit map over the roster: bit i of byte i // 8, lowest first, is member i."""
    bits = bytearray(-(-len(members) // 8))
    for index, member in enumerate(members):
        if member in senders:
            bits[index // 8] |= 1 << (index % 8)
    return bytes(bits)


@lru_cache(maxsize=256)
def unpack_senders(bits: bytes, members: tuple[PeerId, ...]) -> frozenset[PeerId]:
    """Inverse of `pack_senders`; bits beyond the roster say nothing."""
    return frozenset(
        member
        for index, member in enumerate(members)
        if index // 8 < len(bits) and bits[index // 8] >> (index % 8) & 1
    )
