"""How processes of a world begin and end, what they sign with, and one trace for one seed."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from node.daemon.running import LEAVE_S
from node.holdings.states import round_config
from node.reporting.tracing import Adopted, Began, Ended, Record, Signed
from protocol import events as ev
from protocol.identity import Ed25519Signer, PeerId
from protocol.messages import Kind, is_signed
from sim.world.disk import DiskSpec
from sim.world.links import Link
from sim.world.nodes import signer_named
from sim.world.world import Device, World, WorldSettings
from tests.node.builders import peers_named, toy_manifest

ROOT = Path(__file__).parents[3]
A, B, C = peers_named(3)

HARD = """
from tests.sim.world.test_world_processes import hard_world
print(hard_world({seed}).trace_hash)
"""


class TracedWorld(World):
    """Keeps its records."""

    def __init__(self, manifest, **fields) -> None:
        super().__init__(manifest, **fields)
        self.records: list[Record] = []
        self.tracers.append(self.records.append)

    def of(self, kind, peer=None):
        return [r for r in self.records if type(r) is kind and peer in (None, r.peer)]

    def until_round(self, index: int, *peers: PeerId) -> None:
        self.run(lambda: all(self.nodes[peer].round >= index for peer in peers), 200.0)

    def wait(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        self.run(lambda: self.now_s >= end_s, seconds + 1.0)


def traced(*peers: PeerId, seed: int, rounds: int = 8, **fields) -> TracedWorld:
    """A world whose founder is the first of the peers, and waits for all."""
    world = TracedWorld(toy_manifest(peers[0], rounds=rounds), seed=seed, **fields)
    config = round_config(world.manifest)
    for peer in peers:
        world.join(peer, config=replace(config, wait_seats=len(peers) - 1))
    return world


def hard_world(seed: int) -> TracedWorld:
    """Some of everything that a world can do, until a few rounds are through."""
    link = Link(loss=0.02, duplication=0.02, reordering=0.05, clog=0.002, spread="lognormal")
    device = Device(nap=0.05, clock_rate=1.01)
    settings = WorldSettings(is_encoding=True, rare=0.01, disk=DiskSpec(fail=0.0005))
    world = traced(A, B, C, seed=seed, rounds=30, link=link, device=device, settings=settings)
    world.later(6.0, lambda: world.partition([[A, B], [C]]))
    world.later(9.0, world.repair)
    for at_s in (10.0, 25.0):
        world.later(at_s, lambda: world.bounce(B))
    world.later(14.0, lambda: world.freeze(C))
    world.later(20.0, lambda: world.thaw(C))
    world.wait(40.0)
    return world


# One seed, one trace ----------------------------------------------------------------------------


@pytest.mark.extended
def test_one_seed_gives_one_trace_in_one_process_and_under_any_hash_seed(seed):
    while len((world := hard_world(seed)).of(Adopted)) <= 3:
        seed += 1  # Its disks fail before anything happens, and that shows nothing.
    traces = {world.trace_hash, hard_world(seed).trace_hash}
    for hash_seed in ("1", "54321"):
        again = subprocess.run(
            [sys.executable, "-P", "-c", HARD.format(seed=seed)],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        traces.add(again.stdout.strip())
    assert len(traces) == 1
    assert hard_world(seed + 1).trace_hash not in traces


@pytest.mark.extended
def test_every_verb_is_in_the_trace(seed):
    def after(verb) -> str:
        world = traced(A, B, seed=seed)
        world.until_round(2, A, B)
        verb(world)
        return world.trace_hash

    verbs = [
        lambda world: None,
        lambda world: world.crash(B),
        lambda world: world.bounce(B),
        lambda world: (world.crash(B), world.lose_disk(B)),
        lambda world: world.freeze(B),
        lambda world: (world.freeze(B), world.thaw(B)),
        lambda world: world.leave(B),
        lambda world: world.cut(A, B),
        lambda world: world.heal(A, B),
        lambda world: world.block(A, B),
        lambda world: world.block(B, A),
        lambda world: world.unblock(A, B),
        lambda world: world.partition([[A], [B]]),
        lambda world: world.repair(),
        lambda world: world.hold(A, B),
        lambda world: world.release(A, B),
        lambda world: world.clog(A, B, 1.0),
        lambda world: world.clog(A, B, 2.0),
        lambda world: world.fill_disk(B),
        lambda world: world.free_disk(B),
        lambda world: world.join(C),
    ]
    assert len({after(verb) for verb in verbs}) == len(verbs)


def test_new_node_changes_no_others_luck(seed):
    latencies = []
    for peers in ((A, B), (A, B, C)):
        world = World(toy_manifest(A), seed=seed)
        for peer in peers:
            world.join(peer)
        way = world.network.direction(A, B)
        latencies.append((way.frame_times(0.0), way.bulk_times(100, 0.0)))
    assert latencies[0] == latencies[1]


# Signatures, encoding ---------------------------------------------------------------------------


def test_real_signatures_are_of_the_keys_that_the_peers_are_named_by(seed):
    settings = WorldSettings(is_signing_for_real=True)
    founder = signer_named("a").peer_id
    world = TracedWorld(toy_manifest(founder, rounds=4), seed=seed, settings=settings)
    assert world.peer("a") == founder
    world.join(founder)
    world.join(world.peer("b"))
    world.until_round(4, *world.nodes)
    anybody = Ed25519Signer(bytes(32))
    messages = [record.message for record in world.of(Signed)]
    assert {message.sender for message in messages} == set(world.nodes)
    assert all(is_signed(message, anybody) for message in messages)


def test_wire_encoding_of_all_frames_changes_nothing(seed):
    traces = set()
    for is_encoding in (False, True):
        settings = WorldSettings(is_encoding=is_encoding)
        world = traced(A, B, seed=seed, settings=settings)
        world.until_round(3, A, B)
        world.join(C)  # So that chain and state travel too.
        world.until_round(8, A, B, C)
        assert len(world.of(Signed)) > 40
        traces.add(world.trace_hash)
    assert len(traces) == 1


@pytest.mark.extended
def test_rare_branches_are_taken_and_the_run_comes_to_its_end_all_the_same(seed):
    settings = WorldSettings(rare=0.02)
    world = traced(A, B, C, seed=seed, rounds=12, settings=settings)
    world.run(lambda: max(node.round for node in world.nodes.values()) == 12, 400.0)
    calm = traced(A, B, C, seed=seed, rounds=12)
    calm.until_round(12, A, B, C)
    assert world.trace_hash != calm.trace_hash


# Beginning and ending ---------------------------------------------------------------------------


def test_node_asks_for_a_seat_once_its_trainer_is_up(seed):
    world = traced(A, B, seed=seed, device=Device(ready_s=(3.0, 3.0)))
    world.until_round(1, A, B)
    (asked,) = [r for r in world.of(Signed, B) if r.message.slot.kind is Kind.SEAT][:1]
    assert asked.at_s >= 3.0


@pytest.mark.extended
def test_leaver_says_so_and_is_gone_a_moment_later(seed):
    world = traced(A, B, C, seed=seed, rounds=20)
    world.until_round(4, A, B, C)
    left_s = world.now_s
    world.leave(C)
    world.until_round(8, A, B)
    (ended,) = world.of(Ended, C)
    assert (ended.reason, ended.at_s) == ("left", pytest.approx(left_s + LEAVE_S))
    assert [r for r in world.of(Signed, C) if r.message.slot.kind is Kind.LEAVE]
    assert not world.nodes[C].is_alive
    assert not world.nodes[C].is_over
    assert C not in world.nodes[A].core.machine.view.members
    world.bounce(C)
    world.until_round(12, C)
    world.until_round(20, A, B, C)


def test_nodes_go_when_nobody_needs_them_for_the_last_round(seed):
    world = traced(A, B, seed=seed)
    world.until_round(8, A, B)
    done_s = world.now_s
    world.run(lambda: not any(node.is_alive for node in world.nodes.values()), 20.0)
    assert [record.reason for record in world.of(Ended)] == ["finished"] * 2
    assert world.now_s - done_s < 5.0
    assert all(node.is_over for node in world.nodes.values())


def test_peer_that_is_behind_is_served_but_not_for_ever(seed):
    world = traced(A, B, seed=seed, settings=WorldSettings(linger_s=6.0))
    world.until_round(7, A, B)
    world.freeze(B)
    world.until_round(8, A)
    done_s = world.now_s
    world.run(lambda: not world.nodes[A].is_alive, 60.0)
    assert world.now_s - done_s == pytest.approx(6.0, abs=0.5)


def test_full_disk_ends_the_process_with_its_reason_and_with_room_it_goes_on(seed):
    world = traced(A, B, C, seed=seed, rounds=20)
    world.until_round(4, A, B, C)
    signed = len(world.of(Signed, C))
    world.fill_disk(C)
    world.run(lambda: not world.nodes[C].is_alive, 20.0)
    (ended,) = world.of(Ended, C)
    assert ended.reason == "disk: No space left on device"
    assert len(world.of(Signed, C)) == signed, "nothing is said that is not on the disk"
    world.until_round(6, A, B)
    assert C not in world.nodes[A].wires
    world.bounce(C)
    assert not world.nodes[C].is_alive, "it needs room to begin"
    assert world.nodes[A].is_alive
    world.free_disk(C)
    world.bounce(C)
    world.until_round(20, A, B, C)


def test_disk_that_fails_now_and_then_ends_processes_and_never_the_world(seed):
    settings = WorldSettings(disk=DiskSpec(fail=0.006), linger_s=math.inf)
    world = traced(A, B, C, seed=seed, rounds=12, settings=settings)

    def restart() -> None:
        for peer, node in sorted(world.nodes.items()):
            if not node.is_alive:
                world.bounce(peer)
        world.later(1.0, restart)

    restart()
    world.run(lambda: all(node.round == 12 for node in world.nodes.values()), 2000.0)
    assert world.of(Ended)
    assert {record.reason for record in world.of(Ended)} == {"disk: Input/output error"}


def test_restart_tells_where_it_goes_on_and_whether_signatures_are_missing(seed):
    world = traced(A, B, C, seed=seed, rounds=30)
    world.until_round(5, A, B, C)
    world.crash(C)
    world.bounce(C)
    first, second = world.of(Began, C)
    assert (first.round, first.is_lost) == (1, False)
    assert second.round >= 5
    assert not second.is_lost
    world.crash(C)
    world.lose_disk(C)
    world.bounce(C)
    third = world.of(Began, C)[2]
    assert (third.round, third.is_lost) == (1, True)
    assert world.nodes[C].core.machine.has_forgotten
    world.until_round(30, A, B, C)
    world.crash(C)
    world.bounce(C)
    assert not world.of(Began, C)[3].is_lost, "the loss is settled, on the disk too"


def test_record_of_a_signature_comes_before_anything_leaves(seed):
    world = traced(A, B, seed=seed)
    sent: list[bytes] = []

    def trigger(_: World, node, action: ev.CoreAction | None) -> None:
        told = {record.message.digest for record in world.of(Signed, node.peer)}
        if isinstance(action, ev.Send | ev.SendAll):
            for message in getattr(action.frame, "messages", ()):
                if message.sender == node.peer:
                    sent.append(message.digest)
                    assert message.digest in told

    world.triggers.append(trigger)
    world.until_round(3, A, B)
    assert len(set(sent)) > 10


# The end of a run -------------------------------------------------------------------------------


def test_whoever_dies_in_the_last_round_and_comes_back_soon_finds_the_end(seed):
    world = traced(A, B, C, seed=seed)
    world.until_round(7, A, B, C)
    world.crash(C)
    world.until_round(8, A, B)
    world.later(4.0, lambda: world.bounce(C))
    world.run(lambda: world.nodes[C].round == 8, 60.0)
    world.run(lambda: all(node.is_over for node in world.nodes.values()), 60.0)


@pytest.mark.parametrize("peers", [(A, B, C), (A,)], ids=["through", "alone"])
def test_nobody_waits_long_for_those_who_are_through_or_alone(seed, peers):
    world = traced(*peers, seed=seed)
    world.until_round(8, *peers)
    ended_s = world.now_s
    world.run(lambda: all(node.is_over for node in world.nodes.values()), 60.0)
    assert world.now_s - ended_s < 3.0


def test_whoever_does_not_come_back_is_waited_for_no_longer_than_said(seed):
    world = traced(A, B, C, seed=seed)
    world.until_round(7, A, B, C)
    world.crash(C)
    world.until_round(8, A, B)
    ended_s = world.now_s
    world.run(lambda: world.nodes[A].is_over and world.nodes[B].is_over, 60.0)
    assert world.now_s - ended_s < world.settings.linger_s + 6.0
