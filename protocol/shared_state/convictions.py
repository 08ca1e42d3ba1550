"""Evidence that is held, and from which stamp on whose entries count no more. Pure."""

from collections.abc import Callable

from protocol import limits
from protocol.entry_kinds import Accusation
from protocol.evidence import BY_WORDS, Evidence
from protocol.identity import PeerId


class Convictions:
    """At most one piece of evidence per peer and accusation, and EVIDENCE_MAX in all.

    Evidence against members is never dropped; a member has a seat, and there are 64. That against
    others goes when it is full, lowest id first: keys cost nothing, so anybody can convict as many
    of the own as he likes. Evidence of wrong sums is large, and has a limit of its own.
    """

    def __init__(
        self, is_member: Callable[[PeerId], bool], most: int = limits.EVIDENCE_MAX
    ) -> None:
        self._is_member = is_member
        self._most = most
        self._held: dict[tuple[PeerId, Accusation], Evidence] = {}

    def against(self, peer: PeerId) -> tuple[Evidence, ...]:
        """What convicts a peer."""
        found = (self._held.get((peer, accusation)) for accusation in Accusation)
        return tuple(one for one in found if one is not None)

    def cut(self, peer: PeerId) -> int | None:
        """The stamp from which on a convicted peer's entries count no more."""
        return min((one.cut for one in self.against(peer)), default=None)

    @property
    def all(self) -> tuple[Evidence, ...]:
        """By ascending peer and accusation."""
        return tuple(self._held[place] for place in sorted(self._held))

    def add(self, evidence: Evidence) -> tuple[Evidence, ...] | None:
        """Take it in: what goes for it, nothing or one piece; None if it is not needed."""
        place = (evidence.subject, evidence.accusation)
        known = self._held.get(place)
        if known is not None:
            if known.rank <= evidence.rank:
                return None
            self._held[place] = evidence
            return (known,)
        self._held[place] = evidence
        sums = [place for place in self._held if place[1] in BY_WORDS]
        # Also where it is full: else each sum would take the place of something small.
        are_many = len(sums) > limits.WRONG_SUMS_MAX
        if not are_many and len(self._held) <= self._most:
            return ()
        lowest = min(sums if are_many else self._held, key=self._room_rank)
        gone = self._held.pop(lowest)
        return None if gone is evidence else (gone,)

    def _room_rank(self, place: tuple[PeerId, Accusation]) -> tuple[bool, bytes]:
        return self._is_member(place[0]), self._held[place].entry_id
