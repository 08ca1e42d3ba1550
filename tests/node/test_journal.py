"""R12: what must survive is on disk before it is needed, and no crash or bad byte passes for it."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from node.journal import CHAIN_FILE, SLOTS_FILE, FileJournal
from node.record_log import RecordLog, read_records
from protocol.messages import SealCertificate
from tests.node.builders import Voice, head_of, peers_named
from tests.training.full_disk import files_of_at_most

A, B = peers_named(2)
HEAD = head_of((A, B))
VOICE = Voice(A, HEAD.value)
MESSAGES = [VOICE.vote([], attempt).message for attempt in range(5)]
DIGEST = bytes(range(32))


def chain_of(length: int) -> list[SealCertificate]:
    """Certificates of rounds 1 to `length`; a journal looks at their order only."""
    return [replace(HEAD, value=replace(HEAD.value, round=n)) for n in range(1, length + 1)]


@pytest.fixture
def opened():
    """Opens journals, and closes them when the test is over."""
    journals = []

    def open_journal(folder, **options) -> FileJournal:
        journals.append(FileJournal(folder, **options))
        return journals[-1]

    yield open_journal
    for journal in journals:
        journal.close()


def written(folder, messages) -> None:
    journal = FileJournal(folder)
    journal.record(messages)
    journal.close()


# Records ----------------------------------------------------------------------------------------


@pytest.fixture
def records(tmp_path):
    path = tmp_path / "records.log"
    log = RecordLog(path)
    log.append([b"first", b"second", b"third"])
    log.close()
    return path


def test_log_cut_anywhere_keeps_its_whole_records_and_takes_new_ones(records):
    data = records.read_bytes()
    whole = [b"first", b"second", b"third"]
    ends = [len(data[: data.index(record) + len(record)]) for record in whole]
    for length in range(len(data)):
        records.write_bytes(data[:length])
        kept = [record for record, end in zip(whole, ends, strict=True) if end <= length]
        assert read_records(records)[0] == kept
        log = RecordLog(records)
        assert not log.is_damaged, "a torn tail is no damage"
        log.append([b"behind"])
        log.close()
        assert read_records(records)[0] == [*kept, b"behind"]


def test_any_flipped_byte_loses_its_record_and_shows_as_damage_unless_it_is_the_last(records):
    data = records.read_bytes()
    last = data.index(b"third") - 12
    for position in range(len(data)):
        records.write_bytes(data[:position] + bytes([data[position] ^ 0x40]) + data[position + 1 :])
        found, _, is_damaged = read_records(records)
        assert len(found) < 3
        is_length = any(0 <= position - (data.index(w) - 12) < 4 for w in (b"first", b"second"))
        assert is_damaged == (position < last and not is_length)


def test_append_that_fails_leaves_nothing_behind(records):
    log = RecordLog(records)
    size = records.stat().st_size
    with files_of_at_most(size + 20), pytest.raises(OSError, match="large"):
        log.append([b"fits", bytes(4096)])
    assert read_records(records)[0] == [b"first", b"second", b"third"]


# Signatures -------------------------------------------------------------------------------------


def test_messages_come_back_in_order_over_several_starts_and_once_each(tmp_path, opened):
    for start in range(0, 5, 2):
        written(tmp_path, MESSAGES[max(0, start - 1) : start + 2])
    assert list(opened(tmp_path).messages()) == MESSAGES


def test_messages_outlive_a_kill_right_after_they_were_recorded(tmp_path, opened):
    code = f"""
import os, signal, sys
from pathlib import Path
from node.journal import FileJournal
from tests.node.test_journal import MESSAGES, chain_of
journal = FileJournal(Path({str(tmp_path)!r}))
journal.keep_result(5, bytes(range(32)), [b"one", b"two"])
journal.record(MESSAGES[:2])
journal.extend_chain(chain_of(2))
journal.record(MESSAGES[2:])
os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
"""
    subprocess.run([sys.executable, "-c", code], check=False, cwd=os.getcwd())
    journal = opened(tmp_path)
    assert list(journal.messages()) == MESSAGES
    assert list(journal.chain()) == chain_of(2)
    assert journal.results(5) == {DIGEST: b"onetwo"}
    assert not journal.is_lost


def test_log_is_cut_to_its_last_rounds_and_stays_small(tmp_path, opened):
    journal = opened(tmp_path, rotate_bytes=1)
    sizes = []
    for rounds in range(20):
        later = Voice(A, replace(HEAD.value, round=HEAD.value.round + rounds))
        journal.record([later.vote([]).message])
        sizes.append((tmp_path / SLOTS_FILE).stat().st_size)
    assert max(sizes[5:]) <= 5 * sizes[0]
    kept = [message.slot.round for message in opened(tmp_path).messages()]
    assert kept[-2:] == [23, 24]


def test_damage_among_the_signatures_is_a_loss_until_it_is_forgiven(tmp_path, opened):
    written(tmp_path, MESSAGES)
    path = tmp_path / SLOTS_FILE
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    for _ in range(2):  # The first start cuts the damage off; the second must know of it.
        journal = opened(tmp_path)
        assert journal.is_lost
        journal.close()
    journal.forgive_loss()
    assert not opened(tmp_path).is_lost


def test_chain_without_signatures_is_a_loss_and_a_first_start_is_none(tmp_path, opened):
    journal = opened(tmp_path)
    assert not journal.is_lost
    journal.extend_chain(chain_of(1))
    journal.close()
    assert not opened(tmp_path).is_lost
    (tmp_path / SLOTS_FILE).unlink()
    assert opened(tmp_path).is_lost


def test_journal_that_was_wiped_is_a_loss_until_it_is_forgiven(tmp_path, opened):
    opened(tmp_path, is_wiped=True)
    journal = opened(tmp_path)
    assert journal.is_lost
    journal.forgive_loss()
    assert not opened(tmp_path).is_lost


# Chain ------------------------------------------------------------------------------------------


def test_chain_grows_over_starts_and_may_start_over_from_an_earlier_seal(tmp_path, opened):
    chain = chain_of(5)
    for links in (chain[:2], chain[2:3], chain[1:]):
        journal = opened(tmp_path)
        journal.extend_chain(links)
        journal.close()
    assert list(opened(tmp_path).chain()) == chain


def test_bad_record_ends_the_chain(tmp_path, caplog, opened):
    journal = opened(tmp_path)
    journal.extend_chain(chain_of(2))
    journal.close()
    log = RecordLog(tmp_path / CHAIN_FILE)
    log.append([b"no certificate"])
    log.close()
    assert list(opened(tmp_path).chain()) == chain_of(2)
    assert "chain record skipped" in caplog.text


# Results ----------------------------------------------------------------------------------------


def test_result_that_is_not_what_was_written_is_left_out_and_named(tmp_path, caplog, opened):
    journal = opened(tmp_path)
    journal.keep_result(7, DIGEST, [b"some", b"cells"])
    (path,) = (tmp_path / "results").iterdir()
    data = path.read_bytes()
    for bad in (data[:-1], data + b"x", b"", bytes([data[0] ^ 1]) + data[1:]):
        path.write_bytes(bad)
        assert journal.results(7) == {}
        assert path.name in caplog.text
        caplog.clear()
    path.write_bytes(data)
    assert journal.results(7) == {DIGEST: b"somecells"}


def test_results_stay_until_every_checkpoint_has_them_and_half_written_ones_go(tmp_path, opened):
    journal = opened(tmp_path)
    for index in range(3, 8):
        journal.keep_result(index, DIGEST, [b"cell"])
    journal.saved_up_to(6)
    journal.close()
    (tmp_path / "results" / ".writing-round-000008-00.bin").write_bytes(b"half")
    journal = opened(tmp_path)
    assert [bool(journal.results(index)) for index in range(3, 8)] == [False] * 2 + [True] * 3
    assert not list((tmp_path / "results").glob(".writing-*"))
