"""Scenarios: what a world is made of, what goes wrong in it, and what must hold all the same.

They are written as TOML (`sim.trials.scenario_file`), by name in `sim/scenarios/` or in a file of
one's own. A failure that was found and shrunk is such a file too: its timetable is not drawn but
listed, and `recorded` tells what came of it.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from protocol import limits
from protocol.errors import ConfigError
from protocol.manifest import TimingSpec
from sim.attacks.alone import lies_of_worlds
from sim.trials.faults import ALL_ROUNDS, Rule, Setting, Span, WorldFault, draw_timetable
from sim.world.disk import DiskSpec
from sim.world.links import Link
from sim.world.nodes import Device
from training.aggregation import AGGREGATORS

PEERS_MAX = 1024
ROUNDS_MAX = ALL_ROUNDS

DEFAULT = "mixed"
"""What `sweep` runs unless told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """What machines are like; see `sim.world.nodes.Device`. Both clocks are drawn for each."""

    train_s: Span = (0.8, 1.4)
    compute_s: Span = (0.005, 0.015)
    ready_s: Span = (0.1, 0.5)
    clock_rate: Span = (1.0, 1.0)
    wall_offset_s: Span = (0.0, 0.0)
    nap: float = 0.0
    nap_s: Span = (1.0, 6.0)

    def device(self, stream: random.Random) -> Device:
        """One machine of this kind."""
        return Device(
            train_s=self.train_s,
            compute_s=self.compute_s,
            ready_s=self.ready_s,
            clock_rate=stream.uniform(*self.clock_rate),
            wall_offset_s=stream.uniform(*self.wall_offset_s),
            nap=self.nap,
            nap_s=self.nap_s,
        )


SHARES_FROM = 3
"""Before that round seats are taken, and nobody knows how fast the others are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """What must hold; each can fail, and `sim.trials.expectations` checks them all.

    `invariants` empty stands for all. `finishes`: every living node comes to the last round and all
    faults end; else the run must stand still, with at most `seals_after_max` rounds sealed once the
    last fault has struck. `sealed_share` of the rounds must list somebody. Once the last fault is
    over, a round with contributions is final within `recovery_s` (0: not asked), and the run goes
    on for `back_rounds` at least, in which every living node contributes (0: not asked), or where
    they take turns `back_share` of them. The median
    round after the last fault takes at most `pace_max` times that before the first (0: not asked).
    With `may_stop` the run may stand still all the same once no quorum of its voters lives.
    From round `SHARES_FROM` on every node is listed in `listed_share` of the rounds, and trains for
    `computing_share` of the time (0: not asked).
    Who is left without a quorum seals a round provisionally within `provisional_s` of the last
    fault's stroke (0: not asked); `confirms`: such rounds become final when all is over.
    """

    invariants: tuple[str, ...] = ()
    finishes: bool = True
    seals_after_max: int = 1
    sealed_share: float = 1.0
    recovery_s: float = 0.0
    back_rounds: int = 0
    back_share: float = 1.0
    pace_max: float = 0.0
    may_stop: bool = False
    provisional_s: float = 0.0
    confirms: bool = False
    listed_share: float = 0.0
    computing_share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a world is given up: a run that is not over by then does not come to its end.

    `stall_s` is how long nothing may become final once no fault is under way.
    """

    virtual_s: float = 600.0
    stall_s: float = 120.0
    events: int = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What came of a scenario and a seed: a replay must come to the same."""

    seed: int
    trace_hash: str
    violation: str = ""
    event: int = 0
    version: str = ""


TIMING = TimingSpec(deadline_floor_s=1.0, deadline_cap_s=10.0, heartbeat_s=0.5, suspect_s=2.0)

HONEST = "none"
"""As an attack: nobody lies, whatever the scenario says."""

PLAIN, ROBUST = "mean", "default"
"""The rules of scenarios without and with liars, unless they name one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """See the module. One of `links` is drawn for a world, one of `devices` for each peer.

    `timetable` is None where the seed draws it from `rules`. `rare` is the chance of each branch
    that the code itself hardly ever takes; `real_signatures` and `encoding` are the shares of seeds
    that run with Ed25519 and with every frame on its wire encoding. `ends_after_s` is the date of
    the run's end, by wall clocks. A node that its disk has ended is started again after `restart_s`
    (0: never). Each node gives joiners `state_bytes_per_s` of its line for their state (0: all). In
    open runs (`trust`) all members vote from the start. `aggregator` is the rule of the run,
    `topology` who sums; at most `seats` contribute to a round. The last of the members are bent by
    the `attack`, NAME:FRACTION; each contribution meets so many `audits` on average, and with any,
    or if it `learns`, the trainers learn a text; with `fits_steps` each takes as many steps as fit
    its speed; `without` are defences that all do without, for
    tests alone: no file says so.
    """

    name: str
    title: str
    shows: str
    trust: str = "friends"
    aggregator: str = PLAIN
    topology: str = "butterfly"
    attack: str = ""
    audits: float = 0.0
    learns: bool = False
    without: tuple[str, ...] = ()
    peers: tuple[int, int] = (8, 32)
    seats: int = limits.SEATS_MAX
    rounds: int = 12
    cells: int = 6
    fragments: int = 1
    lag: int = 1
    fits_steps: bool = False
    links: tuple[Link, ...] = (Link(),)
    devices: tuple[DeviceProfile, ...] = (DeviceProfile(),)
    disk: DiskSpec = field(default_factory=DiskSpec)
    timing: TimingSpec = TIMING
    rare: float = 0.0
    real_signatures: float = 0.0
    encoding: float = 0.0
    lasting_share: float = 1.0
    ends_after_s: float = 0.0
    restart_s: float = 0.0
    state_bytes_per_s: float = 0.0
    rules: tuple[Rule, ...] = ()
    timetable: tuple[WorldFault, ...] | None = None
    expect: Expect = Expect()
    limits: Limits = Limits()
    recorded: Recorded | None = None


def settled(scenario: Scenario, seed: int) -> Scenario:
    """The scenario with everything drawn that the seed decides: one size, one timetable.

    Running it with the same seed gives the same trace as the scenario that it came from.
    """
    least, most = scenario.peers
    stream = random.Random(f"{seed}/scenario/peers")
    # Log-uniform: small swarms are as likely as large ones, and far cheaper.
    drawn = math.exp(stream.uniform(math.log(least), math.log(most + 1)))
    peers = min(most, max(least, int(drawn)))
    timetable = scenario.timetable
    if timetable is None:
        setting = Setting(
            seed=seed,
            peers=peers,
            rounds=scenario.rounds,
            lasting_share=scenario.lasting_share,
        )
        timetable = draw_timetable(scenario.rules, setting)
    return replace(scenario, peers=(peers, peers), rules=(), timetable=timetable)


def overridden(
    scenario: Scenario,
    *,
    peers: int | None = None,
    rounds: int | None = None,
    attack: str | None = None,
    audits: float | None = None,
    aggregator: str | None = None,
) -> Scenario:
    """The scenario with what a command's options say. Raises ConfigError naming the option.

    Liars meet the rule of open runs where neither the scenario nor the options name another: most
    scenarios are about faults, for which the mean is enough and cheap.
    """
    if audits is not None:
        if scenario.trust != "open" or not 0.0 <= audits <= 1.0:
            raise ConfigError("--audits: from 0 to 1, in an open run")
        if audits and scenario.lag > 1:
            raise ConfigError(f"--audits: are for runs of lag 1, which {scenario.name} is not")
        scenario = replace(scenario, audits=audits)
    if attack is not None:
        if scenario.trust != "open":
            raise ConfigError(
                f"--attack: {scenario.name} is a run of friends, who trust each other"
            )
        scenario = replace(scenario, attack="" if attack == HONEST else attack)
        # With `none`, too: that is what a run with liars is compared with.
        if aggregator is None and scenario.aggregator == PLAIN:
            aggregator = ROBUST
    if aggregator is not None:
        if aggregator not in AGGREGATORS:
            known = ", ".join(AGGREGATORS)
            raise ConfigError(f"--aggregator: {aggregator!r} is none; there are {known}")
        scenario = replace(scenario, aggregator=aggregator)
    if peers is not None:
        if not 1 <= peers <= PEERS_MAX:
            raise ConfigError(f"--peers must be from 1 to {PEERS_MAX}, not {peers}")
        scenario = replace(scenario, peers=(peers, peers))
    if rounds is not None:
        if not 1 <= rounds <= ROUNDS_MAX:
            raise ConfigError(f"--rounds must be from 1 to {ROUNDS_MAX}, not {rounds}")
        last = max((fault.round for fault in scenario.timetable or ()), default=0)
        if last > rounds:
            raise ConfigError(f"--rounds {rounds}: {scenario.name} has a fault in round {last}")
        scenario = replace(scenario, rounds=rounds)
    if scenario.attack:
        lies_of_worlds(scenario.attack, scenario.peers[0], scenario.audits)
    return scenario


NOT_YET: Mapping[str, str] = {
    "relay-dies": "the world has no relays: they come with the issue of paths",
    "bootstrap-lies": "worlds link peers at once; the look-up of peers is simulated by itself",
    "slowloris": "streams are whole transfers here; the real ones are tested over sockets",
    "corrupt-frame": "links that encrypt never hand on a corrupt frame; decoders are fuzzed",
    "liars": "RETRACT is not built; liars of `--attack` are banned",
    "two-copies": "a ban of a key in use twice is tested by attacks, `--attack equivocation:0.25`",
    "upgrade-mix": "there is one version of the protocol",
    "out-of-memory": "no real trainer runs in a world: its failures are tested with real processes",
    "majority-reduced": "the reduced-roster rule of branches (R4) is not built",
}
"""Rows of the table of fault tests that the present code cannot run, and why."""
