"""What verbs do to links: silence and its end, held frames, ends of processes."""

from dataclasses import replace

import numpy as np
import pytest

from node.holdings.states import round_config
from node.peers.links import BRIEF_S
from protocol import events as ev
from protocol.core.budgets import PAUSE_S, STRIKES_MAX
from protocol.frames import Bulk, Heartbeat
from protocol.identity import PeerId
from sim.world.edge import Edge
from sim.world.links import Link
from sim.world.traffic import GONE_S
from sim.world.world import World, WorldSettings
from tests.node.builders import peers_named, toy_manifest

A, B, C = peers_named(3)
PAIRS = [(A, B), (B, A), (A, C), (C, A), (B, C), (C, B)]


class ListeningNode(Edge):
    """Keeps what its core was told, and when."""

    def __init__(self, world, parts) -> None:
        super().__init__(world, parts)
        self.told: list[tuple[float, ev.CoreEvent]] = []

    def tell(self, event: ev.CoreEvent) -> None:
        self.told.append((self.world.now_s, event))
        super().tell(event)

    def times(self, kind, peer: PeerId) -> list[float]:
        """When it was told of such an event of a peer."""
        found = [(at_s, event) for at_s, event in self.told if type(event) is kind]
        return [at_s for at_s, event in found if getattr(event, "peer", None) == peer]

    def heard(self, peer: PeerId, since_s: float) -> list[float]:
        """When frames of a peer came."""
        return [at_s for at_s in self.times(ev.FrameArrived, peer) if at_s > since_s]


class ListeningWorld(World):
    makes_node = ListeningNode

    def wait(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        self.run(lambda: self.now_s >= end_s, seconds + 1.0)

    def links(self) -> set[tuple[PeerId, PeerId]]:
        return {(peer, other) for peer, node in self.nodes.items() for other in node.wires}


@pytest.fixture
def world(seed) -> ListeningWorld:
    """Three that are linked, in a run that nobody ends."""
    link = Link(latency_s=(0.01, 0.02), break_s=5.0)
    return three(ListeningWorld(toy_manifest(A, rounds=10_000), seed=seed, link=link))


def three(world: ListeningWorld) -> ListeningWorld:
    config = round_config(world.manifest)
    world.join(A, config=replace(config, wait_seats=2))
    world.join(B)
    world.join(C)
    world.run(lambda: world.nodes[C].round == 3, 60.0)
    assert world.links() == set(PAIRS)
    return world


# Silence ----------------------------------------------------------------------------------------


def test_partition_is_silent_until_the_link_breaks_and_repair_brings_it_back(world):
    began_s = world.now_s
    world.partition([[A], [B]])
    world.wait(4.9)
    assert world.links() == set(PAIRS), "nobody is told"
    assert not world.nodes[A].heard(B, began_s + 0.03)
    assert not world.nodes[B].heard(A, began_s + 0.03)
    assert world.nodes[A].heard(C, began_s + 2.0), "who is in no group reaches all"
    world.wait(0.2)
    assert world.links() == set(PAIRS) - {(A, B), (B, A)}
    for node, other in ((world.nodes[A], B), (world.nodes[B], A)):
        assert node.times(ev.Unlinked, other) == [pytest.approx(began_s + 5.0)]
    world.wait(20.0)
    assert world.links() == set(PAIRS) - {(A, B), (B, A)}, "no new link comes about"
    world.repair()
    world.wait(1.2)
    assert world.links() == set(PAIRS)


def test_silence_that_ends_in_time_breaks_no_link(world):
    for _ in range(3):
        world.block(A, B)
        world.wait(4.0)
        world.unblock(A, B)
        world.wait(1.0)
    assert not world.nodes[A].times(ev.Unlinked, B)
    assert world.nodes[B].heard(A, world.now_s - 1.0)


def test_one_direction_falls_silent_and_the_way_back_does_not(world):
    began_s = world.now_s
    world.block(A, B)
    world.wait(3.0)
    assert not world.nodes[B].heard(A, began_s + 0.03)
    assert world.nodes[A].heard(B, began_s + 2.0)
    world.wait(3.0)
    assert world.links() == set(PAIRS) - {(A, B), (B, A)}
    world.unblock(A, B)
    world.wait(1.2)
    assert world.links() == set(PAIRS)


def test_held_frames_wait_and_arrive_in_order_on_release(world):
    began_s = world.now_s
    world.hold(A, B)
    world.wait(8.0)
    assert not world.nodes[B].heard(A, began_s + 0.03)
    assert not world.nodes[B].times(ev.Unlinked, A), "held is not silent: it is late"
    world.release(A, B)
    world.wait(0.05)
    told = [event for at_s, event in world.nodes[B].told if at_s > began_s + 0.03]
    frames = [e.frame for e in told if isinstance(e, ev.FrameArrived) and e.peer == A]
    beats = [frame.round for frame in frames if isinstance(frame, Heartbeat)]
    assert len(beats) >= 12  # Each half a second, and by up to a tick late.
    assert beats == sorted(beats)


def test_clogged_direction_stands_still_and_then_everything_comes(world):
    began_s = world.now_s
    world.clog(A, B, 3.0)
    world.wait(3.1)
    heard_s = world.nodes[B].heard(A, began_s + 0.03)
    assert len(heard_s) >= 6
    assert min(heard_s) >= began_s + 3.0 - 1e-6


# Ends -------------------------------------------------------------------------------------------


def test_cut_breaks_a_link_for_both_at_once_and_heal_mends_it_at_once(world):
    began_s = world.now_s
    world.cut(A, B)
    world.wait(0.1)
    assert world.nodes[A].times(ev.Unlinked, B) == world.nodes[B].times(ev.Unlinked, A) == [began_s]
    world.wait(10.0)
    assert (A, B) not in world.links()
    world.heal(A, B)
    world.wait(0.001)
    assert world.links() == set(PAIRS)


def test_nothing_that_was_sent_on_an_earlier_link_arrives_on_a_later_one(world):
    world.network.set_link(A, B, Link(latency_s=(2.0, 2.0)))
    world.wait(3.0)
    world.cut(A, B)
    world.heal(A, B)
    healed_s = world.now_s
    world.wait(5.0)
    first_s, *_ = world.nodes[B].heard(A, healed_s)
    assert first_s >= healed_s + 2.0


def test_others_hear_of_a_crash_behind_what_was_sent_before_it(world):
    world.network.set_link(A, B, Link(latency_s=(1.0, 1.0)))
    world.wait(2.0)
    crashed_s = world.now_s
    world.crash(A)
    world.wait(2.0)
    assert world.nodes[B].heard(A, crashed_s)
    ended_s, gone_s = world.nodes[B].times(ev.Unlinked, A)
    assert max(world.nodes[B].heard(A, crashed_s)) <= ended_s
    assert ended_s == pytest.approx(crashed_s + 1.0, abs=0.1)
    assert gone_s == pytest.approx(ended_s + GONE_S, abs=0.01), "its system refuses connections"


def test_last_word_of_a_process_is_lost_in_silence_and_comes_behind_it(world):
    world.block(A, B)
    world.crash(A)
    world.wait(2.0)
    assert world.nodes[B].times(ev.Unlinked, A) == []
    assert world.nodes[C].times(ev.Unlinked, A)
    world.unblock(A, B)
    world.wait(1.0)
    assert world.nodes[B].times(ev.Unlinked, A)


def test_node_that_comes_back_is_linked_anew_with_all_who_had_noticed(world):
    world.crash(A)
    world.bounce(A)
    world.wait(2.0)
    assert world.links() == set(PAIRS)
    assert len(world.nodes[B].times(ev.Linked, A)) == 2
    assert len(world.nodes[A].times(ev.Linked, B)) == 1


def test_frozen_node_stays_linked_and_hears_everything_when_it_thaws(world):
    froze_s = world.now_s
    world.freeze(B)
    world.wait(8.0)
    assert world.links() == set(PAIRS)
    assert not world.nodes[B].heard(A, froze_s)
    world.thaw(B)
    world.wait(0.001)
    assert len(world.nodes[B].heard(A, froze_s)) >= 15


def test_verbs_that_ask_for_what_is_so_already_do_nothing(world):
    world.crash(C)
    digest = world.trace_hash
    world.crash(C)
    world.freeze(C)
    world.thaw(A)
    assert world.trace_hash == digest


def test_peer_with_too_many_faults_has_no_link_for_a_while(world):
    faulty_s = world.now_s
    for _ in range(STRIKES_MAX):
        world.accuse(world.nodes[B], A, "made up")
    world.wait(PAUSE_S - 0.5)
    assert world.nodes[A].times(ev.Unlinked, B)
    assert (A, B) not in world.links()
    assert (B, A) not in world.links()
    world.wait(0.5 + BRIEF_S + 0.2)
    assert world.links() == set(PAIRS)
    assert world.faults == [(A, "made up")] * STRIKES_MAX
    assert min(t for t in world.nodes[B].times(ev.Linked, A) if t > faulty_s) > faulty_s + PAUSE_S


# Slow ways --------------------------------------------------------------------------------------


def test_thin_link_carries_a_round_late_but_whole(seed):
    # Half of a contribution goes to each, 6 KiB: most of a second, and so do the results.
    link = Link(latency_s=(0.05, 0.05), bytes_per_s=8000.0)
    manifest = toy_manifest(A, rounds=8, cells=6)
    timing = replace(manifest.timing, deadline_floor_s=6.0, deadline_cap_s=20.0)
    manifest = replace(manifest, timing=timing)
    world = World(manifest, seed=seed, link=link, settings=WorldSettings(linger_s=60.0))
    world.join(A, config=replace(round_config(manifest), wait_seats=1))
    world.join(B)
    world.run(lambda: all(node.round == 8 for node in world.nodes.values()), 300.0)
    assert world.faults == []
    last = world.nodes[A].core.chain[-1].value
    assert len(last.commits) == 2
    assert world.now_s > 7 * (0.8 + 0.7 + 0.7), "it is slower than training alone"


def test_long_transfer_arrives_in_pieces_and_what_came_before_a_break_stays(seed, monkeypatch):
    # Anchor and momentum: 48 KiB, so twelve seconds.
    link = Link(latency_s=(0.05, 0.05), bytes_per_s=1e6)
    world = three(ListeningWorld(toy_manifest(A, rounds=10_000, cells=6), seed=seed, link=link))
    world.network.set_link(A, B, Link(latency_s=(0.05, 0.05), bytes_per_s=4096.0))
    sender, taker = world.nodes[A], world.nodes[B]
    assert isinstance(sender, ListeningNode)
    assert isinstance(taker, ListeningNode)
    certificate = sender.core.chain[-1]
    world.freeze(C)
    noise_N = np.random.default_rng(seed).standard_normal(6 * 1024).astype(np.float32)
    # A state of which the taker has nothing, and that no round of its own does away with.
    state = sender.store.make_state(noise_N, {"momentum": noise_N[::-1].copy()})
    value = replace(certificate.value, before=bytes(32), root=state.root)
    certificate = replace(certificate, value=value)
    sender.store._states[state.root] = state
    monkeypatch.setattr(sender.core, "sealed", lambda digest: certificate)
    monkeypatch.setattr(taker.transfers, "forget", lambda: None)
    taker.gathered.expect_state(certificate)
    cells = tuple(range(sender.store.num_state_cells))
    sender.transfers.push(ev.Push(B, Bulk.STATE, certificate.value.digest, cells))
    here = []
    for _ in range(3):
        world.wait(2.0)
        here.append(len(taker.gathered._cells))
    assert 0 < here[0] < here[1] < here[2] < len(cells)
    assert len(taker.times(ev.BytesArrived, A)) >= here[2], "bytes are a sign of life"
    world.cut(A, B)
    world.wait(15.0)
    assert here[2] <= len(taker.gathered._cells) < len(cells)
