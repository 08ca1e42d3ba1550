"""Acts against open runs, as a table: what each costs, and who pays.

python -m sim.trials.sweep_acts                        every act on HAVE, 4 to 9 peers, one seed
python -m sim.trials.sweep_acts --kinds gram,agg --seeds 1..5 --peers 5,8
python -m sim.trials.sweep_acts --kinds all --jobs 2

A world is held to what is promised: behind the fifth round each takes at most three times a calm
one, which is the median of the same world in which nobody acts; no honest peer loses its seat or
vote, is set back (R8) or accused; every round is sealed. It counts as not felt where nothing of
that kind was said.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from statistics import median

from node.reporting.tracing import Adopted, Confirmed, Record
from protocol.identity import PeerId
from sim.attacks.acts import KINDS, Act, act_named, acts_of
from sim.trials.scenario import overridden, settled
from sim.trials.scenario_file import read_scenario
from sim.trials.trial import Outcome, build_world, run_trial

SIZES = (4, 5, 6, 7, 8, 9)
"""With one liar up to seven, and two of eight and nine."""

SHARE = 0.25
ROUNDS = 14
LEARNED_ROUNDS = 5
SLOWER_MAX = 3.0
CALM = Act(verb="late", kind="leave", deadlines=0.0)
"""Nobody does anything, with all else as it is under attack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActCase:
    """One world of an attack: an act, or any other by its name."""

    attack: str
    peers: int
    seed: int
    rounds: int = ROUNDS
    scenario: str = "open-calm"

    @property
    def command(self) -> str:
        """What shows it."""
        return (
            f"barnraise sim run {self.scenario} --peers {self.peers} --rounds {self.rounds}"
            f" --attack {self.attack}:{SHARE} --seed {self.seed}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ActVerdict:
    """What came of a world, beside the calm one."""

    outcome: Outcome
    slowest: float
    """Of the rounds behind the fifth, in calm ones."""
    is_felt: bool
    liars_set_back: frozenset[PeerId]
    honest_set_back: frozenset[PeerId]
    """Who came last among reducers and closers at some time (R8)."""

    @property
    def broken(self) -> str:
        """What is not as promised; empty if all is."""
        found, outcome = [], self.outcome
        if outcome.honest_votes_lost or outcome.honest_seats_lost:
            lost = (outcome.honest_votes_lost, outcome.honest_seats_lost)
            found.append(f"{lost[0]} votes and {lost[1]} seats of honest peers are lost")
        if outcome.violation is not None and outcome.violation.name != "I9":
            found.append(f"{outcome.violation.name}: {outcome.violation.text}")
        if outcome.violation is None and self.slowest > SLOWER_MAX:
            found.append(f"a round takes {self.slowest:.1f} calm ones")
        if self.honest_set_back:
            found.append(f"{len(self.honest_set_back)} honest peers are set back")
        if outcome.false_bans:
            found.append(f"{outcome.false_bans} honest peers are accused")
        return "; ".join(found)


def judged(case: ActCase) -> ActVerdict:
    """Play a world and its calm one."""
    calm_s, calm_hash = _calm(case.peers, case.seed, case.rounds, case.scenario)
    played = _played(case)
    late = played.took_s[LEARNED_ROUNDS:]
    return ActVerdict(
        outcome=played.outcome,
        slowest=max(late, default=0.0) / calm_s,
        is_felt=played.outcome.trace_hash != calm_hash,
        liars_set_back=played.set_back & played.liars,
        honest_set_back=played.set_back - played.liars,
    )


@cache
def _calm(peers: int, seed: int, rounds: int, scenario: str) -> tuple[float, str]:
    case = ActCase(attack=CALM.name, peers=peers, seed=seed, rounds=rounds, scenario=scenario)
    played = _played(case)
    assert played.outcome.violation is None, played.outcome.violation
    return median(played.took_s[LEARNED_ROUNDS:]), played.outcome.trace_hash


@dataclass(frozen=True, slots=True, kw_only=True)
class _Played:
    """What a world shows, whoever is judged by it."""

    outcome: Outcome
    took_s: list[float]
    """By round, in virtual seconds until it was final somewhere."""
    set_back: frozenset[PeerId]
    liars: frozenset[PeerId]


def _played(case: ActCase) -> _Played:
    scenario = overridden(
        read_scenario(case.scenario),
        peers=case.peers,
        rounds=case.rounds,
        attack=f"{case.attack}:{SHARE}",
    )
    ends_s: dict[int, float] = {}
    set_back: set[PeerId] = set()

    def saw(record: Record) -> None:
        if isinstance(record, Adopted | Confirmed):
            value = record.certificate.value
            ends_s.setdefault(value.round, record.at_s)
            set_back.update(seat.peer for seat in value.roster.seats if seat.set_backs)

    outcome = run_trial(scenario, case.seed, tracer=saw)
    at_s = [0.0, *(ends_s[index] for index in sorted(ends_s) if index)]
    liars = build_world(settled(scenario, case.seed), case.seed).settings.liars
    return _Played(
        outcome=outcome,
        took_s=[after - before for before, after in pairwise(at_s)],
        set_back=frozenset(set_back),
        liars=frozenset(liars),
    )


# The command --------------------------------------------------------------------------------------


def cases_of(names: Sequence[str], sizes: Sequence[int], seeds: Sequence[int]) -> Iterator[ActCase]:
    """Every size with every seed."""
    for name in names:
        for peers in sizes:
            for seed in seeds:
                yield ActCase(attack=name, peers=peers, seed=seed)


def _show(name: str, sizes: Sequence[int], seeds: Sequence[int], rounds: int) -> bool:
    """A line for an act, and one for each size that fails; whether all is as promised."""
    failed, slowest, num_felt, num_moved = [], 0.0, 0, 0
    for case in cases_of([name], sizes, seeds):
        sized = ActCase(attack=name, peers=case.peers, seed=case.seed, rounds=rounds)
        verdict = judged(sized)
        num_felt += verdict.is_felt
        num_moved += bool(verdict.liars_set_back)
        slowest = max(slowest, verdict.slowest)
        if verdict.broken:
            failed.append((sized, verdict.broken))
    num_worlds = len(sizes) * len(seeds)
    state = f"FAIL {len(failed)} of {num_worlds}" if failed else "ok" if num_felt else "not felt"
    moved = f"  a liar set back in {num_moved} of {num_worlds}" if num_felt else ""
    _print(f"{name:34} {state:14} slowest round {slowest:5.1f} calm ones{moved}")
    for case, broken in failed[:2]:
        _print(f"    {broken}\n    {case.command}")
    return not failed


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _numbers(text: str) -> list[int]:
    if ".." in text:
        first, last = text.split("..")
        return list(range(int(first), int(last) + 1))
    return [int(one) for one in text.split(",")]


def _names(kinds: str, attacks: str) -> list[str]:
    if attacks:
        return attacks.split(",")
    chosen = KINDS if kinds == "all" else kinds.split(",")
    names = [act.name for kind in chosen for act in acts_of(kind)]
    for name in names:
        act_named(name)  # Says what is wrong with it.
    return names


def main() -> int:
    """Entry point; 1 where something is not as promised."""
    parser = argparse.ArgumentParser(prog="sim.trials.sweep_acts", description=__doc__)
    parser.add_argument("--kinds", default="have", help=f"all, or of: {', '.join(KINDS)}")
    parser.add_argument("--attacks", default="", help="attacks by name, in place of the acts")
    parser.add_argument("--peers", default=",".join(str(size) for size in SIZES))
    parser.add_argument("--seeds", default="1", help="FIRST..LAST, or seeds separated by commas")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--jobs", type=int, default=1, help="number of processes, which share the acts"
    )
    own = parser.parse_args()
    names = _names(own.kinds, own.attacks)
    if own.jobs > 1 and len(names) > 1:
        shares = [names[at :: own.jobs] for at in range(own.jobs)]
        words = [sys.executable, "-m", "sim.trials.sweep_acts", "--peers", own.peers]
        words += ["--seeds", own.seeds, "--rounds", str(own.rounds)]
        started = [
            subprocess.Popen([*words, "--attacks", ",".join(share)]) for share in shares if share
        ]
        return max(process.wait() for process in started)
    os.nice(5)
    sizes, seeds = _numbers(own.peers), _numbers(own.seeds)
    shown = [_show(name, sizes, seeds, own.rounds) for name in names]
    _print(f"{sum(shown)} of {len(shown)} acts are as promised")
    return 0 if all(shown) else 1


if __name__ == "__main__":
    sys.exit(main())
