"""The golden bytes of wire version 1: one example of everything that travels.

`tests/vectors/wire-v4.json` holds what this module makes. A test compares the two and never
writes. Whoever changes the wire on purpose raises WIRE_VERSION, writes the file anew with

    python -m tests.protocol.vectors --write

and names the change in a fragment `wire` of changelog.d.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from protocol.frames import (
    BlockHeader,
    Branch,
    BranchEnd,
    Bulk,
    BulkHeader,
    BulkItem,
    BulkItems,
    Chain,
    Frame,
    Heartbeat,
    Hello,
    Lacking,
    Messages,
    Phase,
    Progress,
    Refusal,
    StatusAnswer,
    StatusAsk,
    Want,
    WantBlocks,
    WantBranch,
    WantChain,
    Welcome,
    encode_frame,
)
from protocol.gossip import (
    Ack,
    BucketIds,
    Compare,
    Digests,
    Entries,
    Farewell,
    Introduction,
    Neighbour,
    NeighbourKind,
    OfferIds,
    Ping,
    PingFor,
    Rumour,
    RumourKind,
    Shuffle,
    Shuffled,
    WantEntries,
)
from protocol.grid import EMPTY_ROOT, cell_root, merkle_proof, merkle_root
from protocol.identity import Ed25519Signer, KeyedHashSigner, PeerId, peer_id_text
from protocol.manifest import WIRE_VERSION, sign_manifest
from protocol.messages import (
    Agg,
    Body,
    Commit,
    Gram,
    Have,
    Held,
    Interval,
    Kind,
    Leave,
    List,
    NewAttempt,
    Outcome,
    Retract,
    Roster,
    Seal,
    SealCertificate,
    SealClock,
    SealValue,
    Seat,
    SeatRecord,
    Slot,
    Verdict,
    Vote,
    Work,
    list_digest,
    segment_subject,
    sign_message,
    slice_subject,
)
from protocol.wire import encode
from tests.protocol.entry_vectors import entry_vectors
from tests.protocol.manifest_vector import MANIFEST as MANIFEST
from tests.protocol.manifest_vector import SIGNER as SIGNER

PATH = Path(__file__).parent.parent / "vectors" / "wire-v4.json"

OTHER = Ed25519Signer(bytes(range(32, 64)))
PEERS = tuple(sorted((SIGNER.peer_id, OTHER.peer_id)))


def digest(number: int) -> bytes:
    """A digest that one can recognise in a dump."""
    return bytes([number]) * 32


RUN, BASIS, BEFORE, COMMIT_DIGEST, DRIFT, ROOT = map(digest, range(0xA0, 0xA6))
SUBJECT = slice_subject(digest(0xB0), 3, 9)


def slot(kind: Kind, *, attempt: int = 0, subject: bytes = b"") -> Slot:
    """A slot of round 41 of shard 2."""
    return Slot(
        run=RUN, shard=2, round=41, basis=BASIS, attempt=attempt, kind=kind, subject=subject
    )


SEAL = Seal(value=digest(0xB1), list_digest=digest(0xB0), root=ROOT)
SIGNED_VOTE = sign_message(SIGNER, slot(Kind.VOTE, attempt=300), Vote(list_digest=digest(0xB0)))
SIGNED_SEAL = sign_message(SIGNER, slot(Kind.SEAL, attempt=300, subject=BEFORE), SEAL)

BODIES: dict[Kind, tuple[Slot, Body]] = {
    Kind.SEAT: (slot(Kind.SEAT), Seat(proof=digest(0xB2), device="cpu, 2 cores")),
    Kind.COMMIT: (
        slot(Kind.COMMIT),
        Commit(
            root=ROOT,
            cell_norms=(0.0, 1.5, 1e30),
            tokens=1 << 34,
            samples=320,
            steps=20,
            base=BASIS,
            residual_before=EMPTY_ROOT,
            residual_after=digest(0xB3),
            seal=SIGNED_SEAL.encoded,
            joins=(PEERS[0],),
            suspects=(PEERS[1],),
            gone=(),
            bans=(OTHER.peer_id,),
            is_past_end=True,
            seen=b"\x01\x00\xff",
            work=(
                Work(
                    onion=digest(0xB8),
                    device="cpu, numpy",
                    trace=(digest(0xB9), digest(0xBA)),
                    before=EMPTY_ROOT,
                    after=digest(0xBB),
                ),
            ),
        ),
    ),
    Kind.HAVE: (
        slot(Kind.HAVE, attempt=1),
        Have(
            held=(Held(first=0, stop=3, senders=b"\x03"), Held(first=3, stop=300, senders=b"\x01"))
        ),
    ),
    Kind.HOLD: (
        slot(Kind.HOLD, attempt=1),
        Have(held=(Held(first=0, stop=300, senders=b"\x03"),)),
    ),
    Kind.LIST: (
        slot(Kind.LIST, attempt=1),
        List(commits=(COMMIT_DIGEST,), drifts=(DRIFT,), certificate=(SIGNED_VOTE.encoded,)),
    ),
    Kind.VOTE: (SIGNED_VOTE.slot, Vote(list_digest=digest(0xB0))),
    Kind.GRAM: (
        slot(Kind.GRAM, subject=SUBJECT),
        Gram(list_digest=digest(0xB0), first=3, stop=9, stats=b"statistics"),
    ),
    Kind.AGG: (
        slot(Kind.AGG, subject=SUBJECT),
        Agg(list_digest=digest(0xB0), first=3, stop=9, root=ROOT),
    ),
    Kind.SEAL: (SIGNED_SEAL.slot, SEAL),
    Kind.NEWATTEMPT: (
        slot(Kind.NEWATTEMPT, attempt=65_536),
        NewAttempt(
            lock_attempt=-1,
            commits=(COMMIT_DIGEST,),
            drifts=(),
            certificate=(SIGNED_VOTE.encoded,),
            missing=(0, 127, 128, 256, 4096),
        ),
    ),
    Kind.LEAVE: (slot(Kind.LEAVE), Leave(reason="supper")),
    Kind.PVOTE: (slot(Kind.PVOTE), Vote(list_digest=digest(0xB0))),
    Kind.PSEAL: (slot(Kind.PSEAL, subject=BEFORE), SEAL),
    Kind.VERDICT: (
        slot(Kind.VERDICT, subject=segment_subject(COMMIT_DIGEST, 8)),
        Verdict(commit=COMMIT_DIGEST, segment=8, outcome=Outcome.WRONG, found=digest(0xB7)),
    ),
    Kind.RETRACT: (slot(Kind.RETRACT), Retract(commit=COMMIT_DIGEST)),
}
SIGNED = {kind: sign_message(SIGNER, *place) for kind, place in BODIES.items()}

SEAL_VALUE = SealValue(
    run=RUN,
    shard=2,
    round=41,
    before=BEFORE,
    basis=BASIS,
    commits=(COMMIT_DIGEST, digest(0xB5)),
    drifts=(DRIFT,),
    root=ROOT,
    roster=Roster(
        seats=(
            SeatRecord(peer=PEERS[0], seated=0, voter_since=0, proved=40, absent=0, rate=200),
            SeatRecord(peer=PEERS[1], seated=3, voter_since=-1, proved=-1, absent=1, reached=False),
        ),
        window=(38, 39, 40, 41),
        banned=(PeerId(digest(0xBA)),),
    ),
    clock=SealClock(
        step=820,
        tokens=1 << 40,
        cursor=640,
        unused=(Interval(first=0, stop=320), Interval(first=400, stop=2**62)),
        ends_run=True,
    ),
)
CERTIFICATE = SealCertificate(value=SEAL_VALUE, seals=(SIGNED_SEAL.encoded,))

RUMOURS = (
    Rumour(kind=RumourKind.SUSPECT, peer=PEERS[0], incarnation=3),
    Rumour(kind=RumourKind.GONE, peer=PEERS[1], incarnation=2**40),
)
KNOWN = (
    Introduction(peer=PEERS[0], age_s=0, addresses=("/ip4/192.0.2.7/tcp/4001",)),
    Introduction(peer=PEERS[1], age_s=3600, addresses=()),
)
GOSSIP: tuple[Frame, ...] = (
    Entries(is_push=True, entries=(b"an entry", b"another")),
    OfferIds(ids=(digest(0xC1), digest(0xC2))),
    WantEntries(ids=(digest(0xC1),)),
    Compare(nonce=2**62, root=digest(0xC3)),
    Digests(nonce=5, buckets=tuple(bytes([number]) * 16 for number in range(256))),
    BucketIds(
        nonce=5,
        bucket=0xC1,
        first=digest(0xC0),
        last=digest(0xC2),
        ids=(digest(0xC1), digest(0xC2)),
    ),
    Ping(nonce=6, is_neighbour=True, rumours=RUMOURS),
    PingFor(nonce=7, target=PEERS[1], addresses=("/dns4/barn.example/tcp/1",), rumours=()),
    Ack(nonce=7, is_there=False, incarnation=1, rumours=RUMOURS[:1]),
    Farewell(incarnation=4),
    Shuffle(nonce=8, known=KNOWN),
    Shuffled(nonce=8, known=KNOWN[1:]),
    Neighbour(kind=NeighbourKind.URGENT),
)
FRAMES: tuple[Frame, ...] = (
    Hello(
        wire=WIRE_VERSION,
        run=RUN,
        addresses=("/ip4/127.0.0.1/tcp/4001",),
        credential=b"shown",
        started_ms=7,
    ),
    Refusal(reason="another run", manifest=b"\x92"),
    Heartbeat(
        round=41,
        head=BASIS,
        held=(b"01234567",),
        links=PEERS,
        silent=PEERS[1:],
        branch=(BranchEnd(final=39, head=BEFORE),),
        progress=(Progress(shard=0, round=41, phase=Phase.TRAIN, done=12, total=50, end_s=38),),
    ),
    Messages(messages=(SIGNED[Kind.VOTE], SIGNED[Kind.LEAVE])),
    Want(bulk=Bulk.STEP, subject=BASIS, first=70_000, bits=b"\x05\x00\x80"),
    WantChain(first=7),
    Chain(seals=(CERTIFICATE,)),
    StatusAsk(nonce=2**62),
    StatusAnswer(nonce=12, round=41, head=BASIS),
    *GOSSIP,
    WantBranch(final=BASIS),
    Branch(final=BASIS, seals=(CERTIFICATE,), lock=SIGNED_SEAL.encoded),
    Welcome(),
    Lacking(bulk=Bulk.STATE, subject=BASIS),
)
BULK = (
    BulkHeader(bulk=Bulk.PART, subject=COMMIT_DIGEST, round=42, items=12_288),
    BulkItems(
        items=(BulkItem(index=4, length=1 << 20, proof=digest(0xB6) + digest(0xB7)),),
        piece=1 << 18,
    ),
    WantBlocks(root=ROOT, blocks=(0, 7, 1 << 19)),
    BlockHeader(number=7, length=1 << 16, proof=digest(0xB6) + digest(0xB7)),
)

EXAMPLES: dict[str, object] = {
    **{kind.name: body for kind, (_, body) in BODIES.items()},
    **{f"signed {kind.name}": message for kind, message in SIGNED.items()},
    **{type(value).__name__: value for value in (*FRAMES, *BULK, SEAL_VALUE, CERTIFICATE)},
    "manifest": sign_manifest(MANIFEST, SIGNER),
}

_LEAVES = tuple(digest(number) for number in range(7))


def _hashes() -> dict[str, str]:
    hashes = {
        "manifest": MANIFEST.digest,
        "seal": SEAL_VALUE.digest,
        "list": list_digest(BASIS, 2, 41, (COMMIT_DIGEST, digest(0xB5)), (DRIFT,)),
        "list of the seal": SEAL_VALUE.list_digest,
        "slice": SUBJECT,
        "cell of no bytes": cell_root(b""),
        "cell of one byte": cell_root(b"\x00"),
        "cell of 40000 bytes": cell_root(bytes(40_000)),
        "root of no nodes": EMPTY_ROOT,
    }
    hashes |= {f"root of {n} nodes": merkle_root(_LEAVES[:n]) for n in (1, 2, 3, 7)}
    return {name: value.hex() for name, value in hashes.items()}


def vectors() -> dict[str, Any]:
    """Everything that the file holds."""
    return {
        "identity": {
            "seed": SIGNER.seed.hex(),
            "peer_id": SIGNER.peer_id.hex(),
            "text": peer_id_text(SIGNER.peer_id),
            "signature of 'barn'": SIGNER.sign(b"barn").hex(),
            "simulated signature of 'barn'": KeyedHashSigner(SIGNER.peer_id).sign(b"barn").hex(),
        },
        "messages": {
            kind.name: {
                "body": message.body.hex(),
                "signed": message.encoded.hex(),
                "digest": message.digest.hex(),
            }
            for kind, message in SIGNED.items()
        },
        "frames": {type(frame).__name__: encode_frame(frame).hex() for frame in FRAMES},
        "bulk": {type(header).__name__: encode(header).hex() for header in BULK},
        "manifest": encode(sign_manifest(MANIFEST, SIGNER)).hex(),
        "seal value": encode(SEAL_VALUE).hex(),
        "proof of node 4 of 7": [node.hex() for node in merkle_proof(_LEAVES, 4)],
        "hashes": _hashes(),
        **entry_vectors(),
    }


def main() -> None:
    """Write the file, if told to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", required=True)
    parser.parse_args()
    PATH.parent.mkdir(exist_ok=True)
    text = json.dumps(vectors(), indent=1, ensure_ascii=False)
    PATH.write_text(text + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
