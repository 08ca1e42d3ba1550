"""Known peers: the peers of each run on disk, so that a restarted node finds them again."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import trio

from dht.kademlia.routing import Contact
from node.state.config import PeerAddress
from node.state.folder import write_atomically
from protocol import limits
from protocol.errors import DecodeError
from protocol.hybrid_clock import WallClock
from protocol.identity import PeerId, parse_peer_id, peer_id_text

# The DHT's table ----------------------------------------------------------------------------------
#
# Peers of any run, through which a restarted node enters again.

logger = logging.getLogger(__name__)

RUNS_MAX = 32
PEERS_MAX = 64
"""Of one run: the seats of a group. More would only be dialled in vain."""

ADDRESSES_MAX = 8
_FILE_BYTES_MAX = 8 * limits.MIB
_VERSION = 1

SETTLE_S = 1.0
"""Links come up in bursts: wait for the end of one, then write once."""

REFRESH_S = 600.0
"""While nothing changes, when last seen is written so often."""


@dataclass(frozen=True, slots=True)
class KnownPeer:
    """A peer of a run, where it listens, and when we were last linked to it, in unix seconds."""

    peer: PeerId
    addresses: tuple[str, ...]
    seen_unix_s: int


@dataclass(frozen=True, slots=True)
class KnownPeers:
    """Per run, the peers last seen, newest first. Never changes: `seen` gives another one."""

    runs: Mapping[bytes, tuple[KnownPeer, ...]]

    def of(self, run: bytes) -> tuple[KnownPeer, ...]:
        """The known peers of a run, newest first."""
        return self.runs.get(run, ())

    def addresses(self, run: bytes) -> tuple[PeerAddress, ...]:
        """Every address of every known peer of a run."""
        return tuple(PeerAddress(one.peer, text) for one in self.of(run) for text in one.addresses)

    def runs_with(self, peer: PeerId) -> tuple[bytes, ...]:
        """The runs in which this peer was seen."""
        return tuple(run for run, known in self.runs.items() if peer in {k.peer for k in known})

    def seen(self, run: bytes, peers: Iterable[KnownPeer]) -> "KnownPeers":
        """With these peers in front; the longest unseen are forgotten beyond the bounds."""
        news = {one.peer: one for one in peers}
        old = {one.peer: one for one in self.of(run)}
        for peer, one in news.items():
            if not one.addresses and peer in old:
                news[peer] = replace(one, addresses=old[peer].addresses)
        kept = (*news.values(), *(one for peer, one in old.items() if peer not in news))
        others = {key: known for key, known in self.runs.items() if key != run}
        runs = {run: tuple(one for one in kept if one.addresses)[:PEERS_MAX], **others}
        return KnownPeers(dict(list(runs.items())[:RUNS_MAX]))

    def encode(self) -> bytes:
        """The file's bytes."""
        runs = {run.hex(): [_plain(one) for one in known] for run, known in self.runs.items()}
        return json.dumps({"version": _VERSION, "runs": runs}, indent=1).encode() + b"\n"


def read_known_peers(path: Path) -> KnownPeers:
    """The known peers in a file; nobody where there is none, or it is damaged: it is a cache."""
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return KnownPeers({})
    except OSError as error:
        logger.warning("known peers ignored path=%s reason=%s", path, error.strerror)
        return KnownPeers({})
    try:
        return decode_known_peers(data)
    except DecodeError as error:
        logger.warning("known peers ignored path=%s reason=%s", path, error)
        return KnownPeers({})


def decode_known_peers(data: bytes) -> KnownPeers:
    """Inverse of `KnownPeers.encode`; beyond the bounds, the rest is left out.

    Raises DecodeError for anything else.
    """
    if len(data) > _FILE_BYTES_MAX:
        raise DecodeError(f"over {_FILE_BYTES_MAX} bytes")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DecodeError("no JSON") from error
    if not isinstance(body, dict) or body.get("version") != _VERSION:
        raise DecodeError("of another version")
    runs = body.get("runs")
    if not isinstance(runs, dict):
        raise DecodeError("without runs")
    found = {}
    for name, known in list(runs.items())[:RUNS_MAX]:
        if not isinstance(known, list):
            raise DecodeError("a run without peers")
        found[_digest(name)] = tuple(_peer(one) for one in known[:PEERS_MAX])
    return KnownPeers(found)


def _digest(name: str) -> bytes:
    try:
        digest = bytes.fromhex(name)
    except ValueError as error:
        raise DecodeError("a run without digest") from error
    if len(digest) != 32:
        raise DecodeError("a run without digest")
    return digest


def _plain(known: KnownPeer) -> dict[str, object]:
    return {
        "peer": peer_id_text(known.peer),
        "addresses": list(known.addresses),
        "seen_unix_s": known.seen_unix_s,
    }


def _peer(value: object) -> KnownPeer:
    if not isinstance(value, dict):
        raise DecodeError("a peer that is none")
    peer, addresses, seen = (value.get(key) for key in ("peer", "addresses", "seen_unix_s"))
    if not isinstance(peer, str) or not isinstance(addresses, list):
        raise DecodeError("a peer without id or addresses")
    if type(seen) is not int or not 0 <= seen < 2**53:
        raise DecodeError("a peer without the time when it was seen")
    texts = addresses[:ADDRESSES_MAX]
    if not all(isinstance(text, str) and is_plausible(text) for text in texts):
        raise DecodeError("an address that is none")
    return KnownPeer(parse_peer_id(peer), tuple(texts), seen)


def is_plausible(address: str) -> bool:
    """Whether a text may stand for an address; dialling it tells the rest."""
    is_short = 0 < len(address) <= limits.ADDRESS_BYTES_MAX
    return is_short and address.startswith("/") and address.isascii() and address.isprintable()


class Acquaintances(Protocol):
    """What the keeper asks of the links."""

    def acquaintances(self) -> Mapping[PeerId, tuple[str, ...]]:
        """Linked peers, and where they say that they listen."""
        ...

    async def links_changed(self, since: int) -> int:
        """Until more than `since` changes of links have been counted; their number."""
        ...


@dataclass(slots=True, kw_only=True)
class KnownPeersKeeper:
    """Writes who is linked to the file, some time after it changed. `run` until cancelled."""

    path: Path
    run_digest: bytes
    links: Acquaintances
    wall_clock: WallClock
    write: Callable[[Path, bytes], None] = write_atomically

    async def run(self) -> None:
        """A disk that takes no more is no reason to stop: the file is a convenience."""
        known = await trio.to_thread.run_sync(read_known_peers, self.path)
        changes = 0
        while True:
            with trio.move_on_after(REFRESH_S):
                changes = await self.links.links_changed(changes)
            await trio.sleep(SETTLE_S)
            now_s = int(self.wall_clock())
            linked = [
                KnownPeer(peer, tuple(filter(is_plausible, addresses))[:ADDRESSES_MAX], now_s)
                for peer, addresses in self.links.acquaintances().items()
            ]
            if not linked:
                continue
            known = known.seen(self.run_digest, linked)
            try:
                await trio.to_thread.run_sync(partial(self.write, self.path, known.encode()))
            except OSError as error:
                logger.warning("known peers not written reason=%s", error.strerror)


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
