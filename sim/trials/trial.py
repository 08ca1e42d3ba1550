"""One scenario, one seed: a world is built, played to its end, and judged."""

import time
import traceback
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from node.reporting.tracing import Accused, Convicted, Record, Tracer
from protocol.errors import BarnraiseError
from protocol.identity import PeerId
from sim.checks.invariants import ALL, InvariantBroken
from sim.trials.build import build_world, device_of, seat_members
from sim.trials.chaos import WorldChaos
from sim.trials.expectations import ExpectationBroken, FinalRounds, check_end
from sim.trials.faults import member_names
from sim.trials.outcome import Outcome, Violation
from sim.trials.scenario import Scenario, settled
from sim.trials.watching import watch
from sim.world.quiet import uncollected

if TYPE_CHECKING:
    from protocol.evidence import Evidence

LAST_RECORDS = 64
"""So many records before the end are kept, for whoever looks into a failure."""

LOOK_S = 0.05
"""How often it is asked whether a run is over."""

_BUGS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BarnraiseError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What code that is wrong raises; a violation like any other, and it is to be shrunk like one."""


@dataclass(frozen=True, slots=True)
class Note:
    """A line of the timeline: what happened at which virtual second."""

    at_s: float
    text: str
    is_fault: bool = False


@dataclass(slots=True)
class Play:
    """A trial that was run: its outcome, and what it can be told from."""

    scenario: Scenario
    outcome: Outcome
    notes: list[Note]
    last_records: list[tuple[int, Record]]
    names: dict[PeerId, str]


def run_trial(
    scenario: Scenario, seed: int, *, tracer: Tracer | None = None, is_sharing: bool = False
) -> Outcome:
    """What comes of a scenario and a seed. `tracer` takes every record of every node; `is_sharing`
    has equal results worked out once for all nodes (`sim.world.sharing`).
    """
    return play(scenario, seed, tracer=tracer, is_sharing=is_sharing).outcome


def play(
    scenario: Scenario, seed: int, *, tracer: Tracer | None = None, is_sharing: bool = False
) -> Play:
    """Run a scenario with a seed, and keep what is needed to tell of it."""
    with uncollected():
        # In a frame of its own: what the collector then goes through is waste already. Else it
        # would go through all of the world once more, to find that it is still held.
        return _played(scenario, seed, tracer, is_sharing=is_sharing)


def _played(scenario: Scenario, seed: int, tracer: Tracer | None, *, is_sharing: bool) -> Play:
    began_s = time.perf_counter()
    trial = _Trial(settled(scenario, seed), seed, tracer, is_sharing=is_sharing)
    violation = trial.run()
    told = trial.told(violation, time.perf_counter() - began_s)
    trial.world.end()
    return told


class _Trial:
    """A world, what goes wrong in it, and everybody who watches."""

    def __init__(
        self, scenario: Scenario, seed: int, tracer: Tracer | None, *, is_sharing: bool
    ) -> None:
        assert scenario.timetable is not None
        self.scenario, self.seed = scenario, seed
        self.names = member_names(scenario.peers[0])
        self.notes: list[Note] = []
        self.records: deque[tuple[int, Record]] = deque(maxlen=LAST_RECORDS)
        self.accusations: list[PeerId] = []
        self.convicted: dict[PeerId, Evidence] = {}
        self.world = build_world(scenario, seed, is_sharing=is_sharing)
        if tracer is not None:
            self.world.tracers.append(tracer)
        # Before the invariants: the record that broke one is the last that is kept.
        self.world.tracers.append(self._saw)
        names = frozenset(scenario.expect.invariants) or ALL
        self.checks = watch(self.world, names)
        self.progress = FinalRounds(self.world, note=self._note)
        self.chaos = WorldChaos(
            self.world,
            scenario.timetable,
            enter=self._enter,
            replaced=self.checks.disk_replaced,
            note=lambda text: self._note(text, is_fault=True),
            restart_s=scenario.restart_s,
        )
        self._looked = -1

    def run(self) -> Violation | None:
        """Play to the end; the first promise that was not kept."""
        try:
            self._play()
        except InvariantBroken as error:
            return self._violation(error.name, error.text)
        except ExpectationBroken as error:
            return self._violation(error.name, str(error))
        except _BUGS as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
            return self._violation("error", f"{type(error).__name__} at {where}: {error}")
        return None

    def told(self, violation: Violation | None, wall_s: float) -> Play:
        """The outcome, and what can be told of it."""
        world, progress, chaos = self.world, self.progress, self.chaos
        assert self.scenario.timetable is not None
        bent = {p for p, n in world.nodes.items() if n.has_erred} | world.settings.liars.keys()
        outcome = Outcome(
            scenario=self.scenario.name,
            seed=self.seed,
            peers=self.scenario.peers[0],
            rounds_sealed=progress.num_sealed,
            rounds_carried=progress.num_carried,
            honest_digests_equal=progress.are_equal,
            loss_last=next(iter(reversed(world.losses.values())), None),
            banned=len(self.convicted.keys() - progress.seated),
            false_bans=len({*self.accusations, *self.convicted} - bent),
            honest_votes_lost=self.checks.keeping.votes_lost,
            honest_seats_lost=self.checks.keeping.seats_lost,
            virtual_s=round(world.now_s, 3),
            wall_s=round(wall_s, 3),
            trace_hash=world.trace_hash,
            events=world.events,
            faults=len(self.scenario.timetable),
            faults_missed=len(chaos.missed),
            faults_partial=len(chaos.partial),
            violation=violation,
            recoveries=tuple(progress.recoveries(chaos.ends)),
            coverage=dict(sorted(chaos.coverage.items())),
            seats_last=len(progress.seated),
            audited_share=round(world.labour.share, 4),
            evidence={chaos.name_of(p): e.encoded.hex() for p, e in self.convicted.items()},
        )
        return Play(
            scenario=self.scenario,
            outcome=outcome,
            notes=self.notes,
            last_records=list(self.records),
            names={peer: chaos.name_of(peer) for peer in world.nodes},
        )

    def _play(self) -> None:
        scenario, world = self.scenario, self.world
        members = {name: self.chaos.named(name) for name in self.names}
        seat_members(world, scenario, self.seed, members)
        self.chaos.start()
        try:
            world.run(self._is_over, scenario.limits.virtual_s, every_s=LOOK_S)
            is_finished = True
        except TimeoutError:
            is_finished = False
        check_end(scenario, self.progress, self.chaos, is_finished=is_finished)
        self.checks.finish()

    def _enter(self, peer: PeerId, name: str) -> None:
        self.world.join(peer, device=device_of(self.scenario, self.seed, name))

    def _is_over(self) -> bool:
        if self.world.events >= self.scenario.limits.events:
            raise ExpectationBroken("limits", f"{self.world.events} events, and no end of it")
        if not self.scenario.expect.finishes or not self.chaos.is_quiet:
            return False
        moved_s = max(self.progress.last_at_s, self.chaos.quiet_since_s)
        if self.world.now_s > moved_s + self.scenario.limits.stall_s:
            raise TimeoutError  # Nobody need wait for the rest of the time.
        # Asked often, and the answer is another one only if something has happened.
        revision = self.chaos.revision + self.progress.revision
        if revision == self._looked:
            return False
        self._looked = revision
        return not self.progress.lagging(self.chaos.members())

    def _saw(self, record: Record) -> None:
        self.records.append((self.world.events, record))
        if isinstance(record, Accused) and record.peer not in self.world.settings.liars:
            self.accusations.append(record.of)
        if isinstance(record, Convicted) and record.evidence.subject not in self.convicted:
            proof = record.evidence
            self.convicted[proof.subject] = proof
            finder, liar = (self.chaos.name_of(peer) for peer in (record.peer, proof.subject))
            what = proof.accusation.name.lower().replace("_", " ")
            self._note(f"{finder} holds evidence against {liar}: {what}", is_fault=True)

    def _note(self, text: str, *, is_fault: bool = False) -> None:
        self.notes.append(Note(self.world.now_s, text, is_fault))

    def _violation(self, name: str, text: str) -> Violation:
        return Violation(
            name=name, text=text, at_s=round(self.world.now_s, 3), event=self.world.events
        )
