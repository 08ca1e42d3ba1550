"""What a scenario expects besides the invariants, checked when its world is at its end."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import median

from node.reporting.tracing import Adopted, Advanced, Confirmed, Record, Signed
from protocol.identity import PeerId
from sim.trials.chaos import WorldChaos
from sim.trials.scenario import SHARES_FROM, Scenario
from sim.world.world import World

SETTLE_ROUNDS = 3
"""After a fault a swarm may take so many rounds to find its pace."""

PACES_LEAST = 3


class ExpectationBroken(Exception):
    """A run did not do what its scenario expects. `name` is the key under [expect]."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


def expected(scenario: Scenario) -> dict[str, str]:
    """What is asked of a run besides the invariants, in words, by key."""
    expect = scenario.expect
    if expect.finishes:
        asked = {"finishes": f"every node that lives comes to round {scenario.rounds}"}
        if expect.may_stop:
            asked["finishes"] += ", or no quorum lives"
        if expect.recovery_s:
            asked["recovery_s"] = f"a round is sealed within {expect.recovery_s:g} s of each fault"
        if expect.back_rounds:
            share = expect.back_share
            who = "every node that lives" if share == 1.0 else f"{share:.0%} of those that live"
            asked["back_rounds"] = f"{who} contribute{'s' * (share == 1.0)} again"
        if expect.pace_max:
            asked["pace_max"] = f"the pace is at most {expect.pace_max:g} times what it was"
    else:
        asked = {
            "seals_after_max": f"at most {expect.seals_after_max} rounds become final after the"
            " last fault"
        }
    if expect.provisional_s:
        asked["provisional_s"] = (
            f"who is left seals provisionally within {expect.provisional_s:g} s of the last fault"
        )
    if expect.confirms:
        asked["confirms"] = "provisional rounds become final when it is over"
    if expect.listed_share:
        asked["listed_share"] = (
            f"every node is listed in {expect.listed_share:.0%} of the rounds from {SHARES_FROM} on"
        )
    if expect.computing_share:
        asked["computing_share"] = f"trainers train {expect.computing_share:.0%} of the time"
    if expect.sealed_share:
        asked["sealed_share"] = f"at least {expect.sealed_share:.0%} of the rounds list somebody"
    return asked


class FinalRounds:
    """The rounds of a world as they become final somewhere for the first time.

    `revision` grows with everything that may bring the end of the run nearer.
    """

    def __init__(self, world: World, *, note: Callable[[str], None]) -> None:
        self.are_equal = True
        self.banned: tuple[PeerId, ...] = ()
        """Whom the newest seal bans."""
        self.seated: frozenset[PeerId] = frozenset()
        """Who has a seat by it."""
        self.revision = 0
        self._world = world
        self._note = note
        self._seals: dict[int, tuple[bytes, bytes]] = {}
        self._finals: list[tuple[float, int, int]] = []
        """When, which round, how many it lists."""
        self.advances_s: list[float] = []
        """When rounds were sealed provisionally."""
        self.num_confirmed = 0
        """How often a provisional round became final somewhere."""
        self._listed: dict[PeerId, int] = {}
        self._listed_in: set[tuple[PeerId, bytes]] = set()
        """Provisional seals that list their node."""
        self._times_listed: dict[PeerId, int] = {}
        """In how many rounds from `SHARES_FROM` on each node knows that it was listed."""
        self._since_s = 0.0
        """When these began."""
        world.tracers.append(self._saw)

    @property
    def num_sealed(self) -> int:
        """Rounds that listed somebody."""
        return sum(num_listed > 0 for _, _, num_listed in self._finals)

    @property
    def num_carried(self) -> int:
        """Rounds that are final, and listed nobody."""
        return len(self._finals) - self.num_sealed

    @property
    def last(self) -> int:
        """The newest round that is final somewhere."""
        return self._finals[-1][1] if self._finals else 0

    @property
    def last_at_s(self) -> float:
        """When that was."""
        return self._finals[-1][0] if self._finals else 0.0

    def lagging(self, members: Sequence[PeerId]) -> list[PeerId]:
        """Those who live, or stand still, and are not at the end of the run."""
        nodes = self._world.nodes
        alive = [nodes[peer] for peer in members if nodes[peer].is_alive]
        return [node.peer for node in alive if not node.core.is_finished]

    def is_over_provisionally(self, members: Sequence[PeerId]) -> bool:
        """Whether all who live have come to the end of the run on their branch (R4)."""
        nodes = [self._world.nodes[peer] for peer in self.lagging(members)]
        return all(node.core.machine.standing.head.value.clock.ends_run for node in nodes)

    def finals_since(self, at_s: float) -> list[tuple[float, int, int]]:
        """The rounds that became final after that time: when, which, how many it lists."""
        return [final for final in self._finals if final[0] > at_s]

    def paces_s(self, since_s: float, until_s: float) -> list[float]:
        """How long each round took that began and became final in that time."""
        times = [at_s for at_s, _, _ in self._finals if since_s < at_s < until_s]
        return [later - earlier for earlier, later in pairwise(times)]

    def recoveries(self, ends: Sequence[tuple[float, str]]) -> Iterator[tuple[str, float]]:
        """By fault that ended: its kind, and the seconds to the next round with contributions."""
        for ended_s, kind in ends:
            found = [at_s for at_s, _, num_listed in self.finals_since(ended_s) if num_listed]
            if found:
                yield kind, round(found[0] - ended_s, 3)

    def listed_share(self, peer: PeerId) -> float:
        """In how many of the rounds from `SHARES_FROM` on a node was listed."""
        return self._times_listed.get(peer, 0) / max(1, self.last - SHARES_FROM + 1)

    def computing_share(self) -> float:
        """For how much of the time since then the trainers trained, on average."""
        world = self._world
        peers = [peer for peer, node in world.nodes.items() if node.is_alive]
        shares = (world.labour.trained_share(p, self._since_s, self.last_at_s) for p in peers)
        return sum(shares) / max(1, len(peers))

    def last_listed(self, peer: PeerId) -> int:
        """The newest round that has this peer's contribution, as far as it has learned itself."""
        return self._listed.get(peer, 0)

    def _saw(self, record: Record) -> None:
        self.revision += not isinstance(record, Signed)
        if isinstance(record, Advanced):
            self.advances_s.append(record.at_s)
            if record.was_listed:
                self._listed_in.add((record.peer, record.certificate.value.digest))
        if not isinstance(record, Adopted | Confirmed):
            return
        value = record.certificate.value
        if isinstance(record, Confirmed):
            self.num_confirmed += 1
            was_listed = (record.peer, value.digest) in self._listed_in
        else:
            was_listed = record.was_listed
        if was_listed:
            self._listed[record.peer] = value.round
            if value.round >= SHARES_FROM:
                times = self._times_listed
                times[record.peer] = times.get(record.peer, 0) + 1
        known = self._seals.setdefault(value.round, (value.digest, record.root))
        if known != (value.digest, record.root):
            self.are_equal = False
        if value.round > self.last:
            num_listed = len(value.commits)
            self._finals.append((record.at_s, value.round, num_listed))
            if value.round == SHARES_FROM - 1:
                self._since_s = record.at_s
            self.seated = value.roster.member_set
            members = len(self.seated)
            if value.roster.banned != self.banned:
                self.banned = value.roster.banned
                self._note(f"round {value.round} bans: {len(self.banned)} have no seat for good")
            what = f"sealed, {num_listed} listed" if num_listed else "carried, nobody is listed"
            self._note(f"round {value.round} {what}, {members} in the next roster")


def check_end(
    scenario: Scenario, progress: FinalRounds, chaos: WorldChaos, *, is_finished: bool
) -> None:
    """Whether the run did what the scenario expects. Raises ExpectationBroken."""
    expect = scenario.expect
    if not progress.are_equal:
        raise ExpectationBroken("equal", "two honest nodes have a round with different states")
    if expect.finishes:
        _check_finished(scenario, progress, chaos, is_finished=is_finished)
        _check_recovery(scenario, progress, chaos)
        _check_back(scenario, progress, chaos)
        _check_pace(scenario, progress, chaos)
        _check_shares(scenario, progress, chaos)
    else:
        _check_stands_still(scenario, progress, chaos)
    _check_branches(scenario, progress, chaos)
    total = progress.num_sealed + progress.num_carried
    least = math.ceil(expect.sealed_share * total)
    if progress.num_sealed < least or (not total and not expect.may_stop):
        raise ExpectationBroken(
            "sealed_share",
            f"of {total} rounds {progress.num_sealed} list somebody, and {least} should",
        )


def _check_finished(
    scenario: Scenario, progress: FinalRounds, chaos: WorldChaos, *, is_finished: bool
) -> None:
    has_quorum = chaos.has_quorum()
    if is_finished or (scenario.expect.may_stop and not has_quorum):
        return
    if not has_quorum and progress.is_over_provisionally(chaos.members()):
        return  # R4: without a quorum that is the end of the run.
    lagging = ", ".join(
        f"{chaos.name_of(peer)} in round {chaos.round_of(peer) + 1}"
        for peer in progress.lagging(chaos.members())[:8]
    )
    quorum = "a quorum of its voters lives" if has_quorum else "no quorum of its voters lives"
    raise ExpectationBroken(
        "finishes",
        f"round {progress.last} of {scenario.rounds} is final since {progress.last_at_s:.1f} s,"
        f" {quorum}; not at the end: {lagging or 'a fault that does not end'}",
    )


def _check_recovery(scenario: Scenario, progress: FinalRounds, chaos: WorldChaos) -> None:
    allowed_s = scenario.expect.recovery_s
    if not allowed_s:
        return
    for ended_s, kind in chaos.ends:
        found = [at_s for at_s, _, num_listed in progress.finals_since(ended_s) if num_listed]
        # Of a fault that ended behind the last round nothing can be said.
        if found and found[0] - ended_s > allowed_s:
            raise ExpectationBroken(
                "recovery_s",
                f"the next round after {kind} (over at {ended_s:.2f} s) took"
                f" {found[0] - ended_s:.2f} s, more than {allowed_s:g}",
            )


def _check_back(scenario: Scenario, progress: FinalRounds, chaos: WorldChaos) -> None:
    within = scenario.expect.back_rounds
    if not within:
        return
    rounds_left = [index for _, index, _ in progress.finals_since(chaos.quiet_since_s)]
    if len(rounds_left) < within:
        raise ExpectationBroken(
            "back_rounds", f"the run ends {len(rounds_left)} rounds after its last fault: too soon"
        )
    alive = [peer for peer in chaos.members() if chaos.is_alive(peer)]
    missing = [peer for peer in alive if progress.last_listed(peer) < rounds_left[0]]
    if len(missing) > (1.0 - scenario.expect.back_share) * len(alive):
        raise ExpectationBroken(
            "back_rounds",
            f"{chaos.name_of(missing[0])} contributed last to round"
            f" {progress.last_listed(missing[0])}; all is quiet since round {rounds_left[0]}",
        )


def _check_pace(scenario: Scenario, progress: FinalRounds, chaos: WorldChaos) -> None:
    factor = scenario.expect.pace_max
    if not factor:
        return
    before = progress.paces_s(0.0, chaos.first_struck_s)
    after = progress.paces_s(chaos.struck_s, math.inf)[SETTLE_ROUNDS:]
    if len(before) < PACES_LEAST or len(after) < PACES_LEAST:
        raise ExpectationBroken("pace_max", "too few rounds to tell the pace before and after")
    if median(after) > factor * median(before):
        raise ExpectationBroken(
            "pace_max",
            f"a round takes {median(after):.2f} s after the fault and took {median(before):.2f} s",
        )


def _check_shares(scenario: Scenario, progress: FinalRounds, chaos: WorldChaos) -> None:
    listed_least, computing_least = scenario.expect.listed_share, scenario.expect.computing_share
    for peer in chaos.members():
        share = progress.listed_share(peer)
        if chaos.is_alive(peer) and share < listed_least:
            raise ExpectationBroken(
                "listed_share",
                f"{chaos.name_of(peer)} is listed in {share:.0%} of the rounds"
                f" from {SHARES_FROM} on, and should be in {listed_least:.0%}",
            )
    if progress.computing_share() < computing_least:
        raise ExpectationBroken(
            "computing_share",
            f"trainers train {progress.computing_share():.1%} of the time,"
            f" and should {computing_least:.0%}",
        )


def _check_branches(scenario: Scenario, progress: FinalRounds, chaos: WorldChaos) -> None:
    expect, struck_s = scenario.expect, chaos.struck_s
    if expect.provisional_s:
        found = [at_s - struck_s for at_s in progress.advances_s if at_s > struck_s]
        took_s = min(found, default=math.inf)
        if took_s > expect.provisional_s:
            raise ExpectationBroken(
                "provisional_s",
                f"who is left sealed nothing provisionally for {took_s:.2f} s after the last fault",
            )
    if expect.confirms and not progress.num_confirmed:
        raise ExpectationBroken("confirms", "no provisional round became final")


def _check_stands_still(scenario: Scenario, progress: FinalRounds, chaos: WorldChaos) -> None:
    if chaos.missed or not chaos.struck_s:
        raise ExpectationBroken("finishes", "a fault that should stop the run did not come about")
    allowed = scenario.expect.seals_after_max
    after = [index for _, index, _ in progress.finals_since(chaos.struck_s)]
    if len(after) > allowed:
        raise ExpectationBroken(
            "seals_after_max",
            f"{len(after)} rounds ({after[0]} to {after[-1]}) became final after the last fault,"
            f" at most {allowed} may",
        )
