"""Plays the demo: starts the nodes, kills one, adds one, and watches until all have finished."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from node.processes.children import first_error_nursery, trainer_threads
from protocol.errors import StateError
from sim.demo import story
from sim.demo.options import DemoOptions
from sim.demo.story import PATIENCE, Patience
from sim.demo.swarm_view import NodeView, Role, SwarmView
from sim.processes.node_process import (
    NODE_COMMAND,
    ChangeBell,
    NodeProcess,
    end_nodes,
    log_tail,
    start_node,
)

VALIDATIONS = 40
"""Points of a node's curve: each costs the time of some three inner steps."""

WAIT_SEATS_S = 60.0
"""How long the founder waits for the others. Where cores are free they are there in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where the demo plays, and the program of a node."""

    options: DemoOptions
    node_command: tuple[str, ...] = NODE_COMMAND
    patience: Patience = PATIENCE

    @property
    def manifest(self) -> Path:
        """The signed manifest, as a file for all nodes."""
        return self.options.folder / "manifest.msgpack"

    @property
    def logs(self) -> Path:
        """The folder of the logs."""
        return self.options.folder / "logs"

    def state(self, name: str) -> Path:
        """State folder of a node."""
        return self.options.folder / "nodes" / name

    def log(self, name: str) -> Path:
        """What a node's processes had to say."""
        return self.logs / f"{name}.log"

    def arguments(self, node: NodeView, bootstrap: str | None) -> list[str]:
        """The command line of a node. `bootstrap` is the only address that it is told."""
        options = self.options
        line = [*self.node_command, "--state", str(self.state(node.name))]
        line += ["--manifest", str(self.manifest), "--listen", "/ip4/127.0.0.1/tcp/0"]
        line += ["--threads", str(trainer_threads(options.peers + 1))]
        # Five small models share a GPU badly, and in bf16 the tuned numbers are others.
        line += ["--device", "cpu"]
        line += ["--validate-every", str(max(1, options.rounds // VALIDATIONS)), "--events"]
        if bootstrap is None:
            line += ["--wait-seats", str(options.peers - 1), "--wait-seats-s", str(WAIT_SEATS_S)]
        else:
            line += ["--bootstrap", bootstrap]
        for switch in options.switches_for(is_late=node.role == "latecomer"):
            line += ["--test-switch", switch]
        return line


class Director(ChangeBell):
    """One demo from the first process to the last seal. `play` it once; the view tells the rest."""

    def __init__(self, stage: Stage, now_s: Callable[[], float], show: Callable[[], None]) -> None:
        """`now_s` are seconds since the demo began; `show` is called after every event."""
        super().__init__()
        self.view = SwarmView(num_rounds=stage.options.rounds)
        self._stage = stage
        self._options = stage.options
        self._patience = stage.patience
        self._show = show
        self._now_s = now_s
        self._processes: dict[str, NodeProcess] = {}

    async def play(self) -> None:
        """Until every survivor has finished; no process is left, however it ends.

        Raises StateError, saying where to look, when a node dies or the swarm is stuck.
        """
        try:
            async with first_error_nursery() as nursery:
                await self._start_swarm(nursery)
                nursery.start_soon(self._watch_for_stalls)
                await self.until(partial(story.should_start_latecomer, self._options, self.view))
                # The second node is alive also where the founder is not. Its address is all that
                # is told.
                helper = next(node for node in self.view.survivors if node.role == "peer")
                await self._start(nursery, "latecomer", bootstrap=helper.address)
                await self.until(partial(story.is_over_but_for_latecomer, self.view))
                with trio.move_on_after(self._patience.latecomer_s):
                    await self.until(partial(story.is_over, self.view))
                with trio.move_on_after(self._patience.last_words_s):
                    await self.until(partial(story.has_last_losses, self.view))
                nursery.cancel_scope.cancel()
        finally:
            await end_nodes(self._processes.values())

    async def _start_swarm(self, nursery: trio.Nursery) -> None:
        with trio.move_on_after(self._patience.start_s) as scope:
            founder = await self._start(nursery, "founder", bootstrap=None)
            await self.until(lambda: founder.address != "")
            for _ in range(self._options.peers - 1):
                await self._start(nursery, "peer", bootstrap=founder.address)
            nodes = list(self.view.nodes.values())
            await self.until(lambda: all(node.address for node in nodes))
        if scope.cancelled_caught:
            silent = [node.name for node in self.view.nodes.values() if not node.address]
            raise StateError(
                f"node {' and '.join(silent)} did not listen within "
                f"{self._patience.start_s:.0f} s; the logs are in {self._stage.logs}"
            )

    async def _start(self, nursery: trio.Nursery, role: Role, *, bootstrap: str | None) -> NodeView:
        node = self.view.add(role)
        words, log = self._stage.arguments(node, bootstrap), self._stage.log(node.name)
        process = await start_node(node.name, words, log)
        self._processes[node.name] = process
        self.view.started(node.name, process.pid, self._now_s())
        nursery.start_soon(self._listen_to, node, process)
        return node

    async def _listen_to(self, node: NodeView, process: NodeProcess) -> None:
        async for event in process.events():
            self.view.fold(node.name, event, self._now_s())
            # Before all else: the founder's parts are on their way for milliseconds only.
            if story.should_kill_founder(self._options, self.view):
                founder = self.view.founder
                self._processes[founder.name].kill()
                self.view.kill(founder.name, self._now_s())
            self._notice()
        status = await process.exit_status()
        node.has_ended = True
        self._notice()
        if not process.is_ending and (node.status != "finished" or status != 0):
            why = node.error or f"it ended with status {status}"
            raise StateError(
                f"node {node.name} died: {why}; the end of {process.log}:\n{log_tail(process.log)}"
            )

    async def _watch_for_stalls(self) -> None:
        while True:
            num_sealed = self.view.num_sealed
            with trio.move_on_after(self._patience.stall_s) as scope:
                await self.until(lambda: self.view.num_sealed > num_sealed)  # noqa: B023
            if scope.cancelled_caught:
                raise StateError(
                    f"the swarm is stuck: no seal for {self._patience.stall_s:.0f} s after "
                    f"{num_sealed} rounds; the logs are in {self._stage.logs}"
                )

    def _notice(self) -> None:
        self.tell_change()
        self._show()
