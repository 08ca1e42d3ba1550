"""`barnraise bench discovery`: a DHT of real processes; how fast it stores and finds."""

import json
import os
import random
import signal
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import trio

from node.processes.children import child_environment, end_child
from node.processes.first_error import first_error_nursery
from protocol.errors import ConfigError, StateError
from sim.bench.processes import cpu_s, memory_bytes

PEERS_MIN, PEERS_MAX = 2, 128
KEYS_MAX = 1_000_000
STARTING_MAX = 4
START_S = 120.0
ANSWER_S = 60.0
SETTLE_S = 5.0
"""After the joins, for the pings that make neighbours known, before anything is measured."""

_LINE_BYTES_MAX = 64 * 1024


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
        if not PEERS_MIN <= self.peers <= PEERS_MAX:
            raise ConfigError(f"--peers {self.peers} is not in {PEERS_MIN}..{PEERS_MAX}")
        if not 1 <= self.keys <= KEYS_MAX:
            raise ConfigError(f"--keys {self.keys} is not in 1..{KEYS_MAX}")
        if not 0 <= self.frozen <= self.peers // 2:
            raise ConfigError(f"--frozen {self.frozen} is not in 0..{self.peers // 2}")
        if self.frozen and not hasattr(signal, "SIGSTOP"):
            raise ConfigError("--frozen: this system has no signal that does it")


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


class _DhtNode:
    """One process of `sim.bench.dht_node`."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.address = ""
        self._rest = b""

    async def ask(self, *words: str) -> dict[str, object]:
        """One command, and what it says. Raises StateError when it does not answer."""
        assert self.process.stdin is not None
        try:
            await self.process.stdin.send_all(" ".join(words).encode() + b"\n")
        except trio.BrokenResourceError as error:
            raise StateError("a node of the DHT has died") from error
        return await self.hear(ANSWER_S)

    async def hear(self, within_s: float) -> dict[str, object]:
        """The next line. Raises StateError when there is none."""
        assert self.process.stdout is not None
        with trio.move_on_after(within_s):
            while b"\n" not in self._rest:
                data = await self.process.stdout.receive_some(_LINE_BYTES_MAX)
                if not data:
                    raise StateError("a node of the DHT has died")
                self._rest += data
            line, _, self._rest = self._rest.partition(b"\n")
            said = json.loads(line)
            assert isinstance(said, dict)
            return said
        raise StateError(f"a node of the DHT said nothing for {within_s:.0f} s")


async def bench_discovery(
    options: DiscoveryOptions, tell: Callable[[str], None]
) -> DiscoveryResult:
    """Start the nodes, store every key, freeze some, find every key; one thing at a time.

    Raises StateError when a node dies or hangs. No process is left.
    """
    luck = random.Random(f"{options.seed}/discovery")
    async with _nodes(options, tell) as nodes:
        pids = [node.process.pid for node in nodes]
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
            os.kill(node.process.pid, signal.SIGSTOP)
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
            replicas_p50=statistics.median(_number(said["stored"]) for said in stores),
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


def _seconds(said: dict[str, object]) -> float:
    return _number(said["took_s"])


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)


@asynccontextmanager
async def _nodes(
    options: DiscoveryOptions, tell: Callable[[str], None]
) -> AsyncIterator[list[_DhtNode]]:
    """All nodes, listening; ended with the context."""
    nodes: list[_DhtNode] = []
    starting = trio.CapacityLimiter(STARTING_MAX)

    async def start(number: int) -> None:
        async with starting:
            # In a task of its own: a cancelled start would leave a process that nobody knows.
            with trio.CancelScope(shield=True):
                process = await trio.lowlevel.open_process(
                    [sys.executable, "-P", "-m", "sim.bench.dht_node", str(number + 1)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=child_environment(),
                    start_new_session=True,  # Ctrl+C is the parent's to understand.
                )
                node = _DhtNode(process)
                nodes.append(node)
            said = await node.hear(START_S)
            addresses = said["addresses"]
            assert isinstance(addresses, list)
            node.address = str(addresses[0])

    tell(f"starting {options.peers} nodes")
    try:
        async with first_error_nursery() as nursery:
            for number in range(options.peers):
                nursery.start_soon(start, number)
        yield sorted(nodes, key=lambda node: node.address)
    finally:
        await _end(nodes)


async def _end(nodes: Sequence[_DhtNode]) -> None:
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            for node in nodes:
                if hasattr(signal, "SIGCONT"):
                    with suppress(ProcessLookupError):
                        os.kill(node.process.pid, signal.SIGCONT)
                nursery.start_soon(end_child, node.process)


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
