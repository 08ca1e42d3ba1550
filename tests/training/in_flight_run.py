"""A run with two rounds in flight in which this trainer is one of two peers, and may be killed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from protocol.leases import Lease
from protocol.manifest import RunManifest
from tests.training.replicas import random_windows
from tests.training.solo import Killed, bits_of
from training.channel.exchange import Contribution, Outcome, RunClock, RunStart, Turn
from training.compression import make_codec
from training.device.inner import accumulate_gradient, make_optimizer, optimizer_tensors
from training.loop.diloco import DiLoCo
from training.loop.inner_state import InnerFolder
from training.methods.presets import PRESETS
from training.models.building import build_model, read_fragment
from training.models.genesis import genesis_weights

MOMENTS_TO_DIE = ("training", "saving", "announced", "turned")
"""In the midst of the steps; when the state is kept and nobody was told; with the contribution
handed over; the same, and it is known for which round to go on."""


@dataclass
class InFlightRun:
    """The swarm's side: what is sealed survives every death of the trainer.

    A round is sealed when its outcome was looked for `late` times, and at the latest when the round
    behind the next one is asked for. `unlisted` are sealed without the trainer, `resyncs` are told
    as such. `deaths` says in which round it dies at which moment.
    """

    manifest: RunManifest
    folder: Path
    seed: int
    late: int = 0
    unlisted: frozenset[int] = frozenset()
    resyncs: frozenset[int] = frozenset()
    deaths: Mapping[int, str] = field(default_factory=dict)
    is_early: bool = False
    """Whether a round is sealed while the trainer is in the midst of the next one."""

    sent: dict[int, list[Contribution]] = field(default_factory=dict)
    starts: int = 0
    steps: int = 0

    def __post_init__(self) -> None:
        self.anchors = list(genesis_weights(self.manifest))
        self.sealed = -1
        self.listed: set[int] = set()
        self.left_deaths = dict(self.deaths)
        self.next_round = 0
        self.looked = 0
        outer = self.manifest.outer
        names = (outer.preset, *(then.preset for then in outer.then))
        self.is_delayed = any(PRESETS[name](self.manifest.rounds).is_delayed for name in names)
        self.at_once_until = max((then.from_round for then in outer.then), default=0)
        self.taken_after: dict[int, int] = {}
        """Of each round: steps of the trainer until its outcome was taken over."""

    def lease(self, index: int) -> Lease:
        whole = self.manifest.inner.inner_steps * self.manifest.inner.batch
        return ((index * whole, (index + 1) * whole),) if index < self.manifest.rounds else ()

    def clock(self, index: int) -> RunClock:
        return RunClock(round=index, step=index * self.manifest.inner.inner_steps, tokens=index)

    @property
    def start(self) -> RunStart:
        self.next_round = self.sealed + 1
        return RunStart(
            anchors=tuple(self.anchors),
            clock=self.clock(self.next_round),
            lease=self.lease(self.next_round),
            since=self.sealed,
            listed=(self.sealed,) if self.sealed in self.listed else (),
        )

    def dies(self, moment: str, index: int) -> None:
        if self.left_deaths.get(index) == moment:
            del self.left_deaths[index]
            raise Killed

    def begin(self, fragment: int, contribution: Contribution) -> "Flying":
        index, self.next_round = self.next_round, self.next_round + 1
        assert fragment == contribution.fragment == index % len(self.anchors)
        self.dies("saving", index)
        self.sent.setdefault(index, []).append(contribution)
        self.looked = 0
        self.dies("announced", index)
        return Flying(self, index, self.steps)

    def proceed(self) -> Turn:
        # The seal before the last one names the round.
        while self.sealed < self.next_round - 2:
            self.seal()
        self.dies("turned", self.next_round - 1)
        if not self.lease(self.next_round):
            self.seal()
        return Turn(clock=self.clock(self.next_round), lease=self.lease(self.next_round))

    def seal(self) -> None:
        """One step of the run, with what the other peer contributed and, if listed, ours."""
        self.sealed = index = self.sealed + 1
        fragment = index % len(self.anchors)
        before_N = self.anchors[fragment]
        others_N = np.random.default_rng(1000 + index).normal(0, 1e-3, len(before_N))
        total_N = others_N.astype(np.float32)
        if index not in self.unlisted:
            self.listed.add(index)
            codec, layout = make_codec(self.manifest.outer), self.manifest.layout(0)
            cells = zip(self.sent[index][-1].payloads, layout.cell_numels[fragment], strict=True)
            total_N += np.concatenate([codec.decode(cell, numel) for cell, numel in cells])
        self.anchors[fragment] = before_N - np.float32(0.35) * total_N

    def train(self) -> dict[str, object]:
        """Train until the run is over, starting anew after each death; all bits at the end."""
        while True:
            self.starts += 1
            try:
                return self.live()
            except Killed:
                continue

    def live(self) -> dict[str, object]:
        manifest = self.manifest
        model = build_model(manifest)
        optimizer = make_optimizer(model, manifest.inner)
        store = InnerFolder(self.folder, manifest)
        diloco = DiLoCo(model, optimizer, exchange=self, inner_store=store)
        diloco.resume()
        inner_steps = manifest.inner.inner_steps
        windows = random_windows(self.seed, manifest.rounds * inner_steps)
        while not diloco.finished:
            batch_BW = windows[diloco.clock.round * inner_steps + diloco.local_step]
            loss = accumulate_gradient(model, optimizer, batch_BW)
            if diloco.local_step == inner_steps // 2:
                while self.is_early and self.sealed < diloco.clock.round - 1:
                    self.seal()
                self.dies("training", diloco.clock.round)
            self.steps += 1
            diloco.step(loss)
        fragments = range(len(self.anchors))
        return {
            "anchors": [anchor_N.tobytes() for anchor_N in self.anchors],
            "weights": [read_fragment(model, manifest.shards[0], f).tobytes() for f in fragments],
            "residuals": [
                None if residual_N is None else residual_N.tobytes()
                for residual_N in diloco.residuals()
            ],
            "moments": {
                name: bits_of(tensor)
                for name, tensor in optimizer_tensors(model, optimizer).items()
            },
        }


@dataclass
class Flying:
    """A ticket of that run."""

    run: InFlightRun
    index: int
    handed_at: int

    def is_here(self) -> bool:
        run = self.run
        run.looked += 1
        if run.sealed < self.index and run.looked > run.late:
            run.seal()
        return run.sealed >= self.index

    def result(self) -> Outcome:
        run = self.run
        if run.is_delayed or self.index < run.at_once_until:
            # The trainer has nothing to do meanwhile: it waits for the round before (R5), or for
            # this one where a later method will have two in flight.
            while run.sealed < self.index:
                run.seal()
        assert run.sealed >= self.index, "the trainer would block for no reason"
        run.taken_after[self.index] = run.steps - self.handed_at
        return Outcome(
            listed=self.index in run.listed,
            is_resync=self.index in run.resyncs,
            anchor_N=run.anchors[self.index % len(run.anchors)],
            clock=run.clock(run.sealed + 1),
            lease=(),
        )
