"""A world of nodes in virtual time: one heap of (time, sequence, event), no I/O, no threads.

It runs the shipped NodeCore, ShardStore, codec and error feedback; only network, trainer and clock
are made up, all from one seed. The same seed gives the same trace, to the byte.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from node import bulk
from node import events as ev
from node.chain import genesis
from node.core import NodeCore
from node.round_view import RoundConfig
from node.shard_store import Item, ShardStore
from protocol.errors import PeerError
from protocol.frames import Bulk, BulkHeader
from protocol.identity import KeyedHashSigner, PeerId, short_id
from protocol.manifest import RunManifest
from protocol.messages import SealCertificate
from sim.network import Link, Network
from training.compression import CODECS, ErrorFeedback

Vector = NDArray[np.float32]

RETRY_CHECK_S = 0.05
CHECK_RETRIES = 40
"""Cells that overtook the message which commits to them wait this often before they are dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long a node's work takes, uniform in the ranges; a round of training, a computation."""

    train_s: tuple[float, float] = (0.8, 1.4)
    compute_s: float = 0.01


@dataclass(slots=True)
class SimNode:
    """One node: its decisions, its bytes, and what the made-up trainer needs."""

    peer: PeerId
    core: NodeCore
    store: ShardStore
    feedback: ErrorFeedback
    has_open_contribution: bool = False
    is_alive: bool = True
    wakeup_s: float = -1.0
    fetching: SealCertificate | None = None
    state_cells: dict[int, bytes] = field(default_factory=dict)
    sealed: dict[int, bytes] = field(default_factory=dict)
    anchors: dict[int, bytes] = field(default_factory=dict)


def peer_named(name: str) -> PeerId:
    """The peer id that a world gives to `name`."""
    return PeerId(blake3(b"barnraise/sim/peer/" + name.encode()).digest())


class World:
    """Nodes, links and time. Verbs: `join`, `crash`, `freeze`, `thaw`, `cut`, `heal`, `run`."""

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
        self._heap: list[tuple[float, int, PeerId, Callable[[SimNode], None]]] = []
        self._sequence = 0
        self._frozen: dict[PeerId, list[Callable[[SimNode], None]]] = {}
        self._streams: dict[str, random.Random] = {}
        self.network = Network(link or Link(), self._random)
        self._trace = blake3()

    # Verbs --------------------------------------------------------------------------------------

    def join(self, peer: PeerId, *, config: RoundConfig | None = None) -> SimNode:
        """A node with the genesis state appears and links to every living one."""
        layout = self.manifest.layout(0)
        anchor_N = np.zeros(layout.fragment_numels[0], dtype=np.float32)
        store = ShardStore(self.manifest, 0, anchor_N)
        signer = KeyedHashSigner(peer)
        start = genesis(self.manifest, 0, store.state.root)
        config = config or RoundConfig.from_manifest(self.manifest)
        core = NodeCore(self.manifest, config, signer, start, now_s=self.now_s)
        codec = CODECS[self.manifest.outer.codec]()
        feedback = ErrorFeedback(
            codec, self.manifest.outer.feedback, cell_elements=layout.cell_elements
        )
        node = SimNode(peer, core, store, feedback)
        self.nodes[peer] = node
        self._carry_out(node, core.start(self.now_s))
        for other in self._living():
            if other.peer != peer:
                self._tell(node, ev.Linked(other.peer))
                self._tell(other, ev.Linked(peer))
        return node

    def crash(self, peer: PeerId) -> None:
        """Kill -9: the node is gone, its links break, what it sent is still under way."""
        self.nodes[peer].is_alive = False
        self._note(peer, "crash")
        for other in self._living():
            delay_s = self.network.latency_s(peer, other.peer)
            self._at(delay_s, other.peer, lambda node: self._tell(node, ev.Unlinked(peer)))

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
            self.now_s, _, peer, run = heapq.heappop(self._heap)
            node = self.nodes[peer]
            if peer in self._frozen:
                self._frozen[peer].append(run)
            elif node.is_alive:
                run(node)

    @property
    def trace_hash(self) -> str:
        """A digest over everything that was signed and adopted, and when."""
        return self._trace.hexdigest()

    # Time ---------------------------------------------------------------------------------------

    def _at(self, delay_s: float, peer: PeerId, run: Callable[[SimNode], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_s + delay_s, self._sequence, peer, run))

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
                self._deliver(
                    node.peer,
                    peer,
                    lambda other: self._tell(other, ev.FrameArrived(node.peer, frame)),
                )
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
                self._note(node.peer, f"sealed {value.round} {value.digest.hex()}")
            case ev.Train():
                self._train(node, action)
            case ev.Resync(reason=reason):
                self._note(node.peer, f"resync {reason}")
            case _:
                self._at(self._pace.compute_s, node.peer, lambda n: self._compute(n, action))

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
                self._tell(node, ev.Applied(digest, root))
            case ev.CheckSeat(peer=peer, basis=basis, proof=proof):
                is_proved = store.seat_proof(peer, basis) == proof
                self._tell(node, ev.SeatChecked(peer, basis, is_proved))
            case ev.ProveSeat(basis=basis):
                self._tell(node, ev.SeatProven(basis, store.seat_proof(node.peer, basis)))
            case _:
                raise AssertionError(f"no such computation: {action}")

    def _train(self, node: SimNode, action: ev.Train) -> None:
        if node.has_open_contribution:
            if action.was_listed:
                node.feedback.commit()
            else:
                node.feedback.abort()
            node.has_open_contribution = False
        if action.is_resync:
            node.feedback.restore(None)
        if not action.lease:
            return
        stream = self._random(f"train/{short_id(node.peer)}")
        head = action.certificate.value
        self._at(
            stream.uniform(*self._pace.train_s),
            node.peer,
            lambda n: self._contribute(n, head.round),
        )

    def _contribute(self, node: SimNode, round_index: int) -> None:
        if node.core.machine.head.round != round_index or node.has_open_contribution:
            return
        encoded = node.feedback.encode(self._drift(node, round_index))
        node.has_open_contribution = True
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

    def _drift(self, node: SimNode, round_index: int) -> Vector:
        """A made-up pseudo-gradient: a pull towards one, unequal on every peer and round."""
        stream = self._random(f"drift/{short_id(node.peer)}/{round_index}")
        generator = np.random.Generator(np.random.PCG64(stream.getrandbits(64)))
        anchor_N = node.store.state.anchor_N
        noise_N = generator.random(len(anchor_N), dtype=np.float32) - np.float32(0.5)
        drift_N: Vector = (
            np.float32(0.1) * (anchor_N - np.float32(1.0)) + np.float32(0.01) * noise_N
        )
        return drift_N

    # Network ------------------------------------------------------------------------------------

    def _deliver(self, source: PeerId, target: PeerId, run: Callable[[SimNode], None]) -> None:
        for arrival_s in self.network.frame_arrivals(source, target, self.now_s):
            self._at(arrival_s - self.now_s, target, run)

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
            node.anchors[certificate.value.round] = state.anchor_N.tobytes()
            self._tell(node, ev.StateReady(certificate))


def digest_is_stale(core: NodeCore, commit_digest: bytes) -> bool:
    """Whether a contribution belongs to a round that is over."""
    return core.machine.view.ballots.commit_of(commit_digest) is None
