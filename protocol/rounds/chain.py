"""The chain of seals: genesis, the next link, and the check of a link (R1, R2, R9, R11)."""

from protocol.errors import DecodeError, ProofError
from protocol.identity import PeerId, Signer
from protocol.manifest import RunManifest
from protocol.messages import (
    Kind,
    Seal,
    SealCertificate,
    SealClock,
    SealValue,
    SignedMessage,
    decode_message,
    is_signed,
)
from protocol.rounds.roster import (
    ClockRules,
    InFlight,
    ListedContribution,
    genesis_roster,
    has_quorum,
    next_clock,
    next_roster,
)
from protocol.rounds.round_view import RoundView


def genesis(manifest: RunManifest, shard: int, root: bytes) -> SealCertificate:
    """The seal of round 0: the founder alone, on the state that the manifest's seed makes."""
    value = SealValue(
        run=manifest.digest,
        shard=shard,
        round=0,
        before=manifest.digest,
        basis=manifest.digest,
        commits=(),
        drifts=(),
        root=root,
        roster=genesis_roster(manifest.founder),
        clock=SealClock(step=0, tokens=0, cursor=0, unused=(), ends_run=False),
    )
    return SealCertificate(value=value, seals=())


def certify(value: SealValue, seals: tuple[SignedMessage, ...]) -> SealCertificate:
    """The certificate that a quorum's SEALs make."""
    return SealCertificate(value=value, seals=tuple(message.encoded for message in seals))


def named_by(previous: SealValue, named: SealValue | None) -> tuple[SealValue, bytes]:
    """Which seal names roster and slots of the round behind `previous`, and as what (R1, R5).

    With one round in flight `previous` itself, and `named` is None; with two the one before that,
    as `previous` calls it. What stands before genesis is genesis, too, under the run's digest: so
    no two rounds are named alike.
    """
    if named is None:
        return previous, previous.digest
    return named, previous.before


def check_seal(
    previous: SealValue,
    certificate: SealCertificate,
    signer: Signer,
    *,
    trust: str,
    named: SealValue | None = None,
) -> None:
    """Raise ProofError unless a quorum of the round's voters sealed it in one attempt.

    They are those of `previous`, or with two rounds in flight (R5) of `named`, the seal before it.
    """
    value, (naming, basis) = certificate.value, named_by(previous, named)
    if (value.run, value.shard) != (previous.run, previous.shard):
        raise ProofError("a seal of another run or shard")
    if value.round != previous.round + 1 or value.before != previous.digest:
        raise ProofError(f"the seal of round {value.round} does not follow round {previous.round}")
    if value.basis != basis:
        raise ProofError(f"another seal than that of round {naming.round} named the roster")
    attempts = set()
    agreeing: set[PeerId] = set()
    for data in certificate.seals:
        try:
            message, body = decode_message(data)
        except DecodeError as error:
            raise ProofError(f"malformed SEAL in a certificate: {error}") from error
        if not is_seal_of(message, value) or not isinstance(body, Seal):
            raise ProofError("a certificate holds something else than SEALs of its round")
        if body.value != value.digest or body.root != value.root:
            raise ProofError("a SEAL in the certificate is for another value")
        if not is_signed(message, signer):
            raise ProofError("a SEAL in the certificate is not signed by its sender")
        attempts.add(message.slot.attempt)
        agreeing.add(message.sender)
    if len(attempts) != 1 or not has_quorum(naming.roster, agreeing, trust=trust):
        raise ProofError(f"the seal of round {value.round} lacks a quorum of one attempt")


def is_seal_of(message: SignedMessage, value: SealValue) -> bool:
    """Whether `message` sits in a SEAL slot of the round that `value` closed."""
    slot = message.slot
    return (
        slot.kind is Kind.SEAL
        and (slot.run, slot.shard, slot.round) == (value.run, value.shard, value.round)
        and slot.basis == value.basis
        and slot.subject == value.before
    )


def is_own_seal(data: bytes, sender: PeerId, head: SealValue, signer: Signer) -> bool:
    """Whether a COMMIT carries its sender's own SEAL or PSEAL of `head`, of whatever attempt (R1).

    PSEALs prove as well: the rosters of a branch are part of its seals, which become final later,
    and where nobody could prove anything its voters would lose their votes one by one.
    """
    try:
        message, body = decode_message(data)
    except DecodeError:
        return False
    slot = message.slot
    return (
        message.sender == sender
        and isinstance(body, Seal)
        and slot.kind in (Kind.SEAL, Kind.PSEAL)
        and (slot.run, slot.shard, slot.round) == (head.run, head.shard, head.round)
        and slot.subject == head.before
        and body.value == head.digest
        and is_signed(message, signer)
    )


def seal_value(
    view: RoundView, digest: bytes, signer: Signer, rules: ClockRules
) -> SealValue | None:
    """What the seal of a LIST says; None while its COMMITs or the root of its state are unknown."""
    body = view.ballots.list_of(digest)
    root = view.outcome.applied.get(digest)
    contributions = view.listed(body) if body is not None else None
    if body is None or root is None or contributions is None:
        return None
    head, named = view.seals.head, view.seals.named
    listed = [
        ListedContribution(sender, commit, is_own_seal(commit.seal, sender, named, signer))
        for sender, _, commit in contributions
    ]
    roster = next_roster(
        head.roster,
        view.index,
        listed,
        trust=view.config.trust,
        law=rules.admission,
        in_flight=InFlight(named.roster, rules.lag),
    )
    return SealValue(
        run=head.run,
        shard=head.shard,
        round=view.index,
        before=view.seals.before,
        basis=view.basis,
        commits=body.commits,
        drifts=body.drifts,
        root=root,
        roster=roster,
        clock=next_clock(head, listed, rules, basis=named),
    )


# Lease trace --------------------------------------------------------------------------------------
#
# What a seal shows of samples that were leased, and that nobody can lease any more (R9).


def num_in_flight(before: SealValue, rules: ClockRules) -> int:
    """Samples that are leased for rounds behind the one that follows `before` (R5): its seal
    cannot say what becomes of them."""
    return (rules.lag - 1) * rules.samples_each * len(before.roster.members)


def num_forgotten(
    clock: SealClock, tokens_each: int, *, drift_tokens: int = 0, in_flight: int = 0
) -> int:
    """Samples that were leased, came back, and were too many intervals to be kept: the trace that
    a seal has of them.

    Every COMMIT that counts claims `tokens_each` tokens for each sample that it used, so the tokens
    say how many were; what was not used and is not among the unused was forgotten. `drift_tokens`
    are of samples that other branches leased (R4), `in_flight` samples of rounds under way (R5).
    """
    used = (clock.tokens - drift_tokens) // tokens_each
    return clock.cursor - in_flight - sum(gap.stop - gap.first for gap in clock.unused) - used
