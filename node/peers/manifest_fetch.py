"""The signed manifest of a run, from a peer that trains it: one stream, one frame, no hello.

Whoever holds a link knows the digest alone. What comes is believed for that digest and the
founder's signature, never for who sent it.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from node.state.config import PeerAddress
from node.text.shown import shown
from protocol import limits
from protocol.errors import (
    BarnraiseError,
    NetworkError,
    PeerError,
    PeerFullError,
    RefusedError,
    SwarmKeyError,
    UnreachableError,
    VersionError,
)
from protocol.identity import PeerId, Signer, short_id
from protocol.manifest import SignedManifest, open_manifest
from protocol.transport import Stream, Transport
from protocol.wire import decode, encode

logger = logging.getLogger(__name__)

MANIFEST_PROTOCOL = "/barnraise/manifest/1"

SERVED_AT_ONCE_MAX = 16
"""Askers are strangers: each holds at most a manifest of 256 KiB for at most SERVE_S."""

SERVE_S = 20.0
FETCH_S = 20.0
"""For one peer: dial, stream, and 256 KiB over a bad line."""

STAGGER_S = 1.5
"""How long a peer has for itself before the next is asked beside it."""


class ManifestServer:
    """Serves one run's manifest to whoever asks."""

    def __init__(self, signed: SignedManifest) -> None:
        self._data = encode(signed)
        self._num_served = 0

    async def serve(self, stream: Stream) -> None:
        """Handler of inbound streams: the manifest, then the end. Raises what ended it."""
        if self._num_served >= SERVED_AT_ONCE_MAX:
            return
        self._num_served += 1
        try:
            with trio.move_on_after(SERVE_S):
                await stream.send_frame(self._data)
        finally:
            self._num_served -= 1


@dataclass(frozen=True, slots=True)
class FetchedManifest:
    """A manifest that is what it says, and the peer that had it."""

    signed: SignedManifest
    peer: PeerId


async def fetch_manifest(
    transport: Transport, addresses: Sequence[PeerAddress], signer: Signer, *, run: bytes | None
) -> FetchedManifest:
    """The signed manifest of `run` from the first peer that has it; None takes what a peer says.

    Raises RefusedError if peers answered but none with that run's manifest, its VersionError if
    all who answered are of another wire version, UnreachableError if none answered, its
    SwarmKeyError if the PSK was why, its PeerFullError if one that may have it had no place for us;
    all but the second list every address that was tried, and why it failed.
    """
    peers: dict[PeerId, list[str]] = {}
    for one in addresses:
        peers.setdefault(one.peer, []).append(one.address)
    found: list[FetchedManifest] = []
    failures: dict[PeerId, BarnraiseError] = {}
    async with trio.open_nursery() as nursery:

        async def attempt(peer: PeerId, ended: trio.Event) -> None:
            try:
                found.append(await _fetch_from(transport, peer, peers[peer], signer, run))
                nursery.cancel_scope.cancel()
            except (PeerError, NetworkError) as error:
                failures[peer] = error
            ended.set()

        for peer in peers:
            ended = trio.Event()
            nursery.start_soon(attempt, peer, ended)
            with trio.move_on_after(STAGGER_S):
                await ended.wait()
    if found:
        return found[0]
    reasons = [_line(peer, peers[peer], failures[peer]) for peer in peers]
    tried = "\n".join(reasons)
    refused = [error for error in failures.values() if isinstance(error, PeerError)]
    if refused and all(isinstance(error, VersionError) for error in refused):
        raise refused[0]
    if any(isinstance(error, PeerFullError) for error in failures.values()):
        raise PeerFullError(f"a peer is there, but has no place for this node now:\n{tried}")
    if refused:
        raise RefusedError(f"no peer has the manifest of this run:\n{tried}")
    if failures and all(isinstance(error, SwarmKeyError) for error in failures.values()):
        raise SwarmKeyError(f"peers are there, but not in a swarm with this node:\n{tried}")
    raise UnreachableError(f"no peer answered:\n{tried}\nare they running, and in reach from here?")


async def _fetch_from(
    transport: Transport,
    peer: PeerId,
    addresses: Sequence[str],
    signer: Signer,
    run: bytes | None,
) -> FetchedManifest:
    """From one peer. Raises PeerError for what is not the manifest, NetworkError for none."""
    with trio.move_on_after(FETCH_S):
        await transport.connect(peer, addresses)
        stream = await transport.open_stream(peer, MANIFEST_PROTOCOL)
        try:
            data = await stream.receive_frame(limits.MANIFEST_BYTES_MAX)
        finally:
            # aclose never blocks on the peer; the shield lets it finish when we are cancelled.
            with trio.CancelScope(shield=True):
                await stream.aclose()
        manifest = open_manifest(data, signer)
        if run is not None and manifest.digest != run:
            raise RefusedError(
                f"it trains another run, {shown(repr(manifest.title), 80)} "
                f"({manifest.digest.hex()[:12]} and not {run.hex()[:12]})"
            )
        logger.info("manifest fetched peer=%s run=%s", short_id(peer), manifest.digest.hex()[:12])
        return FetchedManifest(
            decode(SignedManifest, data, max_bytes=limits.MANIFEST_BYTES_MAX), peer
        )
    raise UnreachableError(f"no manifest within {FETCH_S:.0f} s")


def _line(peer: PeerId, addresses: Sequence[str], error: BarnraiseError) -> str:
    tried = ", ".join(str(PeerAddress(peer, address)) for address in addresses)
    return f"  {tried}: {shown(str(error), 400)}"
