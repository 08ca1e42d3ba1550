"""The state on disk: what a crash leaves, and what damage costs."""

import random
import shutil
import sqlite3

import pytest

from protocol import limits
from protocol.entries import Entry, decode_entry
from protocol.entry_kinds import EntryKind
from protocol.errors import StateError
from protocol.shared_state.book import Changes, SharedState
from protocol.shared_state.store import DAMAGED, DATABASE, MARK, Store
from protocol.wire import encode
from tests.node.shared_state.scene import (
    RUN,
    WALL_S,
    all_ids,
    digest,
    key_of,
    make_entry,
    signer,
)
from tests.protocol.entry_vectors import BODIES

ME = signer(9)
WAL = DATABASE + "-wal"


STORES: list[Store] = []


@pytest.fixture(autouse=True)
def closed():
    yield
    while STORES:
        STORES.pop().close()


def new_store(folder, run=RUN):
    STORES.append(Store(folder, run))
    return STORES[-1]


def opened(folder, *, wall_s=WALL_S):
    store = new_store(folder)
    book = SharedState(RUN, ME, floor=store.floor, must_ask=store.must_ask)
    book.restore(store.take_rows(), wall_s=wall_s)
    return store, book


def write(store, book, kind=EntryKind.NOTE, number=1, *, wall_s=WALL_S):
    written = book.write(kind, key_of(kind, number), BODIES[kind], wall_s=wall_s)
    store.write_own([written])
    assert book.release(written, wall_s=wall_s).is_new
    return written


def fill(store, book, count=6):
    """Own entries and others', as they come in turn; what of the own ones others have seen."""
    seen = []
    for number in range(count):
        seen.append(write(store, book, EntryKind.DATA, number))
        other = make_entry(signer(20 + number), EntryKind.PRESENCE)
        book.offer(encode(other), wall_s=WALL_S, now_s=0.0)
        if number % 2:
            store.apply(book.take_changes())
    return seen


def test_state_is_there_again(tmp_path):
    store, book = opened(tmp_path)
    assert not store.must_ask
    fill(store, book)
    store.apply(book.take_changes())
    ids = all_ids(book)
    store.close()
    again, book = opened(tmp_path)
    assert (again.must_ask, again.was_damaged) == (False, False)
    assert all_ids(book) == ids
    assert len(ids) == 12
    assert book.take_changes() == Changes(stored=(), dropped=())
    book.expire(WALL_S + 20 * 60)
    again.apply(book.take_changes())
    again.close()
    _, book = opened(tmp_path)
    assert len(book) == 6


def test_crash_at_any_moment_keeps_every_own_entry(tmp_path):
    """What is on the disk after each write is copied as a crash would leave it."""
    source = tmp_path / "source"
    source.mkdir()
    store, book = opened(source)
    seen = []
    for number in range(5):
        seen.append(write(store, book, EntryKind.DATA, number))
        copied = tmp_path / f"copy{number}"
        shutil.copytree(source, copied)
        after, restarted = opened(copied)
        assert not after.must_ask
        assert {one.entry_id for one in seen} <= set(all_ids(restarted))
        # The wall clock has gone back by a day: numbers ascend all the same.
        written = write(after, restarted, EntryKind.DATA, 77, wall_s=WALL_S - 86_400)
        assert written.sequence > max(one.sequence for one in seen)
        after.close()


def test_numbers_ascend_after_the_entries_themselves_have_ended(tmp_path):
    store, book = opened(tmp_path)
    last = fill(store, book)[-1]
    book.expire(WALL_S + 86_400)
    store.apply(book.take_changes())
    store.close()
    store, book = opened(tmp_path, wall_s=WALL_S - 1000)
    assert len(book) == 0
    assert not store.must_ask
    assert write(store, book, EntryKind.DATA, wall_s=WALL_S - 1000).sequence > last.sequence


def damage_log(folder, rng):
    data = (folder / WAL).read_bytes()
    (folder / WAL).write_bytes(data[: rng.randrange(len(data) // 2)])


def drop_log(folder, rng):
    (folder / WAL).unlink()


def flip(folder, rng):
    data = bytearray((folder / DATABASE).read_bytes())
    for _ in range(20):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    (folder / DATABASE).write_bytes(data)


def truncate(folder, rng):
    data = (folder / DATABASE).read_bytes()
    (folder / DATABASE).write_bytes(data[: rng.randrange(len(data))])
    (folder / WAL).unlink(missing_ok=True)


def noise(folder, rng):
    (folder / DATABASE).write_bytes(rng.randbytes(40_000))


def drop_database(folder, rng):
    (folder / DATABASE).unlink()


def tear_mark(folder, rng):
    (folder / MARK).write_bytes(b"\x00" * rng.randrange(60))


OF_FILES = [flip, truncate, noise, drop_database, tear_mark]
DAMAGES = [*((harm, True) for harm in OF_FILES)]
DAMAGES += [(harm, False) for harm in [*OF_FILES, damage_log, drop_log]]


@pytest.mark.quick(14)
@pytest.mark.parametrize(("harm", "is_closed"), DAMAGES)
@pytest.mark.parametrize("seed", range(4))
def test_after_any_damage_no_number_is_used_twice(tmp_path, harm, seed, is_closed):
    rng = random.Random(f"{harm.__name__}/{seed}")
    source, copied = tmp_path / "source", tmp_path / "copied"
    source.mkdir()
    store, book = opened(source)
    seen = fill(store, book)
    if is_closed:
        # Everything is in the database then, and there is no log.
        store.close()
    shutil.copytree(source, copied)
    store.close()
    harm(copied, rng)
    store, book = opened(copied, wall_s=WALL_S - 1000)
    kept = {one.entry_id for one in seen} & set(all_ids(book))
    assert store.must_ask or len(kept) == len(seen), "own entries are gone, and nobody asks"
    if store.must_ask:
        with pytest.raises(StateError, match="until others"):
            write(store, book)
        store.close()
        store, book = opened(copied, wall_s=WALL_S - 1000)
        assert store.must_ask, "forgotten over a restart"
        for one in seen:
            book.offer(one.encoded, wall_s=WALL_S, now_s=0.0)
        store.asked()
        book.asked()
    written = write(store, book, wall_s=WALL_S - 1000)
    assert written.stamp > max(one.stamp for one in seen)
    witness = SharedState(RUN, signer(1))
    for one in (*seen, written):
        witness.offer(one.encoded, wall_s=WALL_S, now_s=0.0)
    assert witness.evidence == ()
    store.close()
    assert not new_store(copied).must_ask


def test_mark_alone_leads_to_higher_numbers_where_nobody_knows_anything(tmp_path):
    store, book = opened(tmp_path)
    last = fill(store, book)[-1]
    store.close()
    (tmp_path / DATABASE).unlink()
    store, book = opened(tmp_path, wall_s=WALL_S - 1000)
    assert store.must_ask
    store.asked()
    book.asked()
    assert write(store, book, EntryKind.DATA, wall_s=WALL_S - 1000).sequence > last.sequence


def test_damaged_database_is_set_aside_with_a_warning(tmp_path, caplog):
    store, book = opened(tmp_path)
    fill(store, book)
    store.close()
    noise(tmp_path, random.Random(1))
    again, book = opened(tmp_path)
    assert again.was_damaged
    assert len(book) == 0
    assert (tmp_path / (DATABASE + DAMAGED)).stat().st_size == 40_000
    assert "set aside" in caplog.text
    assert "others have what is needed" in caplog.text


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET encoded = zeroblob(10) WHERE id = (SELECT id FROM entries LIMIT 1)",
        "UPDATE entries SET encoded = 'text' WHERE id = (SELECT id FROM entries LIMIT 1)",
        "UPDATE facts SET value = zeroblob(8) WHERE name = 'stamp'",
        "UPDATE facts SET value = NULL WHERE name = 'run'",
        "DELETE FROM facts",
        "DROP TABLE entries",
        "PRAGMA user_version = 7",
    ],
)
def test_row_that_is_not_what_was_written_is_damage(tmp_path, statement):
    store, book = opened(tmp_path)
    fill(store, book)
    store.close()
    with sqlite3.connect(tmp_path / DATABASE, isolation_level=None) as database:
        if "NULL" in statement:
            database.execute("DROP TABLE facts")
            database.execute("CREATE TABLE facts (name TEXT, value, sum)")
            database.execute("INSERT INTO facts VALUES ('run', NULL, NULL)")
        else:
            database.execute(statement)
    database.close()
    again, _ = opened(tmp_path)
    assert again.was_damaged
    assert again.must_ask


def test_state_of_another_run_is_set_aside(tmp_path):
    store, book = opened(tmp_path)
    fill(store, book)
    store.close()
    other = new_store(tmp_path, digest(1))
    assert other.was_damaged
    assert other.take_rows() == []


def test_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    opened(tmp_path)[0].close()
    monkeypatch.setattr(limits, "STATE_FILE_BYTES_MAX", 100)
    assert new_store(tmp_path).was_damaged


def test_full_disk_is_a_state_error_and_nothing_is_released(tmp_path):
    store, book = opened(tmp_path)
    store._database.execute("PRAGMA max_page_count = 8")
    seen = [write(store, book)]

    def fill_up():
        while len(seen) < 200:
            seen.append(write(store, book, EntryKind.DATA, len(seen) % 40))

    with pytest.raises(StateError, match="cannot write"):
        fill_up()
    assert len(seen) > 3
    store.close()
    again, restarted = opened(tmp_path)
    assert not again.was_damaged
    assert seen[-1].entry_id in all_ids(restarted)
    assert write(again, restarted, EntryKind.DATA, 5).sequence > seen[-1].sequence


def test_folder_that_is_missing_is_an_error_of_the_disk(tmp_path):
    with pytest.raises(OSError, match="unable to open") as raised:
        new_store(tmp_path / "nowhere")
    assert raised.value.filename == str(tmp_path / "nowhere" / DATABASE)


@pytest.mark.parametrize("name", [MARK, DATABASE])
def test_file_that_is_a_folder_is_an_error_of_the_disk(name, tmp_path):
    # A user can mend it, and is told how: `node.processes.exit_codes.user_error`.
    (tmp_path / name).mkdir()
    with pytest.raises(OSError, match=r"directory|denied|open") as raised:
        new_store(tmp_path)
    assert raised.value.filename == str(tmp_path / name)


def test_mark_that_cannot_be_written_is_a_state_error_and_nothing_is_released(tmp_path):
    store, book = opened(tmp_path)
    (tmp_path / MARK).unlink()
    (tmp_path / MARK).mkdir()
    with pytest.raises(StateError, match="cannot write"):
        write(store, book)


def test_database_stays_bounded_while_entries_come_and_go(tmp_path):
    store, book = opened(tmp_path)
    chain: dict[int, Entry] = {}
    sizes = []
    for _ in range(30):
        for number in range(40):
            who = signer(100 + number)
            chain[number] = make_entry(who, EntryKind.PRESENCE, after=chain.get(number))
            assert book.offer(encode(chain[number]), wall_s=WALL_S, now_s=0.0).is_new
        store.apply(book.take_changes())
        sizes.append((tmp_path / DATABASE).stat().st_size + (tmp_path / WAL).stat().st_size)
    assert sizes[-1] < 10 * limits.MIB
    store.close()
    assert (tmp_path / DATABASE).stat().st_size < 200 * limits.KIB
    again, restarted = opened(tmp_path)
    assert len(restarted) == 40
    assert decode_entry(restarted.get(chain[3].entry_id) or b"", RUN) == chain[3]
    again.close()
