"""Whether real nodes kept the promises: from their traces and checkpoints, and nothing they say.

The same invariants as in a world, over the same records. Checkpoints are stepped through the
arithmetic again: each must have the root that the swarm sealed. Ledgers are checked signature by
signature, and prove every round that their node has made final itself.
"""

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from node.holdings.checkpoints import stored_states
from node.holdings.receipts import RECEIPTS_FILE
from node.holdings.shard_store import ShardStore
from node.reporting.tracing import (
    Adopted,
    Confirmed,
    Convicted,
    Record,
    Signed,
    Synced,
    Used,
)
from node.state.folder import CHECKPOINTS_FOLDER, run_folder
from node.state.keystore import has_identity, load_or_create_identity
from node.using.ledger import RunLedger
from protocol.errors import ConfigError, DecodeError
from protocol.identity import Ed25519Signer, PeerId
from protocol.manifest import RunManifest
from sim.checks.accounting import OwnRounds, check_receipts
from sim.checks.invariants import Circumstances, InvariantBroken, Invariants
from sim.checks.leaks import Needles
from sim.checks.traces import merge_traces
from training.models.genesis import genesis_weights
from training.numeric.arithmetic import joined

logger = logging.getLogger(__name__)

_ANY_SEED = bytes(32)
"""Of the key that only checks signatures."""

SHARD = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmVerdict:
    """What traces and checkpoints say."""

    broken: str
    """The first promise that was not kept, in words; empty if all were."""

    num_records: int
    num_signatures: int
    checkpoints_equal: bool
    num_checkpoints: int
    """Checkpoints whose seal some trace tells of, and which were compared with it."""

    memory_max_bytes: int
    """The most that a network process held at any time."""

    banned: Mapping[PeerId, str] = field(default_factory=dict)
    """Whom seals ban, and the evidence that convicts them."""

    num_ledgers: int = 0
    """Ledgers that were checked."""

    @property
    def is_good(self) -> bool:
        """Whether the promises were kept, and there was something to see."""
        return not self.broken and self.checkpoints_equal and self.num_records > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a run has left, and what is known of it besides."""

    traces: Sequence[Path]
    logs: Sequence[Path]
    stayed: Sequence[Path]
    """State folders of the nodes that were there at the end: their checkpoints count."""

    states: Sequence[Path] = ()
    """State folders of all nodes: their keys are looked for in everything that is public."""

    bent: frozenset[PeerId] = frozenset()
    """Who breaks rules on purpose, and may be accused."""

    liars: frozenset[PeerId] = frozenset()
    """Those of them whose own states promise nothing: whoever sums wrongly believes itself."""

    disturbed: Sequence[float] = ()
    """When faults were dealt and undone, as the records count time."""


def judge(manifest: RunManifest, evidence: Evidence) -> SwarmVerdict:
    """Read everything and judge it."""
    seeds = _seeds(evidence.states)
    try:
        records = list(merge_traces([path for path in evidence.traces if path.exists()]))
    except DecodeError as error:
        records, broken = [], f"a trace cannot be read: {error}"
    else:
        broken = replay(manifest, records, evidence, seeds) or leaked(evidence.logs, seeds)
    differing, compared = compare_checkpoints(manifest, evidence.stayed, sealed_roots(records))
    in_ledgers, num_ledgers = check_ledgers(manifest, evidence.stayed, records)
    return SwarmVerdict(
        broken=broken or (f"checkpoints: {differing[0]}" if differing else "") or in_ledgers,
        num_ledgers=num_ledgers,
        num_records=len(records),
        banned=convicted_in(records),
        num_signatures=sum(isinstance(record, Signed) for record in records),
        checkpoints_equal=not differing,
        num_checkpoints=compared,
        memory_max_bytes=max((r.memory_bytes for r in records if isinstance(r, Used)), default=0),
    )


def convicted_in(records: Iterable[Record]) -> dict[PeerId, str]:
    """Who has no seat for good by some seal, and the evidence that some node held, in
    hexadecimal."""
    banned: set[PeerId] = set()
    proofs: dict[PeerId, str] = {}
    for record in records:
        if isinstance(record, Adopted | Confirmed):
            banned.update(record.certificate.value.roster.banned)
        elif isinstance(record, Convicted):
            proofs.setdefault(record.evidence.subject, record.evidence.encoded.hex())
    return {peer: proofs.get(peer, "") for peer in sorted(banned)}


def replay(
    manifest: RunManifest,
    records: Iterable[Record],
    evidence: Evidence,
    seeds: Mapping[PeerId, bytes],
) -> str:
    """The first promise that the records break, in words; empty if they break none."""
    known = Circumstances(bent=evidence.bent)
    invariants = Invariants(manifest, signer=Ed25519Signer(_ANY_SEED), circumstances=known)
    for peer, seed in seeds.items():
        invariants.keep_secret(peer, seed)
    for peer in sorted(evidence.liars):
        invariants.bend(peer)
    disturbed = deque(sorted(evidence.disturbed))
    try:
        for record in records:
            while disturbed and disturbed[0] <= record.at_s:
                invariants.disturbed(disturbed.popleft())
            invariants.saw(record)
        invariants.finish()
    except InvariantBroken as broken:
        return str(broken)
    return ""


def leaked(logs: Iterable[Path], seeds: Mapping[PeerId, bytes]) -> str:
    """In which log the seed of a key is, in words; empty if in none (I8)."""
    needles = [Needles(seed) for _, seed in sorted(seeds.items())]
    for path in logs:
        with suppress(FileNotFoundError):
            data = path.read_bytes()
            for how in filter(None, (needle.find(data) for needle in needles)):
                return f"I8, no secret: {path.name} holds the seed of a key {how}"
    return ""


def _seeds(states: Iterable[Path]) -> dict[PeerId, bytes]:
    signers = [load_or_create_identity(state) for state in states if has_identity(state)]
    return {signer.peer_id: signer.seed for signer in signers}


def sealed_roots(records: Iterable[Record]) -> dict[bytes, bytes]:
    """By a seal's digest the root of the state that it made, for all seals in the records."""
    found = {}
    for record in records:
        if isinstance(record, Adopted | Confirmed | Synced):
            value = record.certificate.value
            found[value.digest] = value.root
    return found


def check_ledgers(
    manifest: RunManifest, states: Sequence[Path], records: Iterable[Record]
) -> tuple[str, int]:
    """What is wrong with the first bad ledger, in words; and how many were looked at."""
    own, count = OwnRounds(), 0
    for record in records:
        own.saw(record)
    for state in states:
        peer = load_or_create_identity(state).peer_id if has_identity(state) else None
        # A node that was killed early has no ledger, nor a round that it would have to prove.
        folder = run_folder(state, manifest.digest)
        if peer is None or not (folder / RECEIPTS_FILE).exists():
            continue
        count += 1
        signer = Ed25519Signer(_ANY_SEED)
        try:
            source = RunLedger(manifest, folder)
            found = check_receipts(
                manifest, source.folded, source.rounds(), own=own.of(peer), signer=signer
            )
            wrong = next(found, "")
        except ConfigError as error:
            wrong = f"its ledger cannot be read: {error}"
        if wrong:
            return f"I5, accounting: {state.name} {wrong}", count
    return "", count


def compare_checkpoints(
    manifest: RunManifest, states: Sequence[Path], roots: dict[bytes, bytes]
) -> tuple[list[str], int]:
    """What is wrong with the nodes' checkpoints, in words; and how many were looked at."""
    anchor_N = joined(genesis_weights(manifest, SHARD))
    store = ShardStore(manifest, SHARD, anchor_N)
    differing, count = [], 0
    for state in states:
        folder = run_folder(state, manifest.digest) / CHECKPOINTS_FOLDER
        # A node that was killed early has none.
        with suppress(FileNotFoundError):
            for stored in stored_states(folder, manifest, SHARD, store.slot_names):
                sealed = roots.get(stored.seal)
                if sealed is None:
                    continue
                count += 1
                if store.make_state(stored.anchor_N, stored.slots).root != sealed:
                    differing.append(
                        f"{state.name}'s of round {stored.round} is not what was sealed"
                    )
    return differing, count
