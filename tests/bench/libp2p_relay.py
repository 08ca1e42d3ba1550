"""A plain libp2p relay, and bytes through it: py-libp2p as it comes, to compare ours with.

python -m tests.bench.libp2p_relay relay
python -m tests.bench.libp2p_relay sink RELAY
python -m tests.bench.libp2p_relay send RELAY PEER MIB

Each says JSON lines: where it is, or how fast it sent.
"""

import json
import sys

import trio
from libp2p import new_host
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.relay.circuit_v2.config import RelayConfig, RelayRole
from libp2p.relay.circuit_v2.protocol import PROTOCOL_ID, CircuitV2Protocol
from libp2p.relay.circuit_v2.resources import RelayLimits
from libp2p.relay.circuit_v2.transport import CircuitV2Transport
from libp2p.tools.anyio_service import background_trio_service
from multiaddr import Multiaddr

SINK = TProtocol("/test/sink/1")
MIB = 1 << 20
LIMITS = RelayLimits(duration=3600, data=1 << 40, max_circuit_conns=16, max_reservations=16)
ROLES = {"relay": RelayRole.HOP | RelayRole.STOP | RelayRole.CLIENT}


def tell(**facts):
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


async def sink(stream):
    left = int.from_bytes(await receive(stream, 8), "big")
    while left:
        data = await stream.read(min(left, MIB))
        assert data
        left -= len(data)
    await stream.write(b".")


async def receive(stream, num_bytes):
    data = b""
    while len(data) < num_bytes:
        data += await stream.read(num_bytes - len(data))
    return data


async def send(host, transport, relay, peer, mib):
    await transport.dial(Multiaddr(f"{relay}/p2p-circuit/p2p/{peer}"))
    began_s = trio.current_time()
    stream = await host.new_stream(ID.from_base58(peer), [SINK])
    await stream.write((mib * MIB).to_bytes(8, "big"))
    for _ in range(mib):
        await stream.write(bytes(MIB))
    assert await receive(stream, 1) == b"."
    tell(mib_s=mib / (trio.current_time() - began_s))


async def main(role, relay="", peer="", mib="0"):
    host = new_host()
    host.set_stream_handler(SINK, sink)
    config = RelayConfig(roles=ROLES.get(role, RelayRole.STOP | RelayRole.CLIENT), limits=LIMITS)
    protocol = CircuitV2Protocol(host, limits=LIMITS, allow_hop=role == "relay")
    async with (
        host.run([Multiaddr("/ip4/0.0.0.0/tcp/4002")]),
        background_trio_service(protocol),
        trio.open_nursery() as nursery,
    ):
        transport = CircuitV2Transport(host, protocol, config)
        if role == "relay":
            tell(peer=str(host.get_id()))
            await trio.sleep_forever()
        info = info_from_p2p_addr(Multiaddr(relay))
        await host.connect(info)
        if role == "sink":
            stream = await host.new_stream(info.peer_id, [PROTOCOL_ID])
            assert await transport.reserve(stream, info.peer_id, nursery)
            tell(peer=str(host.get_id()))
            await trio.sleep_forever()
        await send(host, transport, relay, peer, int(mib))
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
