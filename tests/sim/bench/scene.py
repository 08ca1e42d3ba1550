"""A few rounds of a bench as records: sums and steps by the shipped store, signatures by nobody."""

from dataclasses import dataclass, field, replace
from typing import Any

from node.holdings.shard_store import ShardStore
from node.reporting.tracing import Adopted, Record, Signed
from protocol.events import ListEntry
from protocol.identity import Ed25519Signer, PeerId
from protocol.manifest import RunManifest
from protocol.messages import SealCertificate, SealValue
from sim.bench.staging import bench_manifest
from sim.bench.trainer import Numbers
from sim.local.options import LocalOptions, local_manifest
from tests.node.builders import Voice, head_of, peers_named, roster_of
from training.models.genesis import genesis_weights

PEERS = peers_named(3)
NAMES = {peer: f"1/{name}" for peer, name in zip(PEERS, "ABC", strict=True)}
ELEMENTS = 3000


def manifest_at(folder: Any, codec: str = "none") -> RunManifest:
    founder = Ed25519Signer(b"f" * 32).peer_id
    base = local_manifest(LocalOptions(peers=3, folder=folder, elements=ELEMENTS), founder)
    return bench_manifest(base, codec, "mean")


@dataclass
class Scene:
    """Rounds one after the other; a round takes a second, and everybody has it at its end."""

    manifest: RunManifest
    records: list[Record] = field(default_factory=list)
    heads: list[SealValue] = field(default_factory=lambda: [head_of(PEERS).value])

    def __post_init__(self) -> None:
        (anchor_N,) = genesis_weights(self.manifest, 0)
        self.numel = len(anchor_N)
        self.store = ShardStore(self.manifest, 0, anchor_N)
        self.numbers = {peer: Numbers(name, self.numel) for peer, name in NAMES.items()}
        self.heads = [replace(self.heads[0], round=0)]

    def commit(self, peer: PeerId, at_s: float, root: bytes, **changes: Any) -> bytes:
        said = Voice(peer, self.heads[-1]).commit(root=root, **changes)
        message = said.message
        self.records.append(Signed(at_s=at_s, peer=peer, message=message))
        return message.digest

    def play(
        self,
        listed: tuple[PeerId, ...] = PEERS,
        *,
        adopting: tuple[PeerId, ...] = PEERS,
        members: tuple[PeerId, ...] = PEERS,
        suspects: tuple[PeerId, ...] = (),
    ) -> SealValue:
        index = self.heads[-1].round + 1
        entries = []
        for peer in listed:
            wire_N = self.numbers[peer].contribution(index)
            layout, codec = self.store.layout, self.store._codec
            spans = (layout.cell_range(0, cell) for cell in range(self.store.layout.num_cells(0)))
            payloads = [codec.encode(wire_N[start:stop]) for start, stop in spans]
            root, _ = self.store.contribute(payloads)
            digest = self.commit(peer, index - 0.5, root, tokens=100, suspects=suspects)
            entries.append((ListEntry(peer, digest, 100), root))
        name = bytes([index]) * 32
        self.store.reduce(name, entries, first=0, stop=self.store.layout.num_cells(0))
        root = self.store.apply(name, is_empty=False, round_index=index)
        self.store.adopt(name)
        value = replace(
            self.heads[-1],
            round=index,
            before=self.heads[-1].digest,
            basis=self.heads[-1].digest,
            commits=tuple(entry.commit_digest for entry, _ in entries),
            root=root,
            roster=roster_of(members),
        )
        self.heads.append(value)
        for number, peer in enumerate(adopting):
            self.adopt(peer, index + 0.01 * number, value)
        return value

    def adopt(self, peer: PeerId, at_s: float, value: SealValue, root: bytes | None = None) -> None:
        certificate = SealCertificate(value=value, seals=())
        root = value.root if root is None else root
        self.records.append(
            Adopted(at_s=at_s, peer=peer, certificate=certificate, root=root, was_listed=True)
        )
