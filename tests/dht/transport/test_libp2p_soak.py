"""64 peers connected to one node, with traffic, for minutes: nothing of them stays.

    make soak-peers                          ten minutes
    PEERS_MINUTES=1 pytest -m slow -s tests/dht/transport/test_libp2p_soak.py

The node is a process of its own; what it holds is sampled every few seconds, and looked at once
more when all have left.
"""

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio

from protocol.errors import BarnraiseError
from protocol.identity import PeerId, parse_peer_id
from tests.dht.loopback import ECHO, MIB, ROOT, ask, open_loopback, wait

pytestmark = [pytest.mark.net, pytest.mark.slow]

PEERS = 64
MINUTES = float(os.environ.get("PEERS_MINUTES", "1"))
TAKE = "/barnraise/bulk/1"
TAKEN_BYTES = 256 * 1024
SAMPLE_S, PAUSE_S = 2.0, 1.0
SETTLED_SHARE = 1 / 2
"""Of the time, after which nothing is to grow."""

GROWTH_MAX, SLACK_MIB = 0.05, 4
SLACK = 8
"""Of what comes and goes with streams, between medians."""

GONE_S = 30.0

# What is garbage in cycles is no leak, and comes to some ten MiB before Python looks for it.
NODE = """
import gc, json, sys, trio
from protocol.identity import peer_id_text
from tests.dht.loopback import ECHO, echo, open_loopback
from tests.dht.transport.test_libp2p_soak import TAKE, TAKEN_BYTES

async def take(stream):
    await stream.receive_exactly(TAKEN_BYTES)
    await stream.send_all(b"!")

async def main():
    handlers = {ECHO: echo, TAKE: take}
    async with open_loopback(handlers, bulk_protocols=frozenset({TAKE})) as node:
        print(json.dumps([peer_id_text(node.peer_id), *node.addresses()]), flush=True)
        lines = trio.wrap_file(sys.stdin)
        while await lines.readline():
            gc.collect()
            links = node._links.everything()
            streams = sum(len(link.muxed.streams) for link in links if link.muxed)
            tasks = trio.lowlevel.current_statistics().tasks_living
            links = sum(not link.lost.is_set() for link in links)
            print(json.dumps({"streams": streams, "tasks": tasks, "links": links}), flush=True)

trio.run(main)
"""


@dataclass(frozen=True)
class Sample:
    """What the node holds at one moment."""

    tasks: int
    streams: int
    links: int
    descriptors: int
    rss_mib: float


class Node:
    """The process under test."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", NODE],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        name, *self.addresses = self._line()
        self.peer = PeerId(parse_peer_id(name))

    def _line(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def _ask(self) -> Sample:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found = self._line()
        proc = Path("/proc") / str(self._process.pid)
        pages = int((proc / "statm").read_text().split()[1])
        rss_mib = pages * os.sysconf("SC_PAGE_SIZE") / MIB
        return Sample(**found, descriptors=len(os.listdir(proc / "fd")), rss_mib=rss_mib)

    async def sample(self) -> Sample:
        """Ask it; what the system says of it is of the same moment."""
        return await trio.to_thread.run_sync(self._ask)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


async def peer(node: Node, number: int, moved: list[int]) -> None:
    """Control frames and transfers; now and then it goes without a word, or in the middle."""
    draws = random.Random(f"peer {number}")
    async with open_loopback(bulk_protocols=frozenset({TAKE})) as transport:
        while True:
            with contextlib.suppress(BarnraiseError):
                await transport.connect(node.peer, node.addresses)
                stream = await transport.open_stream(node.peer, ECHO)
                for _ in range(draws.randrange(10, 30)):
                    await wait(PAUSE_S * draws.random())
                    moved[0] += len(await ask(stream, bytes(draws.randrange(1, 2000))))
                    if draws.random() < 0.3:
                        moved[1] += await transfer(transport, node, draws)
                if draws.random() < 0.5:
                    await transport.disconnect(node.peer)
                await stream.aclose()


async def transfer(transport: Any, node: Node, draws: random.Random) -> int:
    stream = await transport.open_stream(node.peer, TAKE)
    try:
        if draws.random() < 0.3:
            await stream.send_all(bytes(draws.randrange(TAKEN_BYTES)))
            return 0
        await stream.send_all(bytes(TAKEN_BYTES))
        await stream.receive_exactly(1)
        return TAKEN_BYTES
    finally:
        await stream.aclose()


def median(samples: list[Sample], of: str) -> float:
    return float(statistics.median(getattr(sample, of) for sample in samples))


async def sampled(node: Node) -> tuple[list[Sample], list[int]]:
    """While the peers are there, every few seconds; and how many bytes they moved."""
    samples: list[Sample] = []
    moved = [0, 0]
    async with trio.open_nursery() as nursery:
        for number in range(PEERS):
            nursery.start_soon(peer, node, number, moved)
        ends_s = trio.current_time() + 60.0 * MINUTES
        for _ in range(round(60.0 * MINUTES / SAMPLE_S)):
            await wait(SAMPLE_S)
            samples.append(await node.sample())
            if trio.current_time() > ends_s:
                break  # A busy machine answers late.
        nursery.cancel_scope.cancel()
    return samples, moved


async def left(node: Node) -> Sample:
    """What it holds once all have left, and their streams lingered."""
    for _ in range(round(GONE_S / SAMPLE_S)):
        found = await node.sample()
        if not (found.links or found.streams):
            break
        await wait(SAMPLE_S)
    return found


def said(what: object) -> None:
    sys.stdout.write(f"{what}\n")


async def test_sixty_four_peers_with_traffic_leave_nothing_behind():
    node = Node()
    try:
        before = await node.sample()
        samples, moved = await sampled(node)
        after = await left(node)
    finally:
        node.end()
    later = samples[int(SETTLED_SHARE * len(samples)) :]
    third = len(later) // 3
    first, last = later[:third], later[-third:]
    said(f"\n{moved[0]} bytes of frames, {moved[1] / MIB:.0f} MiB of transfers")
    said("before, first third, last third, after")
    for of in ("tasks", "streams", "links", "descriptors", "rss_mib"):
        values = [getattr(before, of), median(first, of), median(last, of), getattr(after, of)]
        said(f"{of}: {', '.join(f'{value:.0f}' for value in values)}")
    assert max(sample.links for sample in samples) >= PEERS, "all were there"
    assert moved[1] > PEERS * TAKEN_BYTES
    for of in ("tasks", "streams", "links", "descriptors"):
        spread = SLACK + 0.1 * median(first, of)
        assert median(last, of) <= median(first, of) + spread, of
    grown_mib = median(last, "rss_mib") - median(first, "rss_mib")
    assert grown_mib < SLACK_MIB + GROWTH_MAX * median(first, "rss_mib"), [
        round(sample.rss_mib) for sample in samples
    ]
    assert (after.links, after.streams) == (0, 0)
    assert after.tasks <= before.tasks + 1
    assert after.descriptors <= before.descriptors + 1
