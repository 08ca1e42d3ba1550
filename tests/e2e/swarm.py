"""A small swarm of real node processes that a test may kill, and what their disks say of them."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from node.holdings.journal import CHAIN_FILE
from node.holdings.record_log import read_records
from node.state.folder import mark_unsigned, run_folder
from node.state.keystore import load_or_create_identity
from protocol.manifest import RunManifest, Setting, StopSpec, sign_manifest
from protocol.messages import SealCertificate, SealValue, SignedMessage, decode_message
from protocol.wire import decode, encode
from sim.processes.recipe import outer_spec, small_manifest
from training.methods.presets import PRESETS
from training.models.genesis import shard_spec

ROOT = Path(__file__).parent.parent.parent
COMMAND = [sys.executable, "-P", "-m", "node.network_main"]
MANIFEST_FILE = "manifest.msgpack"
STEP_S = 0.05
MODEL = (Setting("context", 16), Setting("heads", 2), Setting("layers", 1), Setting("width", 16))


def tiny_manifest(
    state: Path,
    *,
    rounds: int = 100_000,
    stop: StopSpec | None = None,
    inner_steps: int = 8,
    preset: str | None = None,
    trust: Literal["friends", "open"] | None = None,
) -> RunManifest:
    """A run of a model so small that a round takes a fraction of a second; its founder's state."""
    signer = load_or_create_identity(state)
    manifest = small_manifest("barnraise demo", signer.peer_id, rounds=10, seed=1)
    model = replace(manifest.model, settings=MODEL)
    shard, outer = shard_spec(model), manifest.outer
    if preset is not None:
        chosen = PRESETS[preset](rounds)
        shard = shard_spec(model, fragments=chosen.fragments)
        outer = outer_spec(preset, chosen)
    return replace(
        manifest,
        trust=trust or manifest.trust,
        title="a test",
        rounds=rounds,
        model=model,
        shards=(shard,),
        outer=outer,
        cell_elements=1024,
        inner=replace(manifest.inner, inner_steps=inner_steps, batch=4, warmup_steps=10),
        timing=replace(manifest.timing, suspect_s=2.0),
        stop=stop or StopSpec(),
    )


@dataclass(slots=True)
class NodeUnderTest:
    """One node's processes over its lives; `events` are of all of them."""

    name: str
    state: Path
    arguments: list[str]
    events: list[dict[str, Any]] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None
    lives: int = 0
    reader: threading.Thread | None = None
    command: tuple[str, ...] = tuple(COMMAND)

    def start(self) -> None:
        """Start the node; it goes on from what its disk has."""
        self.lives += 1
        with (self.state.parent / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command, *self.arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self.state.parent,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )
        self.reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self.reader.start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with suppress(json.JSONDecodeError):
                self.events.append(json.loads(line) | {"life": self.lives})

    def kill(self, *, trainer: bool = False) -> None:
        """SIGKILL for the network process, or for the trainer, of which the node then ends."""
        assert self.process is not None
        if trainer:
            pids = [e["pid"] for e in self.events if e["event"] == "trainer"]
            with suppress(ProcessLookupError, IndexError):
                os.kill(pids[-1], signal.SIGKILL)
        else:
            self.process.kill()
        self.ended()

    def ended(self, *, timeout_s: float = 20.0) -> int:
        """Its exit status, once all that it printed is read."""
        assert self.process is not None
        assert self.reader is not None
        status = self.process.wait(timeout_s)
        self.reader.join(timeout_s)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        return status

    def leave(self) -> int:
        """A clean end."""
        assert self.process is not None
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(b"leave\n")
            self.process.stdin.flush()
        return self.ended()

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def seals(self) -> dict[int, set[str]]:
        """Digests of the seals that it adopted, by round, over all lives."""
        found: dict[int, set[str]] = {}
        for event in list(self.events):
            if event["event"] == "sealed":
                found.setdefault(event["round"], set()).add(event["digest"])
        return found

    def life(self) -> list[dict[str, Any]]:
        """The events of this life."""
        return [event for event in list(self.events) if event["life"] == self.lives]

    def sealed(self) -> int:
        """The last round that it adopted in this life."""
        rounds = [e["round"] for e in self.life() if e["event"] in ("sealed", "resumed", "synced")]
        return max(rounds, default=-1)

    def log(self) -> str:
        return (self.state.parent / f"{self.name}.log").read_text(errors="replace")


@dataclass(slots=True)
class Swarm:
    """Nodes on loopback; the first is the founder, the others are told its address."""

    manifest: RunManifest
    nodes: list[NodeUnderTest]

    def folder(self, node: NodeUnderTest) -> Path:
        """The node's folder of the run."""
        return run_folder(node.state, self.manifest.digest)

    def signatures(self, node: NodeUnderTest) -> list[SignedMessage]:
        """What is in the node's log of signatures, its own and quoted ones."""
        path = self.folder(node) / "slots.log"
        records = read_records(path)[0] if path.exists() else []
        return [decode_message(record)[0] for record in records]

    def chain(self, node: NodeUnderTest) -> list[SealValue]:
        """The final seals in the node's chain on disk, without genesis."""
        records = read_records(self.folder(node) / CHAIN_FILE)[0]
        return [decode(SealCertificate, record).value for record in records]

    def wait(self, what: str, holds: Any, *, timeout_s: float = 60.0) -> None:
        """Until `holds()`; else fails with the ends of all logs."""
        deadline_s = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline_s:
                logs = "\n".join(f"--- {n.name}\n{n.log()[-3000:]}" for n in self.nodes)
                raise AssertionError(f"{what}: not within {timeout_s} s\n{logs}")
            threading.Event().wait(STEP_S)

    def pause(self, seconds: float) -> None:
        """Let real time pass."""
        threading.Event().wait(seconds)

    def until_round(self, rounds: int, *, timeout_s: float = 60.0) -> None:
        self.wait(
            f"round {rounds} on every node",
            lambda: all(node.sealed() >= rounds for node in self.nodes),
            timeout_s=timeout_s,
        )


@contextmanager
def swarm_of(
    folder: Path,
    num_nodes: int,
    *,
    status: bool = False,
    **run: Any,
) -> Iterator[Swarm]:
    """Started nodes, whose processes are gone when the block is left; `run` is as
    `tiny_manifest` takes it."""
    founder = folder / "n0"
    manifest = tiny_manifest(founder, **run)
    signer = load_or_create_identity(founder)
    path = folder / MANIFEST_FILE
    path.write_bytes(encode(sign_manifest(manifest, signer)))
    mark_unsigned(founder, manifest.digest)
    swarm = Swarm(manifest, [])
    try:
        for index in range(num_nodes):
            _add(swarm, folder, index, ["--status-port", "0"] if status else [])
        yield swarm
    finally:
        for node in swarm.nodes:
            if node.is_running:
                node.kill()


def _add(swarm: Swarm, folder: Path, index: int, more: list[str]) -> None:
    told = [address_of(other) for other in swarm.nodes[:1]]
    swarm.nodes.append(started(swarm, folder / f"n{index}", told, more))


def address_of(node: NodeUnderTest) -> str:
    """Where others may dial it."""
    addresses = [e["addresses"] for e in node.events if e["event"] == "listening"]
    return str(addresses[-1][0])


def started(
    swarm: Swarm, state: Path, bootstrap: Sequence[str], more: Sequence[str] = ()
) -> NodeUnderTest:
    """One node more, which listens; it is told these addresses. Not one of `swarm.nodes`."""
    manifest = state.parent / MANIFEST_FILE
    arguments = ["--state", str(state), "--manifest", str(manifest), "--events"]
    arguments += ["--listen", "/ip4/127.0.0.1/tcp/0", "--validate-every", "0"]
    for address in bootstrap:
        arguments += ["--bootstrap", address]
    node = NodeUnderTest(state.name, state, [*arguments, *more])
    node.start()
    swarm.wait("an address", lambda: any(event["event"] == "listening" for event in node.events))
    return node
