"""The network changes while mDNS is being opened: the next look opens it where we are then."""

import pytest
import trio
import zeroconf

from dht.reaching import lan
from dht.reaching.lan import Lan, Told
from protocol.identity import Ed25519Signer

BEFORE, AFTER = "192.168.7.2", "10.9.9.9"


class Laptop:
    """A machine in one network that is in another one from its `moves_at`th look on."""

    def __init__(self, moves_at: int) -> None:
        self.num_looks = 0
        self.moves_at = moves_at
        self.opened: list[list[str]] = []

    @property
    def host(self) -> str:
        return BEFORE if self.num_looks < self.moves_at else AFTER

    def addresses(self) -> list[str]:
        self.num_looks += 1
        return [f"/ip4/{self.host}/tcp/4001"]

    def open(self, interfaces: list[str]) -> zeroconf.Zeroconf:
        """In the library's place; what it raises for an IPv6 address that is not there."""
        self.opened.append(interfaces)
        raise RuntimeError(f"No adapter found for IP address {interfaces}")


@pytest.mark.parametrize(
    ("moves_at", "opened"),
    [(2, [[AFTER]]), (3, [[BEFORE], [AFTER]])],
    ids=["before it is opened", "while it is opened"],
)
async def test_network_that_changes_is_looked_at_anew(
    moves_at: int, opened: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    laptop = Laptop(moves_at)
    monkeypatch.setattr(lan, "here", lambda: (BEFORE, AFTER))
    monkeypatch.setattr(lan, "LOOK_S", 0.0)
    monkeypatch.setattr(zeroconf, "Zeroconf", laptop.open)
    told = Told(me=Ed25519Signer(b"n" * 32).peer_id, tag="", addresses=laptop.addresses)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Lan(lambda _peer: None, told=told).run)
        with trio.fail_after(10.0):
            while [AFTER] not in laptop.opened:
                await trio.lowlevel.checkpoint()
        assert laptop.opened == opened
        nursery.cancel_scope.cancel()
