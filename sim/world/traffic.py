"""What passes between two processes: their conversations, frames over these, and cells over streams
of their own.
"""

from collections.abc import Iterable
from functools import partial
from math import inf

from node.holdings.shard_store import Item
from node.plane import bulk
from node.plane.bulk_queue import PushQueue, Throttle
from node.plane.bulk_streams import GIVEN, GIVEN_EVERY_S, OVERTAKEN_S, STALL_S, TOLD_EVERY_S
from node.plane.gathered import WrongStep
from node.plane.work_desk import EARLY_S
from protocol import events as ev
from protocol import limits
from protocol.errors import PeerError, StateError, StreamClosedError
from protocol.frames import Bulk, BulkHeader, BulkItem, BulkItems, Frame, decode_frame, encode_frame
from protocol.identity import PeerId, short_id
from protocol.wire import decode, encode
from sim.world.links import Direction
from sim.world.nodes import Around, Session, SimNode, Transfer, Wire

# Conversations and frames -------------------------------------------------------------------------

GONE_S = 0.1
"""Two looks of `dht.reaching.addresses` at a process that is not there any more."""

AGAIN_S = (0.25, 1.0)
"""From the end of a link to the next attempt, as the search of a node takes it."""

LAST_WORD_AGAIN_S = 0.5
"""How often the last word of a dead process is said again into a direction that is silent."""


class Sessions:
    """Who is linked with whom: the conversations of a world, over the two directions between two.

    As `node.peers.links` has them: the peer with the lower id opens, both ends know the link a
    message apart, and a link that ended is tried again soon. What was sent on an earlier link never
    arrives on a later one. A direction that is silent ends nobody's link before `Link.break_s` is
    over.
    """

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


# Cells --------------------------------------------------------------------------------------------


class Transfers:
    """Sends and receives cells for one process, checked on arrival: `node.plane.bulk_streams` in
    virtual time.

    A transfer that takes long arrives in pieces, so that bytes are a sign of life here too, and
    what breaks in the middle leaves what came before it. What is not modelled is the pace: frames
    do not wait behind cells here.
    """

    def __init__(self, world: Around, node: SimNode) -> None:
        self._world = world
        self._node = node
        self._queue = PushQueue()
        self._under_way: list[tuple[ev.Push, Wire]] = []
        self._throttle = Throttle(world.settings.state_bytes_per_s, now_s=world.now_s)
        self.waiting: list[Transfer] = []
        """Transfers whose next cell overtook the message that commits to it."""
        self._early: list[tuple[float, ev.Push]] = []
        """Work that somebody asks for before the seal is here that lets it."""

    # Out ----------------------------------------------------------------------------------------

    def push(self, push: ev.Push) -> None:
        """Send the cells that are here once it is their turn, and then whatever else waits.

        A peer out of reach asks elsewhere, or is absent.
        """
        after_s = self._node.hooks.cells_after_s(push.to, push.bulk, push.subject)
        if after_s:
            at_s = self._world.now_s + after_s / self._node.clock.rate
            if at_s < inf:
                self._world.push(at_s, self._node, self._push, push)
            return
        self._push(push)

    def _push(self, push: ev.Push) -> None:
        to, wire = push.to, self._node.wires.get(push.to)
        if push.bulk is Bulk.WORK and not self._node.core.audits.may_open(to, push.subject):
            self._early.append((self._world.now_s + EARLY_S, push))
            return
        for due, under in list(self._under_way):
            if due.to == to and under is not wire:
                # Streams end with the connection that carries them, and what waited was told so.
                self._end(due)
                self._queue.forget(to)
        self._queue.offer(push, round_index=bulk.round_to_serve(self._node.core, push))
        self._go_on_sending(to)

    def _go_on_sending(self, to: PeerId) -> None:
        node = self._node
        while (due := self._queue.begin(to)) is not None:
            wire = node.wires.get(to)
            if wire is None:
                self._queue.forget(to)
                self._queue.done(due)
                return
            items, about = self._found(due)
            if items is None:
                self._queue.done(due)
                # Behind what is happening right now: the core is in the middle of an event.
                told = ev.NotServed(due.to, due.bulk, due.subject)
                self._world.push(self._world.now_s, node, node.tell, told)
                continue
            if not items or about is None or not bulk.is_of_use(node.core, due):
                self._queue.done(due)
                continue
            header = BulkHeader(bulk=due.bulk, subject=due.subject, round=about, items=len(items))
            header = node.hooks.sent_header(header)
            items = [node.hooks.sent_item(due.bulk, item) for item in items]
            if self._world.settings.is_encoding:
                header, items = _as_on_the_wire(header, items)
            self._under_way.append((due, wire))
            end_s = self._send(wire, header, items, self._pause_s(header, items))
            self._world.push(end_s, node, self._sent, due, self._world.now_s)

    def _found(self, due: ev.Push) -> tuple[list[Item] | None, int | None]:
        """What is here of it, and of which round it is; None where joiners ask in vain."""
        node = self._node
        if due.bulk is Bulk.WORK:
            items = node.works.items(due.subject, due.cells) if node.hooks.opens_to(due.to) else []
            return items, node.core.machine.view.index
        about = bulk.round_of(node.core, due)
        if due.bulk in bulk.IS_SERVED:
            return self._served(due), about
        return bulk.outgoing(node.core, node.store, due), about

    def _served(self, due: ev.Push) -> list[Item] | None:
        node, certificate = self._node, self._node.core.sealed(due.subject)
        if certificate is None:
            return None
        source = node.served.find(due.bulk, certificate, now_s=self._world.now_s)
        if source is None:
            return None
        cells = [index for index in dict.fromkeys(due.cells) if index < source.count]
        try:
            return [source.item(index) for index in cells]
        except StreamClosedError:
            return []  # As over real streams: it is gone from the disk, and nothing is sent.

    def _pause_s(self, header: BulkHeader, items: list[Item]) -> float:
        """What the node's owner makes joiners wait, in all."""
        if header.bulk is not Bulk.STATE:
            return 0.0
        size = sum(len(item.payload) for item in items)
        return self._throttle.delay_s(
            size, took_s=0.0, is_round_moving=False, now_s=self._world.now_s
        )

    def _sent(self, due: ev.Push, began_s: float) -> None:
        """The taker has all of it, or it is given up."""
        if any(due is other for other, _ in self._under_way):
            self._end(due)
            if due.bulk is Bulk.PART:
                took_s = (self._world.now_s - began_s) * self._node.clock.rate
                self._node.tell(ev.BytesGiven(due.to, due.bulk, due.subject, took_s))
            self._go_on_sending(due.to)

    def _end(self, due: ev.Push) -> None:
        self._under_way = [(other, wire) for other, wire in self._under_way if other is not due]
        self._queue.done(due)

    def _send(self, wire: Wire, header: BulkHeader, items: list[Item], pause_s: float) -> float:
        """Let them arrive; returns when the sender is through with them."""
        world, direction = self._world, wire.direction
        now_s = world.now_s
        if direction.held is not None:
            direction.held.append(lambda: self._send(wire, header, items, pause_s))
            return now_s + STALL_S
        if direction.is_blocked:
            return now_s + STALL_S
        size = sum(len(item.payload) for item in items)
        times = direction.bulk_times(size, now_s)
        if not times:
            # A real stream loses nothing: it breaks, and both ends learn of it.
            return now_s + size / direction.link.bytes_per_s
        times = tuple((first_s, last_s + pause_s) for first_s, last_s in times)
        for first_s, last_s in times:
            transfer = Transfer(wire, header, items, first_s)
            num_pieces = 1 + int((last_s - first_s) / TOLD_EVERY_S)
            for piece in range(1, num_pieces + 1):
                at_s = last_s - (last_s - first_s) * (num_pieces - piece) / num_pieces
                count = len(items) * piece // num_pieces
                to = wire.to
                world.push(at_s, to, to.cells_came, transfer, count)
        return max(last_s for _, last_s in times)

    # In -----------------------------------------------------------------------------------------

    def order(self, order: ev.FetchOrder) -> None:
        """Gather a state, or the steps to it; forget any other state under way."""
        node = self._node
        if isinstance(order, ev.FetchState):
            held = node.gathered.expect_state(order.certificate)
        else:
            held = node.gathered.expect_steps(order.certificates)
        node.tell(ev.FetchBegun(node.gathered.subject, held))
        if node.is_alive:
            self._fetch_on()

    def forget(self) -> None:
        """The state is in place and on the disk, or not needed any more."""
        if self._node.gathered.certificate is not None:
            self._node.gathered.forget()

    def arrived(self, transfer: Transfer, num_here: int) -> None:
        """More of a transfer is here."""
        wire, node = transfer.wire, self._node
        if transfer.is_over:
            return
        own = node.wires.get(wire.direction.source)
        if own is None or own.session is not wire.session or wire.direction.is_blocked:
            transfer.is_over = True
            return
        had, transfer.num_here = transfer.num_here, num_here
        self._tell_given(transfer, own.to)
        came = self._came(transfer, had)
        try:
            if transfer.header.bulk in bulk.IS_SERVED:
                self._take_fetched(transfer, came)
            elif transfer.header.bulk is Bulk.WORK:
                self._take_work(transfer)
            elif transfer.wait_s < 0.0:
                self._take_cells(transfer, came)
        except PeerError as error:
            transfer.is_over = True
            self._world.accuse(node, wire.direction.source, f"bulk: {error}")
            if transfer.header.bulk in bulk.IS_SERVED:
                node.tell(ev.FetchedWrong(wire.direction.source))

    def _tell_given(self, transfer: Transfer, giver: SimNode) -> None:
        """See `node.plane.bulk_streams`; behind what happens right now, in another process."""
        now_s, header = self._world.now_s, transfer.header
        if header.bulk in GIVEN and now_s >= transfer.given_s + GIVEN_EVERY_S:
            transfer.given_s = now_s
            told = ev.BytesGiven(self._node.peer, header.bulk, header.subject)
            self._world.push(now_s, giver, giver.tell, told)

    def _take_work(self, transfer: Transfer) -> None:
        """Cells of work; what nobody asked for any more is nobody's fault."""
        node, subject = self._node, transfer.header.subject
        kinds, cells = node.core.audits.kinds(subject), []
        while transfer.next < transfer.num_here and kinds:
            item = transfer.items[transfer.next]
            node.works.put(subject, item, kinds=kinds)
            transfer.next += 1
            cells.append(item.index)
        transfer.is_over |= not kinds
        if cells:
            node.tell(ev.CellsArrived(Bulk.WORK, subject, tuple(cells)))

    def _came(self, transfer: Transfer, had: int) -> ev.BytesArrived:
        """That bytes came; and what the line took for them, where more came than one piece."""
        since_s, items, header = transfer.timed_s, transfer.items, transfer.header
        is_timed = len(items) > 1 or len(items[0].payload) > limits.PIECE_BYTES_MIN
        num_bytes = sum(len(item.payload) for item in items[had : transfer.num_here])
        if num_bytes:  # The time of a cell that is on its way counts with it.
            transfer.timed_s = self._world.now_s
        return ev.BytesArrived(
            transfer.wire.direction.source,
            header.bulk in bulk.IS_SERVED,
            header.subject,
            num_bytes=num_bytes if is_timed else 0,
            seconds=(self._world.now_s - since_s) * self._node.clock.rate if is_timed else 0.0,
        )

    def _take_cells(self, transfer: Transfer, came: ev.BytesArrived) -> None:
        node, header, cells = self._node, transfer.header, []
        try:
            while transfer.next < transfer.num_here:
                item = transfer.items[transfer.next]
                bulk.check_size(node.store, header, item.index, len(item.payload))
                accept = bulk.admission(node.core, node.store, header, (item,))
                if accept is None:
                    if transfer.wait_s < 0.0:
                        transfer.wait_s = self._world.now_s + OVERTAKEN_S
                        self.waiting.append(transfer)
                    break
                accept()
                transfer.next += 1
                cells.append(item.index)
        finally:
            transfer.is_over |= transfer.next == len(transfer.items)
            node.tell(came)
            if cells and node.is_alive:
                node.tell(ev.CellsArrived(header.bulk, header.subject, tuple(cells)))

    def look_again(self) -> None:
        """The core has heard something: what waits may be checked now, or is given up."""
        now_s, core, still = self._world.now_s, self._node.core, []
        early, self._early = self._early, []
        for until_s, push in early:
            if core.audits.may_open(push.to, push.subject):
                self._world.push(now_s, self._node, self.push, push)
            elif now_s < until_s:
                self._early.append((until_s, push))
        for transfer in self.waiting:
            item = transfer.items[transfer.next]
            if bulk.admission(core, self._node.store, transfer.header, (item,)) is not None:
                # Behind what is happening right now: the core is in the middle of an event.
                self._world.push(now_s, self._node, self._go_on, transfer)
            elif now_s < transfer.wait_s:
                still.append(transfer)
        self.waiting = still

    def _go_on(self, transfer: Transfer) -> None:
        transfer.wait_s = -1.0
        self.arrived(transfer, transfer.num_here)

    def _take_fetched(self, transfer: Transfer, came: ev.BytesArrived) -> None:
        """Cells of a state or step; what nobody asked for any more is nobody's fault."""
        node, header = self._node, transfer.header
        source, gathered = transfer.wire.direction.source, self._node.gathered
        while transfer.next < transfer.num_here and node.is_alive:
            if not gathered.takes(header):
                transfer.is_over = True
                return
            item = transfer.items[transfer.next]
            bulk.check_size(node.store, header, item.index, len(item.payload))
            transfer.next += 1
            is_asked = node.core.catchup.is_asked(source, header.subject, item.index)
            if not (is_asked or header.bulk is Bulk.STATE):
                continue
            fresh = gathered.take(header, item)
            if fresh:
                node.tell(ev.CellsFetched(source, header.subject, fresh))
                if node.is_alive:
                    self._fetch_on()
        if node.is_alive:
            node.tell(came)

    def _fetch_on(self) -> None:
        """Take the steps that are due; tell once the state is there."""
        node, certificate = self._node, self._node.gathered.certificate
        try:
            node.gathered.advance()
            if certificate is None or not node.gathered.is_whole:
                return
            state = node.gathered.state()
        except WrongStep as error:
            node.tell(ev.StepFailed(error.subject))
        except StateError:
            assert certificate is not None
            node.gathered.forget()
            node.tell(ev.StateFailed(certificate.value.digest))
        else:
            node.state_came(certificate, state)


def _as_on_the_wire(header: BulkHeader, items: list[Item]) -> tuple[BulkHeader, list[Item]]:
    """Header and items, through their encoding and back."""
    header = decode(BulkHeader, encode(header), max_bytes=limits.BULK_HEADER_BYTES_MAX)
    found = []
    for item in items:
        said = BulkItem(index=item.index, length=len(item.payload), proof=b"".join(item.proof))
        data = encode(BulkItems(items=(said,), piece=limits.PIECE_BYTES_MIN))
        head = decode(BulkItems, data, max_bytes=limits.BULK_ITEMS_HEADER_BYTES_MAX).items[0]
        found.append(Item(head.index, item.payload, head.nodes))
    return header, found
