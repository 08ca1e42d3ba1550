"""One real node over all its lives: how it is started, and what is done to it."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from node.processes.children import trainer_threads
from sim.attacks.alone import TOGETHER
from sim.local.options import LocalOptions
from sim.processes.events import MethodChosen
from sim.processes.node_process import NodeProcess, start_node
from sim.processes.shaper import HOST, Port

ALL_HERE_FILE = "all-here"
"""The founder does not train before it is there: alone it would be far ahead of the others."""

LIARS_FOLDER = "liars"
"""Where those who lie together tell each other what they made."""

LYING_COMMAND = (sys.executable, "-P", "-m", "sim.local.lying_node")

BENT_NODE = "B"
"""Which node a test switch bends."""

Status = Literal[
    "starting", "running", "frozen", "stalled", "apart", "down", "left", "finished", "dead"
]


@dataclass(slots=True, eq=False)
class LocalNode:
    """A node as its director knows it. `bootstrap` are the addresses that it is told."""

    name: str
    folder: Path
    bootstrap: tuple[str, ...]
    port: Port | None = None
    status: Status = "starting"
    lives: int = 0
    peer: str = ""
    address: str = ""
    sealed: int = 0
    """The newest round that it knows to be final, over all lives."""

    num_linked: int = 0
    has_sealed_in_life: bool = False
    seated: int = 0
    """The newest round of which it is a member."""

    is_liar: bool = False
    """Whether it contributes something else than its work."""

    is_checker: bool = False
    """Whether it comes late, follows without a seat, and checks bans (`sim.local.verdict`)."""

    banned: set[str] = field(default_factory=set)
    """Peers that its newest seals ban."""

    convicted: set[str] = field(default_factory=set)
    """Peers against whom it holds evidence that it has checked."""

    train_loss: float | None = None
    """Of its own data, before its newest seal."""

    members: int = 0
    """On the roster of the newest seal."""

    bytes_sent: int = 0
    """Payload of this life, up to its newest seal."""

    paces: list[MethodChosen] = field(default_factory=list)
    """How its rounds of real training went, the last ones."""

    error: str = ""
    process: NodeProcess | None = None
    is_meant_to_end: bool = False
    pids: list[int] = field(default_factory=list)
    """Of all processes of all lives."""

    @property
    def state(self) -> Path:
        """State folder."""
        return self.folder / "nodes" / self.name

    @property
    def trace(self) -> Path:
        """What it did, over all lives."""
        return self.folder / "traces" / f"{self.name}.jsonl"

    @property
    def log(self) -> Path:
        """What its processes had to say, over all lives."""
        return self.folder / "logs" / f"{self.name}.log"

    def arguments(self, options: LocalOptions, manifest: Path) -> list[str]:
        """The command line of the network process."""
        command = options.node_command
        if self.is_liar and options.attack is not None:
            command = (*LYING_COMMAND, "--attack", options.attack.name)
            if options.attack.name in TOGETHER:
                shared = ("--shared", str(self.folder / LIARS_FOLDER))
                command += (*shared, "--liars", str(options.attack.count))
        line = [*command, "--state", str(self.state)]
        # Who comes late knows one address, and has all else from there.
        if self.is_checker:
            line += ["--join", self.bootstrap[0], "--observer"]
        else:
            line += ["--manifest", str(manifest)]
        line += ["--trace", str(self.trace), "--events", "--device", "cpu"]
        line += ["--validate-every", "1" if options.validates else "0"]
        line += ["--threads", str(trainer_threads(options.peers)), "--security", options.security]
        if self.port is None:
            line += ["--listen", f"/ip4/{HOST}/tcp/0"]
        else:
            line += ["--listen", f"/ip4/{HOST}/tcp/{self.port.target}"]
            line += ["--announce", f"/ip4/{HOST}/tcp/{self.port.listen}"]
        for address in self.bootstrap:
            line += ["--bootstrap", address]
        if not self.bootstrap:
            line += ["--start-with", str(options.peers)]
            line += ["--start-within-s", str(options.start_within_s)]
        if options.trainer == "made-up":
            words = [sys.executable, "-P", "-m", options.trainer_module]
            words += ["--seed", str(options.seed), "--name", self.name]
            words += ["--round-s", str(options.train_s), *options.trainer_words]
            if not self.bootstrap:
                words += ["--hold", str(self.folder / ALL_HERE_FILE)]
            line += ["--trainer-command", json.dumps(words)]
        if options.test_switch is not None and self.name == BENT_NODE:
            line += ["--test-switch", options.test_switch]
        return line

    async def start(self, options: LocalOptions, manifest: Path) -> NodeProcess:
        """Begin a life. Raises StateError if this machine cannot start one more process."""
        self.lives += 1
        self.status, self.error = "starting", ""
        self.has_sealed_in_life = self.is_meant_to_end = False
        process = await start_node(self.name, self.arguments(options, manifest), self.log)
        self.process = process
        self.pids.append(process.pid)
        if self.port is not None:
            self.port.pid = process.pid
        return process

    @property
    def trainer_pid(self) -> int | None:
        """Of the second process of this life, once it has told of it."""
        return None if self.process is None else self.process.trainer_pid

    def signal_both(self, number: int) -> None:
        """To both processes, as far as they live."""
        if self.process is not None:
            self.process.signal_both(number)
