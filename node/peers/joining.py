"""Joining: from an invite link or an address to a run, and the peers to ask first."""

import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from dht.transport.libp2p_host import visiting_host
from dht.transport.libp2p_transport import TransportConfig, open_transport
from node.peers.invite import LINK_EXAMPLE, LINK_PREFIX, parse_invite
from node.peers.manifest_fetch import FetchedManifest, fetch_manifest
from node.peers.two_histories import keep_told
from node.state.config import PeerAddress, parse_dialable
from node.state.folder import KNOWN_PEERS_FILE, run_folder
from node.state.invitations import keep_credential
from node.state.known_peers import read_known_peers
from node.state.stored_manifest import store_manifest, stored_manifest
from protocol.catching_up.chain_sources import NamedSeal
from protocol.errors import ConfigError, ProofError, RefusedError, SwarmKeyError, UnreachableError
from protocol.identity import KEY_SEED_BYTES, Ed25519Signer
from protocol.invitations import Offer, check_credential
from protocol.manifest import RunManifest, SignedManifest

logger = logging.getLogger(__name__)


LookAround = Callable[[bytes], Awaitable[tuple[PeerAddress, ...]]]
"""The nodes of a run, by its digest, on this machine's own network."""


Pause = Callable[[str], Awaitable[None]]
"""Waits for the next try, and says why there is one."""


@dataclass(frozen=True, slots=True)
class Target:
    """What somebody wants to join: peers, and the run if a link named it."""

    addresses: tuple[PeerAddress, ...]
    run: bytes | None
    offer: Offer | None = None
    """Of a link into a run for the invited."""

    told: NamedSeal | None = None
    """The seal that the link names: the run's history has it."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A run whose manifest is in the state folder, and the addresses of peers to ask first."""

    signed: SignedManifest
    bootstrap: tuple[str, ...]
    is_first: bool
    """Whether the manifest was fetched now."""


def parse_target(text: str) -> Target:
    """An invite link, or a multiaddr that ends with `/p2p/` and a peer id. Raises ConfigError."""
    text = text.strip()
    if text.startswith(LINK_PREFIX):
        invite = parse_invite(text)
        offer = invite.offers[0] if invite.offers else None
        told = NamedSeal(invite.seals[0].round, invite.seals[0].digest) if invite.seals else None
        return Target(invite.addresses(), invite.run, offer, told)
    if text.startswith("/"):
        return Target((parse_dialable(text),), None)
    raise ConfigError(
        f"{text[:80]!r} is neither an invite link like {LINK_EXAMPLE} nor an address like "
        "/ip4/203.0.113.1/tcp/4001/p2p/12D3Koo..."
    )


async def join_run(
    target: Target,
    state: Path,
    signer: Ed25519Signer,
    *,
    psk: bytes | None = None,
    look_around: LookAround | None = None,
    check: Callable[[RunManifest], None] = lambda manifest: None,
) -> Joined:
    """The run of a target: as this folder knows it, else fetched from the peers and stored.

    The caller holds the folder's lock; `psk` is that of a private swarm; `look_around`
    finds nodes of the link's run on this network where no address of the link answers; `check`
    raises what is in the way of taking part. Raises
    UnreachableError and RefusedError as `fetch_manifest` does; never where the folder knows the
    run.
    """
    signed, bootstrap = await _find_run(target, state, signer, psk, look_around)
    check(signed.manifest)
    is_first = stored_manifest(state, signed.manifest.digest, signer) is None
    if is_first:
        store_manifest(state, signed)
    _take_up(target, signed.manifest, state, signer)
    return Joined(signed, bootstrap, is_first=is_first)


async def _find_run(
    target: Target,
    state: Path,
    signer: Ed25519Signer,
    psk: bytes | None,
    look_around: LookAround | None,
) -> tuple[SignedManifest, tuple[str, ...]]:
    """The run, and the addresses to ask first; nothing is kept yet."""
    bootstrap = tuple(map(str, target.addresses))
    if target.run is not None:
        stored = stored_manifest(state, target.run, signer)
        if stored is not None:
            return stored, bootstrap
    try:
        try:
            fetched = await _fetch(target, signer, psk)
        except SwarmKeyError:
            raise  # Who is there was found, so nobody is looked for; private ones say nothing.
        except UnreachableError:
            near = () if look_around is None or not target.run else await look_around(target.run)
            if not near:
                raise
            bootstrap += tuple(map(str, near))
            fetched = await _fetch(replace(target, addresses=near), signer, psk)
    except (UnreachableError, RefusedError) as error:
        resumed = _run_of_known_peer(target, state, signer)
        if target.run is not None or resumed is None:
            raise
        logger.warning("peer does not answer, going on with the run it was seen in: %s", error)
        return resumed, bootstrap
    return fetched.signed, bootstrap


async def join_patiently(join: Callable[[], Awaitable[Joined]], pause: Pause) -> Joined:
    """What `join` comes to, tried again behind each pause while no peer answers or has a place.

    Raises what no waiting mends: SwarmKeyError where the PSK is not theirs, RefusedError where
    peers train another run, ConfigError.
    """
    while True:
        try:
            return await join()
        except SwarmKeyError:
            raise
        except UnreachableError as error:
            why = str(error)
        await pause(why)


def _take_up(target: Target, manifest: RunManifest, state: Path, signer: Ed25519Signer) -> None:
    """Keep what the link says of the run: its seal, and its offer as this node's own credential.

    Raises ConfigError if the offer is none.
    """
    if target.told is not None:
        keep_told(run_folder(state, manifest.digest), target.told)
    if target.offer is None:
        return
    try:
        credential = target.offer.taken_by(signer.peer_id)
        check_credential(credential, manifest, signer.peer_id, signer)
    except ProofError as error:
        raise ConfigError(f"the invite link is no good: {error}") from error
    keep_credential(run_folder(state, manifest.digest), credential)


async def _fetch(target: Target, signer: Ed25519Signer, psk: bytes | None) -> FetchedManifest:
    # Under a key of its own and on another port: nobody is to mix this short visit up with the
    # node that comes a moment later. It is not to be dialled, but the transport has to listen.
    visitor = Ed25519Signer(os.urandom(KEY_SEED_BYTES))
    config = TransportConfig(listen_host=visiting_host(), psk=psk)
    if not logging.getLogger().hasHandlers():
        # The library's calls of `logging.debug` itself would hang a handler of their own in there.
        logging.getLogger().addHandler(logging.NullHandler())
    async with open_transport(config, signer_seed=visitor.seed) as transport:
        return await fetch_manifest(transport, target.addresses, signer, run=target.run)


def _run_of_known_peer(target: Target, state: Path, signer: Ed25519Signer) -> SignedManifest | None:
    """The one run in which the peers of an address were seen before."""
    known = read_known_peers(state / KNOWN_PEERS_FILE)
    runs = [run for one in target.addresses for run in known.runs_with(one.peer)]
    return stored_manifest(state, runs[0], signer) if len(runs) == 1 else None
