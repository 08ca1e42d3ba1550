"""Who is waited for behind the last round, and for how long."""

from node.holdings.states import round_config
from node.peers.leaving import LAST_BEAT_S, Lingering
from protocol import events as ev
from protocol.core.node_core import NodeCore
from protocol.frames import Heartbeat
from protocol.identity import KeyedHashSigner
from protocol.messages import Kind, Leave, sign_message
from protocol.rounds.ballots import BallotEntry
from tests.node.builders import head_of, peers_named, toy_manifest

ME, B, C, STRANGER = peers_named(4)
MANIFEST = toy_manifest(ME)
BEAT_S = MANIFEST.timing.heartbeat_s + LAST_BEAT_S


class Ended:
    """A node whose run is over with a roster of these peers, from second 0 on."""

    def __init__(self, *members, is_resumed=False):
        head = head_of(members)
        config = round_config(MANIFEST)
        self.core = NodeCore(MANIFEST, config, KeyedHashSigner(ME), head, now_s=0.0)
        self.last = head.value.round
        self.lingering = Lingering(self.core, now_s=0.0, is_resumed=is_resumed)

    def hears(self, peer, round_index):
        self.core.handle(ev.Linked(peer), 0.0)
        beat = Heartbeat(round=round_index, head=bytes(32), held=(), links=())
        self.core.handle(ev.FrameArrived(peer, beat), 0.0)

    def goes(self, peer):
        self.core.handle(ev.Unlinked(peer), 0.0)

    def is_needed(self, now_s=BEAT_S):
        return self.lingering.is_needed(now_s)


def test_lone_node_goes_at_once():
    assert not Ended(ME).is_needed(0.0)


def test_whoever_has_a_seat_and_is_not_here_is_waited_for():
    node = Ended(ME, B, C)
    node.hears(B, node.last + 1)
    assert node.is_needed()
    node.hears(C, node.last)
    assert node.is_needed()
    node.hears(C, node.last + 1)
    assert not node.is_needed()


def test_whoever_was_seen_behind_the_end_may_go():
    node = Ended(ME, B)
    node.hears(B, node.last + 1)
    assert node.is_needed(0.0)
    node.goes(B)
    assert not node.is_needed()


def test_whoever_died_in_the_last_round_is_not_taken_for_one_that_went():
    node = Ended(ME, B)
    node.hears(B, node.last)
    assert node.is_needed()
    node.goes(B)
    assert node.is_needed(1000.0)


def test_peers_hear_of_our_end_before_we_go():
    node = Ended(ME, B)
    node.hears(B, node.last + 1)
    assert node.is_needed(0.0)
    assert node.is_needed(MANIFEST.timing.heartbeat_s)
    assert not node.is_needed(BEAT_S)


def test_linked_peer_without_a_seat_is_served():
    node = Ended(ME)
    node.hears(STRANGER, node.last - 2)
    assert node.is_needed()
    node.goes(STRANGER)
    assert not node.is_needed()


def test_whoever_left_is_not_waited_for():
    node = Ended(ME, B)
    view = node.core.machine.view
    message = sign_message(KeyedHashSigner(B), view.slot(Kind.LEAVE), Leave(reason=""))
    assert node.is_needed()
    view.ballots.add(BallotEntry(message, Leave(reason="")))
    assert not node.is_needed()


def test_node_that_was_started_again_behind_the_end_stays_for_whoever_comes():
    node = Ended(ME, is_resumed=True)
    assert node.is_needed(1000.0)
