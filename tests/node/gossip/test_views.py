"""Whom a node knows: bounded, and nobody's gift alone."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import limits
from protocol.gossip import Introduction, NeighbourKind
from protocol.gossiping.settings import GossipSettings
from protocol.gossiping.views import ASK_AGAIN_S, PartialViews
from tests.node.builders import peers_named

PEERS = peers_named(600)
ME, FRIEND, LIAR = PEERS[:3]
OTHERS = PEERS[3:]
SMALL = GossipSettings(active=4, active_max=6, own_choice_min=2, passive_max=32, lost_max=4)


def views(config: GossipSettings = SMALL) -> PartialViews:
    return PartialViews(ME, random.Random(7), config)


def introduced(*peers, age_s: int = 0) -> tuple[Introduction, ...]:
    return tuple(Introduction(peer=p, age_s=age_s, addresses=("/ip4/192.0.2.1",)) for p in peers)


def befriend(machine: PartialViews, num: int, now_s: float) -> None:
    """Ask whom it wants to ask until so many said yes."""
    while len(machine.neighbours) < num:
        for peer, _ in machine.wanted(now_s):
            machine.neighbour(peer, NeighbourKind.YES, now_s)


def test_one_introducer_fills_no_more_than_its_share():
    machine = views()
    for start in range(0, 400, 16):
        machine.told(introduced(*OTHERS[start : start + 16]), LIAR, 100.0 + start)
    assert len(machine.acquaintances) == SMALL.passive_max // SMALL.introducer_share


def test_flood_of_a_liar_pushes_out_nothing_but_its_own():
    machine = views()
    honest = OTHERS[:8]
    for index, peer in enumerate(honest):
        machine.told(introduced(peer), OTHERS[500 + index], 0.0)
    for start in range(16, 416, 16):
        machine.told(introduced(*OTHERS[start : start + 16]), LIAR, 1000.0)
    assert set(honest) <= set(machine.acquaintances)


def test_full_view_takes_from_the_introducer_with_the_most():
    machine = views()
    tellers = OTHERS[-9:]
    for number, teller in enumerate(tellers[:8]):
        machine.told(introduced(*OTHERS[4 * number : 4 * number + 4]), teller, 10.0)
    assert len(machine.acquaintances) == 32
    machine.told(introduced(OTHERS[100]), tellers[8], 20.0)
    assert OTHERS[100] in machine.acquaintances
    assert len(machine.acquaintances) == 32


def test_peer_is_its_own_witness_when_it_names_itself():
    machine = views()
    machine.told(introduced(LIAR, *OTHERS[:16]), LIAR, 0.0)
    assert LIAR in machine.acquaintances
    assert machine.addresses(LIAR) == ("/ip4/192.0.2.1",)


def test_nobody_is_told_of_whom_nobody_heard_for_long():
    machine = views()
    machine.told(introduced(OTHERS[0], age_s=1801), FRIEND, 0.0)
    assert machine.acquaintances == ()
    machine.told(introduced(OTHERS[0], age_s=1000), FRIEND, 0.0)
    assert [one.age_s for one in machine.sample(8, 100.0, beside=FRIEND)] == [1100]
    assert machine.sample(8, 900.0, beside=FRIEND) == ()


def test_neighbours_are_asked_for_until_there_are_enough():
    machine = views()
    machine.told(introduced(*OTHERS[:4]), FRIEND, 0.0)
    for teller, peer in zip(OTHERS[10:20], OTHERS[20:30], strict=True):
        machine.told(introduced(peer), teller, 0.0)
    assert [kind for _, kind in machine.wanted(0.0)] == [NeighbourKind.URGENT] * 2
    assert machine.wanted(0.1) == []
    befriend(machine, 4, ASK_AGAIN_S)
    assert machine.wanted(2.0 + ASK_AGAIN_S) == []


def test_neighbours_are_sought_from_different_introducers():
    machine = views()
    machine.told(introduced(*OTHERS[:4]), LIAR, 0.0)
    for teller, peer in zip(OTHERS[10:13], OTHERS[20:23], strict=True):
        machine.told(introduced(peer), teller, 0.0)
    befriend(machine, 4, 0.0)
    assert len(set(machine.neighbours) & set(OTHERS[:4])) == 1


def test_those_who_ask_never_get_the_places_of_own_choices():
    machine = views()
    for peer in OTHERS[:20]:
        machine.heard(peer, 0.0)
        machine.neighbour(peer, NeighbourKind.ASK, 0.0)
    assert len(machine.neighbours) == SMALL.active_max - SMALL.own_choice_min
    befriend(machine, SMALL.active_max, 0.0)
    chosen = set(machine.neighbours) - set(OTHERS[:4])
    for peer in OTHERS[20:80]:
        answer, gone = machine.neighbour(peer, NeighbourKind.URGENT, 1.0)
        assert answer is NeighbourKind.YES
        assert gone not in chosen
    assert chosen <= set(machine.neighbours)
    assert len(machine.neighbours) == SMALL.active_max


def test_yes_that_nobody_asked_for_makes_no_neighbour():
    machine = views()
    machine.heard(LIAR, 0.0)
    assert machine.neighbour(LIAR, NeighbourKind.YES, 0.0) == (NeighbourKind.END, None)
    assert machine.neighbours == ()


def test_peer_without_room_is_left_alone_for_a_while():
    machine = views()
    for peer in OTHERS[:3]:
        machine.heard(peer, 0.0)
    befriend(machine, 1, 0.0)
    ((refusing, kind), *_) = machine.wanted(3.0)
    assert kind is NeighbourKind.ASK
    machine.neighbour(refusing, NeighbourKind.NO, 3.0)
    assert refusing not in [peer for peer, _ in machine.wanted(8.0)]
    machine.wanted(11.0)
    assert refusing in [peer for peer, _ in machine.wanted(30.0)]


def test_who_is_gone_is_lost_and_hearsay_does_not_bring_it_back():
    machine = views()
    machine.heard(FRIEND, 0.0)
    befriend(machine, 1, 0.0)
    machine.gone(FRIEND, 5.0)
    assert machine.lost == (FRIEND,)
    machine.told(introduced(FRIEND), LIAR, 6.0)
    assert machine.size == 1
    machine.heard(FRIEND, 7.0)
    assert FRIEND in machine.acquaintances
    assert machine.addresses(FRIEND) == ("/ip4/192.0.2.1",)
    machine.left(FRIEND)
    assert FRIEND not in machine


STEPS = st.tuples(
    st.sampled_from(["told", "heard", "gone", "left", "ask", "urgent", "yes", "no", "end", "want"]),
    st.integers(0, 79),
    st.integers(0, 79),
    st.floats(0.0, 30.0),
)


@settings(deadline=None, max_examples=60)
@given(steps=st.lists(STEPS, max_size=150))
def test_views_are_bounded_and_disjoint_whatever_happens(steps):
    machine, now_s = views(), 0.0
    for what, who, by, wait_s in steps:
        now_s += wait_s
        peer, teller = OTHERS[who], OTHERS[by]
        match what:
            case "told":
                machine.told(introduced(ME, *OTHERS[who : who + 15], age_s=who), teller, now_s)
            case "heard":
                machine.heard(peer, now_s)
            case "gone":
                machine.gone(peer, now_s)
            case "left":
                machine.left(peer)
            case "want":
                machine.wanted(now_s)
            case kind:
                machine.neighbour(peer, NeighbourKind[kind.upper()], now_s)
        near, far, lost = machine.neighbours, machine.acquaintances, machine.lost
        assert len(near) <= SMALL.active_max
        assert len(far) <= SMALL.passive_max
        assert len(lost) <= SMALL.lost_max
        assert len({*near, *far, *lost}) == len(near) + len(far) + len(lost) == machine.size
        assert ME not in machine
        by_introducer = [machine._passive[p].introducer for p in far]
        share = SMALL.passive_max // SMALL.introducer_share
        assert all(by_introducer.count(p) <= share + SMALL.active_max for p in by_introducer)
        assert machine._introduced == {p: by_introducer.count(p) for p in set(by_introducer)}


def test_defaults_fit_the_declared_view():
    config = GossipSettings()
    assert config.active_max + config.passive_max + config.lost_max == limits.PARTIAL_VIEW_MAX
    with pytest.raises(ValueError, match="peers in view"):
        GossipSettings(passive_max=257)
    with pytest.raises(ValueError, match="ascending"):
        GossipSettings(own_choice_min=7)
