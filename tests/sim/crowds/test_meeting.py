"""The shipped Kademlia on a heap: everybody finds everybody, also when a third is gone unheard."""

import random

import pytest

from protocol.identity import PeerId
from sim.crowds.strangers import Found, Meeting, MeetingSettings

NUM_NODES = 48
NUM_WRITERS = 10
TOPIC = b"a run"


def meeting_of(num_nodes: int, *, seed: int, settings: MeetingSettings | None = None):
    """A meeting that everybody has entered through the first node; and all peers."""
    meeting = Meeting(settings or MeetingSettings(), seed=seed)
    first = meeting.join("0", [])
    peers = [first.peer]
    for index in range(1, num_nodes):
        meeting.timeline.run_until(meeting.timeline.now_s + 0.1)
        peers.append(meeting.join(str(index), [first.peer]).peer)
    meeting.timeline.run_until(meeting.timeline.now_s + 20.0)
    return meeting, peers


def announce(meeting: Meeting, peers: list[PeerId], *, ttl_s: float = 3600.0) -> list[PeerId]:
    writers = peers[1 : 1 + NUM_WRITERS]
    for index, peer in enumerate(writers):
        meeting.nodes[peer].announce(TOPIC, b"%d" % index, ttl_s=ttl_s)
    meeting.timeline.run_until(meeting.timeline.now_s + 10.0)
    return writers


def search(meeting: Meeting, peers: list[PeerId]) -> list[Found]:
    found: list[Found] = []
    for peer in peers:
        meeting.nodes[peer].find(TOPIC, found.append)
    meeting.timeline.run_until(meeting.timeline.now_s + 20.0)
    assert len(found) == len(peers), "a search never ended"
    return found


def writers_in(found: Found) -> set[PeerId]:
    return {record.writer for record in found.records}


def test_everybody_finds_all_writers(seed):
    meeting, peers = meeting_of(NUM_NODES, seed=seed)
    writers = announce(meeting, peers)
    for found in search(meeting, peers):
        assert writers_in(found) == set(writers)
        assert found.num_queries <= 24


@pytest.mark.extended
def test_third_that_vanishes_unheard_hides_nobody(seed):
    meeting, peers = meeting_of(NUM_NODES, seed=seed)
    writers = announce(meeting, peers)
    luck = random.Random(seed)
    for peer in luck.sample(peers, NUM_NODES // 3):
        meeting.vanish(peer)
    alive = [peer for peer in peers if meeting.nodes[peer].is_alive]
    for found in search(meeting, alive):
        assert writers_in(found) >= {peer for peer in writers if meeting.nodes[peer].is_alive}
        assert found.took_s < 8.0


@pytest.mark.extended
def test_what_nobody_renews_expires_and_what_is_renewed_stays(seed):
    meeting, peers = meeting_of(24, seed=seed)
    writers = announce(meeting, peers, ttl_s=120.0)
    gone, living = writers[: NUM_WRITERS // 2], writers[NUM_WRITERS // 2 :]
    for peer in gone:
        meeting.vanish(peer)
    meeting.timeline.run_until(meeting.timeline.now_s + 300.0)
    for found in search(meeting, [p for p in peers if meeting.nodes[p].is_alive]):
        assert writers_in(found) == set(living)


@pytest.mark.extended
def test_clocks_that_are_off_by_minutes_hide_nobody(seed):
    meeting, peers = meeting_of(24, seed=seed, settings=MeetingSettings(wall_skew_s=300.0))
    writers = announce(meeting, peers)
    for found in search(meeting, peers):
        assert writers_in(found) == set(writers)


@pytest.mark.extended
def test_lost_messages_cost_time_and_no_truth(seed):
    meeting, peers = meeting_of(24, seed=seed, settings=MeetingSettings(loss=0.05))
    writers = announce(meeting, peers)
    founds = search(meeting, peers)
    complete = sum(writers_in(found) == set(writers) for found in founds)
    assert complete >= 0.9 * len(founds)


@pytest.mark.extended
def test_network_that_loses_its_first_node_goes_on(seed):
    meeting, peers = meeting_of(24, seed=seed)
    meeting.vanish(peers[0])
    writers = announce(meeting, peers)
    newcomer = meeting.join("late", [peers[5]])
    meeting.timeline.run_until(meeting.timeline.now_s + 20.0)
    (found,) = search(meeting, [newcomer.peer])
    assert writers_in(found) == set(writers)


def test_node_that_is_told_only_of_a_dead_peer_enters_once_it_is_back(seed):
    meeting, peers = meeting_of(12, seed=seed)
    meeting.nodes[peers[0]].is_alive = False
    newcomer = meeting.join("late", [peers[0]])
    meeting.timeline.run_until(meeting.timeline.now_s + 30.0)
    assert not len(newcomer.kademlia.table)
    meeting.nodes[peers[0]].is_alive = True
    meeting.timeline.run_until(meeting.timeline.now_s + 30.0)
    assert len(newcomer.kademlia.table) >= 8


def test_bytes_of_the_wire_change_nothing(seed):
    def trace(is_encoding):
        settings = MeetingSettings(is_encoding=is_encoding)
        meeting, peers = meeting_of(12, seed=seed, settings=settings)
        announce(meeting, peers)
        return meeting.trace_hash

    assert trace(True) == trace(False)


@pytest.mark.extended
@pytest.mark.parametrize("loss", [0.0, 0.05])
def test_same_seed_gives_the_same_trace_and_another_does_not(seed, loss):
    def trace(number):
        meeting, peers = meeting_of(12, seed=number, settings=MeetingSettings(loss=loss))
        announce(meeting, peers)
        return meeting.trace_hash

    assert trace(seed) == trace(seed)
    assert trace(seed) != trace(seed + 1)
