"""Whom a beacon draws: as many audits as the law says, no more for whoever cannot be accused."""

from collections import Counter
from dataclasses import replace

import pytest
from blake3 import blake3

from protocol.auditing.audit_rounds import (
    NOTHING,
    SUSPECT_RATE,
    AuditedRound,
    Drawn,
    drawn,
    may_accuse,
)
from protocol.grid import EMPTY_ROOT
from protocol.identity import KeyedHashSigner, PeerId
from protocol.manifest import NO_ADMISSION, AdmissionSpec, AuditSpec
from protocol.messages import Commit, Roster, SeatRecord, Work, decode_body, sign_message
from tests.protocol.entry_vectors import BASIS, WORK

PEERS = tuple(PeerId(bytes([number]) * 32) for number in range(1, 10))
LAW = AuditSpec(rate=0.25, segments=8)
BEACONS = 120


def scene(
    *, devices: dict[PeerId, str] | None = None, seated: int = 0, earned: int = 0
) -> AuditedRound:
    """Nine voters who all contributed; `devices` are the classes of some, `seated` says when all
    got their seats, and what they earned since."""
    example = decode_body(WORK)
    assert isinstance(example, Commit)
    commits = {}
    for peer in PEERS:
        device = (devices or {}).get(peer, "cpu")
        work = Work(
            onion=bytes(32), device=device, trace=(bytes(32),) * 9, before=EMPTY_ROOT, after=peer
        )
        body = replace(example, work=(work,))
        message = sign_message(KeyedHashSigner(peer), WORK.slot, body)
        commits[message.digest] = (message, body)
    old = SeatRecord(
        peer=PEERS[0], seated=seated, voter_since=0, proved=40, absent=0, earned=earned
    )
    seats = tuple(replace(old, peer=peer) for peer in PEERS)
    named = replace(BASIS, roster=Roster(seats=seats, window=(40,)))
    return AuditedRound(
        round=41,
        named=named,
        beacon=bytes(32),
        commits=commits,
        inherited=dict.fromkeys(PEERS, (NOTHING,)),
    )


def beacons(seed: int) -> list[bytes]:
    return [blake3(f"{seed}/{number}".encode()).digest() for number in range(BEACONS)]


def audits(on: AuditedRound, draw: Drawn, seed: int) -> Counter[tuple[PeerId, PeerId, int]]:
    """Who audits whom, and which segment, in so many rounds."""
    found: Counter[tuple[PeerId, PeerId, int]] = Counter()
    for beacon in beacons(seed):
        for me in PEERS:
            for digest, segment in drawn(draw, on, beacon, me):
                found[me, on.commits[digest][0].sender, segment] += 1
                assert may_accuse(draw.law, on, beacon, me, (digest, segment))
    return found


@pytest.mark.parametrize("rate", [0.25, 1.0])
def test_each_contribution_meets_so_many_audits_on_average_and_nobody_audits_itself(rate, seed):
    on, law = scene(), replace(LAW, rate=rate)
    found = audits(on, Drawn(law, NO_ADMISSION), seed)
    assert all(me != peer for me, peer, _ in found)
    trained = sum(n for (_, _, segment), n in found.items() if segment < 8)
    encoded = sum(n for (_, _, segment), n in found.items() if segment == 8)
    assert trained == encoded
    # 1080 contributions, with a deviation of about the root of each number.
    expected = rate * BEACONS * len(PEERS)
    assert abs(trained - expected) < 6 * expected**0.5
    assert {segment for _, _, segment in found} == set(range(9))


def test_suspects_and_newcomers_meet_more_and_the_barred_none(seed):
    suspect, barred = PEERS[2], PEERS[5]
    draw = Drawn(LAW, NO_ADMISSION, frozenset({suspect}), frozenset({barred}))
    found = audits(scene(), draw, seed)
    met = Counter[PeerId]()
    for (_, peer, segment), count in found.items():
        met[peer] += count * (segment == 8)
    assert not met[barred]
    assert abs(met[suspect] - SUSPECT_RATE * BEACONS) < 6 * (SUSPECT_RATE * BEACONS) ** 0.5
    calm = audits(scene(), Drawn(LAW, NO_ADMISSION), seed)
    # The same beacons draw all that they would of anybody, and as many again.
    more = found - calm
    assert {peer for _, peer, _ in more} == {suspect}
    slow = Drawn(LAW, AdmissionSpec(probation=3, ramp=10))
    for earned, rate in ((0, SUSPECT_RATE), (12, SUSPECT_RATE), (13, LAW.rate)):
        on = scene(seated=30, earned=earned)
        new = sum(n for (_, _, s), n in audits(on, slow, seed).items() if s == 8)
        expected = rate * BEACONS * len(PEERS)
        assert abs(new - expected) < 6 * expected**0.5


def test_training_is_for_the_own_class_and_the_encoding_for_all(seed):
    other = PEERS[0]
    found = audits(scene(devices={other: "gpu"}), Drawn(LAW, NO_ADMISSION), seed)
    of_other = {segment for me, peer, segment in found if other in (me, peer)}
    assert of_other == {8}


def test_who_was_not_drawn_may_not_accuse(seed):
    on = scene()
    keys = [(digest, segment) for digest in on.commits for segment in range(9)]
    may = sum(
        may_accuse(LAW, on, beacon, PEERS[0], key) for beacon in beacons(seed)[:50] for key in keys
    )
    # Of 8 contributions of others it is drawn for a sixteenth, and then for two segments of nine.
    assert may < 0.1 * 50 * len(keys) * 2 / 9
