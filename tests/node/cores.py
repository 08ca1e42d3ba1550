"""Cores of a toy run for tests, and what came of an event."""

from protocol import events as ev
from protocol.core.node_core import NodeCore
from protocol.frames import Frame, Heartbeat, Messages
from protocol.identity import KeyedHashSigner, PeerId
from protocol.messages import Kind, SealCertificate
from protocol.rounds.chain import genesis
from tests.node.builders import CONFIG, ROOT, head_of, peers_named, toy_manifest

A, B, C, D = peers_named(4)
MANIFEST = toy_manifest(A, rounds=100)
GENESIS = genesis(MANIFEST, 0, ROOT)
HEAD = head_of((A, B, C))


def core_of(me: PeerId, *linked: PeerId, head: SealCertificate = HEAD) -> NodeCore:
    """A node that goes on from `head`, with these links."""
    core = NodeCore(MANIFEST, CONFIG, KeyedHashSigner(me), head, now_s=0.0)
    core.start(0.0)
    for peer in linked:
        core.handle(ev.Linked(peer), 0.0)
    return core


def sent(actions, kind: type[Frame]) -> list[tuple[PeerId, Frame]]:
    frames = [a for a in actions if isinstance(a, ev.Send | ev.SendAll)]
    return [(to, a.frame) for a in frames if isinstance(a.frame, kind) for to in peers_of(a)]


def peers_of(action: ev.Send | ev.SendAll) -> tuple[PeerId, ...]:
    return action.peers if isinstance(action, ev.SendAll) else (action.peer,)


def recorded(actions, kind: Kind | None = None):
    return [
        action.message
        for action in actions
        if isinstance(action, ev.RecordSlot) and kind in (None, action.message.slot.kind)
    ]


def faults(actions) -> list[str]:
    return [action.reason for action in actions if isinstance(action, ev.Fault)]


def hand(core: NodeCore, source: PeerId, *heard: ev.Heard, now_s: float = 0.0):
    frame = Messages(messages=tuple(event.message for event in heard))
    return core.handle(ev.FrameArrived(source, frame), now_s)


def run_idle(core: NodeCore, start_s: float, stop_s: float, hears: tuple[PeerId, ...] = ()):
    """Tick often; the actions that came of it."""
    actions = []
    beat = Heartbeat(round=5, head=HEAD.value.digest, held=(), links=())
    for step in range(1, round((stop_s - start_s) / 0.125) + 1):
        now_s = start_s + 0.125 * step
        actions += core.handle(ev.Tick(), now_s)
        for peer in hears:
            actions += core.handle(ev.FrameArrived(peer, beat), now_s)
    return actions


def ahead(core: NodeCore, peer: PeerId, working_on: int, now_s: float = 0.0):
    beat = Heartbeat(round=working_on, head=ROOT, held=(), links=())
    return core.handle(ev.FrameArrived(peer, beat), now_s)
