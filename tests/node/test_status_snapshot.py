"""A node's snapshot: what it says the node is at, and that it never changes."""

import dataclasses
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from rich.console import Console

from node.status.records import (
    NodeStatus,
    PeerReport,
    PeerTable,
    RoundTable,
    Snapshot,
    from_plain,
)
from node.status.snapshot import (
    PEERS_SHOWN_MAX,
    NetworkView,
    keep_status,
    node_state,
    rss_bytes,
    snapshot,
)
from node.status.tables import draw_status
from node.text.shown import to_plain
from protocol import events as ev
from protocol.errors import StateError
from protocol.frames import Heartbeat
from protocol.identity import peer_id_text
from tests.node.builders import contributed, peers_named
from tests.node.cores import GENESIS, MANIFEST, A, B, C, D, core_of, run_idle
from tests.node.status_scene import board_at, busy_snapshot, sealed, sources_of
from tests.sim.worlds import world_of

STATUS_KEYS = {
    *("device_class", "is_audited", "unaudited_share"),
    "catching_up",
    *("validation_windows", "validation_of", "last_times", "total_times"),
    *("schema", "age_s", "pid", "peer", "addresses", "run", "title", "state", "round"),
    *("banned", "rounds_total", "attempt", "members", "voters", "is_member", "is_voter"),
    *("was_listed", "set_back_until"),
    *(
        "num_sealed",
        "final_round",
        "final_seal",
        "provisional",
        "linked",
        "bytes_up",
        "bytes_down",
        "last_round",
        "validation_round",
    ),
    *(
        "validation_loss",
        "trainer",
        "method",
        "checkpoint",
        "checkpoint_round",
        "uptime_s",
        "rss_bytes",
    ),
    *("tasks", "descriptors"),
    *("num_faults", "faults", "warnings"),
    *("seen_as", "needs_relay", "answers_at", "silent_at", "clock_offset_s"),
}


def test_snapshot_says_where_the_node_is() -> None:
    shot = busy_snapshot(12.5)
    status = shot.status
    assert (status.run, status.title) == (MANIFEST.digest.hex(), MANIFEST.title)
    assert (status.peer, status.pid) == (peer_id_text(A), os.getpid())
    assert (status.state, status.round, status.rounds_total) == ("pushing", 5, 100)
    assert (status.members, status.voters, status.linked) == (3, 3, 2)
    assert status.is_member
    assert status.is_voter
    assert status.was_listed
    assert (status.bytes_up, status.bytes_down) == (10, 20)
    assert (status.validation_round, status.validation_loss) == (1, 2.5)
    assert status.last_round == shot.rounds.rounds[-1]
    assert [record.round for record in shot.rounds.rounds] == [1, 2]
    assert shot.rounds.rounds[0].validation_loss == 2.5
    assert (status.trainer.device, status.trainer.step) == ("cpu", 40)
    assert status.uptime_s == 12.5
    assert status.num_faults == 1
    assert status.warnings == ()


def test_peers_are_members_then_other_links_without_this_node() -> None:
    core = core_of(A, B, D)
    beat = Heartbeat(round=7, head=bytes(32), held=(), links=())
    core.handle(ev.FrameArrived(B, beat), 0.5)
    shot = snapshot(sources_of(core, addresses={B: ("/ip4/203.0.113.1/tcp/1",)}), 1.5)
    b, c, d = shot.peers.peers
    assert [peer.peer for peer in (b, c, d)] == [peer_id_text(peer) for peer in (B, C, D)]
    assert [peer.is_linked for peer in (b, c, d)] == [True, False, True]
    assert [peer.is_member for peer in (b, c, d)] == [True, True, False]
    assert [peer.is_voter for peer in (b, c, d)] == [True, True, False]
    assert [peer.round for peer in (b, c, d)] == [7, None, None]
    assert (b.heard_s_ago, d.heard_s_ago) == (1.0, 1.5)
    assert (b.addresses, c.addresses) == (("/ip4/203.0.113.1/tcp/1",), ())


def test_peers_known_by_entries_alone_come_last_with_what_they_told() -> None:
    said = PeerReport(
        device="abacus\x1b[2J",
        software="barnraise 9",
        addresses=("/ip4/203.0.113.9/tcp/9",),
        round=5,
        at_unix_s=90.0,
    )
    core = core_of(A, B)
    beat = Heartbeat(round=7, head=bytes(32), held=(), links=())
    core.handle(ev.FrameArrived(B, beat), 0.5)
    sources = replace(
        sources_of(core, addresses={B: ("/ip4/203.0.113.1/tcp/1",)}),
        told=lambda: {D: said, B: said},
        wall_clock=lambda: 100.0,
    )
    b, _, d = snapshot(sources, 1.5).peers.peers
    assert (d.peer, d.is_linked, d.is_member) == (peer_id_text(D), False, False)
    assert (d.round, d.addresses, d.told_s_ago) == (5, said.addresses, 10.0)
    assert d.heard_s_ago is None
    assert d.software == "barnraise 9"
    assert d.device is not None
    assert "\x1b" not in d.device
    # What a peer says on its own link is newer.
    assert (b.round, b.addresses) == (7, ("/ip4/203.0.113.1/tcp/1",))
    assert b.told_s_ago == 10.0


def test_silent_member_is_suspected_and_quorum_is_missed() -> None:
    core = core_of(A, B, C)
    run_idle(core, 0.0, 60.0)
    shot = snapshot(sources_of(core), 60.0)
    assert [peer.is_suspected for peer in shot.peers.peers] == [True, True]
    assert "waits for a quorum: 1 of 3 voters reachable" in shot.status.warnings
    assert shot.status.state == "training"
    core.handle(contributed(5), 60.0)
    assert snapshot(sources_of(core), 60.0).status.state == "waiting for quorum"


def test_quorum_of_two_thirds_is_enough_for_friends() -> None:
    core = core_of(A, B, C)
    run_idle(core, 0.0, 60.0, hears=(B,))
    core.handle(contributed(5), 60.0)
    status = snapshot(sources_of(core), 60.0).status
    assert not any("quorum" in warning for warning in status.warnings)
    assert status.state != "waiting for quorum"


def test_many_linked_strangers_do_not_lengthen_the_answer() -> None:
    core = core_of(A, *peers_named(PEERS_SHOWN_MAX + 50))
    assert len(snapshot(sources_of(core), 0.0).peers.peers) == PEERS_SHOWN_MAX


@pytest.mark.parametrize("phase", ["training", "committed", "pushing", "certified"])
def test_state_follows_the_phases_of_the_round_under_way(phase: str) -> None:
    board = board_at()
    board.emit("phase", round=5, phase=phase, attempt=1)
    assert node_state(sources_of(core_of(A, B, C), board)) == phase
    board.emit("phase", round=4, phase=phase, attempt=1)
    assert node_state(sources_of(core_of(A, B, C), board)) == "training"


def test_node_starts_once() -> None:
    core, board = core_of(A, B, C), board_at()
    core.wants_seat = False
    sources = sources_of(core, board)
    assert snapshot(sources, 0.0).status.state == "starting"
    core.handle(ev.TrainerReady(), 0.0)
    assert snapshot(sources, 0.0).status.state == "training"
    core.handle(ev.Leaving(), 0.0)
    assert snapshot(sources, 0.0).status.state == "training"


def test_stranger_syncs_and_is_told_that_it_has_no_seat() -> None:
    core = core_of(D, A, B)
    status = snapshot(sources_of(core), 0.0).status
    assert status.state == "syncing"
    assert any("no seat yet" in warning for warning in status.warnings)
    core.manifest = replace(core.manifest, admission=replace(core.manifest.admission, seats=2))
    waiting = snapshot(sources_of(core), 0.0).status
    assert any("all 2 are taken, in turns" in warning for warning in waiting.warnings)
    watcher = snapshot(sources_of(core, is_observer=True), 0.0).status
    assert watcher.state == "syncing"
    assert not any("seat" in warning for warning in watcher.warnings)


def test_finished_run_warns_of_nothing() -> None:
    core = core_of(A)
    value = dataclasses.replace(
        core.machine.head, clock=dataclasses.replace(GENESIS.value.clock, ends_run=True)
    )
    core.machine.reset(dataclasses.replace(GENESIS, value=value), now_s=0.0)
    status = snapshot(sources_of(core), 0.0).status
    assert (status.state, status.warnings) == ("finished", ())


def test_run_that_ended_provisionally_is_not_over_and_says_so(seed: int) -> None:
    world = world_of(3, seed=seed, rounds=9)
    world.until_round(4)
    last, *others = peers_named(3)
    for peer in others:
        world.crash(peer)
    core = world.nodes[last].core
    world.run(lambda: core.machine.standing.head.value.clock.ends_run, max_s=120.0)
    shot = snapshot(sources_of(core), world.now_s)
    assert shot.status.state == "waiting for quorum"
    (warning,) = (text for text in shot.status.warnings if "all rounds are done" in text)
    assert "1 of 3 are here" in warning
    drawn = Console(width=100)
    with drawn.capture() as told:
        drawn.print(draw_status(shot.status))
    assert "in round 9 of 9" in told.get()


def test_lonely_node_is_told_so() -> None:
    assert any("no peer is linked" in text for text in of_alone().status.warnings)
    board = board_at()
    board.emit("warning", key="disk", text="the disk is full")
    board.emit("sealed", **sealed(4, train_loss=math.nan))
    warnings = snapshot(sources_of(core_of(A, B, C), board), 0.0).status.warnings
    assert warnings == ("the training loss is nan: the model has diverged", "the disk is full")


def of_alone() -> Snapshot:
    return snapshot(sources_of(core_of(A)), 0.0)


def test_checkpoint_says_which_round_starts_from_it(tmp_path: Path) -> None:
    board = board_at()
    sources = sources_of(core_of(A), board, checkpoint=tmp_path / "round-000041")
    status = snapshot(sources, 0.0).status
    assert (status.checkpoint, status.checkpoint_round) == (str(tmp_path / "round-000041"), 41)
    assert of_alone().status.checkpoint is None
    board.emit("finished", round=40, checkpoint=str(tmp_path / "odd"))
    status = snapshot(sources_of(core_of(A), board), 0.0).status
    assert (status.checkpoint, status.checkpoint_round) == (str(tmp_path / "odd"), None)


def test_lost_log_lines_are_told() -> None:
    sources = dataclasses.replace(sources_of(core_of(A, B, C)), num_lost_lines=lambda: 3)
    assert any("3 are lost" in warning for warning in snapshot(sources, 0.0).status.warnings)


def test_snapshot_cannot_be_changed_and_later_events_do_not_reach_it() -> None:
    board = board_at()
    board.emit("sealed", **sealed(1))
    sources = sources_of(core_of(A, B, C), board)
    shot = snapshot(sources, 0.0)
    before = json.dumps(to_plain(shot))
    board.emit("sealed", **sealed(2))
    board.emit("validation", round=1, loss=1.0)
    board.emit("fault", peer="p", reason="r")
    board.emit("trainer", pid=9)
    assert json.dumps(to_plain(shot)) == before
    with pytest.raises(dataclasses.FrozenInstanceError):
        shot.status.round = 9  # type: ignore[misc]  # on trial
    assert deep_types(shot) <= {int, float, str, bool, type(None)}


def deep_types(value: object) -> set[type]:
    """Types of all leaves under frozen dataclasses and tuples: no list, no dict, no set."""
    if dataclasses.is_dataclass(value):
        assert getattr(value, "__dataclass_params__").frozen  # noqa: B009 - unknown to mypy
        items = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif isinstance(value, tuple):
        items = list(value)
    else:
        return {type(value)}
    return set().union(*map(deep_types, items))


def test_json_has_the_keys_that_are_promised() -> None:
    shot = busy_snapshot()
    body = to_plain(shot.status)
    assert isinstance(body, dict)
    assert set(body) == STATUS_KEYS
    assert set(body["trainer"]) == {
        *("pid", "device", "precision", "threads", "micro_batch", "step", "loss"),
    }
    assert set(body["faults"][0]) == {"peer", "reason", "at_s"}
    peers = to_plain(shot.peers)
    assert isinstance(peers, dict)
    assert set(peers) == {"schema", "run", "round", "peers", "unaudited_share"}
    assert set(peers["peers"][0]) == {
        *("peer", "is_linked", "is_member", "is_voter", "is_suspected", "is_convicted", "round"),
        *("heard_s_ago", "addresses", "device", "software", "told_s_ago", "set_back_until"),
        *("path", "rtt_ms", "bytes_up", "bytes_down", "rate_bytes_s", "suspicion"),
        *("device_class", "is_audited"),
    }
    rounds = to_plain(shot.rounds)
    assert isinstance(rounds, dict)
    assert set(rounds["rounds"][0]) == {
        *("round", "digest", "listed", "was_listed", "members", "voters", "attempt", "wall_s"),
        *("bytes_up", "bytes_down", "train_loss", "validation_loss"),
        *("validation_windows", "validation_of", "left_out"),
    }
    phases = ("train_s", "validate_s", "encode_s", "save_s", "exchange_s", "seal_s", "wait_s")
    for times in (body["last_times"], body["total_times"]):
        assert set(times) == {"steps", "round_s", "audit_s", *phases}


@pytest.mark.parametrize("name", ["status", "peers", "rounds"])
def test_records_come_back_from_json(name: str) -> None:
    shot = busy_snapshot()
    record = getattr(shot, name)
    kinds = {"status": NodeStatus, "peers": PeerTable, "rounds": RoundTable}
    body = json.loads(json.dumps(to_plain(record)))
    body["a later version says"] = "more"
    assert from_plain(kinds[name], body) == record


def test_numbers_that_are_none_become_null() -> None:
    board = board_at()
    board.emit("sealed", **sealed(1, train_loss=math.inf))
    text = json.dumps(to_plain(snapshot(sources_of(core_of(A), board), 0.0)), allow_nan=False)
    assert '"train_loss": null' in text


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"schema": 2}, "schema 2"),
        ({"round": "5"}, "field round"),
        ({"round": True}, "field round"),
        ({"title": None}, "field title"),
        ({"state": "asleep"}, "field state"),
        ({"trainer": 3}, "field trainer"),
        ({"faults": [{"peer": 1}]}, "field faults.peer"),
        ({"warnings": "none"}, "field warnings"),
    ],
)
def test_answer_that_is_not_sound_is_refused(change: dict[str, object], told: str) -> None:
    body = json.loads(json.dumps(to_plain(busy_snapshot().status))) | change
    with pytest.raises(StateError, match=told):
        from_plain(NodeStatus, body)


@pytest.mark.parametrize("body", [None, [], "status", {}])
def test_answer_of_something_else_is_refused(body: object) -> None:
    with pytest.raises(StateError, match="schema None"):
        from_plain(NodeStatus, body)


async def test_board_always_has_a_fresh_snapshot(autojump_clock: trio.abc.Clock) -> None:
    sources = sources_of(core_of(A))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_status, sources)
        await trio.sleep(0.1)
        first = sources.board.current
        assert first is not None
        await trio.sleep(1.0)
        assert sources.board.current is not first
        nursery.cancel_scope.cancel()


def test_memory_of_this_process_is_plausible() -> None:
    assert rss_bytes() is None or 10_000_000 < (rss_bytes() or 0) < 100_000_000_000


OUTER = ("/ip4/45.33.7.9/tcp/4001",)
SEEN = NetworkView(
    path=lambda peer: "punched" if peer == B else "",
    traffic_with=lambda _: (7, 8),
    round_trip_s=lambda _: 0.0123456,
    seen_as=lambda: OUTER,
    needs_relay=lambda: True,
    answers_at=lambda: (),
    silent_at=lambda: OUTER,
)
"""One peer is connected."""


def test_peers_show_their_path_and_what_was_exchanged_with_them() -> None:
    sources = replace(sources_of(core_of(A, B, C)), network=SEEN)
    shot = snapshot(sources, 10.0)
    shown = {peer.peer: peer for peer in shot.peers.peers}
    here, gone = shown[peer_id_text(B)], shown[peer_id_text(C)]
    assert (here.path, here.rtt_ms, here.bytes_up, here.bytes_down) == ("punched", 12.35, 7, 8)
    assert (gone.path, gone.rtt_ms, gone.bytes_up, gone.bytes_down) == (None, None, None, None)
    assert (shot.status.seen_as, shot.status.needs_relay) == (("/ip4/45.33.7.9/tcp/4001",), True)
    assert (shot.status.answers_at, shot.status.silent_at) == ((), shot.status.seen_as)
