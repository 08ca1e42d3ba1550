"""`barnraise bench discovery`: a DHT of real processes; how fast it stores and finds."""

import os
import random
import signal
import statistics
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from node.processes.children import JsonChild, JsonLine, first_error_nursery, open_json_child
from sim.processes.sitting import Tell, check_range, check_signal
from sim.processes.usage import cpu_s, memory_bytes

if TYPE_CHECKING:
    from trio_typing import TaskStatus

PEERS_MIN, PEERS_MAX = 2, 128
KEYS_MAX = 1_000_000
STARTING_MAX = 4
START_S = 120.0
ANSWER_S = 60.0
SETTLE_S = 5.0
"""After the joins, for the pings that make neighbours known, before anything is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryOptions:
    """`frozen` nodes stop after the stores, without a word, and stay connected. `is_at_once`: all
    enter at one time, through the first, and search until they know each other."""

    peers: int = 16
    keys: int = 1000
    frozen: int = 0
    is_at_once: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_range("--peers", self.peers, PEERS_MIN, PEERS_MAX)
        check_range("--keys", self.keys, 1, KEYS_MAX)
        check_range("--frozen", self.frozen, 0, self.peers // 2)
        if self.frozen:
            check_signal("--frozen", "SIGSTOP")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryResult:
    """Times in seconds, in the order in which they were measured."""

    join_s: tuple[float, ...]
    """Of each node but the first, from when it was told to enter; where all did at once, until it
    knew all of them."""

    store_s: tuple[float, ...]
    get_s: tuple[float, ...]
    """Until the first holder has said it: a record proves itself."""

    agreed_get_s: tuple[float, ...]
    """Until a second holder has said it too, which is for those who fear an old saying."""

    num_found: int
    """In both ways."""

    replicas_p50: float
    cpu_per_join_s: float
    cpu_per_store_s: float
    cpu_per_get_s: float
    memory_bytes_per_node: int
    load: float
    """Processes that wanted a processor over the last minute, by the system's count."""


@dataclass(frozen=True, slots=True)
class _DhtNode:
    """One process of `sim.bench.dht_node`."""

    child: JsonChild
    address: str

    async def ask(self, *words: str) -> JsonLine:
        """One command, and what it says. Raises StateError when it does not answer."""
        return await self.child.ask(" ".join(words), ANSWER_S)


async def bench_discovery(options: DiscoveryOptions, tell: Tell) -> DiscoveryResult:
    """Start the nodes, store every key, freeze some, find every key; one thing at a time.

    Raises StateError when a node dies or hangs. No process is left.
    """
    luck = random.Random(f"{options.seed}/discovery")
    async with _nodes(options, tell) as nodes:
        pids = [node.child.pid for node in nodes]
        began_s = cpu_s(pids)
        join_s = await (_meet(nodes) if options.is_at_once else _join(nodes))
        joined_s = cpu_s(pids)
        await trio.sleep(SETTLE_S)
        keys = [f"key-{options.seed}-{number}" for number in range(options.keys)]
        tell(f"{len(nodes)} nodes have joined; storing {len(keys):,} keys")
        before_s = cpu_s(pids)
        stores = [await luck.choice(nodes).ask("store", key) for key in keys]
        stored_s = cpu_s(pids)
        memory = memory_bytes(pids) // len(pids)
        frozen = luck.sample(nodes, options.frozen)
        for node in frozen:
            os.kill(node.child.pid, signal.SIGSTOP)
        alive = [node for node in nodes if node not in frozen]
        tell(f"finding them, {len(frozen)} nodes frozen")
        since_s = cpu_s(pids)
        gets = [await luck.choice(alive).ask("get", key, "1") for key in keys]
        got_s = cpu_s(pids)
        agreed = [await luck.choice(alive).ask("get", key, "2") for key in keys]
        found = [
            one["found"] is two["found"] is True for one, two in zip(gets, agreed, strict=True)
        ]
        return DiscoveryResult(
            join_s=tuple(join_s),
            store_s=tuple(map(_seconds, stores)),
            get_s=tuple(map(_seconds, gets)),
            agreed_get_s=tuple(map(_seconds, agreed)),
            num_found=sum(found),
            replicas_p50=statistics.median(float(said["stored"]) for said in stores),
            cpu_per_join_s=(joined_s - began_s) / len(nodes),
            cpu_per_store_s=(stored_s - before_s) / len(keys),
            cpu_per_get_s=(got_s - since_s) / len(keys),
            memory_bytes_per_node=memory,
            load=os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
        )


async def _join(nodes: Sequence[_DhtNode]) -> list[float]:
    """One after the other."""
    await nodes[0].ask("join")
    return [_seconds(await node.ask("join", nodes[0].address)) for node in nodes[1:]]


async def _meet(nodes: Sequence[_DhtNode]) -> list[float]:
    """All at once."""
    took_s: list[float] = []

    async def meet(node: _DhtNode, *addresses: str) -> None:
        took_s.append(_seconds(await node.ask("meet", "run", str(len(nodes)), *addresses)))

    async with first_error_nursery() as nursery:
        nursery.start_soon(meet, nodes[0])
        for node in nodes[1:]:
            nursery.start_soon(meet, node, nodes[0].address)
    return took_s


def _seconds(said: JsonLine) -> float:
    return float(said["took_s"])


@asynccontextmanager
async def _nodes(options: DiscoveryOptions, tell: Tell) -> AsyncIterator[list[_DhtNode]]:
    """All nodes, listening; ended with the context."""
    nodes: list[_DhtNode] = []
    starting = trio.CapacityLimiter(STARTING_MAX)

    async def live(number: int, task_status: "TaskStatus[_DhtNode]") -> None:
        line = [sys.executable, "-P", "-m", "sim.bench.dht_node", str(number + 1)]
        async with open_json_child(line, "a node of the DHT") as child:
            said = await child.hear(START_S)
            task_status.started(_DhtNode(child, str(said["addresses"][0])))
            await trio.sleep_forever()

    async def start(living: trio.Nursery, number: int) -> None:
        async with starting:
            nodes.append(await living.start(live, number))

    tell(f"starting {options.peers} nodes")
    # Each is ended by a task of its own, so that all end side by side.
    async with first_error_nursery() as living:
        async with trio.open_nursery() as nursery:
            for number in range(options.peers):
                nursery.start_soon(start, living, number)
        yield sorted(nodes, key=lambda node: node.address)
        living.cancel_scope.cancel()


def quantile_ms(times_s: Sequence[float], share: float) -> float:
    """The time in ms within which this share of them ended."""
    ordered = sorted(times_s)
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)


def discovery_json(
    options: DiscoveryOptions, commit: str, result: DiscoveryResult
) -> dict[str, object]:
    """The line that `--json` ends with."""
    return {
        "join_p50_s": round(statistics.median(result.join_s), 3),
        "join_max_s": round(max(result.join_s), 3),
        "store_p50_ms": quantile_ms(result.store_s, 0.5),
        "store_p99_ms": quantile_ms(result.store_s, 0.99),
        "get_p50_ms": quantile_ms(result.get_s, 0.5),
        "get_p99_ms": quantile_ms(result.get_s, 0.99),
        "agreed_get_p50_ms": quantile_ms(result.agreed_get_s, 0.5),
        "agreed_get_p99_ms": quantile_ms(result.agreed_get_s, 0.99),
        "cpu_ms_per_join": round(1000 * result.cpu_per_join_s, 1),
        "cpu_ms_per_store": round(1000 * result.cpu_per_store_s, 2),
        "cpu_ms_per_get": round(1000 * result.cpu_per_get_s, 2),
        "success": result.num_found / options.keys,
        "replicas_p50": result.replicas_p50,
        "memory_mib_per_node": round(result.memory_bytes_per_node / 2**20, 1),
        "peers": options.peers,
        "keys": options.keys,
        "frozen": options.frozen,
        "seed": options.seed,
        "load": round(result.load, 2),
        "commit": commit,
    }
