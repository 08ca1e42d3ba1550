"""Plays the demo: starts the nodes, kills one, adds one, and watches until all have finished."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from node.demo import story
from node.demo.events import parse_event
from node.demo.log_tail import log_tail
from node.demo.node_process import NODE_COMMAND, NodeProcess, NodeSetting, start_node
from node.demo.options import DemoOptions
from node.demo.story import PATIENCE, Patience
from node.demo.swarm_view import NodeView, Role, SwarmView
from node.processes.children import trainer_threads
from node.processes.first_error import first_error_nursery
from protocol.errors import StateError

logger = logging.getLogger(__name__)

VALIDATIONS = 40
"""Points of a node's curve: each costs the time of some three inner steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where the demo plays: the folder's parts, and the program of a node."""

    options: DemoOptions
    manifest: Path
    nodes: Path
    logs: Path
    node_command: tuple[str, ...] = NODE_COMMAND
    patience: Patience = PATIENCE

    def state(self, name: str) -> Path:
        """State folder of a node."""
        return self.nodes / name

    def log(self, name: str) -> Path:
        """What a node's processes had to say."""
        return self.logs / f"{name}.log"


class Director:
    """One demo from the first process to the last seal. `play` it once; the view tells the rest."""

    def __init__(self, stage: Stage, now_s: Callable[[], float], show: Callable[[], None]) -> None:
        """`now_s` are seconds since the demo began; `show` is called after every event."""
        self.view = SwarmView(num_rounds=stage.options.rounds)
        self._stage = stage
        self._options = stage.options
        self._patience = stage.patience
        self._show = show
        self._now_s = now_s
        self._processes: dict[str, NodeProcess] = {}
        self._changed = trio.Event()

    async def play(self) -> None:
        """Until every survivor has finished; no process is left, however it ends.

        Raises StateError, saying where to look, when a node dies or the swarm is stuck.
        """
        try:
            async with first_error_nursery() as nursery:
                await self._start_swarm(nursery)
                nursery.start_soon(self._watch_for_stalls)
                await self._until(partial(story.should_start_latecomer, self._options, self.view))
                await self._start_latecomer(nursery)
                await self._until(partial(story.is_over_but_for_latecomer, self.view))
                with trio.move_on_after(self._patience.latecomer_s):
                    await self._until(partial(story.is_over, self.view))
                with trio.move_on_after(self._patience.last_words_s):
                    await self._until(partial(story.has_last_losses, self.view))
                nursery.cancel_scope.cancel()
        finally:
            await self._end_all()

    async def _start_swarm(self, nursery: trio.Nursery) -> None:
        with trio.move_on_after(self._patience.start_s) as scope:
            founder = await self._start(nursery, "founder", bootstrap=None)
            await self._until(lambda: founder.address != "")
            for _ in range(self._options.peers - 1):
                await self._start(nursery, "peer", bootstrap=founder.address)
            nodes = list(self.view.nodes.values())
            await self._until(lambda: all(node.address for node in nodes))
        if scope.cancelled_caught:
            silent = [node.name for node in self.view.nodes.values() if not node.address]
            raise StateError(
                f"node {' and '.join(silent)} did not listen within "
                f"{self._patience.start_s:.0f} s; the logs are in {self._stage.logs}"
            )

    async def _start_latecomer(self, nursery: trio.Nursery) -> None:
        # The second node is alive also where the founder is not. Its address is all that is told.
        helper = next(node for node in self.view.survivors if node.role == "peer")
        await self._start(nursery, "latecomer", bootstrap=helper.address)

    async def _start(self, nursery: trio.Nursery, role: Role, *, bootstrap: str | None) -> NodeView:
        node = self.view.add(role)
        options = self._options
        setting = NodeSetting(
            state=self._stage.state(node.name),
            manifest=self._stage.manifest,
            log=self._stage.log(node.name),
            bootstrap=bootstrap,
            wait_seats=options.peers - 1,
            threads=trainer_threads(options.peers + 1),
            validate_every=max(1, options.rounds // VALIDATIONS),
            switches=options.switches_for(is_late=role == "latecomer"),
            command=self._stage.node_command,
        )
        process = await start_node(node.name, setting)
        self._processes[node.name] = process
        self.view.started(node.name, process.pid, self._now_s())
        nursery.start_soon(self._listen_to, node, process)
        return node

    async def _listen_to(self, node: NodeView, process: NodeProcess) -> None:
        async for line in process.lines():
            event = parse_event(line)
            if event is None:
                continue
            self.view.fold(node.name, event, self._now_s())
            # Before all else: the founder's parts are on their way for milliseconds only.
            if story.should_kill_founder(self._options, self.view):
                self._kill(next(n for n in self.view.nodes.values() if n.role == "founder"))
            self._tell_change()
        status = await process.exit_status()
        node.has_ended = True
        self._tell_change()
        if not process.is_ending and (node.status != "finished" or status != 0):
            why = node.error or f"it ended with status {status}"
            raise StateError(
                f"node {node.name} died: {why}; the end of {process.log}:\n{log_tail(process.log)}"
            )

    def _kill(self, node: NodeView) -> None:
        self._processes[node.name].kill(node.trainer_pid)
        self.view.kill(node.name, self._now_s())

    async def _watch_for_stalls(self) -> None:
        while True:
            num_sealed = self.view.num_sealed
            with trio.move_on_after(self._patience.stall_s) as scope:
                await self._until_sealed(num_sealed + 1)
            if scope.cancelled_caught:
                raise StateError(
                    f"the swarm is stuck: no seal for {self._patience.stall_s:.0f} s after "
                    f"{num_sealed} rounds; the logs are in {self._stage.logs}"
                )

    async def _until_sealed(self, num_rounds: int) -> None:
        await self._until(lambda: self.view.num_sealed >= num_rounds)

    async def _until(self, is_reached: Callable[[], bool]) -> None:
        while not is_reached():
            await self._changed.wait()

    def _tell_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
        self._show()

    async def _end_all(self) -> None:
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                for name, process in self._processes.items():
                    nursery.start_soon(process.end, self.view.nodes[name].trainer_pid)
