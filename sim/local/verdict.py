"""Whether real nodes kept the promises: from their traces and checkpoints, and nothing they say.

The same invariants as in a world, over the same records. Checkpoints are stepped through the
arithmetic again: each must have the root that the swarm sealed. Ledgers are checked signature by
signature, and prove every round that their node has made final itself.

A node that was not there when liars were banned joins in the midst of a run with liars, told one
address and nothing else, and follows without a seat: the manifest, the chain and the evidence come
to it as they come to any latecomer. What it found of each ban is read out of its own trace alone.

How much each peer's contributions weighed in what was sealed follows from the Gram matrices that
were announced and the tokens of the COMMITs; nothing that a node says of itself counts.
"""

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from node.holdings.checkpoints import stored_states
from node.holdings.journal import RECEIPTS_FILE
from node.holdings.shard_store import ShardStore
from node.reporting.trace_file import read_trace
from node.reporting.tracing import (
    Adopted,
    Began,
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
from protocol.errors import ConfigError, DecodeError, PeerError
from protocol.evidence import Evidence as Conviction
from protocol.evidence import decode_evidence
from protocol.identity import Ed25519Signer, PeerId, Signer
from protocol.manifest import RunManifest
from protocol.messages import Commit, FilledSlot, Gram, SealValue, decode_body, decode_message
from protocol.wire import decode
from sim.checks.accounting import OwnRounds, check_receipts
from sim.checks.invariants import Circumstances, InvariantBroken, Invariants
from sim.checks.leaks import Needles
from sim.checks.seating import capped_weights, num_parts
from sim.checks.traces import merge_traces
from training.aggregation import AGGREGATORS, coefficients_of
from training.aggregation.seam import scores_of
from training.models.genesis import genesis_weights
from training.numeric.arithmetic import joined

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
        invariants.leaks.expect(peer, seed)
    for peer in sorted(evidence.liars):
        invariants.bend(peer)
    disturbed = deque(sorted(evidence.disturbed))
    try:
        for record in records:
            while disturbed and disturbed[0] <= record.at_s:
                invariants.stalls.disturbed(disturbed.popleft())
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


# A latecomer's word on bans ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Rechecked:
    """What one latecomer says of the bans of a run."""

    node: str
    joined: int
    """The round whose state it took first, -1 if it came too late for any."""

    bans: Mapping[PeerId, bool] = field(default_factory=dict)
    """Whom the swarm's seals ban; whether this node's own seals do, and it holds evidence that
    proves itself."""

    num_before: int = 0
    """Of them, those whose lie was signed for a round that was over before it came."""

    @property
    def is_complete(self) -> bool:
        """Whether it has checked every ban there is."""
        return all(self.bans.values())


def rechecked(
    node: str, trace: Path, banned: Collection[PeerId], run: bytes, signer: Signer
) -> Rechecked:
    """What a latecomer's trace says of these bans; `signer` checks signatures. A trace that cannot
    be read says nothing of any of them."""
    held: dict[PeerId, Conviction] = {}
    sealed: set[PeerId] = set()
    joined = -1
    # A node that came too late has no trace, or one without a line.
    records = []
    with suppress(FileNotFoundError, DecodeError):
        records = read_trace(trace)
    for record in records:
        match record:
            case Convicted():
                with suppress(PeerError):
                    found = decode_evidence(record.evidence.encoded, run, signer)
                    held[found.subject] = found
            case Synced(certificate=certificate):
                joined = certificate.value.round if joined < 0 else joined
                sealed.update(certificate.value.roster.banned)
            case Adopted(certificate=certificate) | Confirmed(certificate=certificate):
                sealed.update(certificate.value.roster.banned)
            case Began(head=head):
                sealed.update(head.value.roster.banned)
            case _:
                pass
    bans = {peer: peer in held and peer in sealed for peer in sorted(banned)}
    before = sum(is_shown and _is_of(held[p], joined) for p, is_shown in bans.items())
    return Rechecked(node=node, joined=joined, bans=bans, num_before=before)


def _is_of(evidence: Conviction, latest: int) -> bool:
    """Whether what convicts was signed for a round up to that one."""
    try:
        return decode(FilledSlot, evidence.second).slot.round <= latest
    except DecodeError:  # A VERDICT is there as a whole.
        return decode_message(evidence.second)[0].slot.round <= latest


# Shares in what was sealed ------------------------------------------------------------------------

Grams = dict[tuple[int, int], bytes]
"""By first and last cell of a slice."""


def weights_of(manifest: RunManifest, records: Iterable[Record]) -> dict[PeerId, float]:
    """Of each peer the mean, over the sealed rounds that list it, of its share in the factors that
    the rule gave; cells that are clipped by themselves may weigh less."""
    said: dict[bytes, dict[PeerId, Grams]] = defaultdict(lambda: defaultdict(dict))
    convicted: set[PeerId] = set()
    commits: dict[bytes, tuple[PeerId, Commit]] = {}
    seals: dict[bytes, SealValue] = {}
    for record in records:
        if isinstance(record, Adopted):
            seals[record.certificate.value.digest] = record.certificate.value
        elif isinstance(record, Convicted):
            convicted.add(record.evidence.subject)
        elif isinstance(record, Signed):
            try:
                body = decode_body(record.message)
            except DecodeError:
                continue
            if isinstance(body, Commit):
                commits[record.message.digest] = (record.message.sender, body)
            elif isinstance(body, Gram):
                said[body.list_digest][record.peer][body.first, body.stop] = body.stats
    told: dict[PeerId, list[float]] = defaultdict(list)
    for value in seals.values():
        listed = [commits[digest] for digest in value.commits if digest in commits]
        if listed and len(listed) == len(value.commits):
            grams: Grams = {}
            for peer, of_peer in said[value.list_digest].items():
                # The sealed sums came of what those said whom nobody found to lie in that.
                grams |= {} if peer in convicted else of_peer
            weighed = _weighed(manifest, seals.get(value.before), listed)
            for peer, share in _shares(manifest, weighed, grams).items():
                told[peer].append(share)
    return {peer: sum(shares) / len(shares) for peer, shares in sorted(told.items())}


def _weighed(
    manifest: RunManifest, head: SealValue | None, listed: list[tuple[PeerId, Commit]]
) -> list[tuple[PeerId, float]]:
    """What the tokens of each weigh, by ascending sender; behind genesis that is all they are."""
    law, found = manifest.admission, {}
    for peer, body in sorted(listed, key=lambda one: one[0]):
        found[peer] = body.tokens * (num_parts(head, peer, law) if head else 1)
    if head is not None and manifest.audits.rate:
        classes = {peer: work.device for peer, body in listed for work in body.work}
        found = capped_weights(head, found, classes, manifest.audits.unaudited)
    return [(peer, float(weight)) for peer, weight in found.items()]


def _shares(
    manifest: RunManifest, listed: list[tuple[PeerId, float]], grams: Grams
) -> dict[PeerId, float]:
    rows = [row for row in listed if row[1]]
    shares = {peer: 0.0 for peer, _ in listed}
    if not rows:
        return shares
    rule = AGGREGATORS[manifest.outer.aggregator](cell_elements=manifest.cell_elements)
    weights_P = np.array([weight for _, weight in rows])
    forms = [grams[place] for place in sorted(grams)] if rule.uses_stats else []
    factors_P = np.abs(scores_of(coefficients_of(rule, forms, weights_P)).astype(np.float64))
    total = float(factors_P.sum()) or 1.0
    found = {peer: float(w) / total for (peer, _), w in zip(rows, factors_P, strict=True)}
    return shares | found
