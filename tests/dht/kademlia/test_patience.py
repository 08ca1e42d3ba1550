"""How long a search waits for a peer, and how often a peer may ask."""

from dht.kademlia.lookup import PeerTimes
from dht.kademlia.requests import RequestQuotas
from tests.dht.network import peer_id


def test_peer_that_nobody_knows_is_granted_what_was_set() -> None:
    assert PeerTimes(at_first_s=0.25).slow_after_s(peer_id(1)) == 0.25


def test_patience_follows_the_answers_of_each_peer() -> None:
    times = PeerTimes(at_first_s=0.25)
    for _ in range(40):
        times.answered(peer_id(1), 0.002, is_dialled=False)
        times.answered(peer_id(2), 0.3, is_dialled=False)
    assert times.slow_after_s(peer_id(1)) <= 0.03
    assert 0.3 < times.slow_after_s(peer_id(2)) < 0.4
    assert times.slow_after_s(peer_id(3)) == 0.25
    for _ in range(8):
        times.answered(peer_id(1), 0.2, is_dialled=False)
    assert times.slow_after_s(peer_id(1)) > 0.2


def test_dials_tell_of_other_dials_and_not_of_answers() -> None:
    times = PeerTimes(at_first_s=0.25)
    times.answered(peer_id(1), 0.5, is_dialled=True)
    assert times.slow_after_s(peer_id(2)) > 0.5
    assert times.round_trip_s(peer_id(1)) is None


def test_peers_remembered_are_bounded() -> None:
    times = PeerTimes(at_first_s=0.25)
    for number in range(1200):
        times.answered(peer_id(number), 0.01, is_dialled=False)
    assert times.round_trip_s(peer_id(0)) is None
    assert times.round_trip_s(peer_id(1199)) == 0.01


def test_peer_over_its_quota_waits_and_others_do_not() -> None:
    quotas = RequestQuotas(rate_per_s=10.0, burst=5)
    assert [quotas.wait_s(peer_id(1), 0.0) for _ in range(5)] == [0.0] * 5
    assert round(quotas.wait_s(peer_id(1), 0.0), 6) == 0.1
    assert round(quotas.wait_s(peer_id(1), 0.0), 6) == 0.2
    assert quotas.wait_s(peer_id(2), 0.0) == 0.0
    assert quotas.wait_s(peer_id(1), 10.0) == 0.0


def test_newcomer_has_its_quota_however_many_were_there_before_it() -> None:
    quotas = RequestQuotas(rate_per_s=10.0, burst=5)
    for number in range(5000):
        quotas.wait_s(peer_id(number), 0.0)
    waits = [quotas.wait_s(peer_id(6000), 0.0) for _ in range(6)]
    assert [round(wait_s, 6) for wait_s in waits] == [0.0] * 5 + [0.1]
