"""Timetables: drawn from a seed alone, and every kind of fault does what it says."""

from itertools import permutations

import pytest

from node.reporting.tracing import Record, Signed
from protocol.messages import Kind
from sim.trials.chaos import BLOWS, IN_EVERY_RUN, PHASES, Blow, Members
from sim.trials.faults import (
    KINDS,
    Rule,
    Setting,
    WorldFault,
    draw_timetable,
    member_names,
)
from sim.trials.scenario import settled
from sim.trials.trial import build_world, play
from tests.sim.trials.scenarios import with_faults

RULES = [
    Rule(kind="bounce", times=(2, 4), phases=tuple(PHASES), count=(1, 2)),
    Rule(kind="crash", times=(3, 3)),
    Rule(kind="lose_disk", times=(3, 3)),
    Rule(kind="join", times=(1, 3), count=(1, 2)),
    Rule(kind="partition", share=(0.2, 0.5), ways=3),
    Rule(kind="churn", amount=(3.0, 3.0)),
]


def setting(seed=1, peers=16, rounds=12, **changes):
    return Setting(seed=seed, peers=peers, rounds=rounds, **changes)


def test_every_kind_has_a_blow():
    assert KINDS.keys() == BLOWS.keys()


def test_timetable_is_a_function_of_rules_and_seed():
    assert draw_timetable(RULES, setting()) == draw_timetable(RULES, setting())
    assert draw_timetable(RULES, setting()) != draw_timetable(RULES, setting(seed=2))


def test_a_further_rule_changes_nothing_that_the_others_draw():
    fewer = draw_timetable(RULES[:2], setting())
    more = draw_timetable([*RULES[:2], Rule(kind="nap", times=(5, 5))], setting())
    assert [fault for fault in more if fault.kind != "nap"] == list(fewer)


def test_faults_are_within_their_rounds_and_in_their_order():
    for seed in range(50):
        table = draw_timetable(
            [Rule(kind="freeze", times=(4, 9), rounds=(3, 5)), *RULES], setting(seed)
        )
        assert all(3 <= fault.round <= 5 for fault in table if fault.kind == "freeze")
        assert all(2 <= fault.round <= 12 for fault in table)
        assert [fault.round for fault in table] == sorted(fault.round for fault in table)


def test_no_more_than_their_share_is_lost_for_good_and_nobody_twice():
    rules = [Rule(kind=kind, times=(9, 9)) for kind in ("crash", "leave", "lose_disk")]
    for seed in range(50):
        table = draw_timetable(rules, setting(seed, lasting_share=0.25))
        victims = [name for fault in table for name in fault.victims]
        assert len(victims) == len(set(victims)) == 4


def test_churn_replaces_whoever_goes_and_keeps_the_size():
    for seed in range(20):
        table = draw_timetable([RULES[-1]], setting(seed))
        going = [f.victims[0] for f in table if f.kind in ("crash", "leave")]
        coming = [f.victims[0] for f in table if f.kind == "join"]
        assert len(going) == len(coming) == len(set(coming))
        assert set(going) <= {*member_names(16), *coming}
        # A third of the seats changes hands per round of eleven.
        assert 30 < len(going) < 80


def test_newcomers_have_names_of_their_own():
    table = draw_timetable([Rule(kind="join", times=(4, 4), count=(2, 2))], setting())
    names = [name for fault in table for name in fault.victims]
    assert len(set(names)) == 8
    assert set(names).isdisjoint(member_names(16))


# What they do ------------------------------------------------------------------------------------

LISTED = 'round = 7, victims = ["n01"], duration_s = 3.0'


def told(fault, **changes):
    played = play(with_faults(fault, **changes), 3)
    return played.outcome, [(note.at_s, note.text) for note in played.notes if note.is_fault]


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "kind",
    [
        *("bounce", "power_off", "lose_disk", "spoil_slots", "spoil_chain", "spoil_result"),
        *("spoil_checkpoint", "roll_back", "freeze", "nap", "partition", "mute", "hold", "clog"),
        *("cut", "slow", "disk_full"),
    ],
)
def test_fault_that_ends_strikes_once_and_the_run_goes_on(kind):
    amount = ", amount = 10.0" if kind == "slow" else ""
    outcome, notes = told(f'kind = "{kind}", {LISTED}{amount}')
    assert outcome.violation is None
    assert outcome.faults_missed == 0
    assert sum(outcome.coverage.values()) == 1
    (struck_s, what), (over_s, end) = notes[0], notes[-1]
    assert what.startswith("n01 ")
    assert end == f"n01: {kind} is over"
    assert over_s == pytest.approx(struck_s + 3.0)
    assert [name for name, _ in outcome.recoveries] == [kind]


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", ["crash", "leave"])
def test_member_that_is_gone_for_good_is_missed_in_the_next_rosters(kind):
    played = play(with_faults(f'kind = "{kind}", round = 7, victims = ["n01"]'), 3)
    assert played.outcome.violation is None
    assert "5 listed" in "".join(note.text for note in played.notes if "round 5 " in note.text)
    assert "4 listed, 4 in the next" in played.notes[-1].text


def test_newcomer_joins_and_contributes():
    played = play(with_faults('kind = "join", round = 3, victims = ["j00"]', rounds=9), 3)
    assert played.outcome.violation is None
    assert "6 listed, 6 in the next" in played.notes[-1].text


@pytest.mark.quick(1)
@pytest.mark.parametrize("phase", [name for name in IN_EVERY_RUN if name != "NEWATTEMPT sent"])
def test_fault_in_a_phase_strikes_a_node_that_is_there(phase):
    fault = f'kind = "bounce", round = 7, phase = "{phase}", victims = ["any"], duration_s = 2.0'
    outcome, notes = told(fault)
    assert outcome.violation is None
    assert outcome.coverage == {f"bounce @ {phase}": 1}
    assert notes[0][1].endswith(f"at {phase}")


@pytest.mark.extended
def test_phase_that_comes_to_nobody_is_told_as_missed():
    fault = 'kind = "bounce", round = 3, phase = "NEWATTEMPT sent", victims = ["any"]'
    outcome, notes = told(fault)
    assert (outcome.faults_missed, notes) == (1, [])


def test_faults_whose_moment_does_not_come_are_missed():
    listed = (
        'kind = "crash", round = 4, phase = "NEWATTEMPT sent", victims = ["any"]',
        'kind = "crash", round = 3, phase = "GRAM sent", victims = ["any"]',
        'kind = "nap", round = 2, victims = ["n01"], duration_s = 0.5',
        'kind = "bounce", round = 4, after_s = 900.0, victims = ["n02"], duration_s = 1.0',
    )
    rest = "[expect]\nfinishes = false\nseals_after_max = 9\n[limits]\nvirtual_s = 30.0"
    outcome = play(with_faults(*listed, rounds=4, peers=4, rest=rest), 0).outcome
    assert (outcome.faults, outcome.faults_missed, outcome.faults_partial) == (4, 3, 0)
    assert outcome.violation is not None
    assert "did not come about" in outcome.violation.text


def test_fault_that_strikes_some_of_its_victims_is_told_as_partial():
    fault = 'kind = "nap", round = 4, phase = "LIST recorded", victims = ["closer", "next closer"]'
    outcome, _ = told(f"{fault}, duration_s = 0.2", rounds=4)
    assert outcome.violation is None
    assert (outcome.faults_missed, outcome.faults_partial) == (0, 1)


@pytest.mark.extended
def test_closer_is_struck_where_the_closer_is_meant_and_its_attempt_fails():
    fault = 'kind = "crash", round = 7, phase = "COMMIT sent", victims = '
    attempts = {}
    for role in ("closer", "next closer"):
        records: list[Record] = []
        play(with_faults(f'{fault}["{role}"]'), 3, tracer=records.append)
        slots = [record.message.slot for record in records if isinstance(record, Signed)]
        lists = [s.attempt for s in slots if s.kind is Kind.LIST and s.round == 7]
        attempts[role] = min(lists)
    assert attempts == {"closer": 1, "next closer": 0}


@pytest.mark.extended
def test_phase_of_a_failed_attempt_comes_where_its_closer_is_gone():
    crash = 'kind = "crash", round = 7, phase = "COMMIT sent", victims = ["closer"]'
    bounce = 'kind = "bounce", round = 7, phase = "NEWATTEMPT sent", victims = ["any"]'
    outcome, _ = told(f"{crash}}}, {{{bounce}, duration_s = 1.0", peers=6)
    assert outcome.violation is None
    assert outcome.coverage == {"bounce @ NEWATTEMPT sent": 1, "crash @ COMMIT sent": 1}


def test_partition_that_flaps_comes_and_goes_and_is_gone_at_its_end():
    fault = 'kind = "partition", round = 5, victims = ["n01", "n02"], duration_s = 9.0'
    outcome, notes = told(fault + ", period_s = 2.0")
    assert outcome.violation is None
    assert notes[-1][1] == "n01, n02: partition is over"


@pytest.mark.extended
def test_overlapping_faults_of_one_link_end_with_the_later():
    cut = 'kind = "cut", round = 5, victims = ["n01"], against = ["n02"], duration_s = '
    outcome, notes = told(cut + "2.0}, {" + cut + "6.0")
    assert outcome.violation is None
    assert len(notes) == 4


@pytest.mark.extended
def test_dead_node_cannot_be_frozen():
    crash = 'kind = "crash", round = 6, victims = ["n01"]'
    freeze = 'kind = "freeze", round = 8, victims = ["n01"], duration_s = 1.0'
    outcome, notes = told(crash + "}, {" + freeze)
    assert outcome.faults_missed == 1
    assert notes[-1][1] == "n01: no freeze, there is nobody to hurt"


@pytest.mark.extended
def test_fault_against_somebody_who_is_not_there_strikes_nobody():
    for kind in ("cut", "mute", "hold", "clog"):
        fault = f'kind = "{kind}", round = 2, victims = ["n01"], against = ["n09"]'
        outcome, notes = told(f"{fault}, duration_s = 9.0", rounds=4)
        assert (outcome.faults_missed, outcome.coverage) == (1, {})
        assert [text for _, text in notes] == [f"n01: no {kind}, there is nobody to hurt"]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("gone", "later"),
    [("crash", "roll_back"), ("leave", "roll_back"), ("crash", "disk_full")],
)
def test_who_is_gone_for_good_is_not_brought_back_by_the_end_of_another_fault(gone, later):
    first = f'kind = "{later}", round = 4, victims = ["n01"], duration_s = 6.0'
    second = f'kind = "{gone}", round = 4, after_s = 0.001, victims = ["n01"]'
    played = play(with_faults(first, second, rounds=14), 3)
    assert played.outcome.violation is None
    assert "4 listed, 4 in the next" in played.notes[-1].text
    (over_s,) = (note.at_s for note in played.notes if note.text == f"n01: {later} is over")
    assert over_s < played.notes[-1].at_s - 2.0


def test_file_that_is_not_there_is_not_spoiled():
    fault = 'kind = "spoil_result", round = 1, victims = ["n01"], duration_s = 1.0'
    outcome, notes = told(fault, rounds=4)
    assert (outcome.faults_missed, outcome.coverage) == (1, {})
    assert [text for _, text in notes] == ["n01: no spoil_result, there is nobody to hurt"]


@pytest.mark.extended
@pytest.mark.parametrize(("duration_s", "period_s"), [(2.0, 20.0), (5.0, 2.0)])
def test_fault_that_comes_and_goes_ends_when_it_says(duration_s, period_s):
    fault = f'kind = "partition", round = 3, victims = ["n01"], duration_s = {duration_s}'
    _, notes = told(f"{fault}, period_s = {period_s}")
    (struck_s, _), (over_s, _) = notes
    assert over_s == pytest.approx(struck_s + duration_s)


def test_slow_faults_that_overlap_leave_machines_and_links_as_they_were():
    world = build_world(settled(with_faults(peers=3), 3), 3)
    one, other, third = (world.peer(name) for name in member_names(3))
    for peer in (one, other, third):
        world.join(peer)
    members = Members(world, lambda peer: None, lambda peer: None)
    fault = WorldFault(kind="slow", victims=("n00",), duration_s=9.0, amount=10.0)

    def state():
        links = [world.network.direction(*pair).link for pair in permutations(world.nodes, 2)]
        return [world.nodes[peer].device for peer in (one, other, third)], links

    before = state()
    undos = [BLOWS["slow"](Blow(members, fault, [peer], [])) for peer in (one, one, other)]
    assert world.nodes[one].device.train_s[0] == 100.0 * before[0][0].train_s[0]
    for undo in undos:
        assert undo is not None
        undo()
    assert state() == before
