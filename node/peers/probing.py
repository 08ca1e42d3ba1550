"""A connection broke: is the peer gone? Asked at once, for a round may wait for it."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from node.peers.links import Links
from protocol import events as ev
from protocol.identity import PeerId


class Prober(Protocol):
    """The part of the transport that looks."""

    def connected(self) -> tuple[PeerId, ...]:
        """Peers with an open connection."""
        ...

    async def is_gone(self, peer: PeerId, addresses: Sequence[str]) -> bool:
        """Whether a peer's own system says that nothing listens there any more."""
        ...


async def probe(
    transport: Prober,
    links: Links,
    peer: PeerId,
    tell: Callable[[ev.CoreEvent | ev.Fault], Awaitable[None]],
) -> None:
    """Tell the core if a peer whose connection broke is gone. Only linked and known ones matter."""
    addresses = links.addresses(peer)
    if not addresses or not await transport.is_gone(peer, addresses):
        return
    if peer not in transport.connected() and peer not in links.linked():
        await tell(ev.Unlinked(peer, is_gone=True))
