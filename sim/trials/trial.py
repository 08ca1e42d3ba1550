"""One scenario, one seed: a world is built, played to its end, and judged; and what came of it."""

import math
import random
import time
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from node.holdings.states import round_config
from node.reporting.tracing import Accused, Convicted, Record, Tracer
from protocol.errors import BarnraiseError
from protocol.identity import PeerId
from protocol.manifest import NO_ADMISSION, AdmissionSpec, AuditSpec
from sim.attacks import ATTACKS
from sim.attacks.alone import TOGETHER, Accomplice, Conspiracy, Lies, hooks_of, lies_of_worlds
from sim.checks.invariants import ALL, InvariantBroken
from sim.trials.chaos import WorldChaos
from sim.trials.expectations import ExpectationBroken, FinalRounds, check_end
from sim.trials.faults import member_names
from sim.trials.scenario import Scenario, settled
from sim.trials.watching import watch
from sim.world.nodes import Device, peer_named, signer_named
from sim.world.quiet import uncollected
from sim.world.toy_run import toy_run
from sim.world.world import World, WorldSettings

if TYPE_CHECKING:
    from protocol.evidence import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """The first promise that was not kept.

    `name` is that of an invariant (I1 to I9), of an expectation, or "error" where the code itself
    broke. `event` is the number of the world's event at which it showed.
    """

    name: str
    text: str
    at_s: float
    event: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`rounds_sealed` rounds listed somebody, `rounds_carried` nobody.

    `loss_last` is the mean loss of the last round trained for, None where nothing real is trained.
    `banned` counts the convicted without a seat
    in the last seal, `evidence` is what convicts them, by name and encoded in hexadecimal;
    `false_bans` counts the honest ones that were accused or convicted. `honest_votes_lost` and
    `honest_seats_lost` count how often one lost its vote or seat that was in reach all the while.
    `recoveries` are the virtual seconds from the end of a fault to the next round that is final, by
    kind of fault; `coverage` counts faults by the phase that their victim was in. `faults_missed`
    of the `faults` struck nobody, `faults_partial` some of their victims only. `audited_share` is
    the training that audits ran again, in parts of all that trainers did for rounds of their own;
    `seats_last` are the seats of the last seal. Since the first rounds each node was listed in
    `listed_share` of them, and trainers trained for `computing_share` of the time.
    """

    scenario: str
    seed: int
    peers: int = 0
    rounds_sealed: int = 0
    rounds_carried: int = 0
    honest_digests_equal: bool = True
    loss_last: float | None = None
    banned: int = 0
    false_bans: int = 0
    virtual_s: float = 0.0
    wall_s: float = 0.0
    trace_hash: str = ""
    events: int = 0
    faults: int = 0
    faults_missed: int = 0
    violation: Violation | None = None
    recoveries: tuple[tuple[str, float], ...] = ()
    coverage: Mapping[str, int] = field(default_factory=dict)
    evidence: Mapping[str, str] = field(default_factory=dict)
    audited_share: float = 0.0
    seats_last: int = 0
    faults_partial: int = 0
    honest_votes_lost: int = 0
    honest_seats_lost: int = 0
    listed_share: Mapping[str, float] = field(default_factory=dict)
    computing_share: float = 0.0

    def as_json(self) -> dict[str, object]:
        """Its fields as JSON values."""
        return asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "Outcome":
        """Inverse of `as_json`, of what a worker of our own has written."""
        values = dict(plain)
        violation = values.pop("violation")
        recoveries = tuple((str(kind), float(s)) for kind, s in values.pop("recoveries"))
        return cls(
            **values,
            violation=None if violation is None else Violation(**violation),
            recoveries=recoveries,
        )


# A world ------------------------------------------------------------------------------------------

ADMISSION = AdmissionSpec(puzzle_bits=5, probation=3, ramp=10)
"""Of open worlds: as by default, with a puzzle that costs no time."""

WAVE_AFTER_S = 5.0
"""So long after the others a wave of fresh identities starts: behind the first rounds."""


def build_world(scenario: Scenario, seed: int, *, is_sharing: bool = False) -> World:
    """The world of a scenario with a seed; nobody has joined. `is_sharing`: see WorldSettings."""
    luck = random.Random(f"{seed}/scenario/world")
    link = luck.choice(scenario.links)
    is_real = luck.random() < scenario.real_signatures
    names = member_names(scenario.peers[0])
    members = [signer_named(name).peer_id if is_real else peer_named(name) for name in names]
    lies = Lies("", 0)
    if scenario.attack:
        lies = lies_of_worlds(scenario.attack, len(names), scenario.audits)
    seated = tuple(members[: len(members) - lies.count] if lies.is_fresh else members)
    settings = WorldSettings(
        is_signing_for_real=is_real,
        is_encoding=luck.random() < scenario.encoding,
        rare=scenario.rare,
        trainer="model" if scenario.audits or scenario.learns else "drift",
        disk=scenario.disk,
        state_bytes_per_s=scenario.state_bytes_per_s,
        # Whoever was down at the end finds somebody to hear the last rounds from.
        linger_s=math.inf,
        seated=seated if scenario.trust == "open" else (),
        is_sharing=is_sharing,
        fits_steps=scenario.fits_steps,
    )
    manifest = toy_run(
        members[0],
        rounds=scenario.rounds,
        cells=(scenario.cells,) * scenario.fragments,
        timing=scenario.timing,
        ends_after_s=scenario.ends_after_s,
        trust=scenario.trust,
    )
    outer = replace(
        manifest.outer,
        aggregator=scenario.aggregator,
        overlap=scenario.lag,
        topology=scenario.topology,
    )
    is_slow = scenario.trust == "open" and "ramp" not in scenario.without
    manifest = replace(
        manifest,
        outer=outer,
        admission=replace(ADMISSION if is_slow else NO_ADMISSION, seats=scenario.seats),
        audits=AuditSpec(rate=scenario.audits),
    )
    if scenario.audits:
        # Keys of names are the same in all worlds, and what is drawn follows from keys and run.
        manifest = replace(manifest, model=replace(manifest.model, seed=seed))
    bent = _bent(lies, members[len(members) - lies.count :], seed)
    is_flooded = any(hooks.floods for hooks in bent["liars"].values())
    settings = replace(settings, costs_time=is_flooded, **bent)
    return World(manifest, seed=seed, link=link, settings=settings)


def _bent(lies: Lies, liars: Sequence[PeerId], seed: int) -> dict[str, Any]:
    """What bends them, each by itself or all together."""
    if lies.name not in TOGETHER:
        return {"liars": {peer: hooks_of(lies.name, seed, liars) for peer in liars}}
    conspiracy = Conspiracy(ATTACKS[lies.name](), liars)
    hooks = {peer: Accomplice(lies.name, peer, conspiracy) for peer in liars}
    return {"liars": hooks, "conspiracy": conspiracy}


def device_of(scenario: Scenario, seed: int, name: str) -> Device:
    """What the node of that name runs on."""
    luck = random.Random(f"{seed}/scenario/device/{name}")
    return luck.choice(scenario.devices).device(luck)


def seat_members(world: World, scenario: Scenario, seed: int, names: dict[str, PeerId]) -> None:
    """All members join; the founder waits for them, so that the first round has all."""
    without = frozenset(scenario.without)
    config = replace(round_config(world.manifest), without=without)
    for number, (name, peer) in enumerate(names.items()):
        is_waiting = number == 0 and not world.settings.seated
        wait = replace(config, wait_seats=len(names) - 1) if is_waiting else config
        if peer in world.settings.liars:
            wait = replace(wait, without=without | {"retract"})  # Who lies on purpose stands by it.
        join = partial(world.join, peer, config=wait, device=device_of(scenario, seed, name))
        if world.settings.seated and peer not in world.settings.seated:
            world.later(WAVE_AFTER_S, join)
        else:
            join()


# A trial ------------------------------------------------------------------------------------------

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
            listed_share={
                chaos.name_of(peer): round(progress.listed_share(peer), 4)
                for peer in sorted(world.nodes, key=chaos.name_of)
            },
            computing_share=round(progress.computing_share(), 4),
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
