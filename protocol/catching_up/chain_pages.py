"""The chain of seals for a peer that catches up, a page at a time (R11). Pure."""

from collections.abc import Iterator, Sequence

from protocol import limits
from protocol.events import CoreAction, Send, SendChain
from protocol.frames import Chain
from protocol.identity import PeerId
from protocol.messages import SealCertificate


def chain_page(chain: Sequence[SealCertificate], peer: PeerId, first: int) -> Iterator[CoreAction]:
    """What a peer gets that asks for the seals from round `first` on; never genesis.

    `chain` are the newest seals; older ones are only in the journal.
    """
    first = max(1, first)
    known = first - chain[0].value.round
    if known < 0:
        yield SendChain(peer, first)
        return
    seals = chain[known : known + limits.CHAIN_PAGE_SEALS]
    step = limits.CHAIN_SEALS_PER_FRAME_MAX
    for start in range(0, len(seals), step):
        yield Send(peer, Chain(seals=tuple(seals[start : start + step])))
