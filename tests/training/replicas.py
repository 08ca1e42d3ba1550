"""R replicas of a run in one process: an Exchange that averages, and a small manifest."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.identity import PeerId
from protocol.manifest import (
    CorpusSpec,
    InnerSpec,
    ModelSpec,
    OuterSpec,
    RunManifest,
    Setting,
    TimingSpec,
)
from training.aggregation import AGGREGATORS
from training.compression import make_codec
from training.diloco import RunStart
from training.exchange import Contribution, Outcome, RunClock
from training.genesis import genesis_weights, shard_spec
from training.outer import OuterInfo, make_outer

# Replicas are threads here; with threads of its own each, torch is many times slower.
torch.set_num_threads(1)

T = TypeVar("T")

Weights = NDArray[np.float32]

WAIT_S = 60.0
"""Longest wait for another replica: only ever reached when that replica has failed."""


INNER = InnerSpec(
    inner_steps=10,
    batch=4,
    learning_rate=0.003,
    learning_rate_floor=0.1,
    warmup_steps=5,
    beta1=0.9,
    beta2=0.95,
    weight_decay=0.1,
    clip_norm=1.0,
    drift_max=2,
)
OUTER = OuterSpec(
    preset="diloco",
    codec="none",
    feedback=1.0,
    aggregator="mean",
    optimizer="nesterov",
    learning_rate=0.7,
    momentum=0.5,
    overlap=1,
)


def small_manifest(*, inner: InnerSpec = INNER, outer: OuterSpec = OUTER) -> RunManifest:
    """Five rounds of a GPT with some 7 000 parameters in two cells."""
    settings = (Setting("context", 8), Setting("heads", 2), Setting("layers", 1))
    model = ModelSpec(name="gpt", settings=(*settings, Setting("width", 16)), seed=5)
    return RunManifest(
        wire=1,
        arithmetic=1,
        title="replicas in one process",
        founder=PeerId(bytes(32)),
        created_unix_s=0,
        trust="friends",
        survive="any",
        rounds=5,
        model=model,
        shards=(shard_spec(model),),
        cell_elements=4096,
        corpus=CorpusSpec(
            name="random",
            digest=bytes(32),
            num_blocks=2,
            block_bytes=1024,
            held_out_every=2,
            permutation_seed=0,
        ),
        inner=inner,
        outer=outer,
        timing=TimingSpec(
            deadline_floor_s=1.0, deadline_cap_s=60.0, heartbeat_s=1.0, suspect_s=5.0
        ),
    )


@dataclass
class Swarm:
    """Seals a round when all `replicas` have contributed to it; `absent` names who is left out.

    `absent` holds (round, replica) pairs: their contributions arrive too late to be listed.
    """

    manifest: RunManifest
    replicas: int
    absent: frozenset[tuple[int, int]] = frozenset()
    contributions: dict[tuple[int, int], Contribution] = field(default_factory=dict)
    clock: RunClock = field(init=False)
    anchor: Weights = field(init=False)
    slots: dict[str, Weights] = field(default_factory=dict)

    def __post_init__(self):
        self.clock = RunClock(round=0, step=0, tokens=0)
        self.anchor = genesis_weights(self.manifest)[0]
        self.barrier = threading.Barrier(self.replicas, action=self._seal, timeout=WAIT_S)

    def sessions(self):
        return [MemorySession(self, replica) for replica in range(self.replicas)]

    def outcome(self, replica: int) -> Outcome:
        sealed = self.clock.round - 1
        more = self.clock.round < self.manifest.rounds
        return Outcome(
            listed=(sealed, replica) not in self.absent,
            anchor_N=self.anchor,
            clock=self.clock,
            lease=((self.clock.round, self.clock.round + 1),) if more else (),
        )

    def _seal(self) -> None:
        index = self.clock.round
        codec = make_codec(self.manifest.outer)
        layout = self.manifest.layout(0)
        rows, tokens = {}, []
        for replica in range(self.replicas):
            if (index, replica) in self.absent:
                continue
            contribution = self.contributions[index, replica]
            cells = [
                codec.decode(payload, layout.cell_numel(0, cell))
                for cell, payload in enumerate(contribution.payloads)
            ]
            rows[b"%04d" % replica] = np.concatenate(cells)
            tokens.append(float(contribution.tokens))
        rule = AGGREGATORS[self.manifest.outer.aggregator]()
        rows_PN = np.stack([rows[peer] for peer in sorted(rows)])
        value = rule(rows_PN, np.array(tokens)).value
        outer = make_outer(self.manifest.outer)
        step = outer.step(self.anchor, value, OuterInfo(round=index, slots=self.slots))
        self.anchor, self.slots = step.anchor_N, dict(step.slots)
        self.clock = RunClock(
            round=index + 1,
            step=self.clock.step + self.manifest.inner.inner_steps,
            tokens=self.clock.tokens + int(sum(tokens)),
        )


@dataclass
class MemorySession:
    """One replica's Session with a Swarm."""

    swarm: Swarm
    replica: int

    @property
    def manifest(self) -> RunManifest:
        return self.swarm.manifest

    @property
    def start(self) -> RunStart:
        swarm = self.swarm
        return RunStart(anchors=(swarm.anchor,), clock=swarm.clock, lease=((0, 1),))

    def begin(self, fragment: int, contribution: Contribution) -> "MemoryTicket":
        assert fragment == contribution.fragment
        self.swarm.contributions[self.swarm.clock.round, self.replica] = contribution
        return MemoryTicket(self.swarm, self.replica)


@dataclass
class MemoryTicket:
    """Waits for the slowest replica."""

    swarm: Swarm
    replica: int

    def result(self) -> Outcome:
        self.swarm.barrier.wait()
        return self.swarm.outcome(self.replica)


def run_replicas(swarm: Swarm, train: Callable[[MemorySession], T]) -> list[T]:
    """`train(session)` for every replica, each in a thread; the first failure is raised."""

    def guarded(session: MemorySession) -> T:
        with ExitStack() as failure:
            # The others must fail at once, not wait for a replica that has failed.
            failure.callback(swarm.barrier.abort)
            result = train(session)
            failure.pop_all()
        return result

    with ThreadPoolExecutor(swarm.replicas) as pool:
        futures = [pool.submit(guarded, session) for session in swarm.sessions()]
    errors = [f.exception() for f in futures]
    for error in errors:
        if error is not None and not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [future.result() for future in futures]


def random_windows(seed: int, steps: int, batch: int = 4, window: int = 9) -> NDArray[np.uint8]:
    """(steps, batch, window) random bytes."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, size=(steps, batch, window), dtype=np.uint8)
