import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ConfigError
from sim.local.options import KINDS, LocalOptions, kinds_named
from sim.local.swarm import (
    DOWN_S,
    EXTRA_NODES_MAX,
    STILL_S,
    ProcessChaos,
    ProcessFault,
    Situation,
    can_spare_one,
)

FIVE = ("A", "B", "C", "D", "E")
WELL = Situation(well=FIVE, running=FIVE, gone=("F",), num_here=5, members=5, num_begun=5)


def faults(kinds, now=WELL, *, seed=1, count=400, **more) -> list[ProcessFault | None]:
    chaos = ProcessChaos(kinds, seed=seed, **more)
    return [chaos.next(now) for _ in range(count)]


def test_same_seed_deals_the_same_and_another_seed_others():
    kinds = tuple(KINDS)
    assert faults(kinds) == faults(kinds)
    assert faults(kinds) != faults(kinds, seed=2)


def test_every_kind_part_and_move_comes_and_every_victim():
    dealt = [fault for fault in faults(tuple(KINDS)) if fault is not None]
    assert {fault.kind for fault in dealt} == set(KINDS)
    kills = [fault for fault in dealt if fault.kind == "kill"]
    assert {fault.part for fault in kills} == {"node", "network", "trainer"}
    assert {fault.victim for fault in kills} == set(FIVE)
    assert all(DOWN_S[0] <= fault.lasts_s < DOWN_S[1] for fault in kills)
    moves = {fault.move: fault.victim for fault in dealt if fault.kind == "churn"}
    assert moves.keys() == {"leave", "return", "join"}
    assert (moves["return"], moves["join"]) == ("F", "")
    still = [fault for fault in dealt if fault.kind in ("freeze", "stall")]
    assert all(STILL_S[0] <= fault.lasts_s < STILL_S[1] for fault in still)


@pytest.mark.parametrize(
    ("well", "members", "spares"),
    [
        (5, 5, True),
        (4, 5, True),
        (3, 5, False),
        (4, 4, True),
        (3, 4, False),
        (5, 4, True),
        (3, 3, True),
        (2, 3, False),
        (0, 0, False),
    ],
)
def test_one_is_spared_only_where_a_majority_of_the_members_stays_well(well, members, spares):
    now = replace(WELL, well=FIVE[:well], members=members)
    assert can_spare_one(now) == spares
    dealt = faults(("kill", "freeze", "stall", "reset"), now)
    assert all((fault is not None) == spares for fault in dealt)
    assert not any(f.move == "leave" for f in faults(("churn",), now) if f) or spares


def test_partition_leaves_a_majority_of_the_members_together():
    eight = tuple("ABCDEFGH")
    now = replace(WELL, well=eight, running=eight, num_here=8, members=8, num_begun=8)
    dealt = [fault for fault in faults(("partition",), now) if fault is not None]
    assert {len(fault.victims) for fault in dealt} == {1, 2, 3}
    assert {name for fault in dealt for name in fault.victims} == set(eight)
    assert all(len(set(fault.victims)) == len(fault.victims) for fault in dealt)
    assert all(STILL_S[0] <= fault.lasts_s < STILL_S[1] for fault in dealt)
    assert {fault.beside for fault in faults(("partition",)) if fault} > {()}
    # Where nothing matters, half against half.
    reckless = faults(("partition",), now, is_reckless=True)
    assert {len(fault.victims) for fault in reckless if fault} == {1, 2, 3, 4}


def test_only_those_who_are_well_are_harmed_unless_it_is_reckless():
    now = replace(WELL, well=FIVE[1:], running=FIVE, members=4)
    assert "A" not in {fault.victim for fault in faults(("kill",), now) if fault}
    now = replace(WELL, well=(), members=5)
    assert set(faults(("kill",), now)) == {None}
    dealt = faults(("kill",), now, is_reckless=True)
    assert {fault.victim for fault in dealt if fault} == set(FIVE)
    assert faults(("kill",), replace(now, running=()), is_reckless=True, count=1) == [None]


def test_churn_adds_only_so_many_and_brings_back_only_who_left():
    full = replace(WELL, num_here=5 + EXTRA_NODES_MAX)
    assert {fault.move for fault in faults(("churn",), full) if fault} == {"leave"}
    none_gone = replace(WELL, gone=())
    assert {fault.move for fault in faults(("churn",), none_gone) if fault} == {"leave", "join"}


def test_what_becomes_of_one_fault_does_not_change_the_luck_of_the_next():
    now = replace(WELL, well=())
    one, other = ProcessChaos(("kill",), seed=3), ProcessChaos(("kill",), seed=3)
    assert one.next(now) is None
    assert other.next(WELL) is not None
    assert one.next(WELL) == other.next(WELL)


def options(**changes: Any) -> LocalOptions:
    given: dict[str, Any] = {"peers": 4, "folder": Path("x")}
    return LocalOptions(**(given | changes))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"peers": 1}, "--peers 1"),
        ({"rounds": 5}, "either --rounds or --duration"),
        ({"duration_s": None}, "either --rounds or --duration"),
        ({"duration_s": None, "rounds": 0}, "--rounds 0"),
        ({"kinds": ("kill", "fire")}, "no fault 'fire'; there are kill, freeze"),
        ({"kinds": ("",)}, "no fault ''"),
        ({"kinds": ("kill", "kill")}, "named twice"),
        ({"kinds": ("kill",), "peers": 2}, "at least 3 peers"),
        ({"trainer": "none"}, "--trainer 'none'"),
        ({"elements": 10}, "--elements 10"),
        ({"test_switch": "x"}, "no test switch"),
    ],
)
def test_options_that_cannot_be_are_refused_with_their_name(changes, why):
    with pytest.raises(ConfigError) as caught:
        options(**changes)
    assert why in str(caught.value)


def test_partition_is_refused_where_nobody_tells_whose_a_connection_is(monkeypatch):
    assert options(kinds=("partition",)).needs_shaper
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(ConfigError, match="--chaos partition: only Linux tells"):
        options(kinds=("partition",))


def test_two_peers_take_faults_where_one_is_reckless():
    assert options(kinds=("kill",), peers=2, is_reckless=True).kinds == ("kill",)


def test_system_without_the_signal_refuses_what_needs_it(monkeypatch):
    monkeypatch.delattr(signal, "SIGSTOP")
    with pytest.raises(ConfigError, match="--chaos freeze: this system has no signal"):
        options(kinds=("kill", "freeze"))
    assert options(kinds=("kill", "churn", "stall")).needs_shaper


def test_kinds_are_split_at_commas():
    assert kinds_named("kill, freeze") == ("kill", "freeze")
    assert kinds_named(None) == ()
