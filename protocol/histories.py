"""What comes of comparing histories: what is told of it, and who signed two of them. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from protocol.errors import DecodeError
from protocol.evidence import Evidence, two_messages_evidence
from protocol.identity import PeerId
from protocol.messages import SealCertificate, SealValue, SignedMessage, decode_message


@dataclass(frozen=True, slots=True)
class KeptChain:
    """A verified chain behind `base`; `named` is the seal before that where two rounds are in
    flight (R5)."""

    base: SealValue
    named: SealValue | None
    chain: tuple[SealCertificate, ...]

    def before(self, round_index: int) -> tuple[SealValue, SealValue | None]:
        """The seal before that round, and with two rounds in flight the one that names it."""
        links = self.chain[: round_index - self.base.round - 1]
        known = [self.named, self.base, *(link.value for link in links)]
        last = known[-1]
        assert last is not None
        return last, known[-2] if self.named is not None else None


@dataclass(frozen=True, slots=True)
class HistoryKnown:
    """The history up to that round is taken from `source`; so many others told the same, and
    `is_named` says that a seal of it stands in the invite link."""

    round: int
    source: PeerId
    num_others: int
    is_named: bool


@dataclass(frozen=True, slots=True)
class TwoHistories:
    """Two certificates of one round behind the same seal, of which one is forged; who gave them."""

    ours: SealCertificate
    theirs: SealCertificate
    source: PeerId
    witness: PeerId


def double_signers(first: SealCertificate, second: SealCertificate) -> Iterator[Evidence]:
    """The proof against each voter that signed both in one attempt.

    Over two attempts it is none: a voter may seal another LIST in a later attempt, and that each of
    the two has a quorum shows that voters lied, not which of them.
    """
    signed = {(one.sender, one.slot): one for one in _messages(first)}
    for message in _messages(second):
        other = signed.get((message.sender, message.slot))
        if other is not None and other.digest != message.digest:
            yield two_messages_evidence(other, message)


def _messages(certificate: SealCertificate) -> Iterator[SignedMessage]:
    for data in certificate.seals:
        try:
            yield decode_message(data)[0]
        except DecodeError:
            continue  # `check_seal` would have refused it.
