"""Strangers meet after a blow: newcomers look for their run while a share of the nodes is dead.

    python -m sim.crowds.strangers --nodes 1000 --gone 0.3 --trials 250 --worlds 4 --seed 0 --json

The shipped Kademlia of `sim.crowds.meeting`. The nodes know each other, some announce runs; a share
vanishes at one moment, unheard. From that moment on newcomers come in, each told of three nodes of
which one at least is alive, and ask for the members of one run until they find one that lives.
"""

import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from node.text.shown import json_text
from protocol.identity import PeerId
from sim.crowds.meeting import Found, Meeting, MeetingNode, MeetingSettings
from sim.world.hush import hush
from sim.world.uncollected import uncollected

RUNS, MEMBERS = 20, 8
TOLD = 3
AGAIN_S = 1.0
"""As `node.peers.links` does while its swarm forms."""

JOIN_EVERY_S, SETTLE_S = 0.05, 30.0
TRIALS_WITHIN_S = 10.0
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StrangersOutcome:
    """What came of it, in virtual seconds from a newcomer's start to its first living member."""

    nodes: int
    gone: int
    trials: int
    seed: int
    met: int
    met_within_10_s: int
    met_p50_s: float
    met_p99_s: float
    met_max_s: float
    wall_s: float
    trace_hash: str


class Strangers:
    """One network, struck once, and the newcomers behind that. `run` once."""

    def __init__(self, nodes: int, gone: float, trials: int, *, seed: int) -> None:
        self.seed, self.trials = seed, trials
        self.meeting = Meeting(MeetingSettings(is_encoding=False), seed=seed)
        self._luck = random.Random(f"{seed}/strangers")
        self._num_gone = round(nodes * gone)
        self.took_s: list[float] = []
        time_ = self.meeting.timeline
        self.peers: list[PeerId] = []
        for number in range(nodes):
            told = self._luck.sample(self.peers, min(TOLD, len(self.peers)))
            self.peers.append(self.meeting.join(f"node {number}", told).peer)
            time_.run_until(time_.now_s + JOIN_EVERY_S)
        self._runs = [
            (b"run %d" % number, self._luck.sample(self.peers, MEMBERS)) for number in range(RUNS)
        ]
        for topic, members in self._runs:
            for peer in members:
                self.meeting.nodes[peer].announce(topic, b"here", ttl_s=600.0)
        time_.run_until(time_.now_s + SETTLE_S)

    def run(self) -> StrangersOutcome:
        """Strike, let the newcomers come, and wait for them."""
        began_s, time_ = time.monotonic(), self.meeting.timeline
        gone = set(self._luck.sample(self.peers, self._num_gone))
        # A run without a living member is nothing that anybody could meet.
        runs = [(topic, members) for topic, members in self._runs if set(members) - gone]
        for peer in sorted(gone):
            self.meeting.vanish(peer)
        alive = [peer for peer in self.peers if peer not in gone]
        for number in range(self.trials):
            told = [self._luck.choice(alive), *self._luck.sample(self.peers, TOLD - 1)]
            topic, _ = self._luck.choice(runs)
            time_.later(self._luck.uniform(0.0, TRIALS_WITHIN_S), self._come, number, told, topic)
        time_.run_until(
            time_.now_s + TRIALS_WITHIN_S + PATIENCE_S, lambda: len(self.took_s) == self.trials
        )
        took_s = sorted(self.took_s)
        return StrangersOutcome(
            nodes=len(self.peers),
            gone=len(gone),
            trials=self.trials,
            seed=self.seed,
            met=len(took_s),
            met_within_10_s=sum(one_s <= 10.0 for one_s in took_s),
            met_p50_s=round(statistics.median(took_s), 3) if took_s else math.inf,
            met_p99_s=round(_quantile(took_s, 0.99), 3),
            met_max_s=round(took_s[-1], 3) if len(took_s) == self.trials else math.inf,
            wall_s=round(time.monotonic() - began_s, 1),
            trace_hash=self.meeting.trace_hash,
        )

    def _come(self, number: int, told: Sequence[PeerId], topic: bytes) -> None:
        newcomer = self.meeting.join(f"newcomer {number}", list(dict.fromkeys(told)))
        self._search(newcomer, topic, self.meeting.timeline.now_s)

    def _search(self, newcomer: MeetingNode, topic: bytes, since_s: float) -> None:
        time_ = self.meeting.timeline

        def ended(found: Found) -> None:
            if any(self.meeting.nodes[record.writer].is_alive for record in found.records):
                self.took_s.append(time_.now_s - since_s)
            elif time_.now_s - since_s < PATIENCE_S:
                time_.later(AGAIN_S, self._search, newcomer, topic, since_s)

        newcomer.find(topic, ended)


def _quantile(ordered: Sequence[float], share: float) -> float:
    if not ordered:
        return math.inf
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main(
    nodes: Annotated[int, typer.Option(min=2)] = 1000,
    gone: Annotated[float, typer.Option(min=0.0, max=0.9)] = 0.3,
    trials: Annotated[int, typer.Option(min=1)] = 100,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    worlds: Annotated[int, typer.Option(min=1, help="One after the other, a seed each.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="A line for each world.")] = False,
) -> None:
    """Newcomers who look for their run in a network that has just lost many nodes."""
    hush()
    within = 0
    for number in range(worlds):
        with uncollected():
            outcome = Strangers(nodes, gone, trials, seed=seed + number).run()
        within += outcome.met_within_10_s
        told = asdict(outcome)
        lines = "\n".join(f"{key}: {value}" for key, value in told.items())
        typer.echo(json_text(told) if as_json else lines)
    raise typer.Exit(0 if within >= 0.999 * trials * worlds else 1)


if __name__ == "__main__":
    typer.run(main)
