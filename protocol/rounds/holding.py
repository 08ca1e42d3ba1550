"""Which cells of a round are here and which are missing, and what was announced of them. Pure."""

from dataclasses import dataclass, field
from itertools import filterfalse

from protocol.frames import Bulk
from protocol.identity import PeerId
from protocol.messages import Agg, Commit, Gram, Kind, List, slice_subject
from protocol.rounds.asking import Asking
from protocol.rounds.ballots import Ballots
from protocol.rounds.reducers import Slice


@dataclass(slots=True, kw_only=True)
class Holding(Asking):
    """`parts` and `results` name the cells in the own store, by COMMIT and by LIST digest; of
    `num_cells` each. `progress_s` is when the last of them came that was new."""

    num_cells: int
    ballots: Ballots = field(init=False)
    parts: dict[bytes, set[int]] = field(default_factory=dict)
    results: dict[bytes, set[int]] = field(default_factory=dict)
    progress_s: float = 0.0
    _subjects: dict[tuple[bytes, int, int], bytes] = field(default_factory=dict, init=False)
    """What the slots of slices are called: asked for with every message of the round."""

    def is_about(self, subject: bytes) -> bool:
        """Whether that is a COMMIT or a LIST of this round."""
        ballots = self.ballots
        return ballots.commit_of(subject) is not None or ballots.list_of(subject) is not None

    def arrived(self, bulk: Bulk, subject: bytes, cells: tuple[int, ...], *, now_s: float) -> bool:
        """Cells are in the own store; whether any of them is new, which is progress."""
        store = self.parts if bulk is Bulk.PART else self.results
        held = store.setdefault(subject, set())
        is_new = not held.issuperset(cells)
        held.update(cells)
        if is_new:
            self.progress_s = now_s
        return is_new

    def missing_parts(self, commit: bytes, piece: Slice) -> tuple[int, ...]:
        """Cells of a slice of which the part of that COMMIT is not here."""
        held = self.parts.get(commit)
        if held is None:
            return tuple(range(piece.first, piece.stop))
        return tuple(filterfalse(held.__contains__, range(piece.first, piece.stop)))

    def missing_results(self, digest: bytes) -> tuple[int, ...]:
        """Cells whose result for that LIST is not here."""
        held = self.results.get(digest)
        if held is None:
            return tuple(range(self.num_cells))
        if len(held) == self.num_cells:
            return ()
        return tuple(filterfalse(held.__contains__, range(self.num_cells)))

    def listed(self, body: List) -> list[tuple[PeerId, bytes, Commit]] | None:
        """The listed contributions in the order of the LIST; None while a COMMIT is unknown."""
        found = []
        for digest in body.commits:
            commit = self.ballots.commit_of(digest)
            if commit is None:
                return None
            found.append((commit[0], digest, commit[1]))
        return found

    def agg_of(self, digest: bytes, piece: Slice) -> dict[PeerId, Agg]:
        """Who announced which result root for a slice of a LIST."""
        return dict(self.ballots.bodies(Kind.AGG, Agg, 0, self._subject(digest, piece)))

    def gram_of(self, digest: bytes, piece: Slice) -> dict[PeerId, Gram]:
        """Who announced which partial Gram matrix for a slice of a LIST."""
        return dict(self.ballots.bodies(Kind.GRAM, Gram, 0, self._subject(digest, piece)))

    def _subject(self, digest: bytes, piece: Slice) -> bytes:
        place = (digest, piece.first, piece.stop)
        subject = self._subjects.get(place)
        if subject is None:
            subject = self._subjects[place] = slice_subject(digest, piece.first, piece.stop)
        return subject
