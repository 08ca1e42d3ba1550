"""The search itself on toys, and the shipped machines within small bounds: clean, and all seen."""

import random
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

import protocol.rounds.agreement
import protocol.rounds.proposal
from protocol.messages import Kind
from sim.exploration.agreement import Agreement, AgreementScope, Losses, Supply
from sim.exploration.cases import ALONE, cases, row_of, run_case
from sim.exploration.explorer import Bound, Later, explore, walk
from sim.exploration.peers import fork
from sim.exploration.rosters import LeavingModel, Windows
from sim.exploration.rounds import Rounds, Span
from sim.exploration.waking import Waking


class Grid:
    """Steps right and up from (0, 0) to (size, size); one place may be forbidden."""

    def __init__(self, size=5, forbidden=None):
        self.size, self.forbidden = size, forbidden

    def start(self):
        return (0, 0)

    def moves(self, state):
        x, y = state
        if x < self.size:
            yield "right", (x + 1, y)
        if y < self.size:
            yield "up", (x, y + 1)

    def key(self, state):
        return state

    def check(self, state):
        return "forbidden" if state == self.forbidden else ""


def test_search_sees_every_state_once_and_counts_all_moves():
    result = explore(Grid(5), Bound())
    assert (result.outcome, result.states, result.transitions) == ("exhausted", 36, 60)
    assert result.depth == 10


def test_search_finds_a_violation_by_a_shortest_trace():
    result = explore(Grid(5, (2, 1)), Bound())
    assert (result.outcome, result.violation, len(result.trace)) == ("violated", "forbidden", 3)
    assert sorted(result.trace) == ["right", "right", "up"]
    assert explore(Grid(5, (0, 0)), Bound()).trace == ()


@pytest.mark.parametrize("bound", [Bound(states=10), Bound(depth=3), Bound(seconds=0)])
def test_search_that_a_bound_has_stopped_does_not_say_that_it_has_seen_all(bound):
    result = explore(Grid(5, (5, 5)), bound)
    assert (result.outcome, result.violation) == ("bounded", "")
    assert result.states < 36
    assert explore(Grid(1), Bound(depth=2)).outcome == "bounded"
    assert explore(Grid(1), Bound(depth=3)).outcome == "exhausted"


def test_walk_repeats_with_its_seed_and_leads_to_what_it_found(seed):
    bound = Bound(states=36, seconds=60, depth=20)
    first, again = (walk(Grid(5, (3, 4)), bound, seed=seed) for _ in range(2))
    assert first.trace == again.trace
    assert (first.violation, first.seed, len(first.trace)) == ("forbidden", seed, 7)
    clean = walk(Grid(5), bound, seed=seed)
    assert (clean.outcome, clean.states, clean.depth) == ("walked", 36, 10)


def test_later_begins_behind_a_trace_and_refuses_one_that_is_impossible():
    assert Later(Grid(2), ["right", "up"]).start() == (1, 1)
    with pytest.raises(ValueError, match="no move begins with 'left'"):
        Later(Grid(2), ["right", "left"]).start()


MODELS = {
    "1 voter": lambda: Agreement(AgreementScope(voters=1, attempts=3, every=5)),
    "2 voters": lambda: Agreement(AgreementScope(voters=2, attempts=2, every=10)),
    "2 voters, any closer": lambda: Agreement(AgreementScope(voters=2, attempts=2, dutiful=False)),
    "2 voters, a restart": lambda: Agreement(
        AgreementScope(voters=2, attempts=2, restarts=1, every=50)
    ),
    "2 voters, a freeze": lambda: Agreement(
        AgreementScope(voters=2, attempts=2, sleeps=1, every=50)
    ),
    "2 voters, a death": lambda: Supply(AgreementScope(voters=2, attempts=2, every=50), Losses()),
    "2 voters, a round": lambda: Rounds(Span(voters=2, rounds=1, every=10)),
    "2 voters, whole vectors": lambda: Rounds(Span(voters=2, rounds=1, every=20, uses_gram=True)),
    "2 voters, 2 rounds": lambda: Rounds(Span(voters=2, rounds=2, every=400)),
    "2 voters, everybody sums": lambda: Rounds(
        Span(voters=2, rounds=1, every=10, everybody_sums=True)
    ),
    "2 freeze": lambda: Waking(voters=3, sleepers=2),
    "window": lambda: Windows(voters=3, rounds=4),
    "turns": lambda: Windows(voters=3, rounds=6, waiting=2),
    "leaving": lambda: LeavingModel(
        others=2, rounds=3, leavers=1, is_founding=True, trust="friends"
    ),
    "leaving an open run": lambda: LeavingModel(
        others=2, rounds=3, leavers=2, is_founding=False, trust="open"
    ),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", MODELS)
def test_shipped_rules_keep_their_promises_in_every_state_within_the_bound(name):
    model: Any = MODELS[name]()
    result = explore(model, Bound(states=20_000))
    assert (result.outcome, result.violation) == ("exhausted", ""), result.trace
    assert result.states >= 50, "an exploration in which nothing happens shows nothing"


@pytest.mark.extended
def test_eldest_of_two_voters_that_lost_its_disk_contradicts_nothing():
    model = Rounds(Span(voters=2, rounds=2, disks=1, active="A"), ALONE)
    result = explore(model, Bound(states=20_000))
    assert (result.outcome, result.violation) == ("exhausted", ""), result.trace
    assert result.states >= 1000


@pytest.mark.extended
def test_shipped_rules_keep_their_promises_on_random_walks(seed):
    scope = AgreementScope(voters=4, attempts=4, lists=3, restarts=1, sleeps=1)
    result = walk(Agreement(scope), Bound(states=600, depth=60), seed=seed)
    assert not result.violation, (result.seed, result.trace)
    assert result.states >= 600


@pytest.mark.extended
def test_remembered_steps_are_what_a_machine_does_that_has_never_been_exchanged(seed):
    """Equal keys mean equal futures: a machine that goes all the way by itself, with its own clock
    and past, signs what the remembered ones sign, which others have left in that state."""
    rng = random.Random(seed)
    scope = AgreementScope(voters=3, attempts=3, restarts=1, sleeps=1)
    steps = 0
    for dutiful in (True, False):
        model = Recorded(replace(scope, dutiful=dutiful))
        explore(model, Bound(states=800))
        for _ in range(6):
            state = model.start()
            own = [fork(model.peers.states[number]) for number in state.peers]
            while choices := list(model.recorded_moves(state)):
                seat, deeds, state = rng.choice(choices)
                own[seat].sent.clear()
                for deed in deeds:
                    model.peers._carry_out(own[seat], deed)
                assert own[seat].key() == model.peers.states[state.peers[seat]].key()
                assert all(state.sent >> model.post.number(m) & 1 for m in own[seat].sent)
                steps += 1
    assert steps > 100


class Recorded(Agreement):
    """Says what was done to whom in each move."""

    def _after(self, state, seat, label, deeds):
        self.last = (seat, deeds)
        return super()._after(state, seat, label, deeds)

    def recorded_moves(self, state):
        for _, following in self.moves(state):
            yield *self.last, following


class Unreduced(Agreement):
    """The same round without reductions: every message, deadline and result by itself."""

    def moves(self, state):
        facts = self.post.facts(state.sent)
        certified = sorted({digest for _, _, digest in facts.certified})
        for seat, number in enumerate(state.peers):
            peer = self.peers.states[number]
            view = peer.machine.view
            if len(peer.chain) > 1:
                continue
            letters = self.post.of(state.sent)
            unheard = [x for x in letters if view.ballots.find(x.message.digest) is None]
            deeds: list[tuple[Any, ...]] = [("hear", x.number) for x in unheard]
            deeds += [
                ("result", digest) for digest in certified if view.cells.missing_results(digest)
            ]
            if view.attempt + 1 < self.scope.attempts:
                deeds.append(("time-out",))
            if self._closers[view.attempt] == view.me:
                deeds += [("deadline", 3), ("deadline", 4)]
                if self.table.helpers[0] not in view.ballots.of(Kind.HAVE, view.attempt):
                    options = range(len(self._options))
                    deeds += [("hear", self._haves[option, view.attempt]) for option in options]
            for deed in deeds:
                yield from self._after(state, seat, str(deed), (deed,))


def decisions(model) -> tuple[set[frozenset[bytes]], int]:
    """Every set of VOTEs and SEALs that may have been signed, and how many states there are."""
    start = model.start()
    seen, found, waiting = {start}, set(), [start]
    while waiting:
        state = waiting.pop()
        assert not state.wrong
        letters = model.post.of(state.sent)
        kinds = (Kind.VOTE, Kind.SEAL)
        found.add(frozenset(x.message.digest for x in letters if x.message.slot.kind in kinds))
        for _, following in model.moves(state):
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    return found, len(seen)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("voters", "attempts", "lists"),
    [
        (1, 2, 2),
        (2, 1, 2),
        pytest.param(2, 2, 1, marks=pytest.mark.slow),
        pytest.param(2, 2, 2, marks=pytest.mark.slow),
        pytest.param(3, 1, 2, marks=pytest.mark.slow),
    ],
)
def test_reductions_leave_out_no_vote_and_no_seal_that_is_possible(voters, attempts, lists):
    scope = AgreementScope(voters=voters, attempts=attempts, lists=lists)
    reduced, fewer = decisions(Agreement(scope))
    unreduced, more = decisions(Unreduced(scope))
    assert reduced == unreduced
    assert fewer < more


RARE = {
    "_highest_lock": protocol.rounds.proposal,
    "_already_summed": protocol.rounds.proposal,
    "propose": protocol.rounds.agreement,
    "is_hopeless": protocol.rounds.agreement,
}
"""A lock is taken up; a result that came too late is; nobody is complete, and the round carries; a
closer gives up at once."""


@pytest.mark.extended
def test_exploration_goes_where_the_rules_of_closers_are_rare(monkeypatch):
    answers: dict[str, list[Any]] = {name: [] for name in RARE}

    def noted(name, shipped):
        def ask(*args, **kwargs):
            answers[name].append(shipped(*args, **kwargs))
            return answers[name][-1]

        return ask

    for name, module in RARE.items():
        monkeypatch.setattr(module, name, noted(name, getattr(module, name)))
    explore(Agreement(AgreementScope(voters=1, attempts=4, restarts=1)), Bound(states=600))
    explore(Agreement(AgreementScope(voters=2, attempts=2)), Bound())
    explore(Supply(AgreementScope(voters=2, attempts=2), Losses(num_cells=2)), Bound(states=200))
    assert any(answers["_highest_lock"])
    assert any(answers["_already_summed"])
    assert any(body is not None and not body.commits for body in answers["propose"])
    assert any(answers["is_hopeless"])


DEAR = "omissions"
"""Of these each first step is a whole round of each habit of a liar, or of two."""


def test_every_case_of_the_catalogue_has_a_name_of_its_own():
    names = [(case.part, case.name) for case in cases()]
    assert len(names) == len(set(names)) >= 30
    assert {part for part, _ in names} >= {DEAR, "words", "leaving", "liars"}


@pytest.mark.extended
@pytest.mark.parametrize("is_dear", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_case_of_the_catalogue_can_be_begun(is_dear):
    for case in cases():
        if (case.part == DEAR) is not is_dear:
            continue
        result = run_case(case, Bound(states=20, depth=5, seconds=60), seed=1)
        assert not result.violation, result.trace
        assert case.name in row_of(case, result)


@pytest.mark.extended
def test_command_explores_one_part_and_says_what_it_has_seen():
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "sim.explorer",
            "1 voter, 4 attempts",
            "--states",
            "200",
            "--json",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert '"outcome": "bounded"' in run.stdout
    assert '"violation": ""' in run.stdout
