"""Known peers: bounded, forgiving of a damaged file, and written when links come up."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from node.state import known_peers
from node.state.known_peers import (
    PEERS_MAX,
    RUNS_MAX,
    KnownPeer,
    KnownPeers,
    KnownPeersKeeper,
    decode_known_peers,
    read_known_peers,
)
from protocol.errors import DecodeError
from protocol.identity import Ed25519Signer, PeerId, peer_id_text

RUN = b"r" * 32
ADDRESS = "/ip4/203.0.113.1/tcp/4001"


def peer(number: int) -> PeerId:
    return Ed25519Signer(number.to_bytes(32, "big")).peer_id


def known(number: int, seen_unix_s: int = 5, addresses: tuple[str, ...] = (ADDRESS,)) -> KnownPeer:
    return KnownPeer(peer(number), addresses, seen_unix_s)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    one = KnownPeers({}).seen(RUN, [known(1), known(2)]).seen(b"s" * 32, [known(3)])
    path = tmp_path / "known_peers.json"
    path.write_bytes(one.encode())
    assert read_known_peers(path) == one
    assert [address.peer for address in one.addresses(RUN)] == [peer(1), peer(2)]
    assert one.runs_with(peer(3)) == (b"s" * 32,)


def test_newly_seen_peers_come_first_and_replace_what_was_said_of_them() -> None:
    one = KnownPeers({}).seen(RUN, [known(1), known(2)])
    later = one.seen(RUN, [known(2, 9, ("/ip4/10.0.0.1/tcp/1",))])
    assert later.of(RUN) == (known(2, 9, ("/ip4/10.0.0.1/tcp/1",)), known(1))


def test_a_peer_that_says_no_address_keeps_the_ones_that_worked() -> None:
    one = KnownPeers({}).seen(RUN, [known(1)])
    assert one.seen(RUN, [known(1, 9, ())]).of(RUN) == (known(1, 9),)
    assert one.seen(RUN, [known(2, 9, ())]).of(RUN) == (known(1),)


def test_longest_unseen_peers_and_runs_are_forgotten() -> None:
    one = KnownPeers({}).seen(RUN, [known(n) for n in range(PEERS_MAX)])
    more = one.seen(RUN, [known(1000, 6)]).of(RUN)
    assert len(more) == PEERS_MAX
    assert (more[0], more[-1]) == (known(1000, 6), known(PEERS_MAX - 2))
    for number in range(RUNS_MAX):
        one = one.seen(bytes([number]) * 32, [known(1)])
    assert len(one.runs) == RUNS_MAX
    assert one.of(RUN) == ()


def test_no_file_is_nobody(tmp_path: Path) -> None:
    assert read_known_peers(tmp_path / "absent") == KnownPeers({})


def spoilt(**changes: object) -> bytes:
    entry = {"peer": peer_id_text(peer(1)), "addresses": [ADDRESS], "seen_unix_s": 5} | changes
    return json.dumps({"version": 1, "runs": {RUN.hex(): [entry]}}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b"[]",
        b'{"version": 2}',
        b'{"version": 1, "runs": []}',
        b'{"version": 1, "runs": {"zz": []}}',
        b'{"version": 1, "runs": {"00": []}}',
        b'{"version": 1, "runs": {"' + RUN.hex().encode() + b'": 1}}',
        b'{"version": 1, "runs": {"' + RUN.hex().encode() + b'": [1]}}',
        spoilt(peer="12D3Koo"),
        spoilt(peer=7),
        spoilt(addresses=ADDRESS),
        spoilt(addresses=[7]),
        spoilt(addresses=["/\x1b[2J"]),
        spoilt(addresses=["/" + "a" * 300]),
        spoilt(seen_unix_s=-1),
        spoilt(seen_unix_s=1.5),
        spoilt(seen_unix_s=True),
    ],
)
def test_damaged_file_is_ignored_with_a_warning(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(DecodeError):
        decode_known_peers(data)
    path = tmp_path / "known_peers.json"
    path.write_bytes(data)
    assert read_known_peers(path) == KnownPeers({})
    assert "known peers ignored" in caplog.text
    # The parameters above are wrong for the reason that they name, not all of them.
    assert decode_known_peers(spoilt()).of(RUN) == (known(1),)


def test_file_beyond_the_bounds_is_cut() -> None:
    entry = {"peer": peer_id_text(peer(1)), "addresses": [ADDRESS] * 99, "seen_unix_s": 5}
    body = {"version": 1, "runs": {RUN.hex(): [entry] * (PEERS_MAX + 9)}}
    found = decode_known_peers(json.dumps(body).encode()).of(RUN)
    assert len(found) == PEERS_MAX
    assert len(found[0].addresses) == known_peers.ADDRESSES_MAX


@dataclass
class FakeLinks:
    linked: dict[PeerId, tuple[str, ...]] = field(default_factory=dict)
    num_changes: int = 0
    changed: trio.Event = field(default_factory=trio.Event)

    def acquaintances(self) -> dict[PeerId, tuple[str, ...]]:
        return dict(self.linked)

    async def links_changed(self, since: int) -> int:
        while self.num_changes <= since:
            await self.changed.wait()
        return self.num_changes

    def link(self, number: int) -> None:
        self.linked[peer(number)] = (ADDRESS, "no address")
        self.num_changes += 1
        self.changed.set()
        self.changed = trio.Event()


class Disk:
    """Takes what the keeper writes, or refuses it, and says when it has tried."""

    def __init__(self, error: OSError | None = None) -> None:
        self.error = error
        self.tried: list[bytes] = []
        self._changed = trio.Event()

    def write(self, _path: Path, data: bytes) -> None:
        trio.from_thread.run_sync(self._note, data)
        if self.error is not None:
            raise self.error

    def _note(self, data: bytes) -> None:
        self.tried.append(data)
        self._changed.set()
        self._changed = trio.Event()

    async def writes(self, number: int) -> None:
        while len(self.tried) < number:
            await self._changed.wait()

    def keeper(self, path: Path, links: FakeLinks) -> KnownPeersKeeper:
        return KnownPeersKeeper(
            path=path, run_digest=RUN, links=links, wall_clock=lambda: 7.9, write=self.write
        )


async def test_links_that_come_up_together_are_written_together(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    links, disk = FakeLinks(), Disk()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(disk.keeper(tmp_path / "none", links).run)
        for number in range(3):
            links.link(number)
            await trio.sleep(0.1)
        await disk.writes(1)
        nursery.cancel_scope.cancel()
    found = decode_known_peers(disk.tried[0]).of(RUN)
    assert {one.peer for one in found} == {peer(0), peer(1), peer(2)}
    assert {one.addresses for one in found} == {(ADDRESS,)}
    assert {one.seen_unix_s for one in found} == {7}


async def test_peers_of_earlier_starts_are_kept(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    path = tmp_path / "known_peers.json"
    path.write_bytes(KnownPeers({}).seen(RUN, [known(9)]).encode())
    links, disk = FakeLinks(), Disk()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(disk.keeper(path, links).run)
        links.link(1)
        await disk.writes(1)
        nursery.cancel_scope.cancel()
    assert [one.peer for one in decode_known_peers(disk.tried[0]).of(RUN)] == [peer(1), peer(9)]


async def test_full_disk_does_not_stop_the_keeper(
    tmp_path: Path, autojump_clock: trio.abc.Clock, caplog: pytest.LogCaptureFixture
) -> None:
    links, disk = FakeLinks(), Disk(OSError(28, "No space left on device"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(disk.keeper(tmp_path / "none", links).run)
        links.link(1)
        await disk.writes(1)
        links.link(2)
        await disk.writes(2)
        nursery.cancel_scope.cancel()
    assert "No space left" in caplog.text
