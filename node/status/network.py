"""What transport and directory know of each peer, as the status shows it."""

from dataclasses import dataclass

from dht.directory import KademliaDirectory
from dht.transport.libp2p_transport import Libp2pTransport
from protocol.identity import PeerId


@dataclass(frozen=True, slots=True)
class LiveNetwork:
    """Implements `node.status.snapshot.Network`."""

    transport: Libp2pTransport
    directory: KademliaDirectory

    def path(self, peer: PeerId) -> str:
        """See Network."""
        return self.transport.path(peer)

    def traffic_with(self, peer: PeerId) -> tuple[int, int]:
        """See Network."""
        return self.transport.traffic_with(peer)

    def round_trip_s(self, peer: PeerId) -> float | None:
        """See Network. By requests of the DHT."""
        return self.directory.kademlia.times.round_trip_s(peer)

    def seen_as(self) -> tuple[str, ...]:
        """See Network. By the relays that hold a place for us, or were asked for one."""
        return self.transport.reach.places.seen()

    def needs_relay(self) -> bool:
        """See Network."""
        return self.transport.reach.places.is_wanted

    def answers_at(self) -> tuple[str, ...]:
        """See Network. By dial-back."""
        return self.transport.reach.dial_back.proved()

    def silent_at(self) -> tuple[str, ...]:
        """See Network. By dial-back."""
        return self.transport.reach.dial_back.refuted()
