"""The made-up network: delays, order, loss, standstill."""

import random
import statistics
from itertools import pairwise

import pytest

from sim.world.links import Direction, Link, Luck, Network
from tests.node.builders import peers_named

A, B, C = peers_named(3)


def network(**fields) -> Network:
    streams: dict[str, random.Random] = {}
    return Network(Link(**fields), lambda path: streams.setdefault(path, random.Random(path)))


def direction(**fields) -> Direction:
    return network(**fields).direction(A, B)


def test_frames_of_one_direction_arrive_in_the_order_in_which_they_were_sent():
    way = direction(latency_s=(0.01, 0.5))
    arrivals = [way.frame_times(0.001 * step)[0] for step in range(500)]
    assert arrivals == sorted(arrivals)
    assert arrivals[0] >= 0.01


def test_some_frames_overtake_others_where_the_link_reorders():
    way = direction(latency_s=(0.01, 0.5), reordering=0.2)
    arrivals = [way.frame_times(0.001 * step)[0] for step in range(500)]
    overtaken = sum(later < before for before, later in pairwise(arrivals))
    assert 30 < overtaken < 200


def test_latency_is_spread_evenly_over_its_range():
    way, luck = direction(latency_s=(0.1, 0.3)), Luck(random.Random(1))
    drawn = [way.latency_s(luck) for _ in range(4000)]
    assert 0.1 <= min(drawn) < 0.101
    assert 0.299 < max(drawn) <= 0.3
    assert statistics.mean(drawn) == pytest.approx(0.2, abs=0.003)


def test_normal_draws_are_those_of_python_whatever_else_is_drawn_between(seed):
    theirs, order = random.Random(seed), random.Random(f"{seed}/order")
    ours = Luck(random.Random(seed))
    for _ in range(2000):
        if order.random() < 0.7:
            assert ours.normal() == theirs.gauss(0.0, 1.0)
        else:
            assert ours.random() == theirs.random()


def test_lognormal_latency_has_its_middle_between_the_ends_and_a_long_tail():
    way, luck = direction(latency_s=(0.01, 0.16), spread="lognormal"), Luck(random.Random(1))
    drawn = sorted(way.latency_s(luck) for _ in range(20_000))
    assert drawn[10_000] == pytest.approx(0.04, rel=0.03)
    within = sum(0.01 <= latency_s <= 0.16 for latency_s in drawn)
    assert within / 20_000 == pytest.approx(0.954, abs=0.006)
    assert 0.3 < drawn[-1] <= 20 * 0.16


def test_bulk_takes_latency_and_its_bytes_at_the_rate_of_the_link():
    way = direction(latency_s=(0.1, 0.1), bytes_per_s=1000.0)
    ((first_s, last_s),) = way.bulk_times(2000, 5.0)
    assert [first_s, last_s] == pytest.approx([5.1, 7.1])


def test_transfers_of_one_direction_share_its_rate_and_those_of_others_do_not():
    net = network(latency_s=(0.1, 0.1), bytes_per_s=1000.0)
    ends = [net.direction(A, B).bulk_times(1000, 0.0)[0][1] for _ in range(3)]
    assert ends == [pytest.approx(1.1), pytest.approx(2.1), pytest.approx(3.1)]
    assert net.direction(B, A).bulk_times(1000, 0.0)[0][1] == pytest.approx(1.1)
    assert net.direction(A, B).bulk_times(1000, 10.0)[0][1] == pytest.approx(11.1)


def test_share_of_frames_and_transfers_is_lost_and_repeated():
    net = network(loss=0.1, duplication=0.2)
    frames = [len(net.direction(A, B).frame_times(0.0)) for _ in range(4000)]
    bulks = [len(net.direction(A, C).bulk_times(1, 0.0)) for _ in range(4000)]
    for found in (frames, bulks):
        assert found.count(0) == pytest.approx(400, abs=80)
        assert found.count(2) == pytest.approx(800, abs=110)


def test_link_without_loss_delivers_everything_once():
    way = direction()
    assert {len(way.frame_times(0.0)) for _ in range(4000)} == {1}


def test_what_is_sent_into_a_standstill_arrives_at_its_end_and_nothing_is_lost():
    way = direction(latency_s=(0.01, 0.01))
    way.stick(3.0)
    assert way.frame_times(0.0) == (3.0,)
    assert way.bulk_times(10, 0.0)[0][1] == 3.0
    assert way.frame_times(3.5)[0] == pytest.approx(3.51, abs=0.001)


def test_link_that_clogs_stands_still_now_and_then_for_its_time():
    way = direction(latency_s=(0.01, 0.01), clog=0.05, clog_s=2.0)
    delays = [way.frame_times(10.0 * step)[0] - 10.0 * step for step in range(200)]
    assert max(delays) < 0.02, "ten seconds later all is over"
    times = [way.frame_times(5000.0 + 0.01 * step)[0] for step in range(1000)]
    waited = [time_s - 5000.0 - 0.01 * step for step, time_s in enumerate(times)]
    assert 1.5 < max(waited) <= 2.02
    assert min(waited) < 0.02


def test_one_direction_has_another_quality_and_the_way_back_its_own():
    net = network(latency_s=(0.01, 0.01))
    net.set_link(A, B, Link(latency_s=(1.0, 1.0)))
    assert net.direction(A, B).frame_times(0.0)[0] > 1.0
    assert net.direction(B, A).frame_times(0.0)[0] < 0.02


def test_luck_of_a_direction_does_not_depend_on_what_others_send():
    alone, busy = network(), network()
    for _ in range(10):
        busy.direction(A, C).frame_times(0.0)
        busy.direction(C, B).bulk_times(1, 0.0)
    assert alone.direction(A, B).frame_times(0.0) == busy.direction(A, B).frame_times(0.0)


def test_no_link_comes_about_between_two_that_are_cut_or_hear_nothing_one_way():
    net = network()
    net.cut(A, B)
    assert not net.can_link(B, A)
    assert net.can_link(A, C)
    net.heal(B, A)
    assert net.can_link(A, B)
    net.direction(B, A).is_blocked = True
    assert not net.can_link(A, B)


@pytest.mark.parametrize(
    "wrong",
    [
        {"latency_s": (0.2, 0.1)},
        {"latency_s": (0.0, 0.1), "spread": "lognormal"},
        {"loss": 1.5},
        {"clog": -0.1},
        {"bytes_per_s": 0.0},
        {"break_s": 0.0},
    ],
)
def test_link_of_impossible_numbers_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Link(**wrong)
