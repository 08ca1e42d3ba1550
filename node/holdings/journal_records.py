"""What the records of a journal's logs hold, and whether its two logs agree. Pure."""

import logging
from collections.abc import Iterable, Sequence

from protocol import limits
from protocol.errors import DecodeError
from protocol.identity import PeerId
from protocol.messages import SealCertificate, SignedMessage, decode_message
from protocol.wire import decode

logger = logging.getLogger(__name__)


def messages_of(records: Iterable[bytes]) -> list[SignedMessage]:
    """The messages in the records, up to the first that is none."""
    messages = []
    for record in records:
        try:
            messages.append(decode_message(record)[0])
        except DecodeError as error:
            logger.warning("slot record skipped reason=%s", error)
            break
    return messages


def certificates_of(records: Iterable[bytes], *, first: int | None = 1) -> list[SealCertificate]:
    """Certificates of round `first` and those behind it, up to the first that does not follow."""
    chain: list[SealCertificate] = []
    for record in records:
        try:
            certificate = decode(SealCertificate, record, max_bytes=limits.CONTROL_FRAME_BYTES_MAX)
        except DecodeError as error:
            logger.warning("chain record skipped reason=%s", error)
            break
        if first is not None and certificate.value.round != first + len(chain):
            break
        chain.append(certificate)
    return chain


def is_signed_unlogged(
    me: PeerId, chain: Sequence[SealCertificate], messages: Sequence[SignedMessage]
) -> bool:
    """Whether the chain's last seal rests on a SEAL of ours, and the log ends before its round.

    A crash may have left the chain without the signatures that were to be logged behind it, which
    are of one round. What was signed in the round before is then there.
    """
    if not chain or chain[-1].value.round == 1:
        return False
    last = chain[-1]
    if any(message.slot.round >= last.value.round - 1 for message in messages):
        return False
    return any(message.sender == me for message in messages_of(last.seals))
