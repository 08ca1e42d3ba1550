"""R12, at every single file operation: the power goes, the process is killed, or the disk fails.

A journal's history is cut before each operation and in the midst of each write. Of what was not
synced by then several subsets survive, whole or torn. Whatever is left, the journal opens, tells
all that it had promised, and what it tells is durable.
"""

import copy
import errno
import itertools
import random
from contextlib import suppress
from functools import cache

import pytest

from node.holdings import journal as journal_records
from node.holdings.journal import SLOTS_FILE
from protocol.messages import decode_message
from protocol.wire import decode
from sim.world.files import Fate, SimFiles
from tests.node.journal_history import (
    FOLDER,
    ME,
    OTHER,
    Extend,
    Forgive,
    Keep,
    Operations,
    PowerCut,
    Promise,
    Record,
    Restart,
    Saved,
    Step,
    check_disk,
    fates_of,
    message,
    opened,
    run,
    seals,
    tell,
)
from training.files.durable import WRITING

# Histories --------------------------------------------------------------------------------------


HISTORY: tuple[Step, ...] = (
    Record((message(1),)),
    Keep(1, b"one"),
    Record((message(1, 1), message(1, 0, OTHER), message(1, 1, OTHER))),
    Extend((*seals(1, 1),)),
    Record((message(2),)),
    Keep(2, b"two" * 400),
    Restart(),
    Record((message(2, 1), message(2, 0, OTHER))),
    Extend((*seals(2, 3),)),
    Keep(3, b"three"),
    Saved(3),
    Record((message(4),)),
    Record((message(4, 0, OTHER), message(4, 1))),
    Extend((*seals(4, 4),)),
    Extend((*seals(3, 5, branch=1),)),
    Record((message(6),)),
    Restart(),
    Record((message(6, 1),)),
    Record((message(6, 2), message(6, 2, OTHER))),
    Record((message(7),)),
    Saved(5),
    Keep(5, b"five"),
    Extend((*seals(6, 6, branch=1),)),
)

LOST_HISTORY: tuple[Step, ...] = (
    Record((message(3),)),
    Restart(),
    Forgive(),
    Record((message(4),)),
    Extend((*seals(1, 3),)),
    Restart(),
    Record((message(4, 1),)),
)
"""Of a journal that was wiped."""


def random_history(rng: random.Random, length: int) -> tuple[Step, ...]:
    """Calls in an order in which a node may make them, more or less."""
    steps: list[Step] = []
    height, saved, attempts = 0, 0, itertools.count()
    for _ in range(length):
        kind = rng.choice(("record", "record", "record", "extend", "extend", "keep", "other"))
        if kind == "record":
            peers = [ME, *rng.choices((ME, OTHER), k=rng.choice((0, 0, 0, 3)))]
            steps.append(Record(tuple(message(height + 1, next(attempts), p) for p in peers)))
        elif kind == "extend":
            first = rng.randint(max(1, height - 2), height) if height and rng.random() < 0.2 else 0
            first, branch = (first, rng.randrange(1, 99)) if first else (height + 1, 0)
            height = max(first, height) + rng.choice((0, 0, 2))
            steps.append(Extend(tuple(seals(first, height, branch))))
        elif kind == "keep":
            body = rng.randbytes(rng.choice((3, 40, 900, 3000)))
            steps.append(Keep(rng.randint(max(saved - 1, 0), height + 1), body))
        elif rng.random() < 0.5:
            saved = max(saved, height)
            steps.append(Saved(saved))
        else:
            steps.append(Restart())
    return tuple(steps)


HISTORIES = {"history": (HISTORY, False), "wiped": (LOST_HISTORY, True)}


decode_once = cache(decode)
decode_message_once = cache(decode_message)


@pytest.fixture(autouse=True)
def _decoded_once(monkeypatch):
    """The same records are read many thousand times, and what they decode to is not asked here."""
    monkeypatch.setattr(journal_records, "decode", decode_once)
    monkeypatch.setattr(journal_records, "decode_message", decode_message_once)


def machine(operations: Operations | None = None, seed: object = 0) -> SimFiles:
    return SimFiles(random.Random(f"{seed}/files"), before=operations)


def operations_of(history: tuple[Step, ...], *, is_wiped: bool = False) -> Operations:
    operations = Operations()
    run(machine(operations), history, is_wiped=is_wiped)
    return operations


def copies(files: SimFiles, promise: Promise) -> tuple[SimFiles, Promise]:
    """To crash more than once in different ways."""
    stream = files.stream
    return copy.deepcopy(files, {id(stream): stream}), promise.copy()


def check_every_end(files: SimFiles, promise: Promise, rng: random.Random, draws: int) -> None:
    """The process alone is gone; or the machine, with any of these parts of what is unsynced."""
    files.before = None
    for fates in (None, *fates_of(files.num_unsynced, rng, draws)):
        disk, promised = copies(files, promise)
        if fates is not None:
            disk.power_off(fates)
        try:
            check_disk(disk, promised)
        except AssertionError as error:
            error.add_note(f"with {fates or 'a killed process'}")
            raise


def check_every_crash(
    history: tuple[Step, ...], *, is_wiped: bool, seed: object, draws: int
) -> int:
    rng = random.Random(f"{seed}/fates")
    seen = operations_of(history, is_wiped=is_wiped).seen
    for stop, (operation, path) in enumerate(seen):
        for how in ("cut", "torn") if operation == "write" else ("cut",):
            files = machine(Operations(stop, how), seed)
            promise = run(files, history, is_wiped=is_wiped)
            try:
                check_every_end(files, promise, rng, draws)
            except AssertionError as error:
                error.add_note(f"{how} at operation {stop}: {operation} {path.name}, seed {seed}")
                raise
    return len(seen)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", HISTORIES)
def test_power_may_go_at_every_operation(name):
    history, is_wiped = HISTORIES[name]
    count = check_every_crash(history, is_wiped=is_wiped, seed=0, draws=4)
    assert count > 30


@pytest.mark.extended
def test_power_may_go_again_while_the_next_process_opens_its_journal():
    """After every third operation of the first, and at every one of the second."""
    rng = random.Random("again")
    for stop in range(0, len(operations_of(HISTORY).seen), 3):
        files = machine(Operations(stop))
        promise = run(files, HISTORY)
        files.before = None
        files.power_off(rng.choices(list(Fate), k=files.num_unsynced))
        opening = operations_of_opening(files, promise)
        for again in range(len(opening.seen)):
            disk, promised = copies(files, promise)
            disk.before = Operations(again, "torn")
            assert open_once(disk, promised).is_off
            check_every_end(disk, promised, rng, 1)


def operations_of_opening(files: SimFiles, promise: Promise) -> Operations:
    disk, promised = copies(files, promise)
    disk.before = Operations()
    return open_once(disk, promised)


def open_once(files: SimFiles, promise: Promise) -> Operations:
    operations = files.before
    assert isinstance(operations, Operations)
    with suppress(PowerCut):
        opened(files, is_wiped=promise.is_wiped)
    return operations


@pytest.mark.quick(1)
@pytest.mark.parametrize("goes_on", [False, True], ids=["ends", "goes on"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
@pytest.mark.parametrize("name", HISTORIES)
def test_every_operation_may_fail(name, code, goes_on):
    """A sync that fails has lost what it was for, and the next one succeeds without it."""
    history, is_wiped = HISTORIES[name]
    rng = random.Random(f"{name}/{code}")
    for stop, (operation, path) in enumerate(operations_of(history, is_wiped=is_wiped).seen):
        files = machine(Operations(stop, code))
        promise = run(files, history, goes_on=goes_on, is_wiped=is_wiped)
        try:
            check_every_end(files, promise, rng, 1)
        except AssertionError as error:
            error.add_note(f"{operation} {path.name} fails, operation {stop}")
            raise


@pytest.mark.extended
def test_process_may_be_killed_after_any_operation_that_failed():
    """Before it has cleared away what is left of it, for instance; then the power goes."""
    rng = random.Random("killed")
    for stop, (operation, path) in enumerate(operations_of(HISTORY).seen):
        files = machine(Operations(stop, errno.EIO, ends_after=1))
        promise = run(files, HISTORY)
        try:
            check_every_end(files, promise, rng, 1)
        except AssertionError as error:
            error.add_note(f"{operation} {path.name} fails, operation {stop}")
            raise


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(8))
def test_power_may_go_at_every_operation_of_any_history(seed):
    history = random_history(random.Random(f"{seed}/history"), 12)
    check_every_crash(history, is_wiped=False, seed=seed, draws=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 150))
def test_power_may_go_at_every_operation_of_long_histories(seed):
    history = random_history(random.Random(f"{seed}/history"), 40)
    check_every_crash(history, is_wiped=seed % 5 == 0, seed=seed, draws=4)


# Damage -----------------------------------------------------------------------------------------

SLOTS = FOLDER / SLOTS_FILE


def test_damage_is_known_to_be_a_loss_wherever_the_first_start_behind_it_ends():
    """It mends the file, so that the second start finds a whole one."""
    rng = random.Random("mended")
    files = machine()
    promise = run(files, HISTORY)
    files.flip(SLOTS, 300)
    promise.losses = {True}
    opening = operations_of_opening(files, promise)
    for stop in range(len(opening.seen)):
        disk, promised = copies(files, promise)
        disk.before = Operations(stop, "torn")
        assert open_once(disk, promised).is_off
        check_every_end_of_damaged(disk, rng)


def check_every_end_of_damaged(files: SimFiles, rng: random.Random) -> None:
    files.before = None
    for fates in (None, *fates_of(files.num_unsynced, rng, 4)):
        disk, _ = copies(files, Promise())
        if fates is not None:
            disk.power_off(fates)
        assert opened(disk).is_lost, fates


def test_flipped_bit_anywhere_is_a_loss_or_takes_no_signature_along():
    """But for the last append: nobody can tell it from one that never returned."""
    files = machine()
    promise = run(files, HISTORY)
    promise.losses = {False, True}
    last = len(opened(files)._slots.read(0)[-1]) + 12
    count = 8 * (len(files.content(SLOTS)) - last)
    losses = 0
    for bit in random.Random("bits").sample(range(count), 300):
        disk, promised = copies(files, promise)
        disk.flip(SLOTS, bit)
        told = tell(opened(disk))
        promised.check(told)
        losses += told.is_lost
    assert losses == 300, "each record is under its digest"


# What these tests see ---------------------------------------------------------------------------


class NoFolderSync(SimFiles):
    """A journal that forgets to make names durable."""

    def sync_folder(self, folder):
        self.begin("sync folder", folder)


class NoFileSync(SimFiles):
    """A journal that forgets to make bytes durable."""

    def append(self, path):
        return Unsynced(super().append(path))

    def create(self, path):
        return Unsynced(super().create(path))


class Unsynced:
    def __init__(self, file):
        self.write, self.put = file.write, file.put
        self.truncate, self.close = file.truncate, file.close

    def sync(self):
        pass


class NoRename(SimFiles):
    """A journal that writes over the file that it replaces."""

    def create(self, path):
        return super().create(path.with_name(path.name.removeprefix(WRITING)))

    def rename(self, path, to):
        pass


@pytest.mark.parametrize("files_type", [NoFolderSync, NoFileSync, NoRename])
def test_journal_that_were_written_otherwise_would_be_caught(monkeypatch, files_type):
    monkeypatch.setitem(globals(), "SimFiles", files_type)
    with pytest.raises((AssertionError, OSError)):
        check_every_crash(HISTORY, is_wiped=False, seed=0, draws=2)
