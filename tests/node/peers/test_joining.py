"""Joining over real connections: what is fetched, what is on the disk already, what is refused."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from dht.transport.libp2p_transport import TransportConfig, open_transport
from node.peers.invite import invite_link, invite_to
from node.peers.joining import Joined, join_patiently, join_run, parse_target
from node.peers.listening import full_addresses
from node.peers.manifest_fetch import MANIFEST_PROTOCOL, ManifestServer
from node.state.config import PeerAddress
from node.state.folder import run_folder
from node.state.known_peers import KnownPeer, KnownPeers
from node.state.stored_manifest import store_manifest, stored_manifest
from protocol.errors import (
    BarnraiseError,
    ConfigError,
    PeerFullError,
    RefusedError,
    SwarmKeyError,
    UnreachableError,
)
from protocol.identity import Ed25519Signer, PeerId
from protocol.manifest import RunManifest, SignedManifest
from protocol.transport import Stream
from tests.dht.loopback import DEADLINE_S, open_loopback
from tests.node.edge import signed, toy_manifest

if TYPE_CHECKING:
    # libp2p brings stubs of trio that hide trio's own types; they know it by this name.
    from trio_typing import TaskStatus

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


async def test_machine_that_is_too_small_keeps_nothing_of_the_run(tmp_path: Path) -> None:
    """Neither of one that is fetched now nor, later, of one on the disk."""

    def check(manifest: RunManifest) -> None:
        assert manifest == RUN.manifest
        raise ConfigError("this machine is too small")

    async with serving(RUN) as peer:
        target = parse_target(link_to(RUN, peer.peer_id, peer.addresses()[0]))
        with trio.fail_after(DEADLINE_S), pytest.raises(ConfigError, match="too small"):
            await join_run(target, tmp_path, SIGNER, check=check)
    assert stored_manifest(tmp_path, RUN.manifest.digest, SIGNER) is None
    store_manifest(tmp_path, RUN)
    with pytest.raises(ConfigError, match="too small"):
        await join_run(parse_target(link_to(RUN, GONE)), tmp_path, SIGNER, check=check)


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


async def test_founder_that_is_away_is_waited_for(tmp_path: Path) -> None:
    seed, whys = b"f" * 32, list[str]()
    here = TransportConfig(listen_host="127.0.0.1")
    served = {MANIFEST_PROTOCOL: ManifestServer(RUN).serve}
    async with open_transport(here, signer_seed=seed) as first:
        (address,) = first.addresses()
    port = int(address.rpartition("/")[2])
    target = parse_target(link_to(RUN, first.peer_id, address))
    again = TransportConfig(listen_host="127.0.0.1", listen_port=port)
    async with trio.open_nursery() as nursery:

        async def serve(*, task_status: "TaskStatus[None]") -> None:
            async with open_transport(again, signer_seed=seed, handlers=served):
                task_status.started()
                await trio.sleep_forever()

        async def pause(why: str) -> None:
            whys.append(why)
            if len(whys) == 2:
                await nursery.start(serve)

        with trio.fail_after(DEADLINE_S):
            joined = await join_patiently(partial(join_run, target, tmp_path, SIGNER), pause)
        nursery.cancel_scope.cancel()
    assert joined.signed == RUN
    assert len(whys) == 2
    assert all(address in why for why in whys)


@pytest.mark.parametrize(
    ("error", "is_waited_for"),
    [
        (PeerFullError("full"), True),
        (UnreachableError("gone"), True),
        (SwarmKeyError("private"), False),
        (RefusedError("another run"), False),
        (ConfigError("a typing error"), False),
    ],
)
async def test_only_what_time_mends_is_waited_for(
    error: BarnraiseError, is_waited_for: bool
) -> None:
    whys, num = list[str](), 0
    here = Joined(RUN, (), is_first=True)

    async def join() -> Joined:
        nonlocal num
        num += 1
        if num == 1:
            raise error
        return here

    async def pause(why: str) -> None:
        whys.append(why)

    if is_waited_for:
        assert await join_patiently(join, pause) is here
        assert whys == [str(error)]
    else:
        with pytest.raises(type(error)):
            await join_patiently(join, pause)
        assert (whys, num) == ([], 1)


async def test_peer_that_has_no_place_is_no_private_swarm_and_outweighs_who_trains_another_run(
    tmp_path: Path,
) -> None:
    async def sit(_stream: Stream) -> None:
        await trio.sleep_forever()

    served = {MANIFEST_PROTOCOL: ManifestServer(RUN).serve, "/test/sit/1": sit}
    async with (
        open_loopback(served, connections_max=1) as full,
        serving(OTHER) as other,
        open_loopback() as stranger,
    ):
        await stranger.connect(full.peer_id, full.addresses())
        await stranger.open_stream(full.peer_id, "/test/sit/1")
        invite = invite_to(RUN.manifest, full.peer_id, full.addresses())
        target = parse_target(invite_link(invite))
        also = PeerAddress(other.peer_id, other.addresses()[0])
        target = replace(target, addresses=(also, *target.addresses))
        with trio.fail_after(DEADLINE_S), pytest.raises(PeerFullError, match="no place") as caught:
            await join_run(target, tmp_path, SIGNER)
    assert "private" not in str(caught.value)
