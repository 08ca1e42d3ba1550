"""I2: what newcomers weigh, written down once more from the words of `protocol.rounds.ramp`.

Each seal must follow from the seal before and its list, so by induction from genesis.
"""

from collections.abc import Iterator, Mapping, Sequence

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


def weighed_rows(
    named: SealValue, rows: Sequence[Row], manifest: RunManifest, classes: Mapping[PeerId, str]
) -> list[Row]:
    """The rows that are summed, with what their tokens weigh in the round that `named` has named.
    `classes` are those that the COMMITs say.

    Empty where nobody listed weighs anything: then the result is zero.
    """
    law = manifest.admission
    weights = {peer: tokens * num_parts(named, peer, law) for peer, tokens, _ in rows}
    if manifest.audits.rate:
        weights = capped_weights(named, weights, classes, manifest.audits.unaudited)
    return [(peer, weights[peer], wire_N) for peer, _, wire_N in rows if weights[peer]]


def capped_weights(
    named: SealValue, weights: dict[PeerId, int], classes: Mapping[PeerId, str], share: float
) -> dict[PeerId, int]:
    """R10: those whose training too few others can run again weigh `share` together, written down
    once more from the words of `protocol.rounds.ramp`. A float is a whole number over a
    power of two, so this is exact."""
    voters = [seat.peer for seat in named.roster.seats if seat.voter_since >= 0]
    bad = (len(voters) - 1) // 3
    lone = set()
    for peer in weights:
        able = [v for v in voters if v != peer and classes.get(v) == classes[peer]]
        if len(able) <= bad:
            lone.add(peer)
    if lone == set(weights):
        return weights
    if len(voters) <= 3:
        lone -= set(voters)
    part, whole = share.as_integer_ratio()
    loud = sum(weights[peer] for peer in lone)
    rest = sum(weights.values()) - loud
    if rest == 0 or loud * whole <= (loud + rest) * part:
        return weights
    most = rest * part // (whole - part)
    return {p: w * most // loud if p in lone else w for p, w in weights.items()}


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
            sitting = {seat.peer for seat in seats if seat.seated != value.round}
            most = max(wanted[peer] for peer in sitting) if sitting else 0
            counts = {peer for peer in sitting if wanted[peer] == most}
            return {p: law.probation + 1 if p in counts else n for p, n in wanted.items()}
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
