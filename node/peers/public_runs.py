"""Public runs: what nodes of open runs say in the DHT, so that strangers can see what there is.

Each node says it for itself, under one of sixteen topics by the run's digest. It is a hint like all
that is found there: the manifest, which the founder signed, is what counts when somebody joins.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Annotated

import trio

from dht.directory import Directory
from dht.kademlia.records import SignedRecord
from node.state.config import PeerAddress, parse_dialable
from protocol import limits
from protocol.errors import ConfigError, DecodeError
from protocol.identity import PeerId
from protocol.manifest import RunManifest
from protocol.transport import Addresses
from protocol.wire import Digest, Range, Size, decode, encode

TTL_S = 900.0
"""A run whose nodes are all gone is still shown for so long."""

TOPICS = tuple(b"barnraise/runs/%x" % digit for digit in range(16))

LOOK_S = 30.0
"""How often a node looks whether its addresses have changed."""

_PEERS_NAMED = 4
_BYTES_PER_PARAMETER = 24
"""Float32 weights, gradient, two moments, anchor and residual; activations come on top."""


@dataclass(frozen=True, slots=True)
class RunAdvert:
    """One node's word on its run."""

    run: Digest
    title: Annotated[str, Size(1, 128)]
    model: Annotated[str, Size(1, 64)]
    parameters: Annotated[int, Range(0, 2**53)]
    inner_steps: Annotated[int, Range(1, limits.STEPS_PER_ROUND_MAX)]
    addresses: Addresses


def advert_of(manifest: RunManifest, addresses: Iterable[str]) -> RunAdvert:
    """What a node says of the run that it takes part in."""
    return RunAdvert(
        run=manifest.digest,
        title=manifest.title,
        model=manifest.model.name[:64],
        parameters=sum(sum(one.numel for one in shard.tensors) for shard in manifest.shards),
        inner_steps=manifest.inner.inner_steps,
        addresses=tuple(addresses)[: limits.DHT_ADDRESSES_PER_CONTACT_MAX],
    )


def topic_of(run: bytes) -> bytes:
    """Under which topic a run is said."""
    return TOPICS[run[0] >> 4]


async def say_run(directory: Directory, manifest: RunManifest, addresses: Iterable[str]) -> None:
    """Say that there is this run, if it is one for strangers; the directory renews it."""
    if manifest.trust == "open":
        advert = encode(advert_of(manifest, addresses))
        await directory.announce(topic_of(manifest.digest), advert, ttl_s=TTL_S)


async def keep_said(
    directory: Directory, manifest: RunManifest, addresses: Callable[[], tuple[str, ...]]
) -> None:
    """Say it, and again when this node's addresses have changed; until cancelled.

    A node behind a router has one that means something when it has found a relay.
    """
    said: tuple[str, ...] | None = None
    while manifest.trust == "open":
        now = addresses()
        if now != said:
            said = now
            await say_run(directory, manifest, now)
        await trio.sleep(LOOK_S)


@dataclass(frozen=True, slots=True)
class PublicRun:
    """A run as those who take part in it describe it."""

    advert: RunAdvert
    peers: tuple[tuple[PeerId, tuple[str, ...]], ...]
    """Who says so, and where they listen."""

    @property
    def memory_bytes(self) -> int:
        """What the trainer's numbers take, besides activations."""
        return _BYTES_PER_PARAMETER * self.advert.parameters

    def as_json(self) -> dict[str, object]:
        """For `--json`. The addresses are what `barnraise join` takes."""
        return {
            "run": self.advert.run.hex(),
            "title": self.advert.title,
            "model": self.advert.model,
            "parameters": self.advert.parameters,
            "inner_steps": self.advert.inner_steps,
            "memory_bytes": self.memory_bytes,
            "peers": len(self.peers),
            "join": self.join_addresses(),
        }

    def join_addresses(self) -> list[str]:
        """One address of each of a few of its peers, as `barnraise join` takes it.

        Whoever wrote the record is a stranger: what is no address is told to nobody, least of all
        as a part of a command to paste.
        """
        found = (_first_dialable(peer, addresses) for peer, addresses in self.peers)
        return list(islice(filter(None, found), _PEERS_NAMED))


def _first_dialable(peer: PeerId, addresses: Iterable[str]) -> str | None:
    for address in addresses:
        text = str(PeerAddress(peer, address))
        with suppress(ConfigError):
            parse_dialable(text)
            return text
    return None


async def find_public_runs(directory: Directory) -> tuple[PublicRun, ...]:
    """What the directory sees, the runs with the most peers first."""
    records: list[SignedRecord] = []

    async def look(topic: bytes) -> None:
        records.extend(await directory.find(topic))

    async with trio.open_nursery() as nursery:
        for topic in TOPICS:
            nursery.start_soon(look, topic)
    return public_runs(records)


def public_runs(records: Iterable[SignedRecord]) -> tuple[PublicRun, ...]:
    """The runs that these records tell of; where words differ, those of most peers count."""
    said: dict[bytes, dict[PeerId, RunAdvert]] = {}
    for record in records:
        try:
            advert = decode(RunAdvert, record.value, max_bytes=limits.DHT_VALUE_BYTES_MAX)
        except DecodeError:
            continue
        said.setdefault(advert.run, {})[record.writer] = advert
    runs = [_agreed(adverts) for adverts in said.values()]
    return tuple(sorted(runs, key=lambda one: (-len(one.peers), one.advert.run)))


def _agreed(adverts: dict[PeerId, RunAdvert]) -> PublicRun:
    words: dict[tuple[str, str, int, int], list[PeerId]] = {}
    for peer, one in sorted(adverts.items()):
        words.setdefault((one.title, one.model, one.parameters, one.inner_steps), []).append(peer)
    most = max(words.values(), key=len)
    return PublicRun(adverts[most[0]], tuple((peer, adverts[peer].addresses) for peer in most))
