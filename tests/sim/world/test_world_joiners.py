"""R11 where a state takes long: it is fetched to its end, once, and nobody chases the swarm."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from node.holdings.states import round_config
from node.reporting.tracing import Synced
from protocol import events as ev
from protocol.frames import Bulk, BulkHeader, wants
from sim.world.links import Link
from sim.world.traffic import Transfers
from sim.world.world import SimNode, World, WorldSettings
from tests.node.builders import peers_named, toy_manifest

PEERS = peers_named(5)
JOINER = PEERS[4]
CELLS = 24
STATE_BYTES = 2 * 4 * (CELLS * 1024 - 100)
JOINS_AT = 20
"""So late that the rounds before are not stepped through from genesis."""
NEWEST_THEN = range(JOINS_AT - 1, JOINS_AT + 2)
"""One node has sealed the round in which it joins, and those whom it asks may be a round behind."""


class Swarm:
    """Four nodes well under way, and a fifth that joins them."""

    def __init__(self, seed: int, *, state_bytes_per_s: float = 0.0, monkeypatch) -> None:
        manifest = toy_manifest(PEERS[0], rounds=80, cells=CELLS)
        settings = WorldSettings(linger_s=1e9, state_bytes_per_s=state_bytes_per_s)
        link = Link(latency_s=(0.01, 0.05))
        self.world = World(manifest, seed=seed, link=link, settings=settings)
        self.world.join(PEERS[0], config=replace(round_config(manifest), wait_seats=3))
        for peer in PEERS[1:4]:
            self.world.join(peer)
        self.world.run(lambda: self.newest >= JOINS_AT, 200.0)
        self.synced: list[int] = []
        self.state_bytes = 0
        self.sources: set[bytes] = set()
        self.world.tracers.append(self._saw)
        self._count(monkeypatch)

    def _saw(self, record) -> None:
        if isinstance(record, Synced) and record.peer == JOINER:
            assert record.root == record.certificate.value.root
            self.synced.append(record.certificate.value.round)

    def _count(self, monkeypatch) -> None:
        served = Transfers._served

        def counted(transfers: Transfers, due: ev.Push):
            items = served(transfers, due)
            if due.bulk is Bulk.STATE and items:
                self.state_bytes += sum(len(item.payload) for item in items)
                self.sources.add(transfers._node.peer)
            return items

        monkeypatch.setattr(Transfers, "_served", counted)

    @property
    def newest(self) -> int:
        return max(node.round for node in self.world.nodes.values())

    @property
    def joiner(self) -> SimNode:
        return self.world.nodes[JOINER]

    def join(self) -> None:
        self.world.join(JOINER)

    def until(self, is_so: Callable[[], bool], max_s: float = 120.0) -> None:
        self.world.run(is_so, max_s)

    def until_seated(self) -> None:
        def is_seated() -> bool:
            nodes = self.world.nodes.values()
            head = max(
                (node.core.machine.head for node in nodes),
                key=lambda head: head.round,
            )
            return JOINER in head.roster.members

        self.until(is_seated)

    @property
    def fetched_bytes(self) -> int:
        joiner = self.joiner
        progress = joiner.core.catchup.progress(joiner.clock.own_s(self.world.now_s))
        return progress.done if progress and progress.what == "state" else 0


@pytest.mark.extended
def test_state_that_takes_many_rounds_is_fetched_once_and_the_rounds_are_stepped(seed, monkeypatch):
    swarm = Swarm(seed, state_bytes_per_s=750.0, monkeypatch=monkeypatch)
    swarm.join()
    swarm.until_seated()
    first, *behind = swarm.synced
    assert first in NEWEST_THEN
    assert behind, "it steps from there"
    assert swarm.newest - first >= 6, "the state took so long"
    # Each cell once, but for some of the last, which are not waited for.
    assert swarm.state_bytes <= STATE_BYTES * 1.35
    assert swarm.sources == set(PEERS[:4])
    assert swarm.world.faults == []
    # What it has is what all have.
    swarm.until(lambda: swarm.joiner.round >= swarm.synced[-1] + 3)
    index = swarm.joiner.round
    swarm.until(lambda: all(index in node.anchors for node in swarm.world.nodes.values()))
    assert len({node.anchors[index] for node in swarm.world.nodes.values()}) == 1


@pytest.mark.extended
def test_source_that_dies_costs_nothing_of_what_it_gave(seed, monkeypatch):
    swarm = Swarm(seed, state_bytes_per_s=4000.0, monkeypatch=monkeypatch)
    swarm.join()
    swarm.until(lambda: swarm.fetched_bytes > STATE_BYTES // 2)
    swarm.world.crash(PEERS[3])
    swarm.until_seated()
    assert swarm.synced[0] in NEWEST_THEN
    # What was under way from the dead one, and at the end a cell or two for the sake of speed.
    assert swarm.state_bytes <= STATE_BYTES * 1.35


@pytest.mark.extended
def test_restart_in_the_middle_goes_on_with_what_is_on_the_disk(seed, monkeypatch):
    swarm = Swarm(seed, state_bytes_per_s=4000.0, monkeypatch=monkeypatch)
    swarm.join()
    swarm.until(lambda: swarm.fetched_bytes > STATE_BYTES * 0.75)
    wanted = swarm.joiner.core.catchup.wanted
    assert wanted is not None
    swarm.joiner.disk.crash = lambda **_: None  # type: ignore[method-assign]  # killed, no power cut
    swarm.world.bounce(JOINER)
    swarm.until_seated()
    assert swarm.synced[0] == wanted.value.round, "it goes on with what it began"
    # From the start again would be 1.75 and more; what was under way is lost.
    assert swarm.state_bytes <= STATE_BYTES * 1.5


@pytest.mark.extended
def test_power_cut_in_the_middle_does_no_harm(seed, monkeypatch):
    swarm = Swarm(seed, state_bytes_per_s=8000.0, monkeypatch=monkeypatch)
    swarm.join()
    for share in (4, 2):
        enough = STATE_BYTES // share
        swarm.until(lambda enough=enough: swarm.fetched_bytes > enough)  # type: ignore[misc]
        swarm.world.crash(JOINER)
        swarm.joiner.disk.crash(is_power_off=True)
        swarm.world.bounce(JOINER)
    swarm.until_seated()
    assert swarm.world.faults == []


@pytest.mark.extended
def test_silent_source_loses_its_cells_and_the_joiner_waits_for_nobody(seed, monkeypatch):
    swarm = Swarm(seed, monkeypatch=monkeypatch)
    swarm.world.set_link(PEERS[2], JOINER, Link(latency_s=(0.01, 0.05), bytes_per_s=50.0))
    began_s = swarm.world.now_s
    swarm.join()
    swarm.until(lambda: bool(swarm.synced))
    assert swarm.world.now_s - began_s < 12.0
    swarm.until_seated()


@pytest.mark.extended
def test_everything_that_a_joiner_is_told_is_of_one_seal_at_a_time(seed, monkeypatch):
    subjects: list[bytes] = []
    sent = Transfers._send

    def counted(transfers, wire, header: BulkHeader, items, pause_s):
        if header.bulk is Bulk.STATE and header.subject not in subjects:
            subjects.append(header.subject)
        return sent(transfers, wire, header, items, pause_s)

    monkeypatch.setattr(Transfers, "_send", counted)
    swarm = Swarm(seed, state_bytes_per_s=4000.0, monkeypatch=monkeypatch)
    swarm.join()
    swarm.until_seated()
    assert len(subjects) == 1


@pytest.mark.quick(1)
@pytest.mark.parametrize("bulk", [Bulk.STATE, Bulk.STEP])
def test_peer_that_asks_for_what_is_not_there_gets_nothing(seed, monkeypatch, bulk):
    swarm = Swarm(seed, monkeypatch=monkeypatch)
    node = swarm.world.nodes[PEERS[0]]
    (want,) = wants(bulk, b"x" * 32, (0, 1))
    node.tell(ev.FrameArrived(PEERS[1], want))
    oldest = node.core.chain[1].value.digest
    node.tell(ev.FrameArrived(PEERS[1], replace(want, subject=oldest)))
    assert swarm.world.faults == []
    assert swarm.state_bytes == 0
