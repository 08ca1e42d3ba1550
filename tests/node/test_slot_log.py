"""R12: signatures are on disk before they leave, and a torn tail harms nothing."""

from dataclasses import replace

import pytest

from node.slot_log import SlotLog, read_slots, refuse_signed
from protocol.errors import ConfigError
from tests.node.builders import Voice, head_of, peers_named

A, B = peers_named(2)
VOICE = Voice(A, head_of((A, B)).value)
MESSAGES = [VOICE.vote([], attempt).message for attempt in range(5)]


def written(path, messages) -> None:
    log = SlotLog(path)
    log.append(messages)
    log.close()


def test_messages_come_back_in_order_over_several_starts(tmp_path):
    path = tmp_path / "new" / "slots"
    for start in range(0, 5, 2):
        written(path, MESSAGES[start : start + 2])
    assert read_slots(path) == MESSAGES


def test_messages_are_on_disk_when_append_returns(tmp_path):
    path = tmp_path / "slots"
    log = SlotLog(path)
    log.append(MESSAGES)
    assert read_slots(path) == MESSAGES
    log.close()


@pytest.mark.parametrize("lost", [1, 3, 40, 100])
def test_torn_tail_loses_one_record_and_none_that_is_appended_behind_it(tmp_path, lost):
    path = tmp_path / "slots"
    written(path, MESSAGES[:3])
    path.write_bytes(path.read_bytes()[:-lost])
    assert read_slots(path) == MESSAGES[:2]
    written(path, MESSAGES[3:])
    assert read_slots(path) == MESSAGES[:2] + MESSAGES[3:]


def test_garbage_tail_is_left_out(tmp_path):
    path = tmp_path / "slots"
    written(path, MESSAGES[:2])
    path.write_bytes(path.read_bytes() + b"\x00\x00\x00\x04junk")
    assert read_slots(path) == MESSAGES[:2]


def test_rotation_keeps_the_last_two_rounds(tmp_path):
    path = tmp_path / "slots"
    voices = [Voice(A, head_of((A, B)).value), *(_later(rounds) for rounds in (1, 2, 3))]
    log = SlotLog(path, rotate_bytes=1)
    for voice in voices:
        log.append([voice.vote([]).message])
    log.close()
    assert [message.slot.round for message in read_slots(path)] == [7, 8]
    assert [p.name for p in tmp_path.iterdir()] == ["slots"]


def _later(rounds: int) -> Voice:
    head = head_of((A, B)).value
    return Voice(A, replace(head, round=head.round + rounds))


def test_node_that_has_signed_before_does_not_start_anew(tmp_path):
    path = tmp_path / "slots"
    refuse_signed(path)
    SlotLog(path).close()
    refuse_signed(path)
    written(path, MESSAGES[:1])
    with pytest.raises(ConfigError, match="empty --state"):
        refuse_signed(path)
