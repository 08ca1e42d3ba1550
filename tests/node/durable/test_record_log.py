"""A log of records: what a crash, a full disk and rotten bits leave of it."""

import errno

import pytest

from node.holdings.record_log import RecordLog, read_records
from tests.training.full_disk import files_of_at_most
from training.files.durable import WRITING, SystemFile, SystemFiles

WHOLE = [b"first", b"second", b"third"]
HEADER_BYTES = 12


@pytest.fixture
def records(tmp_path):
    """A log of three appends."""
    path = tmp_path / "records.log"
    log = RecordLog(path)
    for record in WHOLE:
        log.append([record])
    log.close()
    return path


@pytest.fixture
def batch(tmp_path):
    """A log of one append, and of three records in another."""
    path = tmp_path / "batch.log"
    log = RecordLog(path)
    log.append([b"before"])
    log.append(WHOLE)
    log.close()
    return path


def start_of(data: bytes, record: bytes) -> int:
    return data.index(record) - HEADER_BYTES


def test_log_cut_anywhere_keeps_its_whole_records_and_takes_new_ones(records):
    data = records.read_bytes()
    ends = [len(data[: data.index(record) + len(record)]) for record in WHOLE]
    for length in range(len(data)):
        records.write_bytes(data[:length])
        kept = [record for record, end in zip(WHOLE, ends, strict=True) if end <= length]
        assert read_records(records)[0] == kept
        log = RecordLog(records)
        assert not log.is_damaged, "a torn tail is no damage"
        log.append([b"behind"])
        log.close()
        assert read_records(records)[0] == [*kept, b"behind"]


def test_any_flipped_bit_loses_its_record_and_shows_as_damage_unless_it_is_the_last(records):
    data = records.read_bytes()
    last = start_of(data, b"third")
    for bit in range(8 * len(data)):
        spoiled = bytearray(data)
        spoiled[bit // 8] ^= 1 << bit % 8
        records.write_bytes(spoiled)
        found, _, is_damaged = read_records(records)
        assert found == [record for record in WHOLE if data.index(record) + len(record) <= bit // 8]
        assert is_damaged == (bit // 8 < last), f"bit {bit}"


def test_damage_in_records_that_were_kept_together_shows_as_damage(batch):
    """A crash tears no file that was replaced as a whole."""
    log = RecordLog(batch)
    log.replace(WHOLE)
    log.close()
    data = batch.read_bytes()
    for position in range(start_of(data, b"third")):
        batch.write_bytes(data[:position] + bytes([data[position] ^ 0x80]) + data[position + 1 :])
        assert read_records(batch)[2], f"byte {position}"


def test_append_of_several_records_that_was_torn_out_of_order_is_no_damage(batch):
    data = batch.read_bytes()
    for record in WHOLE[:2]:
        hole = data.index(record)
        batch.write_bytes(data[:hole] + bytes(len(record)) + data[hole + len(record) :])
        found, _, is_damaged = read_records(batch)
        assert found == [b"before", *WHOLE[: WHOLE.index(record)]]
        assert not is_damaged


def test_damage_in_an_append_of_several_records_shows_once_another_follows(batch):
    log = RecordLog(batch)
    log.append([b"behind"])
    log.close()
    data = batch.read_bytes()
    for position in range(start_of(data, b"behind")):
        batch.write_bytes(data[:position] + bytes([data[position] ^ 0x80]) + data[position + 1 :])
        assert read_records(batch)[2], f"byte {position}"


def test_append_that_fails_leaves_nothing_behind(records):
    log = RecordLog(records)
    size = records.stat().st_size
    with files_of_at_most(size + 20), pytest.raises(OSError, match="large"):
        log.append([b"fits", bytes(4096)])
    assert records.stat().st_size == size == log.size_bytes
    log.append([b"behind"])
    log.close()
    assert read_records(records)[0] == [*WHOLE, b"behind"]


class StuckFile(SystemFile):
    """A disk that takes a part of what is written, and gives nothing back."""

    def write(self, data):
        """See OpenFile."""
        super().write(bytes(data)[:10])
        raise OSError(errno.EIO, "Input/output error")

    def truncate(self, size):
        """See OpenFile."""
        raise OSError(errno.EIO, "Input/output error")


class StuckFiles(SystemFiles):
    """Its files are stuck."""

    def append(self, path):
        """See Files."""
        return StuckFile(path, "ab")


def test_append_whose_rest_cannot_be_cut_off_is_the_last(records):
    log = RecordLog(records, files=StuckFiles())
    with pytest.raises(OSError, match="Input/output"):
        log.append([b"torn"])
    for _ in range(2):
        with pytest.raises(OSError, match="start again"):
            log.append([b"would be lost behind it"])
    log.close()
    assert read_records(records)[0] == WHOLE


def test_unfinished_file_of_a_process_that_was_killed_is_gone_at_the_next_start(records):
    unfinished = records.with_name(WRITING + records.name)
    unfinished.write_bytes(b"half")
    RecordLog(records).close()
    assert not unfinished.exists()


def test_replace_that_fails_leaves_the_old_records_to_the_next_process(records):
    log = RecordLog(records)
    with files_of_at_most(20), pytest.raises(OSError, match="large"):
        log.replace([bytes(4096)])
    for call in (log.append, log.replace):
        with pytest.raises(OSError, match="start again"):
            call([b"behind"])
    with pytest.raises(OSError, match="start again"):
        log.read(0)
    log.close()
    assert read_records(records)[0] == WHOLE
    assert [path.name for path in records.parent.iterdir()] == [records.name]


def test_records_are_read_by_number_and_not_behind_a_bad_one(records):
    log = RecordLog(records)
    assert (log.read(0), log.read(1, 1), log.read(2), log.read(3)) == (
        WHOLE,
        WHOLE[1:2],
        WHOLE[2:],
        [],
    )
    data = bytearray(records.read_bytes())
    data[data.index(b"second")] ^= 1
    records.write_bytes(data)
    assert (log.read(0), log.read(1), log.read(2)) == (WHOLE[:1], [], WHOLE[2:])
    assert len(log) == 3
    log.close()
