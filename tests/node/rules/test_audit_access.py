"""Who may see work: whom the beacon may have drawn for it, behind the seal that draws (R10)."""

from dataclasses import replace

from protocol.identity import PeerId
from sim.trials.faults import member_names
from sim.trials.scenario import overridden, settled
from sim.trials.scenario_file import read_scenario
from sim.trials.trial import build_world, seat_members

PEERS, ROUNDS = 6, 7
STRANGER = PeerId(bytes([9]) * 32)


def test_nobody_sees_work_before_the_beacon_and_then_who_may_be_drawn_for_it(seed):
    calm = overridden(read_scenario("open-calm"), peers=PEERS, rounds=ROUNDS, audits=1.0)
    scenario = settled(replace(calm, cells=2), seed)
    world = build_world(scenario, seed)
    names = {name: world.peer(name) for name in member_names(PEERS)}
    seat_members(world, scenario, seed, names)
    nodes = [world.nodes[peer] for peer in names.values()]
    world.run(lambda: all(n.core.machine.head.round >= ROUNDS - 2 for n in nodes), 300.0)
    opened, asked = 0, 0
    both: set[bool] = set()
    for node in nodes:
        audits, head = node.core.audits, node.core.machine.head.round
        others = [peer for peer in names.values() if peer != node.peer]
        for index in range(1, head + 1):
            done = node.trainer.work(index)
            assert done is not None
            for root in done.trace:
                seen = [peer for peer in others if audits.may_open(peer, root)]
                assert not audits.may_open(STRANGER, root)
                assert not audits.may_open(node.peer, root)
                assert index < head or not seen, "its beacon is not there yet"
                if index < head:
                    opened, asked = opened + len(seen), asked + len(others)
        assert not audits.may_open(others[0], bytes(32))
    for node in nodes:
        still_open, head = node.core.audits.shown_segments, node.core.machine.head.round
        assert set(still_open) == set(range(1, head)), "the beacon of the newest is not there yet"
        for index, segments in still_open.items():
            done = node.trainer.work(index)
            assert done is not None
            asked_for = {
                segment
                for segment, root in enumerate(done.trace)
                if any(node.core.audits.may_open(peer, root) for peer in names.values())
            }
            # Two seals to fetch it, and one in which somebody may be behind.
            assert segments == (frozenset() if head > index + 3 else asked_for), index
        both.update(bool(still_open[index]) for index in range(head - 3, head))
    assert both == {True, False}, "some are drawn, and some are not"
    # Each auditor is drawn with one chance in five, for one state of eight and the last one.
    assert 0.01 < opened / asked < 0.2
