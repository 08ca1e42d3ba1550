"""I2: what newcomers weigh, written down once more from the words of `node.rules.ramp`.

Each seal must follow from the seal before and its list, so by induction from genesis.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from node.reporting.tracing import Adopted, Record
from protocol.identity import PeerId, short_id
from protocol.manifest import AdmissionSpec, RunManifest
from protocol.messages import SealValue, SeatRecord
from sim.checks.history import History

Row = tuple[PeerId, int, NDArray[np.float32]]
"""Sender, tokens, decoded wire."""


def num_parts(value: SealValue, peer: PeerId, law: AdmissionSpec) -> int:
    """What a token of that member weighs in the round behind a seal; 0 without a seat."""
    return sum(_parts(seat, law) for seat in value.roster.seats if seat.peer == peer)


def _parts(seat: SeatRecord, law: AdmissionSpec) -> int:
    if law.ramp == 0:
        return 1
    if seat.seated in (0, 1):
        return law.ramp
    return sorted((0, seat.earned - law.probation, law.ramp))[1]


def weighed_rows(named: SealValue, rows: Sequence[Row], law: AdmissionSpec) -> list[Row]:
    """The rows that are summed, with what their tokens weigh in the round that `named` has named.

    Empty where nobody listed weighs anything: then the result is zero.
    """
    found = [(peer, tokens * num_parts(named, peer, law), wire_N) for peer, tokens, wire_N in rows]
    return [row for row in found if row[1]]


class Earning:
    """Newcomers come to their weight as the manifest says, no faster than R1 lets voters in."""

    name = "I2"
    kinds = (Adopted,)

    def __init__(self, history: History, manifest: RunManifest) -> None:
        self._history = history
        self._law = manifest.admission
        self._seen: set[bytes] = set()

    def saw(self, record: Record) -> Iterator[str]:
        """See Check."""
        assert isinstance(record, Adopted)
        value = record.certificate.value
        before = self._history.values.get(value.before)
        said = [self._history.commits.get(digest) for digest in value.commits]
        if value.digest in self._seen or before is None or None in said:
            return
        self._seen.add(value.digest)
        listed = {each.message.sender for each in said if each is not None}
        expected = self._expected(before, value, listed) if listed else None
        for seat in value.roster.seats:
            had = _earned_by(before, seat)
            wanted = had if expected is None else expected[seat.peer]
            if seat.earned != wanted:
                yield (
                    f"round {value.round} credits {short_id(seat.peer)} with {seat.earned} rounds "
                    f"towards its weight, {wanted} by its list"
                )

    def finish(self) -> Iterator[str]:
        """See Check."""
        return iter(())

    def _expected(
        self, before: SealValue, value: SealValue, listed: set[PeerId]
    ) -> dict[PeerId, int]:
        law, seats = self._law, value.roster.seats
        wanted = {seat.peer: _earned_by(before, seat) for seat in seats}
        if not law.ramp:
            return wanted
        new = {seat.peer for seat in seats if seat.seated > 1}
        waiting = {p for p in new & listed if wanted[p] == law.probation}
        # Whoever takes its seat with this seal is not listed by it.
        waiting -= {seat.peer for seat in seats if seat.seated == value.round}
        for peer in new & listed:
            if wanted[peer] not in (law.probation, law.probation + law.ramp):
                wanted[peer] += 1
        num_counting = sum(p not in new or wanted[p] > law.probation for p in wanted)
        if not num_counting:
            most = max(wanted.values())
            return {p: law.probation + 1 if n == most else n for p, n in wanted.items()}
        admitted_per_era = max(1, num_counting // 4)
        if waiting and value.round % max(1, 16 // admitted_per_era) == 0:
            drawn = {blake3(value.round.to_bytes(8, "big") + p).digest(): p for p in waiting}
            wanted[drawn[min(drawn)]] += 1
        return wanted


def _earned_by(before: SealValue, seat: SeatRecord) -> int:
    """What the seat had before; nothing where it is a new one."""
    same = (
        old for old in before.roster.seats if (old.peer, old.seated) == (seat.peer, seat.seated)
    )
    return next((old.earned for old in same), 0)
