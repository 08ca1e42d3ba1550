"""One example of every kind of entry, and of evidence, with its golden bytes."""

from dataclasses import replace
from typing import Any

from protocol.entries import Entry, EntryHeader, draft_entry, sign_entry
from protocol.entry_kinds import (
    RULES,
    Accusation,
    Accused,
    Admitted,
    Departure,
    EntryBody,
    EntryKind,
    HasCheckpoint,
    HasData,
    HoldsText,
    Identity,
    Invitation,
    Metrics,
    Note,
    Presence,
    Reading,
    encode_runs,
)
from protocol.evidence import (
    Evidence,
    fork_evidence,
    two_messages_evidence,
    two_retracts_evidence,
    wrong_sum_evidence,
    wrong_verdict_evidence,
    wrong_work_evidence,
)
from protocol.hybrid_clock import COUNTER_BITS, Stamp
from protocol.identity import Ed25519Signer, PeerId
from protocol.invitations import Offer, Role, Token, sign_token
from protocol.messages import (
    Agg,
    Commit,
    Kind,
    Outcome,
    Retract,
    Roster,
    SealClock,
    SealValue,
    SeatRecord,
    SignedMessage,
    Slot,
    Verdict,
    Vote,
    segment_subject,
    sign_message,
    slice_subject,
)
from protocol.wire import encode

SIGNER = Ed25519Signer(bytes(range(32)))
RUN = bytes([0xE0]) * 32
SUBJECT = PeerId(bytes([99]) * 32)
KEY = Ed25519Signer(bytes(range(64, 96)))
TOKEN = sign_token(
    Token(
        run=RUN,
        issuer=SIGNER.peer_id,
        key=KEY.peer_id,
        role=Role.MEMBER,
        uses=8,
        delegations=1,
        not_after_unix_s=1_800_000_000,
        signature=bytes(64),
    ),
    SIGNER,
)
OFFER = Offer(TOKEN, KEY.seed, ())
BODIES: dict[EntryKind, EntryBody] = {
    EntryKind.IDENTITY: Identity(
        name="barn owl",
        device="cuda NVIDIA L4",
        software="barnraise 0.1.0",
        upload_mbit=40,
        download_mbit=250,
        is_relay=True,
        addresses=("/ip4/203.0.113.1/tcp/4001", "/ip6/2001:db8::7/tcp/4001"),
    ),
    EntryKind.PRESENCE: Presence(incarnation=3, round=41, head=bytes([0xE1]) * 32),
    EntryKind.LEAVE: Departure(reason="good night"),
    EntryKind.EVIDENCE: Accused(
        subject=SUBJECT, accusation=Accusation.TWO_MESSAGES, proof_bytes=98_304
    ),
    EntryKind.CHECKPOINT: HasCheckpoint(
        shard=0, round=40, seal=bytes([0xE2]) * 32, num_bytes=2**33, is_withdrawn=False
    ),
    EntryKind.DATA: HasData(num_bytes=123_456, is_withdrawn=False),
    EntryKind.METRICS: Metrics(
        round=41, readings=(Reading(name="loss", value=2.5), Reading(name="tokens_s", value=9e3))
    ),
    EntryKind.INVITATION: Invitation(
        is_revoked=False, role=Role.MEMBER, uses=8, delegations=1, not_after_unix_s=1_800_000_000
    ),
    EntryKind.NOTE: Note(text="who has the H100?", removes=()),
    EntryKind.ADMISSION: Admitted(admission=OFFER.taken_by(SUBJECT).admissions[0]),
    EntryKind.TEXT: HoldsText(
        room=4096, count=300, runs=encode_runs(((3, 8), (700, 995))), hot=(5, 701), is_settled=True
    ),
}


def _entry(kind: EntryKind, previous: bytes, **changes: object) -> Entry:
    stamp = Stamp(1_760_000_000_123 << COUNTER_BITS | 5)
    header = EntryHeader(
        version=1,
        run=RUN,
        kind=kind,
        key=(bytes([0xE3]) * 32)[: RULES[kind].key_bytes],
        writer=SIGNER.peer_id,
        era=2,
        sequence=1_760_000_000_123 if not previous else 1_760_000_000_023,
        stamp=stamp,
        expires_unix_s=1_760_003_600,
        previous=previous,
        body=bytes(32),
    )
    body = changes.pop("body", BODIES[kind])
    return sign_entry(draft_entry(replace(header, **changes), body), SIGNER)  # type: ignore[arg-type]


ENTRIES = {kind: _entry(kind, bytes([0xE4]) * 32 if kind % 2 else b"") for kind in EntryKind}

_SLOT = Slot(run=RUN, shard=0, round=41, basis=bytes([0xE5]) * 32, attempt=1, kind=Kind.VOTE)


def _two_votes() -> Evidence:
    votes = [
        sign_message(SIGNER, _SLOT, Vote(list_digest=bytes([number]) * 32))
        for number in (0xE6, 0xE7)
    ]
    return two_messages_evidence(votes[0], votes[1])


JUDGES = tuple(
    sorted((Ed25519Signer(bytes([n]) * 32) for n in range(1, 4)), key=lambda s: s.peer_id)
)
BASIS = SealValue(
    run=RUN,
    shard=0,
    round=40,
    before=bytes([0xE8]) * 32,
    basis=bytes([0xE8]) * 32,
    commits=(bytes([0xE9]) * 32,),
    drifts=(),
    root=bytes([0xEA]) * 32,
    roster=Roster(
        seats=tuple(
            SeatRecord(peer=peer, seated=0, voter_since=0, proved=39, absent=0)
            for peer in sorted(signer.peer_id for signer in (SIGNER, *JUDGES))
        ),
        window=(39, 40),
    ),
    clock=SealClock(step=400, tokens=4000, cursor=4000, unused=(), ends_run=False),
)
"""Four voters, of whom one may lie."""


def agg_of(signer: Ed25519Signer, mark: int, basis: SealValue = BASIS) -> SignedMessage:
    """An AGG of the round that follows a seal; `mark` makes its root."""
    listed = bytes([0xEB]) * 32
    subject = slice_subject(listed, 0, 3)
    slot = replace(_SLOT, basis=basis.digest, attempt=0, kind=Kind.AGG, subject=subject)
    return sign_message(
        signer, slot, Agg(list_digest=listed, first=0, stop=3, root=bytes([mark]) * 32)
    )


WORK = sign_message(
    SIGNER,
    replace(_SLOT, basis=BASIS.digest, attempt=0, kind=Kind.COMMIT),
    Commit(
        root=bytes([0xEE]) * 32,
        cell_norms=(1.0,),
        tokens=20,
        samples=20,
        steps=10,
        base=BASIS.digest,
        residual_before=bytes(32),
        residual_after=bytes(32),
        seal=b"",
        joins=(),
        suspects=(),
        gone=(),
        bans=(),
        is_past_end=False,
    ),
)
"""What is audited."""

WRONG = Verdict(commit=WORK.digest, segment=2, outcome=Outcome.WRONG, found=bytes([0xEF]) * 32)
RIGHT = replace(WRONG, outcome=Outcome.RIGHT)


def verdict_of(signer: Ed25519Signer, verdict: Verdict) -> SignedMessage:
    """What a voter says of it."""
    subject = segment_subject(verdict.commit, verdict.segment)
    return sign_message(signer, replace(WORK.slot, kind=Kind.VERDICT, subject=subject), verdict)


def retract_of(signer: Ed25519Signer, round_index: int) -> SignedMessage:
    """The contribution to a round, taken back."""
    slot = replace(_SLOT, round=round_index, attempt=0, kind=Kind.RETRACT)
    return sign_message(signer, slot, Retract(commit=bytes([0xEE]) * 32))


EVIDENCE = {
    Accusation.FORK: fork_evidence(
        ENTRIES[EntryKind.NOTE].signed_header,
        _entry(
            EntryKind.NOTE, bytes([0xE4]) * 32, body=Note(text="nobody", removes=())
        ).signed_header,
    ),
    Accusation.TWO_MESSAGES: _two_votes(),
    Accusation.WRONG_SUM: wrong_sum_evidence(
        BASIS, agg_of(SIGNER, 0xEC), (agg_of(JUDGES[0], 0xED), agg_of(JUDGES[1], 0xED))
    ),
    Accusation.WRONG_WORK: wrong_work_evidence(
        BASIS, WORK, WRONG, (verdict_of(JUDGES[0], WRONG), verdict_of(JUDGES[1], WRONG))
    ),
    Accusation.WRONG_VERDICT: wrong_verdict_evidence(
        BASIS,
        verdict_of(SIGNER, WRONG),
        RIGHT,
        (verdict_of(JUDGES[0], RIGHT), verdict_of(JUDGES[1], RIGHT)),
    ),
    Accusation.TWO_RETRACTS: two_retracts_evidence(retract_of(SIGNER, 41), retract_of(SIGNER, 141)),
}


def entry_vectors() -> dict[str, Any]:
    """What the golden file holds of them."""
    return {
        "entries": {
            kind.name: {
                "body": entry.body.hex(),
                "entry": encode(entry).hex(),
                "id": entry.entry_id.hex(),
            }
            for kind, entry in ENTRIES.items()
        },
        "evidence": {
            accusation.name: {"evidence": evidence.encoded.hex(), "id": evidence.entry_id.hex()}
            for accusation, evidence in EVIDENCE.items()
        },
    }
