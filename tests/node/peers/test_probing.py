"""A connection broke: the core hears that the peer is gone if it is, and else nothing."""

import pytest

from node.peers.links import probe
from protocol import events as ev
from tests.node.builders import peers_named

A, B = peers_named(2)


class Ways:
    """A transport and links of which a test says what they know."""

    def __init__(self, *, gone=True, connected=(), linked=(), addresses=("/ip4/1.2.3.4/tcp/5",)):
        self._gone, self._connected, self._linked = gone, connected, linked
        self._addresses = addresses
        self.asked: list[object] = []

    async def is_gone(self, peer, addresses):
        self.asked.append((peer, addresses))
        return self._gone

    def connected(self):
        return self._connected

    def linked(self):
        return self._linked

    def addresses(self, peer):
        return self._addresses


async def told(ways: Ways) -> list[object]:
    heard: list[object] = []

    async def tell(event: object) -> None:
        heard.append(event)

    await probe(ways, ways, A, tell)  # type: ignore[arg-type]
    return heard


async def test_peer_that_is_gone_is_told():
    ways = Ways()
    assert await told(ways) == [ev.Unlinked(A, is_gone=True)]
    assert ways.asked == [(A, ("/ip4/1.2.3.4/tcp/5",))]


@pytest.mark.parametrize(
    "ways", [Ways(gone=False), Ways(connected=(A,)), Ways(linked=(A,)), Ways(addresses=())]
)
async def test_peer_that_is_there_or_back_is_not(ways):
    assert await told(ways) == []
