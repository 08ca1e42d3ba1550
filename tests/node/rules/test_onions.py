"""The beacon: nobody chooses it, and whoever peels another layer is seen."""

import random

from node.rules.onions import GAP_MAX, LAYERS, Onion, beacon, follows, share
from protocol.identity import KeyedHashSigner, PeerId

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


def test_beacon_follows_from_all_layers_in_whatever_order_they_come():
    layers = [(PeerId(bytes([n]) * 32), onion(n).layer(3)) for n in range(1, 5)]
    assert beacon(RUN, 3, layers) == beacon(RUN, 3, layers[::-1])
    assert len({beacon(RUN, 3, layers[:n]) for n in range(5)} | {beacon(RUN, 4, layers)}) == 6


def test_shares_are_spread_evenly(seed):
    drawn = [share(f"{seed}".encode(), number.to_bytes(4, "big")) for number in range(2000)]
    assert all(0.0 <= one < 1.0 for one in drawn)
    # 2000 draws: five standard deviations of the mean are 0.032.
    assert abs(sum(drawn) / len(drawn) - 0.5) < 0.033
