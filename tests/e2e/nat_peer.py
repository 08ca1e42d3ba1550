"""A bare transport in a laboratory of homes, as a process: says JSON lines.

python -m tests.e2e.nat_peer RELAY             waits to be found through the relay
python -m tests.e2e.nat_peer RELAY PEER MIB    sends to a peer, first through the relay
"""

import json
import os
import sys

import trio

from dht.transport.libp2p_transport import TransportConfig, open_transport
from node.peers.listening import full_addresses
from node.state.config import parse_peer_address

SINK = "/test/sink/1"
MIB = 1 << 20
DIRECT_S = 20.0


async def sink(stream):
    left = int.from_bytes(await stream.receive_exactly(8), "big")
    while left:
        left -= len(await stream.receive_exactly(min(left, MIB)))
    await stream.send_all(b".")


async def send(transport, peer, mib):
    """MiB/s of one transfer, until the other end has said that it has all of it."""
    began_s = trio.current_time()
    stream = await transport.open_stream(peer, SINK)
    await stream.send_all((mib * MIB).to_bytes(8, "big"))
    for _ in range(mib):
        await stream.send_all(bytes(MIB))
    await stream.receive_exactly(1)
    await stream.aclose()
    return mib / (trio.current_time() - began_s)


def tell(**facts):
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


async def dial(transport, peer, address, mib):
    began_s = trio.current_time()
    await transport.connect(peer, (address,))
    tell(connected_s=trio.current_time() - began_s, is_direct=transport.is_direct(peer))
    found = {}

    async def watch():
        with trio.move_on_after(DIRECT_S):
            await transport._links.until_direct(peer)
            found["direct_s"] = trio.current_time() - began_s

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        # Begun through the relay; it ends there, whatever connection there is by then.
        found["relayed_mib_s"] = await send(transport, peer, mib)
    if "direct_s" in found:
        found["direct_mib_s"] = await send(transport, peer, mib)
    tell(**found)


async def main(relay_address, *target):
    relay = parse_peer_address(relay_address)
    async with (
        open_transport(
            TransportConfig(), signer_seed=os.urandom(32), handlers={SINK: sink}
        ) as transport,
        trio.open_nursery() as nursery,
    ):
        await transport.connect(relay.peer, (relay.address,))
        nursery.start_soon(transport.reach.run)
        while not transport.reach.places.addresses():
            await transport.reach.places.change.wait()
        tell(addresses=full_addresses(transport.peer_id, transport.reach.places.addresses()))
        if target:
            to = parse_peer_address(target[0])
            await dial(transport, to.peer, to.address, int(target[1]))
            nursery.cancel_scope.cancel()
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
