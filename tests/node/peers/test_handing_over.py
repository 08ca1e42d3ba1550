"""Who is needed for its vote, and until when it works on."""

from node.holdings.states import round_config
from node.peers.leaving import HandingOver
from protocol import events as ev
from protocol.core.node_core import NodeCore
from protocol.frames import Heartbeat
from protocol.identity import KeyedHashSigner, PeerId
from protocol.messages import Kind, Leave, sign_message
from tests.node.builders import head_of, peers_named, toy_manifest

ME, B, C, D, STRANGER = peers_named(5)
MANIFEST = toy_manifest(ME)
HEAD_ROUND = 4


class Wishing:
    """A node that wants to leave, in the round behind round 4."""

    def __init__(self, voters: tuple[PeerId, ...], others: tuple[PeerId, ...] = ()):
        head = head_of(voters, others)
        config = round_config(MANIFEST)
        self.core = NodeCore(MANIFEST, config, KeyedHashSigner(ME), head, now_s=0.0)
        self.handing = HandingOver(self.core)

    def hears(self, *peers: PeerId) -> "Wishing":
        for peer in peers:
            self.core.handle(ev.Linked(peer), 0.0)
            beat = Heartbeat(round=HEAD_ROUND + 1, head=bytes(32), held=(), links=())
            self.core.handle(ev.FrameArrived(peer, beat), 0.0)
        return self

    def hears_leave(self, peer: PeerId) -> None:
        body = Leave(reason="")
        slot = self.core.machine.view.slot(Kind.LEAVE)
        message = sign_message(KeyedHashSigner(peer), slot, body)
        self.core.machine.handle(ev.Heard(message, body), 0.0)


def test_only_voter_is_needed_and_its_linked_members_are_the_heirs():
    node = Wishing((ME,), (B, C)).hears(B, STRANGER)
    assert node.handing.is_needed
    assert node.handing.heirs == {B}
    assert node.handing.is_due


def test_only_voter_with_nobody_to_hand_its_vote_to_does_not_wait():
    for node in (Wishing((ME,), (B,)), Wishing((ME,)).hears(STRANGER)):
        assert node.handing.is_needed
        assert not node.handing.is_due


def test_whoever_asks_for_a_seat_is_an_heir():
    node = Wishing((ME,)).hears(STRANGER)
    node.core.machine.view.seats.proven.add(STRANGER)
    assert node.handing.is_due


def test_voter_that_the_others_do_not_need_goes():
    assert not Wishing((ME, B, C)).hears(B, C).handing.is_needed
    assert not Wishing((B, C), (ME,)).hears(B, C).handing.is_needed


def test_voter_whose_going_leaves_no_quorum_is_needed():
    node = Wishing((ME, B, C, D)).hears(B, C)
    eldest = min(ME, B, C, D)  # All have voted equally long: half of them are enough with it.
    assert node.handing.is_needed is (eldest not in (B, C))
    assert Wishing((ME, B, C)).hears(B).handing.is_needed


def test_where_no_quorum_is_in_reach_nobody_is_held_up():
    assert not Wishing((ME, B, C)).handing.is_needed


def test_whoever_leaves_as_well_is_no_heir_and_no_quorum():
    node = Wishing((ME, B, C)).hears(B, C)
    was_needed = node.handing.is_needed
    node.hears_leave(C)
    assert not was_needed
    assert node.handing.is_needed
    assert node.handing.heirs == {B}
    node.hears_leave(B)
    assert not node.handing.is_due


def test_suspected_peers_are_no_quorum():
    node = Wishing((ME, B, C)).hears(B, C)
    node.core.machine.handle(ev.SuspicionsChanged(frozenset({C})), 0.0)
    assert node.handing.is_needed


def test_own_leave_is_what_the_next_commit_says():
    node = Wishing((ME, B, C)).hears(B, C)
    node.core.handle(ev.Leaving(), 0.0)
    assert node.core.machine.left == {ME}
