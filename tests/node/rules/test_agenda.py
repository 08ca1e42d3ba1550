"""When rules are asked: what is passed over had nothing to do, and nothing due is passed over."""

import random
from dataclasses import replace

import pytest

from protocol import events as ev
from protocol.frames import Bulk
from protocol.messages import Kind
from protocol.rounds.agenda import Agenda
from protocol.rounds.round_machine import RoundMachine
from tests.node.builders import (
    CONFIG,
    ROOT,
    Voice,
    contributed,
    head_of,
    machine_of,
    peers_named,
    signed,
)
from tests.node.soup import Soup

FIRST, SECOND, THIRD = peers_named(3)
HEAD = head_of((FIRST, SECOND, THIRD))


@pytest.mark.extended
def test_rules_that_are_not_asked_had_nothing_to_do(seed, monkeypatch):
    """Ask them all the same, in a soup: no action may come of it."""
    plain_is_quiet, plain_settle = Agenda.is_quiet, RoundMachine._settle
    verdicts: list[bool] = []
    passed_over = 0

    def is_quiet(agenda, view, now_s):
        verdicts.append(plain_is_quiet(agenda, view, now_s))
        return False

    def settle(machine, now_s):
        nonlocal passed_over
        actions = plain_settle(machine, now_s)
        if verdicts and verdicts.pop():
            passed_over += 1
            assert not actions
        return actions

    monkeypatch.setattr(Agenda, "is_quiet", is_quiet)
    monkeypatch.setattr(RoundMachine, "_settle", settle)
    for case in range(30):
        rng = random.Random(f"{seed}/{case}")
        soup = Soup(head_of(peers_named(rng.choice((1, 2, 3, 4, 5)))), rng, restarts=0.01)
        soup.shake(600)
        soup.heal()
    assert passed_over > 500, "nothing was passed over"


def settled_machine(monkeypatch):
    """A machine that has committed, and a list that grows whenever its rules are asked."""
    machine = machine_of(FIRST, HEAD)
    asked: list[float] = []
    plain = RoundMachine._settle

    def settle(self, now_s):
        asked.append(now_s)
        return plain(self, now_s)

    monkeypatch.setattr(RoundMachine, "_settle", settle)
    machine.handle(contributed(5), 0.0)
    asked.clear()
    return machine, asked


def test_vote_that_makes_no_quorum_asks_no_rule_and_the_next_one_does(monkeypatch):
    machine, asked = settled_machine(monkeypatch)
    commits = [Voice(peer, HEAD.value).commit() for peer in (SECOND, THIRD)]
    machine.handle(Voice(SECOND, HEAD.value).vote(commits), 0.01)
    assert asked == []
    machine.handle(Voice(THIRD, HEAD.value).vote(commits), 0.02)
    assert asked == [0.02]


def test_commit_and_suspicions_ask_the_rules_and_bytes_that_complete_nothing_do_not(monkeypatch):
    machine, asked = settled_machine(monkeypatch)
    machine.handle(Voice(SECOND, HEAD.value).commit(), 0.01)
    machine.handle(ev.CellsArrived(Bulk.PART, ROOT, (0,)), 0.02)
    machine.handle(ev.SuspicionsChanged(frozenset({THIRD})), 0.03)
    assert asked == [0.01, 0.03]


def test_rules_are_asked_whatever_arrives_once_a_deadline_is_past(monkeypatch):
    machine, asked = settled_machine(monkeypatch)
    machine.handle(Voice(SECOND, HEAD.value).commit(), 0.0)
    commits = [Voice(peer, HEAD.value).commit() for peer in (SECOND, THIRD)]
    asked.clear()
    actions = machine.handle(Voice(SECOND, HEAD.value).vote(commits), 1.1)
    assert asked == [1.1]
    assert signed(actions, Kind.HAVE), "at its deadline a reducer says what it holds"


def test_rules_are_asked_again_after_a_state_was_fetched(monkeypatch):
    machine, asked = settled_machine(monkeypatch)
    machine.is_held = True
    machine.handle(Voice(SECOND, HEAD.value).commit(), 0.01)
    machine.is_held = False
    asked.clear()
    machine.handle(Voice(SECOND, HEAD.value).vote([]), 0.02)
    assert asked == [0.02], "what came while this node only listened may have made something due"


def test_seal_asks_the_rules_of_who_suspects_and_lacks_its_result_and_of_nobody_else(monkeypatch):
    value = replace(
        HEAD.value, round=HEAD.value.round + 1, before=HEAD.value.digest, basis=HEAD.value.digest
    )
    all_cells = set(range(CONFIG.num_cells(1)))
    for suspects, held, is_asked in (
        (frozenset(), set(), False),
        (frozenset({THIRD}), set(), True),
        (frozenset({THIRD}), all_cells, False),
    ):
        machine, asked = settled_machine(monkeypatch)
        machine.handle(ev.SuspicionsChanged(suspects), 0.01)
        machine.view.cells.results[value.list_digest] = set(held)
        asked.clear()
        machine.handle(Voice(SECOND, HEAD.value).seal(value), 0.02)
        assert bool(asked) == is_asked
