"""Whom a node audits: drawn by the beacon, so that nobody steers or foresees it (R10). Pure.

Each contribution meets `rate` audits on average, whatever the number of voters that share them.
Signals and a young seat raise that, for this node alone: they choose audits and nothing else.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from protocol.auditing.audit_rounds import AuditedRound
from protocol.auditing.onions import share
from protocol.identity import PeerId
from protocol.manifest import AdmissionSpec, AuditSpec
from protocol.rounds.ramp import parts

SUSPECT_RATE = 0.5
"""Audits per contribution of a sender that is new, or that stands out."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """By which law; whom signals name; who is barred already, and needs no audit."""

    law: AuditSpec
    admission: AdmissionSpec
    suspected: frozenset[PeerId] = frozenset()
    barred: frozenset[PeerId] = frozenset()


def drawn(draw: Drawn, on: AuditedRound, beacon: bytes, me: PeerId) -> Iterator[tuple[bytes, int]]:
    """COMMITs of a round and the segments of each that this node is to run again: the encoding, and
    of its own class one of training."""
    seats = {seat.peer: seat for seat in on.named.roster.seats}
    for message, commit in on.listed():
        peer = message.sender
        if peer in draw.barred:
            continue
        is_new = parts(seats[peer], draw.admission) < max(1, draw.admission.ramp)
        rate = draw.law.rate
        if is_new or peer in draw.suspected:
            rate = max(rate, SUSPECT_RATE)
        if _meets(on, beacon, me, peer, rate):
            yield message.digest, draw.law.segments  # Any class encodes alike.
            if on.class_of(me) == commit.work[0].device:
                yield message.digest, _segment(beacon, me, peer, draw.law)


def may_accuse(
    law: AuditSpec, on: AuditedRound, beacon: bytes, accuser: PeerId, key: tuple[bytes, int]
) -> bool:
    """Whether the beacon may have drawn somebody for that segment, whatever its signals said: else
    a liar would make all voters run all segments of everybody."""
    peer = on.commits[key[0]][0].sender
    is_drawn = _meets(on, beacon, accuser, peer, max(law.rate, SUSPECT_RATE))
    return is_drawn and key[1] in (law.segments, _segment(beacon, accuser, peer, law))


def _meets(on: AuditedRound, beacon: bytes, auditor: PeerId, peer: PeerId, rate: float) -> bool:
    """Whether that voter, whose work is listed as well, looks at the work of that peer."""
    auditors = [v for v in on.named.roster.voters if v != peer and on.class_of(v)]
    is_one = auditor in auditors
    return is_one and share(beacon, b"who", auditor, peer) < rate / len(auditors)


def _segment(beacon: bytes, auditor: PeerId, peer: PeerId, law: AuditSpec) -> int:
    return int(share(beacon, b"segment", auditor, peer) * law.segments)
