"""A world of nodes in virtual time: one heap of (time, sequence, event), no I/O, no threads.

It runs the shipped NodeCore, ShardStore, codec and error feedback; only network, trainer and clock
are made up, all from one seed. The same seed gives the same trace, to the byte.
"""

import heapq
import random
from collections.abc import Callable

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from node import bulk
from node import events as ev
from node.chain import genesis
from node.core import NodeCore
from node.recovery import StoredState, recover
from node.round_view import RoundConfig
from node.shard_store import Item, ShardStore
from protocol import limits
from protocol.errors import PeerError
from protocol.frames import Bulk, BulkHeader, Chain, Frame
from protocol.identity import KeyedHashSigner, PeerId, short_id
from protocol.manifest import RunManifest
from protocol.messages import SealCertificate
from sim.disk import Disk
from sim.network import Link, Network
from sim.nodes import Pace as Pace
from sim.nodes import SimNode as SimNode
from sim.nodes import peer_named as peer_named
from sim.trainer import SimTrainer

Vector = NDArray[np.float32]

CHECKPOINT_SHARE = 0.5
"""A disk that is busy writes the newest state only, so not every round has a checkpoint."""

RETRY_CHECK_S = 0.05
CHECK_RETRIES = 40
"""Cells that overtook the message which commits to them wait this often before they are dropped."""


class World:
    """Nodes, links and time.

    Verbs: `join`, `crash`, `bounce`, `freeze`, `thaw`, `cut`, `heal`, `run`.
    """

    def __init__(
        self,
        manifest: RunManifest,
        *,
        seed: int,
        link: Link | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.manifest = manifest
        self.now_s = 0.0
        self.nodes: dict[PeerId, SimNode] = {}
        self.faults: list[tuple[PeerId, str]] = []
        self._seed = seed
        self._pace = pace or Pace()
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._sequence = 0
        self._frozen: dict[PeerId, list[Callable[[SimNode], None]]] = {}
        self._streams: dict[str, random.Random] = {}
        self.network = Network(link or Link(), self._random)
        self._trace = blake3()

    # Verbs --------------------------------------------------------------------------------------

    def join(self, peer: PeerId, *, config: RoundConfig | None = None) -> SimNode:
        """A node with the genesis state appears and links to every living one."""
        return self._start(peer, Disk(), SimTrainer(self.manifest), config)

    def bounce(self, peer: PeerId) -> SimNode:
        """The node comes back with what its disk has; killed first, if it still runs."""
        old = self.nodes[peer]
        if old.is_alive:
            self.crash(peer)
        self._frozen.pop(peer, None)
        self._note(peer, "bounce")
        for other in self._living():
            self._tell(other, ev.Unlinked(peer))
        return self._start(peer, old.disk, old.trainer.restarted(), old.core.machine.config)

    def _start(
        self, peer: PeerId, disk: Disk, trainer: SimTrainer, config: RoundConfig | None
    ) -> SimNode:
        layout = self.manifest.layout(0)
        anchor_N = np.zeros(layout.fragment_numels[0], dtype=np.float32)
        store = ShardStore(self.manifest, 0, anchor_N)
        start = genesis(self.manifest, 0, store.state.root)
        restart = recover(start, store, disk, disk.states)
        config = config or RoundConfig.from_manifest(self.manifest)
        core = NodeCore(self.manifest, config, KeyedHashSigner(peer), start, now_s=self.now_s)
        node = SimNode(peer, core, store, trainer, disk)
        if peer in self.nodes:
            node.sealed, node.anchors = self.nodes[peer].sealed, self.nodes[peer].anchors
            node.anchors[restart.chain[-1].value.round] = store.state.anchor_N.tobytes()
        self.nodes[peer] = node
        self._carry_out(node, core.start(self.now_s, restart))
        for other in self._living():
            if other.peer != peer:
                self._tell(node, ev.Linked(other.peer))
                self._tell(other, ev.Linked(peer))
        return self.nodes[peer]

    def crash(self, peer: PeerId) -> None:
        """Kill -9: the node is gone, its links break, what it sent is still under way."""
        dead = self.nodes[peer]
        dead.is_alive = False
        self._note(peer, "crash")

        def notice(node: SimNode) -> None:
            if self.nodes[peer] is dead:  # Else the link is a new one already.
                self._tell(node, ev.Unlinked(peer))

        for other in self._living():
            self._at(self.network.latency_s(peer, other.peer), other.peer, notice)

    def cut(self, one: PeerId, other: PeerId) -> None:
        """The link of two nodes breaks, and no new one comes about until `heal`."""
        self.network.cut(one, other)
        self._tell(self.nodes[one], ev.Unlinked(other))
        self._tell(self.nodes[other], ev.Unlinked(one))

    def heal(self, one: PeerId, other: PeerId) -> None:
        """The two are linked again."""
        self.network.heal(one, other)
        self._tell(self.nodes[one], ev.Linked(other))
        self._tell(self.nodes[other], ev.Linked(one))

    def freeze(self, peer: PeerId) -> None:
        """SIGSTOP: links stay up, nothing is processed until `thaw`."""
        self._frozen[peer] = []
        self._note(peer, "freeze")

    def thaw(self, peer: PeerId) -> None:
        """SIGCONT: everything that waited is processed now."""
        self._note(peer, "thaw")
        node = self.nodes[peer]
        waiting = self._frozen.pop(peer)
        self._tell(node, ev.Tick())
        for run in waiting:
            run(node)

    def run(self, until: Callable[[], bool], *, max_s: float) -> None:
        """Let time pass until the condition holds. Raises TimeoutError after `max_s` seconds."""
        end_s = self.now_s + max_s
        while not until():
            if not self._heap or self._heap[0][0] > end_s:
                raise TimeoutError(f"nothing came of it in {max_s} virtual seconds")
            self.now_s, _, happen = heapq.heappop(self._heap)
            happen()

    def later(self, delay_s: float, verb: Callable[[], object]) -> None:
        """Call a verb when that much time has passed."""
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_s + delay_s, self._sequence, verb))

    @property
    def trace_hash(self) -> str:
        """A digest over everything that was signed and adopted, and when."""
        return self._trace.hexdigest()

    # Time ---------------------------------------------------------------------------------------

    def _at(self, delay_s: float, peer: PeerId, run: Callable[[SimNode], None]) -> None:
        node = self.nodes[peer]

        def happen() -> None:
            # What a process waited for dies with it.
            if self.nodes[peer] is not node or not node.is_alive:
                return
            if peer in self._frozen:
                self._frozen[peer].append(run)
            else:
                run(node)

        self.later(delay_s, happen)

    def _random(self, path: str) -> random.Random:
        """One stream per purpose, so that a new node changes no other node's luck."""
        if path not in self._streams:
            self._streams[path] = random.Random(f"{self._seed}/{path}")
        return self._streams[path]

    def _living(self) -> list[SimNode]:
        return [node for _, node in sorted(self.nodes.items()) if node.is_alive]

    def _note(self, peer: PeerId, text: str) -> None:
        self._trace.update(f"{self.now_s:.9f} {short_id(peer)} {text}\n".encode())

    def _tell(self, node: SimNode, event: ev.CoreEvent) -> None:
        self._carry_out(node, node.core.handle(event, self.now_s))

    # Actions ------------------------------------------------------------------------------------

    def _carry_out(self, node: SimNode, actions: list[ev.CoreAction]) -> None:
        logged = len(node.disk.stored_chain)
        node.disk.extend_chain([c for c in node.core.chain if c.value.round > logged])
        node.core.trim_chain()
        for action in actions:
            if isinstance(action, ev.RecordProof):
                node.disk.record(action.messages)
            elif isinstance(action, ev.RecordSlot):
                node.disk.record([action.message])
        for action in actions:
            if not node.is_alive:
                return
            self._act(node, action)
        wakeup_s = node.core.wakeup_s(self.now_s)
        if node.wakeup_s <= self.now_s or wakeup_s < node.wakeup_s:
            node.wakeup_s = wakeup_s
            self._at(wakeup_s - self.now_s, node.peer, self._wake)

    def _wake(self, node: SimNode) -> None:
        if self.now_s >= node.wakeup_s:
            self._tell(node, ev.Tick())

    def _act(self, node: SimNode, action: ev.CoreAction) -> None:
        match action:
            case ev.Send(peer=peer, frame=frame):
                self._send(node.peer, peer, frame)
            case ev.SendChain(peer=peer, first=first):
                for seal in node.disk.read_chain(first, limits.CHAIN_PAGE_SEALS):
                    self._send(node.peer, peer, Chain(seals=(seal,)))
            case ev.RecordProof():
                pass  # Done before all else.
            case ev.RecordSlot(message=message):
                self._note(node.peer, f"{message.slot.kind.name} {message.digest.hex()}")
            case ev.Push():
                self._push(node, action)
            case ev.Fault(peer=peer, reason=reason):
                self.faults.append((peer, reason))
                self._note(node.peer, f"fault {short_id(peer)} {reason}")
            case ev.FetchState(source=source, certificate=certificate):
                node.fetching, node.state_cells = certificate, {}
                cells = tuple(range(node.store.num_state_cells))
                want = ev.Push(node.peer, Bulk.STATE, certificate.value.digest, cells)
                self._deliver(node.peer, source, lambda other: self._push(other, want))
            case ev.Adopt(certificate=certificate):
                value = certificate.value
                node.store.adopt(value.list_digest)
                node.sealed[value.round] = value.digest
                node.anchors[value.round] = node.store.state.anchor_N.tobytes()
                if self._random(f"checkpoint/{short_id(node.peer)}").random() < CHECKPOINT_SHARE:
                    self._save(node, certificate)
                self._note(node.peer, f"sealed {value.round} {value.digest.hex()}")
            case ev.Train():
                self._train(node, action)
            case ev.Resync(reason=reason):
                self._note(node.peer, f"resync {reason}")
            case _:
                self._at(self._pace.compute_s, node.peer, lambda n: self._compute(n, action))

    def _save(self, node: SimNode, certificate: SealCertificate) -> None:
        state, value = node.store.state, certificate.value
        node.disk.save(StoredState(value.round, value.digest, state.anchor_N, state.slots))

    def _compute(self, node: SimNode, action: ev.CoreAction) -> None:
        """What a node does in a worker thread; stale work is dropped as the node drops it."""
        store = node.store
        match action:
            case ev.Reduce(list_digest=digest, first=first, stop=stop):
                if digest_is_stale(node.core, action.entries[0].commit_digest):
                    return
                entries = bulk.rooted(node.core, action)
                root = store.reduce(digest, entries, first=first, stop=stop)
                self._tell(node, ev.Reduced(digest, first, stop, root))
            case ev.Apply(list_digest=digest, is_empty=is_empty):
                index = node.core.machine.view.index
                root = store.apply(digest, is_empty=is_empty, round_index=index)
                cells = [] if is_empty else store.result_cells(digest)
                node.disk.keep_result(index, digest, cells)
                self._tell(node, ev.Applied(digest, root))
            case ev.CheckSeat(peer=peer, basis=basis, proof=proof):
                is_proved = store.seat_proof(peer, basis) == proof
                self._tell(node, ev.SeatChecked(peer, basis, is_proved))
            case ev.ProveSeat(basis=basis):
                self._tell(node, ev.SeatProven(basis, store.seat_proof(node.peer, basis)))
            case _:
                raise AssertionError(f"no such computation: {action}")

    def _train(self, node: SimNode, action: ev.Train) -> None:
        head = action.certificate.value
        if node.trainer.take_over(action):
            delay_s = self._random(f"train/{short_id(node.peer)}").uniform(*self._pace.train_s)
            self._at(delay_s, node.peer, lambda n: self._contribute(n, head.round))

    def _contribute(self, node: SimNode, round_index: int) -> None:
        if node.core.machine.head.round != round_index:
            return
        encoded = node.trainer.contribution(
            round_index,
            node.store.state.anchor_N,
            self._random(f"drift/{short_id(node.peer)}/{round_index}"),
        )
        if encoded is None:
            return
        root, norms = node.store.contribute(encoded.payloads)
        inner = self.manifest.inner
        samples = inner.inner_steps * inner.batch
        contributed = ev.Contributed(
            round=round_index + 1,
            root=root,
            cell_norms=norms,
            tokens=samples,
            samples=samples,
            steps=inner.inner_steps,
            residual_before=encoded.residual_before,
            residual_after=encoded.residual_after,
        )
        self._tell(node, contributed)

    # Network ------------------------------------------------------------------------------------

    def _deliver(self, source: PeerId, target: PeerId, run: Callable[[SimNode], None]) -> None:
        for arrival_s in self.network.frame_arrivals(source, target, self.now_s):
            self._at(arrival_s - self.now_s, target, run)

    def _send(self, source: PeerId, target: PeerId, frame: Frame) -> None:
        arrived = ev.FrameArrived(source, frame)
        self._deliver(source, target, lambda other: self._tell(other, arrived))

    def _push(self, node: SimNode, push: ev.Push) -> None:
        items = bulk.outgoing(node.core, node.store, push)
        if not items:
            return
        header = BulkHeader(bulk=push.bulk, subject=push.subject, items=len(items))
        size = sum(len(item.payload) for item in items)
        source = node.peer
        for arrival_s in self.network.bulk_arrivals(source, push.to, size, self.now_s):
            self._at(
                arrival_s - self.now_s,
                push.to,
                lambda other: self._bulk_arrived(other, source, header, items, 0),
            )

    def _bulk_arrived(
        self, node: SimNode, source: PeerId, header: BulkHeader, items: list[Item], tries: int
    ) -> None:
        self._tell(node, ev.BytesArrived(source, is_state=header.bulk is Bulk.STATE))
        if header.bulk is Bulk.STATE:
            self._state_arrived(node, header, items)
            return
        if not all(bulk.can_check(node.core, header, item.index) for item in items):
            if tries < CHECK_RETRIES:
                self._at(
                    RETRY_CHECK_S,
                    node.peer,
                    lambda other: self._bulk_arrived(other, source, header, items, tries + 1),
                )
            return
        try:
            for item in items:
                bulk.admission(node.core, node.store, header, item)()
        except PeerError as error:
            self.faults.append((source, str(error)))
            return
        cells = tuple(item.index for item in items)
        self._tell(node, ev.CellsArrived(header.bulk, header.subject, cells))

    def _state_arrived(self, node: SimNode, header: BulkHeader, items: list[Item]) -> None:
        certificate = node.fetching
        if certificate is None or certificate.value.digest != header.subject:
            return
        for item in items:
            node.store.check_state_cell(certificate.value.root, item)
            node.state_cells[item.index] = item.payload
        is_complete = len(node.state_cells) == node.store.num_state_cells
        if is_complete and node.core.awaits_state(certificate):
            state = node.store.assemble(certificate.value.root, node.state_cells)
            node.store.replace_state(state)
            node.fetching = None
            self._save(node, certificate)
            node.anchors[certificate.value.round] = state.anchor_N.tobytes()
            self._tell(node, ev.StateReady(certificate))


def digest_is_stale(core: NodeCore, commit_digest: bytes) -> bool:
    """Whether a contribution belongs to a round that is over."""
    return core.machine.view.ballots.commit_of(commit_digest) is None
