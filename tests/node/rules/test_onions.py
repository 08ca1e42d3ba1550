"""The beacon: nobody chooses it, and whoever peels another layer is seen."""

import random

from protocol.auditing.audit_rounds import GAP_MAX, LAYERS, Onion, beacon, follows, share
from protocol.identity import Ed25519Signer, KeyedHashSigner, PeerId

RUN = bytes(32)


def onion(number: int, run: bytes = RUN) -> Onion:
    return Onion(KeyedHashSigner(PeerId(bytes([number]) * 32)), run)


def test_layer_follows_the_one_before_and_no_other_does(seed):
    own, other = onion(1), onion(2)
    first = random.Random(f"{seed}/round").randrange(1, LAYERS - GAP_MAX)
    known = (first, own.layer(first))
    for gap in (1, 2, GAP_MAX):
        assert follows(own.layer(first + gap), first + gap, known)
        assert not follows(own.layer(first + gap - 1), first + gap, known)
        assert not follows(other.layer(first + gap), first + gap, known)
    assert not follows(own.layer(first), first, known)
    assert not follows(own.layer(first - 1), first - 1, known)


def test_onion_is_the_same_after_a_restart_and_another_one_in_another_run():
    assert onion(1).layer(7) == onion(1).layer(7)
    assert onion(1).layer(7) != onion(1, bytes([1]) * 32).layer(7)


def test_new_onion_begins_where_one_ends():
    own = onion(1)
    last = (LAYERS - 1, own.layer(LAYERS - 1))
    assert follows(own.layer(LAYERS), LAYERS, last)
    assert follows(own.layer(LAYERS + 1), LAYERS + 1, (LAYERS, own.layer(LAYERS)))
    assert not follows(own.layer(LAYERS + 2), LAYERS + 1, (LAYERS, own.layer(LAYERS)))
    assert not {own.layer(r) for r in range(9)} & {own.layer(LAYERS + r) for r in range(9)}, (
        "all layers of the first are known by then"
    )


def test_beacon_follows_from_all_layers_in_whatever_order_they_come():
    layers = [(PeerId(bytes([n]) * 32), onion(n).layer(3)) for n in range(1, 5)]
    assert beacon(RUN, 3, layers) == beacon(RUN, 3, layers[::-1])
    assert len({beacon(RUN, 3, layers[:n]) for n in range(5)} | {beacon(RUN, 4, layers)}) == 6


def test_every_layer_and_its_sender_change_the_beacon():
    """Else it would be known before the last COMMIT, or one could peel a layer for another."""
    told = [(PeerId(bytes([n]) * 32), onion(n).layer(3)) for n in range(1, 4)]
    one, (two, layer), three = told
    for other in ((two, onion(9).layer(3)), (PeerId(bytes([9]) * 32), layer)):
        assert beacon(RUN, 3, [one, other, three]) != beacon(RUN, 3, told)
    assert beacon(bytes([1]) * 32, 3, told) != beacon(RUN, 3, told)


def test_all_versions_draw_alike():
    """Golden: a node that drew otherwise would accuse in vain, and be accused."""
    run, first, second = bytes(range(32)), PeerId(bytes([1]) * 32), PeerId(bytes([2]) * 32)
    found = beacon(run, 7, [(second, bytes([3]) * 32), (first, bytes([4]) * 32)])
    assert found.hex() == "c807e4aa6c4f160fd9a1a3888725bf78967b042b52f7bea29b331e7e49c8c826"
    assert share(found, b"who", b"x") == 0.9118713887023571
    own = Onion(Ed25519Signer(bytes(32)), run)
    assert own.layer(0).hex()[:32] == "6b057e3b1375812b8b8458b00f21f779"
    assert own.layer(LAYERS - 1).hex()[:32] == "8560d535d08fec97e3d358f1328c8afe"


def test_shares_are_spread_evenly(seed):
    drawn = [share(f"{seed}".encode(), number.to_bytes(4, "big")) for number in range(2000)]
    assert all(0.0 <= one < 1.0 for one in drawn)
    # 2000 draws: five standard deviations of the mean are 0.032.
    assert abs(sum(drawn) / len(drawn) - 0.5) < 0.033


AUDITOR = PeerId(bytes([9]) * 32)
RATE = 0.3


class Aborter:
    """Bends its work in each round, and knows all layers of the next before it peels its own; it
    keeps back what would have it audited. `is_free`: where a layer is a message of its own, after
    the COMMITs, as in commit and reveal."""

    def __init__(self, seed: int, *, is_free: bool) -> None:
        self.me, self._onion = PeerId(bytes([1]) * 32), onion(1)
        others = [(PeerId(bytes([n]) * 32), onion(n)) for n in range(2, 6)]
        self.listed = self.met = self.aborted = 0
        self.rounds = 400
        first = random.Random(f"{seed}/first").randrange(LAYERS - self.rounds - 2)
        was_listed = True
        for index in range(first, first + self.rounds):
            layers = [(peer, one.layer(index + 1)) for peer, one in others]
            own = (self.me, self._onion.layer(index + 1))
            meets, meets_without = (
                was_listed and share(beacon(RUN, index, told), b"who", AUDITOR, self.me) < RATE
                for told in ([*layers, own], layers)
            )
            is_aborting = meets and not meets_without
            self.met += meets_without if is_aborting else meets
            self.aborted += is_aborting
            # The layer is in the COMMIT: without the one there is no other.
            was_listed = is_free or not is_aborting
            self.listed += was_listed


def test_who_peels_last_escapes_most_audits_for_nothing_where_a_layer_is_no_commit(seed):
    free = Aborter(seed, is_free=True)
    assert free.listed == free.rounds
    # Both beacons have to meet it: 0.09 of 400 rounds in place of 0.3, give or take 5 deviations.
    assert abs(free.met / free.rounds - RATE**2) < 5 * (RATE**2 * (1 - RATE**2) / 400) ** 0.5
    assert free.met < free.rounds * RATE / 2


def test_abort_costs_the_contribution_where_the_layer_is_in_the_commit(seed):
    bound = Aborter(seed, is_free=False)
    # Each audit that it escapes is a round in which it adds nothing, so nothing bent either.
    assert bound.aborted > 20
    assert bound.listed == bound.rounds - bound.aborted
    assert bound.listed < bound.rounds * (1 - RATE * (1 - RATE) / (1 + RATE * (1 - RATE)) / 2)
    assert bound.met > 0
