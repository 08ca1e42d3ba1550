"""Cells over streams of their own, checked on arrival: `node.bulk_streams` in virtual time.

A transfer that takes long arrives in pieces, so that bytes are a sign of life here too, and what
breaks in the middle leaves what came before it. What is not modelled is the pace: frames do not
wait behind cells here.
"""

from node import bulk
from node import events as ev
from node.bulk_queue import PushQueue
from node.bulk_streams import OVERTAKEN_S, STALL_S, TOLD_EVERY_S
from node.shard_store import Item
from protocol import limits
from protocol.errors import PeerError, ProofError, StateError
from protocol.frames import Bulk, BulkHeader, BulkItem
from protocol.identity import PeerId
from protocol.messages import SealCertificate
from protocol.wire import decode, encode
from sim.nodes import Around, SimNode, Transfer, Wire


class Transfers:
    """Sends and receives cells for one process."""

    def __init__(self, world: Around, node: SimNode) -> None:
        self._world = world
        self._node = node
        self._queue = PushQueue()
        self._under_way: list[tuple[ev.Push, Wire]] = []
        self._expected: tuple[SealCertificate, PeerId] | None = None
        self._cells: dict[int, bytes] = {}
        self.waiting: list[Transfer] = []
        """Transfers whose next cell overtook the message that commits to it."""

    # Out ----------------------------------------------------------------------------------------

    def push(self, push: ev.Push) -> None:
        """Send the cells that are here once it is their turn, and then whatever else waits.

        A peer out of reach asks elsewhere, or is absent.
        """
        to, wire = push.to, self._node.wires.get(push.to)
        for due, under in list(self._under_way):
            if due.to == to and under is not wire:
                # Streams end with the connection that carries them, and what waited was told so.
                self._end(due)
                self._queue.forget(to)
        self._queue.offer(push, round_index=self._node.core.machine.view.index)
        self._go_on_sending(to)

    def _go_on_sending(self, to: PeerId) -> None:
        node = self._node
        while (due := self._queue.begin(to)) is not None:
            wire = node.wires.get(to)
            if wire is None:
                self._queue.forget(to)
                self._queue.done(due)
                return
            items = bulk.outgoing(node.core, node.store, due)
            if not items or not bulk.is_of_use(node.core, due):
                self._queue.done(due)
                continue
            header = BulkHeader(bulk=due.bulk, subject=due.subject, items=len(items))
            if self._world.settings.is_encoding:
                header, items = _as_on_the_wire(header, items)
            self._under_way.append((due, wire))
            end_s = self._send(wire, header, items)
            self._world.push(end_s, node, self._sent, due)

    def _sent(self, due: ev.Push) -> None:
        """The taker has all of it, or it is given up."""
        if any(due is other for other, _ in self._under_way):
            self._end(due)
            self._go_on_sending(due.to)

    def _end(self, due: ev.Push) -> None:
        self._under_way = [(other, wire) for other, wire in self._under_way if other is not due]
        self._queue.done(due)

    def _send(self, wire: Wire, header: BulkHeader, items: list[Item]) -> float:
        """Let them arrive; returns when the sender is through with them."""
        world, direction = self._world, wire.direction
        now_s = world.now_s
        if direction.held is not None:
            direction.held.append(lambda: self._send(wire, header, items))
            return now_s + STALL_S
        if direction.is_blocked:
            return now_s + STALL_S
        size = sum(len(item.payload) for item in items)
        times = direction.bulk_times(size, now_s)
        if not times:
            # A real stream loses nothing: it breaks, and both ends learn of it.
            return now_s + size / direction.link.bytes_per_s
        for first_s, last_s in times:
            transfer = Transfer(wire, header, items)
            num_pieces = 1 + int((last_s - first_s) / TOLD_EVERY_S)
            for piece in range(1, num_pieces + 1):
                at_s = last_s - (last_s - first_s) * (num_pieces - piece) / num_pieces
                count = len(items) * piece // num_pieces
                to = wire.to
                world.push(at_s, to, to.cells_came, transfer, count)
        return max(last_s for _, last_s in times)

    # In -----------------------------------------------------------------------------------------

    def expect_state(self, certificate: SealCertificate, source: PeerId) -> None:
        """Take state cells of this seal, from this peer; forget any other state under way."""
        self._expected, self._cells = (certificate, source), {}

    def arrived(self, transfer: Transfer, num_here: int) -> None:
        """More of a transfer is here."""
        wire, node = transfer.wire, self._node
        if transfer.is_over:
            return
        own = node.wires.get(wire.direction.source)
        if own is None or own.session is not wire.session or wire.direction.is_blocked:
            transfer.is_over = True
            return
        is_first, transfer.num_here = transfer.num_here == 0, num_here
        try:
            if transfer.header.bulk is Bulk.STATE:
                self._take_state(transfer, is_first=is_first)
            elif transfer.wait_s < 0.0:
                self._take_cells(transfer)
        except PeerError as error:
            transfer.is_over = True
            self._world.accuse(node, wire.direction.source, f"bulk: {error}")

    def _take_cells(self, transfer: Transfer) -> None:
        node, header = self._node, transfer.header
        source, cells = transfer.wire.direction.source, []
        try:
            while transfer.next < transfer.num_here:
                item = transfer.items[transfer.next]
                _check_size(node, header, item)
                if not bulk.can_check(node.core, header, item.index):
                    if transfer.wait_s < 0.0:
                        transfer.wait_s = self._world.now_s + OVERTAKEN_S
                        self.waiting.append(transfer)
                    break
                bulk.admission(node.core, node.store, header, item)()
                transfer.next += 1
                cells.append(item.index)
        finally:
            transfer.is_over |= transfer.next == len(transfer.items)
            node.tell(ev.BytesArrived(source, subject=header.subject))
            if cells and node.is_alive:
                node.tell(ev.CellsArrived(header.bulk, header.subject, tuple(cells)))

    def look_again(self) -> None:
        """The core has heard something: what waits may be checked now, or is given up."""
        now_s, core, still = self._world.now_s, self._node.core, []
        for transfer in self.waiting:
            item = transfer.items[transfer.next]
            if bulk.can_check(core, transfer.header, item.index):
                # Behind what is happening right now: the core is in the middle of an event.
                self._world.push(now_s, self._node, self._go_on, transfer)
            elif now_s < transfer.wait_s:
                still.append(transfer)
        self.waiting = still

    def _go_on(self, transfer: Transfer) -> None:
        transfer.wait_s = -1.0
        self.arrived(transfer, transfer.num_here)

    def _take_state(self, transfer: Transfer, *, is_first: bool) -> None:
        node, header = self._node, transfer.header
        source = transfer.wire.direction.source
        if is_first:
            transfer.expected = self._expected
            if self._expected is None or self._expected[1] != source:
                transfer.is_over = True
                return  # A source that was given up delivers after all: nobody's fault.
        expected = transfer.expected
        assert expected is not None
        certificate = expected[0]
        if certificate.value.digest != header.subject:
            transfer.is_over = True
            return
        while transfer.next < transfer.num_here and node.is_alive:
            item = transfer.items[transfer.next]
            _check_size(node, header, item)
            node.store.check_state_cell(certificate.value.root, item)
            if self._expected is not expected:
                transfer.is_over = True
                return  # Given up for another seal or source: cells of two states do not mix.
            self._cells[item.index] = item.payload
            transfer.next += 1
            node.tell(ev.BytesArrived(source, is_state=True))
        is_whole = len(self._cells) == node.store.num_state_cells
        if transfer.next == len(transfer.items) and self._expected is expected and is_whole:
            self._expected = None
            self._assemble(certificate)

    def _assemble(self, certificate: SealCertificate) -> None:
        node = self._node
        try:
            state = node.store.assemble(certificate.value.root, self._cells)
        except StateError:
            node.tell(ev.StateFailed(certificate.value.digest))
            return
        node.state_came(certificate, state)


def _check_size(node: SimNode, header: BulkHeader, item: Item) -> None:
    expected = bulk.expected_bytes(node.store, header, item.index)
    if len(item.payload) != expected:
        raise ProofError(f"cell {item.index} has {len(item.payload)} bytes instead of {expected}")


def _as_on_the_wire(header: BulkHeader, items: list[Item]) -> tuple[BulkHeader, list[Item]]:
    """Header and items, through their encoding and back."""
    header = decode(BulkHeader, encode(header), max_bytes=limits.BULK_HEADER_BYTES_MAX)
    found = []
    for item in items:
        head = BulkItem(index=item.index, length=len(item.payload), proof=item.proof)
        data = encode(head)
        head = decode(BulkItem, data, max_bytes=limits.BULK_ITEM_HEADER_BYTES_MAX)
        found.append(Item(head.index, item.payload, head.proof))
    return header, found
