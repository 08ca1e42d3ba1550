"""`barnraise bench overlap`: what syncing costs a trainer, in seconds of an inner step.

As many trainers as there are nodes step at one time, and nothing is synced, before and behind; in
between real nodes train the same model with a preset, over lines of the shape asked for.
"""

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from node.processes.children import (
    JsonLine,
    first_error_nursery,
    number,
    run_json_child,
    trainer_threads,
)
from protocol.errors import StateError
from protocol.manifest import RunManifest
from sim.bench.staging import START_S, STUCK_S
from sim.local.options import LocalOptions, found_run
from sim.local.swarm import LocalSwarm, Story
from sim.processes.events import MethodChosen
from sim.processes.sitting import Tell, claim_folder, clear_nodes, clock
from training.methods.presets import is_paced

STEPPING_COMMAND = (sys.executable, "-P", "-m", "training.stepping_main")
ALONE_S = 15.0
SETTLING_ROUNDS, FIXED_SETTLING_ROUNDS = 15, 3
"""Before rounds have the length that suits lines and speeds, and where that is the manifest's; they
are not measured."""

_LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapResult:
    """Seconds of an inner step alone and while syncing, over all nodes and measured rounds.

    Of the exchange, from a contribution's hand-over to its outcome, `hidden_fraction` is the share
    in which the trainer went on stepping. `computing` is the share of all time that was steps; an
    exchange takes `exchange_s`, of which a trainer waits `waiting_s`.
    """

    step_s_alone: float
    step_s_syncing: float
    hidden_fraction: float
    computing: float
    exchange_s: float
    waiting_s: float
    rounds: int
    steps_per_round: float

    @property
    def ratio(self) -> float:
        """What a step takes longer for the syncing; one is nothing."""
        return self.step_s_syncing / self.step_s_alone


def overlap_result(alone_s: Sequence[float], rounds: Sequence[MethodChosen]) -> OverlapResult:
    """From the steps of each trainer alone, and the measured rounds of all nodes. Pure.

    Raises StateError where no contribution came back in all these rounds.
    """
    steps = sum(one.last_steps or 0 for one in rounds)
    training_s = sum(one.training_s or 0.0 for one in rounds)
    waiting_s = sum(one.waiting_s or 0.0 for one in rounds)
    total_s = training_s + waiting_s + sum(one.beside_s or 0.0 for one in rounds)
    flight_s = sum(one.flight_s or 0.0 for one in rounds)
    if not flight_s:
        raise StateError("no contribution came back in the measured rounds")
    return OverlapResult(
        step_s_alone=statistics.mean(alone_s),
        step_s_syncing=total_s / steps,
        hidden_fraction=sum(one.hidden_s or 0.0 for one in rounds) / flight_s,
        computing=training_s / total_s,
        exchange_s=flight_s / len(rounds),
        waiting_s=waiting_s / len(rounds),
        rounds=len(rounds),
        steps_per_round=steps / len(rounds),
    )


def overlap_json(result: OverlapResult, about: Mapping[str, object]) -> dict[str, object]:
    """The line that `--json` ends with."""
    return {
        "step_s_alone": round(result.step_s_alone, 5),
        "step_s_syncing": round(result.step_s_syncing, 5),
        "hidden_fraction": round(result.hidden_fraction, 4),
        "ratio": round(result.ratio, 4),
        "computing": round(result.computing, 4),
        "exchange_s": round(result.exchange_s, 4),
        "waiting_s": round(result.waiting_s, 4),
        "rounds_measured": result.rounds,
        "steps_per_round": round(result.steps_per_round, 1),
        **about,
    }


class OverlapRun:
    """Plays both parts. `play` it once; `result` is what was found."""

    def __init__(self, options: LocalOptions, rounds: int, tell: Tell) -> None:
        """Measures so many rounds of each node, behind those in which they settle."""
        self._options, self._rounds, self._now_s, self._tell = options, rounds, clock(), tell
        paced = options.preset is not None and is_paced(options.preset)
        self._settling = SETTLING_ROUNDS if paced else FIXED_SETTLING_ROUNDS
        self._alone_s: list[float] = []
        self._measured: list[MethodChosen] = []
        self.result: OverlapResult | None = None
        self.lag = 1
        """Rounds in flight, once it is played."""

    async def play(self) -> None:
        """No process is left, however it ends.

        Raises ConfigError for a folder that cannot be used, StateError when the swarm is stuck.
        """
        folder = self._options.folder
        claim_folder(folder, "nodes", "logs", "traces", is_fresh=False)
        path = folder / "manifest.msgpack"
        manifest = found_run(self._options, state=folder / "nodes" / "A", manifest_path=path)
        self.lag = manifest.outer.overlap
        # Before and behind: whatever else this machine does meanwhile changes.
        is_kept = False
        try:
            await self._step_alone(manifest, path)
            await self._step_together()
            await self._step_alone(manifest, path)
            self.result = overlap_result(self._alone_s, self._measured)
        except StateError as error:
            is_kept = True
            raise StateError(f"{error}; see {folder}") from error
        finally:
            # Keys and checkpoints; what did not go well keeps them, what was stopped does not.
            if not is_kept:
                clear_nodes(folder)

    async def _step_alone(self, manifest: RunManifest, path: Path) -> None:
        peers = self._options.peers
        self._tell(f"{peers} trainers step for {ALONE_S:.0f} s, each by itself")
        words = ["--manifest", str(path), "--run", manifest.digest.hex(), "--child"]
        words += ["--threads", str(trainer_threads(peers)), "--seconds", str(ALONE_S)]

        def hear(line: JsonLine) -> None:
            self._alone_s.append(number(line["step_s"]))

        async with first_error_nursery() as nursery:
            for _ in range(peers):
                nursery.start_soon(partial(run_json_child, [*STEPPING_COMMAND, *words], hear))
        if len(self._alone_s) % peers:
            raise StateError("a trainer ended before it had measured its steps")

    async def _step_together(self) -> None:
        story = Story(self._options.peers, lambda at_s, line: None)
        swarm = LocalSwarm(self._options, story, self._now_s)
        nodes = story.nodes
        try:
            async with first_error_nursery() as nursery:
                await swarm.begin(nursery, within_s=START_S)
                self._tell("all nodes have sealed")
                # A founder that was alone for a while has rounds behind it that say nothing.
                first = max(len(node.paces) for node in nodes.values()) + self._settling
                told, told_s = 0, self._now_s()
                while (least := min(len(n.paces) for n in nodes.values())) < first + self._rounds:
                    if least > told:
                        told, told_s = least, self._now_s()
                        self._tell(f"round {least} of {first + self._rounds}")
                    _check(story, self._now_s() - told_s)
                    await trio.sleep(_LOOK_EVERY_S)
                for node in nodes.values():
                    self._measured += node.paces[-self._rounds :]
                nursery.cancel_scope.cancel()
        finally:
            await swarm.end_all()


def _check(story: Story, quiet_s: float) -> None:
    if story.deaths or quiet_s > STUCK_S:
        raise StateError("a node died, or nothing was sealed for long")
