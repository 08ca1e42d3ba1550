"""Real nodes on this machine: started, listened to, ended. What is done to them is the caller's."""

import random
import signal
from collections.abc import Callable
from pathlib import Path

import trio

from node.demo.events import parse_event
from node.demo.log_tail import log_tail
from node.demo.node_process import NodeProcess
from node.processes.exit_codes import EXIT_REFUSED
from protocol.errors import StateError
from sim.local.local_node import ALL_HERE_FILE, LocalNode, node_name
from sim.local.options import LocalOptions
from sim.local.shape import Shape
from sim.local.shaper import Shaper, free_port
from sim.local.story import Story

BOOTSTRAP_MAX = 3
STARTING_MAX = 4
"""So many load their libraries at a time: a dozen on two cores would leave the founder no time to
answer those that are through."""


Told = Callable[[list[str]], list[str]]
"""Of the addresses of all that run, in the order of their start: those that a new node is told."""


def first_ones(addresses: list[str]) -> list[str]:
    """The founder's address, and those of the next that came."""
    return addresses[:BOOTSTRAP_MAX]


class LocalSwarm:
    """The nodes of one run. `begin` it in a nursery that stays open for as long as they live, and
    `end_all` in a `finally`; the story tells what becomes of them."""

    def __init__(
        self,
        options: LocalOptions,
        story: Story,
        now_s: Callable[[], float],
        told: Told = first_ones,
    ) -> None:
        """`now_s` are seconds since the command was given."""
        self.story = story
        self.shaper: Shaper | None = None
        self._options = options
        self._now_s = now_s
        self._told = told
        self._changed = trio.Event()
        self._ports = random.Random(f"{options.seed}/ports")
        self._nursery: trio.Nursery | None = None
        self._has_started = False

    @property
    def manifest(self) -> Path:
        """The signed manifest, as a file for all nodes."""
        return self._options.folder / "manifest.msgpack"

    async def begin(self, nursery: trio.Nursery, *, within_s: float) -> None:
        """Start all that begin with the run, and wait for the first seal of each.

        Raises StateError if one of them dies, or has none after `within_s` seconds.
        """
        self._nursery = nursery
        if self._options.needs_shaper:
            shape = self._options.shape or Shape()
            self.shaper = Shaper(shape, seed=self._options.seed, nursery=nursery)
        nodes = self.story.nodes
        with trio.move_on_after(within_s) as scope:
            founder = await self.add()
            await self.until(lambda: founder.address != "")
            for _ in range(self._options.peers - 1):
                await self.until(
                    lambda: sum(not node.address for node in nodes.values()) < STARTING_MAX
                )
                await self.add()
            others = self._options.peers - 1
            await self.until(
                lambda: (
                    founder.num_linked == others
                    and all(node.trainer_pid is not None for node in nodes.values())
                )
            )
            (self._options.folder / ALL_HERE_FILE).touch()
            await self.until(lambda: all(node.sealed for node in nodes.values()))
            self._has_started = True
        if scope.cancelled_caught:
            late = [node.name for node in nodes.values() if not node.sealed]
            raise StateError(f"no first seal at {', '.join(late)} within {within_s:.0f} s")

    async def add(self, *, is_checker: bool = False) -> LocalNode:
        """A new node, told of others that run."""
        nodes, name = self.story.nodes, node_name(len(self.story.nodes))
        running = [one.address for one in nodes.values() if one.address and _is_up(one)]
        told = tuple(self._told(running))
        node = LocalNode(name, self._options.folder, told, is_checker=is_checker)
        attack, peers = self._options.attack, self._options.peers
        node.is_liar = attack is not None and peers - attack.count <= len(nodes) < peers
        if self.shaper is not None:
            taken = {port.target for port in self.shaper.ports.values()}
            target = free_port(self._ports, taken.__contains__)
            node.port = await self.shaper.add_port(name, target)
        nodes[name] = node
        await self.start(node)
        return node

    async def start(self, node: LocalNode) -> None:
        """The next life of a node."""
        process = await node.start(self._options, self.manifest)
        assert self._nursery is not None
        self._nursery.start_soon(self._listen_to, node, process)
        self.tell_change()

    async def _listen_to(self, node: LocalNode, process: NodeProcess) -> None:
        async for line in process.lines():
            event = parse_event(line)
            if event is not None:
                self.story.heard(node, event, self._now_s())
                self.tell_change()
        status = await process.exit_status()
        if node.process is process and not node.is_meant_to_end:
            is_done = node.status == "finished" and status == 0
            if node.is_liar and status == EXIT_REFUSED:
                node.status = "left"  # It is banned, and obeys.
            elif not is_done:
                why = node.error or f"it ended with status {status}"
                why = f"{why}; the end of {process.log}:\n{log_tail(process.log)}"
                if self.is_over and node.is_checker and not node.has_sealed_in_life:
                    self.story.came_late(node, self._now_s())
                else:
                    self.story.died(node, why, self._now_s())
                if not self._has_started:
                    # Nobody has been harmed yet: it is not worth waiting for the others.
                    raise StateError(f"{node.name} died at the start: {why}")
        self.tell_change()

    @property
    def is_over(self) -> bool:
        """Whether the last round is sealed."""
        rounds = self._options.rounds
        return rounds is not None and self.story.newest >= rounds

    async def until(self, is_reached: Callable[[], bool]) -> None:
        """Until that holds; looked at whenever a node tells something."""
        while not is_reached():
            await self._changed.wait()

    def tell_change(self) -> None:
        """Something changed that somebody may wait for."""
        self._changed.set()
        self._changed = trio.Event()

    async def end_all(self) -> None:
        """End every process, frozen ones as well; runs to its end even when cancelled."""
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                for node in self.story.nodes.values():
                    node.is_meant_to_end = True
                    if node.process is not None:
                        if hasattr(signal, "SIGCONT"):
                            node.signal_both(signal.SIGCONT)
                        nursery.start_soon(node.process.end, node.trainer_pid)


def _is_up(node: LocalNode) -> bool:
    return node.status in ("running", "starting")
