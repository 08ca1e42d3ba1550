"""The made-up network: delays, order, loss."""

import random

import pytest

from protocol.identity import PeerId
from sim.network import Link, Network
from tests.node.builders import peers_named

A, B, C = peers_named(3)


def network(**fields) -> Network:
    streams: dict[str, random.Random] = {}
    return Network(Link(**fields), lambda path: streams.setdefault(path, random.Random(path)))


def counts(net: Network, source: PeerId = A, target: PeerId = B) -> list[int]:
    return [len(net.frame_arrivals(source, target, 0.0)) for _ in range(4000)]


def test_frames_of_one_direction_arrive_in_the_order_in_which_they_were_sent():
    net = network(latency_s=(0.01, 0.5))
    arrivals = [net.frame_arrivals(A, B, 0.001 * step)[0] for step in range(500)]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] >= 0.01


def test_bulk_takes_latency_and_its_bytes_at_the_rate_of_the_link():
    net = network(latency_s=(0.1, 0.1), bytes_per_s=1000.0)
    assert net.bulk_arrivals(A, B, 2000, 5.0) == [pytest.approx(7.1)]


def test_share_of_frames_and_transfers_is_lost_and_repeated():
    net = network(loss=0.1, duplication=0.2)
    found = counts(net)
    assert found.count(0) == pytest.approx(400, abs=80)
    assert found.count(2) == pytest.approx(800, abs=110)
    bulks = [len(net.bulk_arrivals(A, C, 1, 0.0)) for _ in range(4000)]
    assert bulks.count(0) == pytest.approx(400, abs=80)


def test_network_without_loss_delivers_everything_once():
    assert set(counts(network())) == {1}


def test_cut_link_delivers_nothing_in_either_direction_until_it_heals():
    net = network()
    net.cut(A, B)
    assert set(counts(net)) == set(counts(net, B, A)) == {0}
    assert net.bulk_arrivals(B, A, 1, 0.0) == []
    assert set(counts(net, A, C)) == {1}
    net.heal(B, A)
    assert set(counts(net)) == {1}
