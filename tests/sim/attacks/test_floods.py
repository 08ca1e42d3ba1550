"""Every kind of frame and message, said by one member as fast as others take it: nobody stops."""

from collections import Counter

import pytest

from protocol import events as ev
from protocol import frames
from protocol.core.budgets import about_bytes
from protocol.gossiping.settings import Rate
from protocol.messages import Kind
from protocol.rounds.round_view import RoundView
from sim.attacks.flooding import FLOODS, Flood
from sim.trials.faults import member_names
from sim.trials.scenario import Scenario, overridden, settled
from sim.trials.scenario_file import read_scenario
from sim.trials.trial import build_world, seat_members
from sim.world.world import World

PEERS, SEED = 5, 3
BEFORE_S, FLOOD_S, SETTLE_S, AFTER_S, JOIN_S = 10.0, 20.0, 5.0, 10.0, 20.0

AMPLIFIED_BYTES_PER_S = 1e6
"""What the honest may send more, all together, for up to 10 MB/s that the flooder offers each."""

CHEAP: frozenset[str] = frozenset()
"""Floods that stay below the share of a peer."""

EXCUSED = {
    "Messages": "each kind of message is one of its own",
}


def scenario(attack: str = "") -> Scenario:
    calm = read_scenario("open-calm")
    return settled(
        overridden(calm, peers=PEERS, rounds=10_000, attack=attack, aggregator="default"), SEED
    )


class Flooded:
    """Four honest members and one whose flood begins when it is told to."""

    def __init__(self, kind: str) -> None:
        asked = scenario("flood_gram:0.2")
        self.world = build_world(asked, SEED)
        names = {name: self.world.peer(name) for name in member_names(PEERS)}
        ((self.flooder, _),) = self.world.settings.liars.items()
        self.flood = Flood(kind, SEED)
        self.flood.is_on = False
        assert isinstance(self.world.settings.liars, dict)
        self.world.settings.liars[self.flooder] = self.flood
        seat_members(self.world, asked, SEED, names)
        self.honest = [peer for peer in names.values() if peer != self.flooder]
        self.sent = Counter(self.honest)
        self.world.triggers.append(self.count)

    def count(self, _: World, node, action: ev.CoreAction | None) -> None:
        """The bytes that each node has its edge send."""
        if isinstance(action, ev.Send):
            self.sent[node.peer] += about_bytes(action.frame)
        elif isinstance(action, ev.SendAll):
            self.sent[node.peer] += len(action.peers) * about_bytes(action.frame)

    def rounds(self, seconds: float) -> int:
        """How many all the honest seal in that time."""
        before, end_s = self.round, self.world.now_s + seconds
        self.world.run(lambda: self.world.now_s >= end_s, seconds + 1.0)
        return self.round - before

    def take_bytes(self) -> int:
        """What the honest had sent since it was asked last."""
        total = sum(self.sent[peer] for peer in self.honest)
        self.sent.clear()
        return total

    @property
    def round(self) -> int:
        return min(self.world.nodes[peer].round for peer in self.honest)

    def joins(self) -> bool:
        """Whether somebody who comes now has a seat in time."""
        late, end_s = self.world.peer("late"), self.world.now_s + JOIN_S
        self.world.join(late)

        def is_seated() -> bool:
            heads = [self.world.nodes[peer].core.machine.head for peer in self.honest]
            return any(late in head.roster.members for head in heads) or self.world.now_s >= end_s

        self.world.run(is_seated, JOIN_S + 1.0)
        return self.world.now_s < end_s


def test_there_is_a_flood_of_every_frame_and_of_every_kind_of_message():
    names = {name.partition(",")[0] for name in FLOODS}
    wire = {kind.__name__ for kind in frames._TYPES.values()} | {kind.name for kind in Kind}
    assert names == wire - EXCUSED.keys()


WORST = ("AGG", "GRAM", "HAVE", "Heartbeat", "SEAT", "StatusAsk", "Want")


@pytest.mark.extended
@pytest.mark.parametrize(
    "kind",
    [
        kind if kind in WORST else pytest.param(kind, marks=pytest.mark.slow)
        for kind in sorted(FLOODS)
    ],
)
def test_flood_stops_nobody_keeps_nobody_out_and_names_its_sender(kind):
    world = Flooded(kind)
    before = world.rounds(BEFORE_S)
    assert before >= 4
    assert not world.world.faults
    calm_bytes = world.take_bytes() / BEFORE_S
    world.flood.is_on = True
    half = world.rounds(FLOOD_S / 2)
    is_seated = world.joins()
    during = half + world.rounds(FLOOD_S / 2)
    flood_bytes = world.take_bytes() / FLOOD_S
    world.flood.is_on = False
    world.rounds(SETTLE_S)
    after = world.rounds(AFTER_S)
    assert during / FLOOD_S >= before / BEFORE_S / 3
    assert after >= 0.8 * before
    assert is_seated
    blamed = {peer for peer, _ in world.world.faults}
    assert blamed <= {world.flooder}
    assert blamed or kind in CHEAP, "nobody is told who floods"
    assert flood_bytes < calm_bytes + AMPLIFIED_BYTES_PER_S


@pytest.mark.extended
def test_floods_stop_a_run_whose_nodes_read_everything_at_once(monkeypatch):
    """So that it is the share of a peer that holds the others."""
    monkeypatch.setattr("protocol.core.budgets.SHARE", Rate(1e6, 1e6))
    world = Flooded("StatusAsk")
    before = world.rounds(BEFORE_S)
    world.flood.is_on = True
    world.rounds(BEFORE_S)
    assert world.rounds(FLOOD_S) / FLOOD_S < before / BEFORE_S / 3


@pytest.mark.extended
def test_honest_nodes_multiply_words_about_nothing_where_they_keep_them(monkeypatch):
    monkeypatch.setattr(RoundView, "is_named", lambda view, digest: True)
    assert flooded_bytes("GRAM") > AMPLIFIED_BYTES_PER_S
    monkeypatch.undo()
    assert flooded_bytes("GRAM") < AMPLIFIED_BYTES_PER_S / 4


def flooded_bytes(kind: str) -> float:
    """What the honest send in a second."""
    world = Flooded(kind)
    world.rounds(BEFORE_S)
    world.take_bytes()
    world.flood.is_on = True
    world.rounds(BEFORE_S)
    return world.take_bytes() / BEFORE_S
