"""Who is told that peers come and go, and for how long."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import trio

from dht.transport.libp2p_link import EVENTS_MAX, Links
from protocol.identity import PeerId

PEER = PeerId(b"p" * 32)


@dataclass(eq=False)
class Connection:
    """What `Links` keeps of one link."""

    peer: PeerId = PEER
    remote: tuple[str, int] | None = None
    is_initiator: bool = False
    is_up: bool = False
    lost_reason: str = ""
    lost: trio.Event = field(default_factory=trio.Event)


async def test_subscriber_that_reads_nothing_or_is_gone_ends_and_the_others_hear_on(caplog):
    links = Links(lambda task: None)
    idle, gone, reader = links.events(), links.events(), links.events()
    gone.close()
    for _ in range(EVENTS_MAX):
        connection: Any = Connection()
        links.mark_up(connection)
        links.mark_down(connection)
        assert [reader.receive_nowait() for _ in range(2)] == [(PEER, True), (PEER, False)]
    assert caplog.text.count("subscriber dropped") == 1
    heard = [idle.receive_nowait() for _ in range(EVENTS_MAX)]
    assert heard == [(PEER, True), (PEER, False)] * (EVENTS_MAX // 2)
    with pytest.raises(trio.EndOfChannel):
        idle.receive_nowait()
