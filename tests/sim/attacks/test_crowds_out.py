"""Made-up keys that ask for every seat: an honest joiner gets its own all the same."""

import pytest

from protocol import limits
from protocol.identity import PeerId
from sim.trials.faults import member_names
from sim.trials.scenario import overridden, settled
from sim.trials.scenario_file import read_scenario
from sim.trials.trial import build_world, seat_members
from sim.world.world import World

PEERS, ROUNDS = 6, 14
JOINS_AT = 3


def crowded(seed: int) -> World:
    """Four honest members, one liar, and a newcomer that starts in the third round."""
    calm = read_scenario("open-calm")
    scenario = settled(overridden(calm, peers=PEERS, rounds=ROUNDS, attack="crowds_out:0.2"), seed)
    world = build_world(scenario, seed)
    names = {name: world.peer(name) for name in member_names(PEERS)}
    seat_members(world, scenario, seed, names)
    return world


def newest(world: World) -> int:
    return max(node.round for node in world.nodes.values())


def rounds_to_a_seat(world: World, joiner: PeerId) -> int:
    """In how many rounds it is seated; the run's end where it is not."""
    world.run(lambda: newest(world) >= JOINS_AT, 200.0)
    world.join(joiner)

    def is_seated() -> bool:
        heads = [node.core.machine.head for node in world.nodes.values()]
        return any(joiner in head.roster.members for head in heads) or newest(world) >= ROUNDS

    world.run(is_seated, 400.0)
    return newest(world) - JOINS_AT


@pytest.mark.quick(1)
@pytest.mark.parametrize("seed", range(3))
def test_joiner_is_seated_though_a_liar_fills_the_room_for_seats_in_every_round(seed, monkeypatch):
    monkeypatch.setattr(limits, "SEATS_ASKED_MAX", 32)
    world = crowded(seed)
    assert rounds_to_a_seat(world, world.peer("late")) <= 6
