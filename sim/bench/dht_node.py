"""A node of the DHT and nothing else, told what to do by its standard input, for `bench discovery`.

    python -P -m sim.bench.dht_node 7

    join ADDRESS...   enter through these peers      {"took_s": 0.2, "answered": 1}
    meet KEY NUMBER ADDRESS...   enter, say that we are there too, and search until so many do
                                                 {"took_s": 1.4, "searches": 2}
    store KEY         say 64 bytes under a topic     {"took_s": 0.008, "stored": 8}
    get KEY HOLDERS   find what is said under it, until so many peers said it
                                                 {"took_s": 0.003, "found": true}

It lives as long as its standard input.
"""

import json
import logging
import sys
import time

import trio

from dht.directory import KademliaDirectory
from dht.kademlia.routing import Contact
from dht.transport.libp2p_transport import TransportConfig, open_transport
from node.peers.dialling import pause_s
from node.peers.links import SEARCH_FIRST_S
from node.peers.listening import full_addresses
from node.state.config import parse_peer_address
from protocol.identity import Ed25519Signer
from training.numeric.memory import keep_freed_memory

TTL_S = 3600.0
VALUE_BYTES = 64


def value_of(key: str) -> bytes:
    """What is said under a key."""
    return key.encode().ljust(VALUE_BYTES, b".")


async def _meet(directory: KademliaDirectory, key: str, number: int, addresses: list[str]) -> int:
    """Search as often as a node does for the peers of its run; how often."""
    await directory.join(_contacts(addresses))
    await directory.announce(key.encode(), value_of(key), ttl_s=TTL_S)
    searches, began_s = 1, trio.current_time()
    while len(await directory.find(key.encode())) < number:
        await trio.sleep(pause_s(SEARCH_FIRST_S, trio.current_time() - began_s))
        searches, began_s = searches + 1, trio.current_time()
    return searches


def _contacts(addresses: list[str]) -> list[Contact]:
    return [Contact(one.peer, (one.address,)) for one in map(parse_peer_address, addresses)]


async def _answer(directory: KademliaDirectory, words: list[str]) -> dict[str, object]:
    began_s = time.perf_counter()
    told: dict[str, object]
    match words:
        case ["join", *addresses]:
            told = {"answered": await directory.join(_contacts(addresses))}
        case ["meet", key, number, *addresses]:
            told = {"searches": await _meet(directory, key, int(number), addresses)}
        case ["store", key]:
            told = {"stored": await directory.announce(key.encode(), value_of(key), ttl_s=TTL_S)}
        case ["get", key, holders]:
            records = await directory.find(key.encode(), holders_enough=int(holders))
            told = {"found": [record.value for record in records] == [value_of(key)]}
        case _:
            told = {"error": "no such command"}
    return {"took_s": time.perf_counter() - began_s} | told


async def _main(number: int) -> None:
    # The library's calls of `logging.debug` itself would hang a handler of their own in there.
    logging.getLogger().addHandler(logging.NullHandler())
    signer = Ed25519Signer(number.to_bytes(32, "big"))
    config = TransportConfig(listen_host="127.0.0.1")
    async with open_transport(config, signer_seed=signer.seed) as transport:
        directory = KademliaDirectory(transport, signer, time.time)
        async with trio.open_nursery() as nursery:
            await nursery.start(directory.run)
            _tell({"addresses": full_addresses(signer.peer_id, transport.addresses())})
            while line := await trio.to_thread.run_sync(sys.stdin.readline):
                _tell(await _answer(directory, line.split()))
            nursery.cancel_scope.cancel()


def _tell(body: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(body) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    keep_freed_memory()
    trio.run(_main, int(sys.argv[1]))
