"""The DHT's table on disk: peers of any run, through which a restarted node enters again."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio

from dht.kademlia.routing import Contact
from node.state.folder import write_atomically
from node.state.known_peers import (
    ADDRESSES_MAX,
    PEERS_MAX,
    KnownPeer,
    KnownPeers,
    is_plausible,
    read_known_peers,
)
from protocol.clock import WallClock

logger = logging.getLogger(__name__)

DHT_TABLE_FILE = "dht_table.json"
WRITE_FIRST_S, WRITE_EVERY_S = 20.0, 300.0

_NO_RUN = bytes(32)
"""The peers of the table belong to whatever run; the file's form is that of the known peers."""


def read_table(state: Path) -> tuple[Contact, ...]:
    """The contacts of the last start; nobody where there was none, or the file is damaged."""
    known = read_known_peers(state / DHT_TABLE_FILE).of(_NO_RUN)
    return tuple(Contact(one.peer, one.addresses) for one in known)


async def keep_table(
    state: Path,
    contacts: Callable[[], tuple[Contact, ...]],
    wall_clock: WallClock,
    write: Callable[[Path, bytes], None] = write_atomically,
) -> None:
    """Write the table now and then, until cancelled. A disk that takes no more is no reason to
    stop: the file is a convenience."""
    wait_s = WRITE_FIRST_S
    while True:
        await trio.sleep(wait_s)
        wait_s = WRITE_EVERY_S
        now_s = int(wall_clock())
        peers = [
            KnownPeer(one.peer, tuple(filter(is_plausible, one.addresses))[:ADDRESSES_MAX], now_s)
            for one in contacts()[:PEERS_MAX]
        ]
        if not peers:
            continue
        data = KnownPeers({}).seen(_NO_RUN, peers).encode()
        try:
            await trio.to_thread.run_sync(partial(write, state / DHT_TABLE_FILE, data))
        except OSError as error:
            logger.warning("table not written reason=%s", error.strerror)
