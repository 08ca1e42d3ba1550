"""Events folded into the picture of the swarm."""

from dataclasses import fields

import pytest

from sim.demo.swarm_view import ShownFault, SwarmView
from sim.processes import events
from tests.sim.demo.scene import (
    PART_BYTES,
    loss_after,
    options,
    peer,
    phase,
    seal,
    sealed,
    start,
    whole_demo,
)


@pytest.fixture
def view() -> SwarmView:
    swarm = SwarmView(num_rounds=40)
    start(swarm, "ABCD")
    return swarm


def told(view: SwarmView) -> list[str]:
    return [line for _, line in view.told]


def test_nodes_are_named_in_the_order_of_their_start(view):
    assert [(n.name, n.role) for n in view.nodes.values()] == [
        ("A", "founder"),
        ("B", "peer"),
        ("C", "peer"),
        ("D", "peer"),
    ]
    assert view.pids == [1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007]


def test_address_and_peer_come_from_listening(view):
    assert view.nodes["B"].address.endswith(f"/p2p/{peer('B')}")
    assert view.name_of(peer("B")) == "B"
    assert view.name_of("12D3KooWsomebodyelse") == "bodyelse"


def test_process_id_that_a_node_tells_replaces_the_one_it_was_started_with(view):
    event = events.Listening(peer=peer("B"), addresses=(), pid=77)
    view.fold("B", event, 2.0)
    assert view.nodes["B"].pids == [77, 1003]


@pytest.mark.parametrize("kind", events.Event.kinds.values(), ids=lambda kind: kind.__name__)
def test_event_of_every_kind_is_taken_in(view, kind):
    made_up = {"str": "x", "int": 1, "float": 1.0, "bool": False, "tuple[str, ...]": ()}
    given = {
        one.name: made_up.get(str(getattr(one.type, "__name__", one.type))) for one in fields(kind)
    }
    given |= {one.name: () for one in fields(kind) if str(one.type).startswith("tuple")}
    view.fold("B", kind(**given), 2.0)


def test_event_without_a_case_is_a_bug(view):
    with pytest.raises(AssertionError, match="no case for object"):
        view.fold("B", object(), 2.0)


def test_node_trains_from_its_first_phase_on(view):
    assert view.nodes["B"].status == "starting"
    view.fold("B", phase("training", 1), 2.0)
    assert view.nodes["B"].status == "training"


def test_round_counts_once_however_many_nodes_seal_it(view):
    seal(view, 1, "ABCD", "ABCD", 5.0)
    assert view.num_sealed == 1
    assert view.last_sealed is not None
    assert (view.last_sealed.by, view.last_sealed.at_s) == ("A", 5.0)
    assert view.rounds_listed("C") == [1]


def test_first_loss_of_a_round_is_the_one_that_counts(view):
    view.fold("C", events.Validated(round=1, loss=2.5), 5.0)
    view.fold("B", events.Validated(round=1, loss=2.4), 5.1)
    view.fold("C", events.Validated(round=0, loss=5.0), 5.2)
    assert list(view.losses.items()) == [(0, 5.0), (1, 2.4)]
    assert view.nodes["C"].last_validation == 2.5


def test_bytes_are_the_sum_of_what_nodes_told_last(view):
    seal(view, 1, "ABCD", "ABCD", 5.0)
    seal(view, 2, "AB", "ABCD", 6.0)
    assert view.bytes_up == view.bytes_down == 6 * PART_BYTES


def test_parts_that_arrive_show_who_exchanged_with_whom(view):
    for direction, sender in (("in", "C"), ("out", "D")):
        moved = events.PartsMoved(round=1, peer=peer(sender), cells=3, direction=direction)
        view.fold("B", moved, 4.0)
    assert view.exchanges() == {"A": [], "B": ["C"], "C": [], "D": []}
    assert view.nodes["B"].cells_from == {peer("C"): 3}


def test_two_digests_of_one_round_are_a_disagreement(view):
    view.fold("A", sealed(1, "AB"), 5.0)
    view.fold("B", sealed(1, "AB"), 5.0)
    assert view.disagreements() == []
    view.fold("C", sealed(1, "AB", digest="0" * 64), 5.0)
    assert view.disagreements() == [1]


def test_killed_node_stays_killed_whatever_its_pipe_still_holds(view):
    view.fold("A", phase("pushing", 3), 9.0)
    view.kill("A", 9.1)
    view.fold("A", phase("certified", 3), 9.2)
    view.fold("A", events.Finished(round=40, checkpoint="x"), 9.2)
    assert view.nodes["A"].status == "killed"
    assert [node.name for node in view.survivors] == ["B", "C", "D"]
    assert view.killing is not None
    assert (view.killing.round, view.killing.attempt, view.killing.at_s) == (3, 0, 9.1)


def test_link_is_told_once_and_by_names(view):
    for name, other in (("B", "C"), ("C", "B")):
        view.fold(name, events.LinkOpened(peer=peer(other), linked=(peer(other),)), 3.0)
    assert told(view) == ["B found C"]
    view.fold("B", events.LinkClosed(peer=peer("C"), linked=()), 4.0)
    assert view.links() == {"A": [], "B": ["C"], "C": ["B"], "D": []}


def test_lost_link_is_told_of_a_killed_node_only(view):
    view.fold("B", events.LinkClosed(peer=peer("C"), linked=()), 3.0)
    view.kill("A", 4.0)
    view.fold("B", events.LinkClosed(peer=peer("A"), linked=()), 5.0)
    assert told(view)[1:] == ["B lost A"]


def test_carried_round_is_told(view):
    seal(view, 1, "AB", "", 5.0)
    assert told(view) == ["round 1 was carried: it lists nobody"]


def test_seat_is_told_of_a_latecomer_and_once(view):
    for index in (1, 2):
        view.fold("B", events.Seated(round=index), 5.0)
    seal(view, 1, "ABCD", "ABCD", 5.0)
    start(view, "E")
    for index in (3, 4):
        view.fold("E", events.Seated(round=index), 6.0)
    assert told(view) == ["E comes late, and is told one address", "E has a seat from round 3"]
    assert view.nodes["E"].seated_round == 3


def test_fault_resync_and_error_are_kept(view):
    view.fold("B", events.FaultSeen(peer=peer("C"), reason="a cell does not fit"), 5.0)
    view.fold("B", events.Resynced(reason="other root"), 6.0)
    view.fold("B", events.Failed(kind="TrainerError", message="gone"), 7.0)
    assert told(view) == [
        "B reports a fault of C: a cell does not fit",
        "B takes a fresh copy of the state: other root",
    ]
    assert view.faults == [ShownFault(by="B", of="C", reason="a cell does not fit")]
    assert (view.nodes["B"].num_resyncs, view.nodes["B"].error) == (1, "TrainerError: gone")


def test_whole_demo_tells_its_milestones_in_order():
    view = whole_demo(options())
    assert told(view) == [
        "A killed while its parts of round 14 were on their way",
        "E comes late, and is told one address",
        "E has synchronised the state of round 16",
        "E has a seat from round 18",
        "round 18 is the first to hold E's work",
    ]
    assert view.num_sealed == 40
    assert view.losses[40] == loss_after(40)


def test_loss_over_some_of_the_windows_is_no_point_of_the_curve(view):
    view.fold("A", events.Validated(round=1, loss=2.0, windows=16, of_windows=128), 1.0)
    assert view.losses == {}
    view.fold("A", events.Validated(round=1, loss=2.5, windows=128, of_windows=128), 1.1)
    assert view.losses == {1: 2.5}
