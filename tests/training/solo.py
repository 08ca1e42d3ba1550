"""A run in which this trainer is one of two peers, and may be killed at any moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.leases import Lease
from protocol.manifest import RunManifest
from tests.training.replicas import random_windows
from training.audits.traces import TraceFolder
from training.channel.exchange import Contribution, Outcome, RunClock, RunStart, Turn
from training.compression import make_codec
from training.device.inner import accumulate_gradient, make_optimizer, optimizer_tensors
from training.loop.diloco import DiLoCo
from training.loop.inner_state import InnerFolder, InnerState
from training.loop.replicas import Weights
from training.loop.traced_inner import RoundTracer
from training.models.building import build_model, read_fragment
from training.models.genesis import genesis_weights
from training.numeric.arithmetic import joined

MOMENTS_TO_DIE = ("training", "saving", "announced", "sealed", "forgotten")
"""In the midst of the steps; when the state is kept and nobody was told; with the contribution
handed over; the same, and the round is sealed before the next start; kept, nobody told, and the
round is sealed without it before the next start."""


class Killed(BaseException):
    """kill -9."""


class OneInFlight:
    """What a Session and its tickets are never asked with one round in flight."""

    def proceed(self) -> Turn:
        raise AssertionError("asked for a turn")

    def is_here(self) -> bool:
        raise AssertionError("asked for an outcome before its time")


@dataclass
class Solo(OneInFlight):
    """The swarm's side of a run: what is sealed survives every death of the trainer.

    `unlisted` names rounds that are sealed without the trainer. `deaths` says in which round it
    dies at which moment.
    """

    manifest: RunManifest
    folder: Path
    seed: int
    unlisted: frozenset[int] = frozenset()
    deaths: Mapping[int, str] = field(default_factory=dict)
    sent: dict[int, list[Contribution]] = field(default_factory=dict)
    starts: int = 0
    steps: int = 0

    def __post_init__(self):
        self.anchors = list(genesis_weights(self.manifest))
        self.clock = RunClock(round=0, step=0, tokens=0)
        self.was_listed = False
        self.left_deaths = dict(self.deaths)
        self.listed_rounds: set[int] = set()

    def open_store(self) -> InnerFolder:
        """What a life of the trainer keeps its rounds in."""
        return InnerFolder(self.folder, self.manifest)

    @property
    def anchor(self) -> Weights:
        return joined(self.anchors)

    @property
    def fragment(self) -> int:
        """The one that the round in hand is about."""
        return self.clock.round % len(self.anchors)

    @property
    def lease(self) -> Lease:
        index = self.clock.round
        return self.lease_of(index) if index < self.manifest.rounds else ()

    def lease_of(self, index: int) -> Lease:
        """As many samples as H steps take, in every round others."""
        inner = self.manifest.inner
        size = inner.inner_steps * inner.batch
        return ((index * size, (index + 1) * size),)

    @property
    def start(self) -> RunStart:
        return RunStart(
            anchors=tuple(self.anchors),
            clock=self.clock,
            lease=self.lease,
            since=self.clock.round - 1,
            listed=(self.clock.round - 1,) if self.was_listed else (),
        )

    def dies(self, moment: str) -> bool:
        """Whether it dies now; once per round."""
        if self.left_deaths.get(self.clock.round) != moment:
            return False
        del self.left_deaths[self.clock.round]
        return True

    def begin(self, fragment: int, contribution: Contribution) -> "Solo":
        assert fragment == contribution.fragment == self.fragment
        if self.dies("saving"):
            raise Killed
        if self.dies("forgotten"):
            self.seal(None)
            raise Killed
        self.sent.setdefault(self.clock.round, []).append(contribution)
        if self.dies("announced"):
            raise Killed
        if self.dies("sealed"):
            self.seal(contribution)
            raise Killed
        return self

    def result(self) -> Outcome:
        anchor, contribution = self.fragment, self.sent[self.clock.round][-1]
        self.seal(contribution)
        anchor_N, clock = self.anchors[anchor], self.clock
        return Outcome(listed=self.was_listed, anchor_N=anchor_N, clock=clock, lease=self.lease)

    def seal(self, contribution: Contribution | None) -> None:
        """One step of the run, with what the other peer contributed and, if listed, ours."""
        index, before_N = self.clock.round, self.anchors[self.fragment]
        others = np.random.default_rng(1000 + index).normal(0, 1e-3, len(before_N))
        total_N: Weights = others.astype(np.float32)
        self.was_listed = contribution is not None and index not in self.unlisted
        if self.was_listed:
            assert contribution is not None
            total_N += self.decoded(contribution)
            self.listed_rounds.add(index)
        self.anchors[self.fragment] = before_N - np.float32(0.35) * total_N
        self.clock = RunClock(
            round=index + 1,
            step=self.clock.step + self.manifest.inner.inner_steps,
            tokens=self.clock.tokens + 1,
        )

    def decoded(self, contribution: Contribution) -> Weights:
        codec, layout = make_codec(self.manifest.outer), self.manifest.layout(0)
        numels = layout.cell_numels[contribution.fragment]
        cells = zip(contribution.payloads, numels, strict=True)
        return np.concatenate([codec.decode(payload, numel) for payload, numel in cells])

    def train(self) -> "Trained":
        """Train until the run is over, starting anew after each death."""
        while True:
            self.starts += 1
            try:
                return self.live()
            except Killed:
                continue

    @property
    def traces(self) -> TraceFolder:
        return TraceFolder(self.folder / "traces", self.manifest)

    def batch(self, lease: Lease, step: int) -> NDArray[np.uint8]:
        inner_steps = self.manifest.inner.inner_steps
        windows = random_windows(self.seed, self.manifest.rounds * inner_steps)
        index = lease[0][0] // (inner_steps * self.manifest.inner.batch)
        batch_BW: NDArray[np.uint8] = windows[index * inner_steps + step]
        return batch_BW

    def live(self) -> "Trained":
        """One life of the trainer: a process of its own, but for the interpreter."""
        manifest = self.manifest
        model = build_model(manifest)
        optimizer = make_optimizer(model, manifest.inner)
        store = self.store = self.open_store()
        tracer = None
        if manifest.audits.rate:
            tracer = RoundTracer(model, optimizer, manifest, self.traces)
        diloco = DiLoCo(model, optimizer, exchange=self, inner_store=store, watcher=tracer)
        diloco.resume()
        inner_steps = manifest.inner.inner_steps
        while not diloco.finished:
            diloco.begin_step()
            batch_BW = self.batch(diloco.lease, diloco.local_step)
            loss = accumulate_gradient(
                model, optimizer, batch_BW, sam_radius=manifest.inner.sam_radius
            )
            if diloco.local_step == inner_steps // 2 and self.dies("training"):
                raise Killed
            self.steps += 1
            diloco.step(loss)
        moments = optimizer_tensors(model, optimizer)
        return Trained(
            anchor=self.anchor.tobytes(),
            weights=b"".join(
                read_fragment(model, manifest.shards[0], fragment).tobytes()
                for fragment in range(len(self.anchors))
            ),
            residuals=tuple(
                None if residual_N is None else residual_N.tobytes()
                for residual_N in diloco.residuals()
            ),
            moments={name: bits_of(tensor) for name, tensor in moments.items()},
            state=store.newest(manifest.rounds),
        )


def bits_of(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().numpy().tobytes()


@dataclass(frozen=True)
class Trained:
    """What a trainer ends with, to be compared to the bit."""

    anchor: bytes
    weights: bytes
    residuals: tuple[bytes | None, ...]
    moments: Mapping[str, bytes]
    state: InnerState | None = field(compare=False)
