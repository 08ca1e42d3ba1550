"""Who is linked with whom: conversations of two processes over the two directions between them.

As `node.peers.links` has them: the peer with the lower id opens, both ends know the link a message
apart, and a link that ended is tried again soon. What was sent on an earlier link never arrives on
a later one. A direction that is silent ends nobody's link before `Link.break_s` is over.
"""

from collections.abc import Iterable
from functools import partial

from protocol import events as ev
from protocol.frames import Frame, decode_frame, encode_frame
from protocol.identity import PeerId, short_id
from sim.world.links import Direction
from sim.world.nodes import Around, Session, SimNode, Wire

GONE_S = 0.1
"""Two looks of `dht.reaching.addresses` at a process that is not there any more."""

AGAIN_S = (0.25, 1.0)
"""From the end of a link to the next attempt, as the search of a node takes it."""

LAST_WORD_AGAIN_S = 0.5
"""How often the last word of a dead process is said again into a direction that is silent."""


class Sessions:
    """The conversations of a world."""

    def __init__(self, world: Around) -> None:
        self._world = world
        self._under_way: dict[tuple[PeerId, PeerId], Session] = {}

    def link(self, one: SimNode, other: SimNode, *, at_once: bool = False) -> None:
        """The two begin to speak; nothing if they do, or cannot. `at_once` needs no hello."""
        if other.peer < one.peer:
            one, other = other, one
        world, key = self._world, (one.peer, other.peer)
        if key in self._under_way or other.peer in one.wires or one.peer in other.wires:
            return
        is_possible = one.is_alive and other.is_alive and one is not other
        if not (is_possible and world.network.can_link(*key)):
            return
        if one.is_paused(other.peer) or other.is_paused(one.peer):
            return
        session = self._under_way[key] = Session(one, other)
        if at_once:
            world.push(world.now_s, other, self._take, other, session)
            world.push(world.now_s, one, self._take, one, session)
            return
        there = world.network.direction(*key)
        world.push(there.ordered_s(world.now_s), other, self._accept, session)

    def link_soon(self, one: PeerId, other: PeerId) -> None:
        """A new attempt of whoever stands for the two by then."""
        world, (low, high) = self._world, sorted((one, other))
        drawn = world.luck(f"again/{short_id(low)}-{short_id(high)}").random()
        delay_s = AGAIN_S[0] + (AGAIN_S[1] - AGAIN_S[0]) * drawn
        world.push(world.now_s + delay_s, None, self.link_now, low, high)

    def link_now(self, one: PeerId, other: PeerId, *, at_once: bool = False) -> None:
        """An attempt of whoever stands for the two now, if both were ever there."""
        nodes = self._world.nodes
        if one in nodes and other in nodes:
            self.link(nodes[one], nodes[other], at_once=at_once)

    def _accept(self, session: Session) -> None:
        """The hello is here: it is answered, and the link stands at this end."""
        opener, acceptor = session.opener, session.acceptor
        world = self._world
        back = world.network.direction(acceptor.peer, opener.peer)
        if session.is_over:
            return
        if back.is_blocked or back.held is not None:
            self._end(session)
            return
        # Before the first frames: they would overtake the answer.
        world.push(back.ordered_s(world.now_s), opener, self._take, opener, session)
        self._take(acceptor, session)

    def _take(self, node: SimNode, session: Session) -> None:
        if not session.is_over:
            to = session.other(node)
            node.linked(Wire(session, to, self._world.network.direction(node.peer, to.peer)))

    # Ends ---------------------------------------------------------------------------------------

    def _end(self, session: Session) -> None:
        session.is_over = True
        self._under_way.pop((session.opener.peer, session.acceptor.peer), None)

    def between(self, one: PeerId, other: PeerId) -> Session | None:
        """The conversation of the two that is under way."""
        return self._under_way.get((one, other) if one < other else (other, one))

    def broken(self, session: Session) -> None:
        """Both ends learn of it now."""
        self._end(session)
        for node in (session.opener, session.acceptor):
            self._world.push(self._world.now_s, node, node.unlinked, session)

    def hung_up(self, node: SimNode, peer: PeerId) -> None:
        """One end drops the link; the other hears of it on the way."""
        session = self.between(node.peer, peer)
        if session is not None:
            self._end(session)
            self._world.push(self._world.now_s, node, node.unlinked, session)
            self._last_word(session, node, self._world.now_s)

    def died(self, node: SimNode) -> None:
        """A process is gone: its system closes its streams."""
        for session in list(self._under_way.values()):
            if node in (session.opener, session.acceptor):
                self._end(session)
                self._last_word(session, node, self._world.now_s)

    def _last_word(self, session: Session, node: SimNode, since_s: float) -> None:
        """Tell the other end, behind all that was sent; a silent direction hears it late."""
        world, other = self._world, session.other(node)
        direction = world.network.direction(node.peer, other.peer)
        if direction.held is not None:
            direction.held.append(lambda: self._last_word(session, node, since_s))
        elif not direction.is_blocked:
            world.push(direction.ordered_s(world.now_s), other, other.unlinked, session)
        elif world.now_s - since_s >= direction.link.break_s:
            world.push(world.now_s, other, other.unlinked, session)
        else:
            again_s = world.now_s + LAST_WORD_AGAIN_S
            world.push(again_s, None, self._last_word, session, node, since_s)

    # Silence ------------------------------------------------------------------------------------

    def silence(self, direction: Direction) -> None:
        """Nothing passes any more; the link breaks unless something does in time."""
        if not direction.is_blocked:
            direction.is_blocked, since_s = True, self._world.now_s
            direction.silent_since_s = since_s
            look_s = since_s + direction.link.break_s
            self._world.push(look_s, None, self._break_silent, direction, since_s)

    def _break_silent(self, direction: Direction, since_s: float) -> None:
        if direction.is_blocked and direction.silent_since_s == since_s:
            session = self.between(direction.source, direction.target)
            if session is not None:
                self.broken(session)

    def unsilence(self, direction: Direction) -> None:
        """Something passes again."""
        if direction.is_blocked:
            direction.is_blocked = False
            self.link_soon(direction.source, direction.target)

    def release(self, direction: Direction) -> None:
        """What was held back goes on its way."""
        held, direction.held = direction.held, None
        if held is not None:
            for send in held:
                send()
            self.link_soon(direction.source, direction.target)


def send_frame(world: Around, node: SimNode, peers: Iterable[PeerId], frame: Frame) -> None:
    """A node's frame to each of these peers: one object, which all of them hear.

    Silently nothing to a peer that is gone: its end is under way as an event.
    """
    if node.hooks.bends_frames:
        for peer in peers:
            for after_s, bent in node.hooks.outgoing(peer, frame):
                if after_s:
                    at_s = world.now_s + after_s / node.clock.rate
                    world.push(at_s, node, _send, world, node, (peer,), bent)
                else:
                    _send(world, node, (peer,), bent)
    else:
        _send(world, node, peers, frame)


def _send(world: Around, node: SimNode, peers: Iterable[PeerId], frame: Frame) -> None:
    wires, now_s = node.wires, world.now_s
    heard = decode_frame(encode_frame(frame)) if world.settings.is_encoding else frame
    event = ev.FrameArrived(node.peer, heard)
    for peer in peers:
        wire = wires.get(peer)
        if wire is None:
            continue
        direction = wire.direction
        if direction.held is not None:
            direction.held.append(partial(_send, world, node, (peer,), frame))
        elif direction.is_blocked:
            pass
        elif direction.is_plain:
            world.deliver(direction.ordered_s(now_s), wire, event)
        else:
            for time_s in direction.frame_times(now_s):
                world.deliver(time_s, wire, event)
