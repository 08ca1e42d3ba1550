"""A closer that leaves one sender out: for good where one closes all rounds, now and then where
who closes follows from the seal."""

from dataclasses import replace
from unittest.mock import patch

import pytest

from node.reporting.tracing import Adopted, Record, Signed
from protocol.identity import PeerId
from protocol.messages import Kind
from protocol.rounds import roster as rosters
from sim.trials.faults import member_names
from sim.trials.scenario import overridden, settled
from sim.trials.scenario_file import read_scenario
from sim.trials.trial import build_world, run_trial

PEERS, ROUNDS = 7, 12


def closes_always(liar: PeerId):
    """The liar first, then the others in turn."""

    def closer(roster, basis: bytes, shard: int, attempt: int) -> PeerId:
        del basis, shard
        order = sorted(rosters.voters(roster), key=lambda peer: (peer != liar, peer))
        return order[attempt % len(order)]

    return closer


class Seen:
    """Who was listed in each round; the rounds in which somebody was left out."""

    def __init__(self, seed: int, attack: str, *, is_rotating: bool = True, without=()) -> None:
        calm = overridden(
            read_scenario("open-calm"), peers=PEERS, rounds=ROUNDS, attack=f"{attack}:0.15"
        )
        scenario = replace(calm, cells=2, without=without)
        world = build_world(settled(scenario, seed), seed)
        peers = [world.peer(name) for name in member_names(PEERS)]
        self.liar, self.chosen = peers[-1], min(peers[:-1])
        self._senders: dict[bytes, PeerId] = {}
        self.rounds: dict[int, frozenset[PeerId]] = {}
        self.members: frozenset[PeerId] = frozenset()
        rotation = rosters.closer if is_rotating else closes_always(self.liar)
        with patch("protocol.rounds.roster.closer", rotation):
            outcome = run_trial(scenario, seed, tracer=self._saw)
        self.broken = outcome.violation and outcome.violation.name
        assert self.broken or outcome.rounds_sealed == ROUNDS
        assert outcome.false_bans == 0
        self.spoilt = [index for index, listed in self.rounds.items() if len(listed) < PEERS]

    def _saw(self, record: Record) -> None:
        if isinstance(record, Signed) and record.message.slot.kind is Kind.COMMIT:
            self._senders[record.message.digest] = record.message.sender
        elif isinstance(record, Adopted):
            value = record.certificate.value
            self.rounds[value.round] = frozenset(self._senders[one] for one in value.commits)
            self.members = value.roster.member_set


@pytest.mark.extended
def test_closer_of_all_rounds_leaves_one_out_of_all_of_them_and_takes_no_seat(seed):
    seen = Seen(seed, "leaves_out", is_rotating=False)
    assert seen.broken is None
    assert len(seen.spoilt) >= 3
    assert all(seen.chosen not in seen.rounds[index] for index in seen.spoilt)
    assert seen.chosen in seen.members, "others saw what it committed to"


@pytest.mark.slow
def test_closer_by_the_seal_leaves_one_out_in_its_own_turns_alone(seed):
    spoilt = 0
    for number in range(3):
        seen = Seen(seed + number, "leaves_out")
        assert seen.broken is None
        spoilt += len(seen.spoilt)
        assert all(PEERS - len(seen.rounds[index]) == 1 for index in seen.spoilt)
        assert all(seen.chosen not in seen.rounds[index] for index in seen.spoilt)
    # One turn of seven is its own: 5 of 36 rounds, give or take three deviations.
    assert 0 < spoilt <= 11


@pytest.mark.extended
@pytest.mark.parametrize("is_held", [False, True])
def test_closer_that_lists_itself_alone_is_not_voted_for_where_voters_look(seed, is_held):
    seen = Seen(seed, "lists_itself", is_rotating=False, without=() if is_held else ("inclusion",))
    # Where nobody looks, all words of a LIST are its own: others lose their votes.
    assert seen.broken == (None if is_held else "I9")
    alone = [index for index, listed in seen.rounds.items() if listed == {seen.liar}]
    assert bool(alone) != is_held
    assert all(PEERS - len(listed) <= 2 for listed in seen.rounds.values()) == is_held


@pytest.mark.quick(1)
@pytest.mark.parametrize("is_held", [False, True])
def test_closer_that_lists_nobody_is_not_voted_for_where_voters_look(seed, is_held):
    without = () if is_held else ("inclusion",)
    seen = Seen(seed, "lists_nobody", is_rotating=False, without=without)
    assert seen.broken == (None if is_held else "sealed_share")
    assert (frozenset() in seen.rounds.values()) != is_held
