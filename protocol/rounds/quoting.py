"""The VOTEs that a LIST or a NEWATTEMPT quotes as a certificate (R2). Pure."""

from protocol.errors import DecodeError
from protocol.identity import Signer
from protocol.messages import (
    Kind,
    List,
    NewAttempt,
    SignedMessage,
    Slot,
    decode_message,
    is_signed,
)
from protocol.rounds.ballots import Ballots


def quoted_votes(
    slot: Slot, body: List | NewAttempt, ballots: Ballots, signer: Signer
) -> list[SignedMessage]:
    """What the message in that slot quotes.

    Whether it is sound does not depend on what is known here: nobody passes on what is not, and so
    nobody is blamed for what another one signed. Raises DecodeError unless each is a VOTE of that
    round, signed by its sender.
    """
    votes: list[SignedMessage] = []
    for data in body.certificate:
        vote, _ = decode_message(data)
        of = vote.slot
        place, own = (of.run, of.shard, of.round, of.basis), (slot.run, slot.shard, slot.round)
        if of.kind is not Kind.VOTE or place != (*own, slot.basis):
            raise DecodeError(f"{of.kind.name} of round {of.round} in a certificate")
        if ballots.find(vote.digest) is None and not is_signed(vote, signer):
            raise DecodeError("a VOTE in a certificate is not signed by its sender")
        votes.append(vote)
    return votes
