"""What the words of voters on audited work come to (R10). Pure."""

from collections.abc import Iterator

from protocol import events as ev
from protocol import limits
from protocol.auditing.audit_rounds import AuditedRound
from protocol.errors import ProofError
from protocol.evidence import (
    may_be_accused,
    two_messages_evidence,
    two_retracts_evidence,
    words_needed,
    wrong_verdict_evidence,
    wrong_work_evidence,
)
from protocol.identity import PeerId
from protocol.messages import Outcome, SealValue, SignedMessage, Verdict

REFUTED_MAX, REFUTED_ROUNDS = 3, 20
"""Who said of the work of so many peers that it could not be opened, and b + 1 voters opened it, in
so many rounds, loses its seat: it makes others work for nothing, or has no line. Of more than may
lie at least: else liars, who show their work to all others, would take any seat they like."""

SHUT_ROUNDS = 64
"""So long nobody names a peer for a seat whose work could not be opened."""

Key = tuple[bytes, int]
"""COMMIT digest and segment."""


class Judge:
    """Counts words, and keeps what followed from them."""

    def __init__(self, me: PeerId, *, without: frozenset[str]) -> None:
        self._me, self._without = me, without
        self.accused: set[PeerId] = set()
        """Against whom there is evidence, or would be if it could travel."""
        self.shunned: frozenset[PeerId] = frozenset()
        """Who is suspected for not opening its work, until it has no seat any more."""
        self._shut: dict[PeerId, int] = {}
        """Who lost its seat for that, and in which round."""
        self._refuted: dict[PeerId, dict[PeerId, int]] = {}
        """Whose work each could not open though others could, and in which round last."""
        self._retracts: dict[PeerId, SignedMessage] = {}

    def retracted(self, message: SignedMessage) -> Iterator[ev.RoundAction]:
        """Somebody takes back what it contributed: that costs the seat, and twice is a ban."""
        peer, before = message.sender, self._retracts.get(message.sender)
        self._retracts[peer] = message
        self.shunned |= {peer} - {self._me}
        if before is None or peer in self.accused or "bans" in self._without:
            return
        if 0 < abs(message.slot.round - before.slot.round) <= limits.RETRACT_ROUNDS:
            self.accused.add(peer)
            yield ev.Accuse(two_retracts_evidence(before, message))

    def is_contradiction(self, said: SignedMessage, message: SignedMessage) -> bool:
        """Whether a second word on a segment is another one, in the same slot, of somebody who is
        not accused yet."""
        is_other = said.digest != message.digest and said.slot == message.slot
        return is_other and message.sender not in self.accused

    def contradicted(self, said: SignedMessage, message: SignedMessage) -> Iterator[ev.RoundAction]:
        """Two words in one slot, both signed: some were to be told one thing, some another."""
        if "bans" not in self._without:
            self.accused.add(message.sender)
            yield ev.Accuse(two_messages_evidence(said, message))

    def sealed(
        self, value: SealValue, strayed: frozenset[PeerId], convicted: frozenset[PeerId]
    ) -> None:
        """A round is final; these peeled a wrong layer in it."""
        self.accused |= convicted
        shunned = (self.shunned | strayed) - {self._me}
        self.shunned = shunned & value.roster.member_set
        self._shut |= dict.fromkeys(sorted(shunned - self.shunned), value.round)
        self._shut = {p: r for p, r in self._shut.items() if r > value.round - SHUT_ROUNDS}
        oldest = value.round - REFUTED_ROUNDS
        refuted = {
            peer: {other: index for other, index in others.items() if index > oldest}
            for peer, others in self._refuted.items()
        }
        self._refuted = {peer: others for peer, others in refuted.items() if others}

    def is_shut(self, peer: PeerId) -> bool:
        """Whether a peer gets no seat now."""
        return peer in self._shut

    def judge(self, on: AuditedRound, key: Key) -> Iterator[ev.RoundAction]:
        """What follows from equal words of so many voters that one of them is honest."""
        if key[0] in on.retracted:
            return
        words, (commit, _) = on.words[key], on.commits[key[0]]
        needed = words_needed(len(on.named.roster.voters))
        groups: dict[Verdict, list[PeerId]] = {}
        for peer, (_, verdict) in sorted(words.items()):
            groups.setdefault(verdict, []).append(peer)
        for verdict, peers in groups.items():
            if len(peers) < needed:
                continue
            others = tuple(words[peer][0] for peer in peers[:needed])
            if verdict.outcome is Outcome.WRONG:
                yield from self._convict(on, commit.sender, verdict, others, commit)
            elif verdict.outcome is Outcome.UNOPENED:
                self.shunned |= {commit.sender} - {self._me}
            else:
                yield from self._refute(on, key, verdict, others)

    def _refute(
        self, on: AuditedRound, key: Key, verdict: Verdict, others: tuple[SignedMessage, ...]
    ) -> Iterator[ev.RoundAction]:
        """The work is right: who said otherwise lied, and who could not open it had a bad line, or
        was not shown it."""
        owner, _ = on.commits[key[0]]
        most = max(REFUTED_MAX, words_needed(len(on.named.roster.voters)))
        for peer, (said, other) in sorted(on.words[key].items()):
            if other.outcome is Outcome.WRONG:
                yield from self._convict(on, peer, verdict, others, said)
            elif other.outcome is Outcome.UNOPENED:
                unopened = self._refuted.setdefault(peer, {})
                unopened[owner.sender] = on.round
                if len(unopened) >= most:
                    self.shunned |= {peer} - {self._me}

    def _convict(
        self,
        on: AuditedRound,
        peer: PeerId,
        verdict: Verdict,
        others: tuple[SignedMessage, ...],
        said: SignedMessage,
    ) -> Iterator[ev.RoundAction]:
        is_known = peer in self.accused or peer == self._me or "bans" in self._without
        if is_known or not may_be_accused(on.named, peer):
            return
        is_work = verdict.outcome is Outcome.WRONG
        make = wrong_work_evidence if is_work else wrong_verdict_evidence
        self.accused.add(peer)
        try:
            yield ev.Accuse(make(on.named, said, verdict, others))
        except ProofError:
            self.shunned |= {peer}  # Too large to travel: then it costs the seat.
        yield ev.Fault(peer, "wrong work" if is_work else "a wrong VERDICT")
