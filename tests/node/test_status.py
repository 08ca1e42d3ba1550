"""What events leave on the board, and in the log of events."""

import errno
import io
import json

import trio

from node.status.board import WARNINGS_KEPT, EventLog
from node.status.records import FAULTS_KEPT, ROUNDS_KEPT, TrainerRecord
from tests.node.status_scene import HOSTILE, board_at, sealed


def test_sealed_rounds_are_kept_with_their_own_bytes() -> None:
    board = board_at()
    board.emit("sealed", **sealed(1))
    board.emit("sealed", **sealed(2, bytes_up=1500, bytes_down=2001, was_listed=False))
    first, second = board.rounds
    assert (first.round, first.bytes_up, first.bytes_down, first.was_listed) == (
        1,
        1000,
        2000,
        True,
    )
    assert (second.round, second.bytes_up, second.bytes_down) == (2, 500, 1)
    assert second.digest == f"{2:064x}"
    assert not second.was_listed
    assert len(second.listed) == 2
    assert board.num_sealed == 2


def test_oldest_rounds_and_losses_go() -> None:
    board = board_at()
    for round_index in range(1, ROUNDS_KEPT + 11):
        board.emit("sealed", **sealed(round_index))
        board.emit("validation", round=round_index, loss=1.0)
    assert [record.round for record in board.rounds] == list(range(11, ROUNDS_KEPT + 11))
    assert len(board.validations) == ROUNDS_KEPT
    assert board.num_sealed == ROUNDS_KEPT + 10


def test_round_that_gave_way_to_another_is_replaced() -> None:
    board = board_at()
    for round_index in (1, 2, 3, 2):
        board.emit("sealed", **sealed(round_index, attempt=round_index))
    assert [record.round for record in board.rounds] == [1, 2]


def test_validation_finds_its_round_before_and_after_the_seal() -> None:
    board = board_at()
    board.emit("validation", round=0, loss=5.5)
    board.emit("validation", round=1, loss=4.5)
    board.emit("sealed", **sealed(1))
    board.emit("sealed", **sealed(2))
    board.emit("validation", round=2, loss=3.5)
    assert [record.validation_loss for record in board.rounds] == [4.5, 3.5]
    assert board.validations[0].loss == 5.5


def test_trainer_is_what_it_said_last_and_a_new_one_has_said_nothing() -> None:
    board = board_at()
    board.emit("trainer", pid=7)
    board.emit("trainer_ready", device="cuda:0", precision="bfloat16", threads=2, micro_batch=8)
    board.emit("progress", step=0, loss=2.5)
    board.emit("trainer_ready", micro_batch=4)
    expected = TrainerRecord(
        pid=7,
        device="cuda:0",
        precision="bfloat16",
        threads=2,
        micro_batch=4,
        step=0,
        loss=2.5,
    )
    assert board.trainer == expected
    board.emit("trainer", pid=8)
    assert board.trainer == TrainerRecord(pid=8)


def test_faults_are_counted_and_the_last_kept_fit_to_be_shown() -> None:
    board = board_at(3.0)
    for index in range(FAULTS_KEPT + 5):
        board.emit("fault", peer="p", reason=f"reason {index}")
    board.emit("more_faults", count=980)
    board.emit("fault", peer=HOSTILE, reason=HOSTILE)
    assert board.num_faults == FAULTS_KEPT + 5 + 980 + 1
    assert len(board.faults) == FAULTS_KEPT
    assert board.faults[-2].reason == f"reason {FAULTS_KEPT + 4}"
    last = board.faults[-1]
    assert last.at_s == 0.0
    assert last.reason.isprintable()
    assert last.peer.isprintable()
    assert len(last.reason) < 300


def test_warning_stands_until_it_is_taken_back() -> None:
    board = board_at()
    board.emit("warning", key="disk", text="the disk is full")
    board.emit("warning", key="seat", text="no seat")
    board.emit("warning", key="disk", text="the disk is still full\n")
    assert list(board.warnings) == ["no seat", "the disk is still full\\n"]
    board.emit("warning", key="disk", text="")
    assert list(board.warnings) == ["no seat"]
    for index in range(100):
        board.emit("warning", key=str(index), text="more")
    assert len(board.warnings) == WARNINGS_KEPT


def test_event_of_unknown_kind_or_with_odd_fields_does_no_harm() -> None:
    board = board_at()
    board.emit("nonsense", round=1)
    board.emit("sealed")
    board.emit("validation", round=1, loss=None)
    board.emit("validation", round=True, loss="low")
    board.emit("fault")
    assert board.rounds[-1].round == 0
    assert board.validations == {}
    assert [fault.reason for fault in board.faults] == [""]


async def test_event_log_tells_stream_and_sinks(autojump_clock: trio.abc.Clock) -> None:
    stream, boards = io.StringIO(), (board_at(), board_at())
    log = EventLog(stream, trio.current_time(), boards)
    await trio.sleep(2.0)
    log.emit("sealed", **sealed(1))
    line = json.loads(stream.getvalue())
    assert (line["event"], line["time_s"], line["round"]) == ("sealed", 2.0, 1)
    assert [board.num_sealed for board in boards] == [1, 1]
    stream.close()
    log.emit("sealed", **sealed(2))
    log.emit("sealed", **sealed(3))
    assert boards[1].num_sealed == 3


class FullDisk(io.StringIO):
    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


async def test_event_that_the_disk_does_not_take_costs_that_line_alone() -> None:
    stream, board = FullDisk(), board_at()
    log = EventLog(stream, trio.current_time(), (board,))
    log.emit("sealed", **sealed(1))
    log.emit("sealed", **sealed(2))
    assert board.num_sealed == 2
    assert log.stream is stream


async def test_sinks_hear_events_that_nobody_reads(autojump_clock: trio.abc.Clock) -> None:
    board = board_at()
    EventLog.on_stdout(is_enabled=False, also=(board,)).emit("sealed", **sealed(1))
    assert board.num_sealed == 1
