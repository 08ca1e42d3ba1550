"""Joining over real connections: what is fetched, what is on the disk already, what is refused."""

from pathlib import Path

import pytest
import trio

from node.config import PeerAddress
from node.peers.invite import invite_link, invite_to
from node.peers.joining import Joined, join_run, parse_target
from node.peers.listening import full_addresses
from node.peers.manifest_fetch import MANIFEST_PROTOCOL, ManifestServer
from node.state.folder import run_folder
from node.state.known_peers import KnownPeer, KnownPeers
from node.state.stored_manifest import store_manifest, stored_manifest
from protocol.errors import ConfigError, RefusedError, SwarmKeyError, UnreachableError
from protocol.identity import Ed25519Signer, PeerId
from protocol.manifest import SignedManifest
from tests.dht.loopback import DEADLINE_S, open_loopback
from tests.node.edge import signed, toy_manifest

pytestmark = pytest.mark.net

SIGNER = Ed25519Signer(b"j" * 32)
RUN, OTHER = signed(toy_manifest()), signed(toy_manifest(title="other"))
GONE = Ed25519Signer(b"g" * 32).peer_id
DEAD = "/ip4/127.0.0.1/tcp/1"


def link_to(run: SignedManifest, peer: PeerId, address: str = DEAD) -> str:
    return invite_link(invite_to(run.manifest, peer, [address]))


async def join(text: str, state: Path) -> Joined:
    with trio.fail_after(DEADLINE_S):
        return await join_run(parse_target(text), state, SIGNER)


def serving(run: SignedManifest):
    """A peer that trains `run`."""
    return open_loopback({MANIFEST_PROTOCOL: ManifestServer(run).serve})


@pytest.mark.parametrize("is_link", [True, False], ids=["link", "address"])
async def test_manifest_is_fetched_stored_and_not_fetched_again(
    tmp_path: Path, is_link: bool
) -> None:
    async with serving(RUN) as peer:
        (address,) = peer.addresses()
        (full,) = full_addresses(peer.peer_id, [address])
        text = link_to(RUN, peer.peer_id, address) if is_link else full
        assert await join(text, tmp_path) == Joined(RUN, (full,), is_first=True)
        assert stored_manifest(tmp_path, RUN.manifest.digest, SIGNER) == RUN
        assert await join(text, tmp_path) == Joined(RUN, (full,), is_first=False)


async def test_link_whose_addresses_are_dead_finds_its_run_on_this_network(tmp_path: Path) -> None:
    asked: list[bytes] = []
    async with serving(RUN) as peer:
        (address,) = peer.addresses()

        async def look_around(run: bytes) -> tuple[PeerAddress, ...]:
            asked.append(run)
            return (PeerAddress(peer.peer_id, address),)

        target = parse_target(link_to(RUN, GONE))
        with trio.fail_after(DEADLINE_S):
            joined = await join_run(target, tmp_path, SIGNER, look_around=look_around)
    assert asked == [RUN.manifest.digest]
    assert joined.signed == RUN
    # Both are asked by the node that comes next.
    assert joined.bootstrap == (
        *full_addresses(GONE, [DEAD]),
        *full_addresses(peer.peer_id, [address]),
    )


@pytest.mark.parametrize("psk", [None, b"o" * 32], ids=["none", "another"])
async def test_who_lacks_the_psk_is_told_so_and_looks_for_nobody_else(
    tmp_path: Path, psk: bytes | None
) -> None:
    async def look_around(run: bytes) -> tuple[PeerAddress, ...]:
        pytest.fail("whom the link names is there")

    served = {MANIFEST_PROTOCOL: ManifestServer(RUN).serve}
    async with open_loopback(served, psk=b"p" * 32) as peer:
        target = parse_target(link_to(RUN, peer.peer_id, peer.addresses()[0]))
        with trio.fail_after(DEADLINE_S), pytest.raises(SwarmKeyError, match="PSK") as caught:
            await join_run(target, tmp_path, SIGNER, psk=psk, look_around=look_around)
    assert "are they running" not in str(caught.value)


async def test_run_of_a_link_that_is_on_the_disk_needs_no_peer(tmp_path: Path) -> None:
    store_manifest(tmp_path, RUN)
    joined = await join(link_to(RUN, GONE), tmp_path)
    assert (joined.signed, joined.is_first) == (RUN, False)
    assert joined.bootstrap == tuple(full_addresses(GONE, [DEAD]))


async def test_damaged_manifest_on_the_disk_is_fetched_anew(tmp_path: Path) -> None:
    store_manifest(tmp_path, RUN).write_bytes(b"damaged")
    async with serving(RUN) as peer:
        joined = await join(link_to(RUN, peer.peer_id, peer.addresses()[0]), tmp_path)
    assert joined.signed == RUN
    assert stored_manifest(tmp_path, RUN.manifest.digest, SIGNER) == RUN


async def test_peer_of_another_run_is_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    async with serving(OTHER) as peer:
        with pytest.raises(RefusedError, match="another run, 'other'"):
            await join(link_to(RUN, peer.peer_id, peer.addresses()[0]), tmp_path)
    assert stored_manifest(tmp_path, OTHER.manifest.digest, SIGNER) is None


async def test_unreachable_peer_is_named_with_its_address(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError) as caught:
        await join(link_to(RUN, GONE), tmp_path)
    assert full_addresses(GONE, [DEAD])[0] in str(caught.value)


async def test_somebody_else_at_the_address_is_not_the_peer(tmp_path: Path) -> None:
    async with serving(RUN) as peer:
        with pytest.raises(UnreachableError):
            await join(link_to(RUN, GONE, peer.addresses()[0]), tmp_path)


async def test_address_of_a_peer_that_is_down_resumes_the_run_it_was_seen_in(
    tmp_path: Path,
) -> None:
    (full,) = full_addresses(GONE, [DEAD])
    store_manifest(tmp_path, RUN)
    known = KnownPeers({}).seen(RUN.manifest.digest, [KnownPeer(GONE, (DEAD,), 5)])
    (tmp_path / "known_peers.json").write_bytes(known.encode())
    assert await join(full, tmp_path) == Joined(RUN, (full,), is_first=False)
    # Seen in two runs, nobody can say which one is meant.
    store_manifest(tmp_path, OTHER)
    twice = known.seen(OTHER.manifest.digest, [KnownPeer(GONE, (DEAD,), 5)])
    (tmp_path / "known_peers.json").write_bytes(twice.encode())
    with pytest.raises(UnreachableError):
        await join(full, tmp_path)


def test_target_is_a_link_or_an_address() -> None:
    (full,) = full_addresses(GONE, [DEAD])
    assert parse_target(f" {full}\n").addresses == (PeerAddress(GONE, DEAD),)
    target = parse_target(link_to(RUN, GONE))
    assert (target.addresses, target.run) == (
        (PeerAddress(GONE, DEAD),),
        RUN.manifest.digest,
    )
    for text in ("", "run.toml", "https://example.org", "barnraise:join"):
        with pytest.raises(ConfigError, match=r"neither an invite link like barnraise://join/"):
            parse_target(text)
    with pytest.raises(ConfigError, match="no address like"):
        parse_target(DEAD)


def test_runs_folder_is_closed_to_others(tmp_path: Path) -> None:
    store_manifest(tmp_path, RUN)
    assert run_folder(tmp_path, RUN.manifest.digest).stat().st_mode & 0o077 == 0
