"""What a node keeps of who did the work: bounded, crash-safe, and rebuilt from where it can."""

import copy
import errno
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from node.holdings.journal import RECEIPTS_FILE, ReceiptLog
from node.holdings.record_log import RECORD_BYTES_MAX
from node.using.ledger import ExportHead, export_ledger, ledger_of
from protocol.errors import LedgerError
from protocol.messages import Commit, SealCertificate, decode_body
from protocol.rounds.chain import genesis
from protocol.wire import decode, encode
from sim.checks.accounting import check_receipts
from sim.world.files import SimFiles
from tests.node.journal_history import Operations, PowerCut, fates_of
from tests.node.ledger_run import (
    FOUNDER,
    ROUNDS,
    chain_of,
    home,
    manifest,
    peer,
    played,
    records_of,
    reopened,
    split,
    state_of,
    tidied,
    verified,
    with_head,
    write_records,
)
from training.files.durable import make_folder_durably


@pytest.fixture
def founder(tmp_path):
    return state_of(FOUNDER, tmp_path)


# What is kept -----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"era_rounds": 2}, {"bytes_max": 3000}], ids=str)
def test_folded_rounds_keep_their_credits_and_lose_their_proofs(founder, tmp_path, options):
    whole = ledger_of(founder).statement()
    size = (home(founder) / RECEIPTS_FILE).stat().st_size
    tidied(founder, **options)
    folded = ledger_of(founder).statement()
    assert 0 < folded.folded < folded.round
    assert replace(folded, folded=0) == whole
    assert (home(founder) / RECEIPTS_FILE).stat().st_size < size
    export_ledger(founder, tmp_path / "folded")
    assert verified(tmp_path / "folded") == folded
    # Once more, from what is left of it.
    tidied(founder, era_rounds=1)
    assert replace(ledger_of(founder).statement(), folded=0) == whole


def test_era_boundaries_keep_the_last_two_eras(founder):
    tidied(founder, era_rounds=3)
    statement = ledger_of(founder).statement()
    assert statement.folded == (statement.round // 3 - 1) * 3 - 1


def test_rounds_whose_seals_cannot_be_read_are_not_folded(founder):
    path, chain = home(founder) / RECEIPTS_FILE, chain_of(founder)
    before = path.read_bytes()
    log = reopened(founder, era_rounds=2)
    log.begin(genesis(manifest(), 0, ledger_of(founder).folded.genesis_root).value, ())
    # The disk damaged the first, or the second one.
    log.tidy(len(chain), lambda first, count: [])
    log.tidy(len(chain), lambda first, count: chain[first - 1 : 1])
    log.close()
    assert path.read_bytes() == before


def test_folded_credits_are_never_more_than_was_sealed_and_of_this_chain(founder, tmp_path):
    tidied(founder, era_rounds=2)
    export_ledger(founder, tmp_path / "folded")
    data = (tmp_path / "folded").read_bytes()
    head = decode(ExportHead, records_of(tmp_path / "folded")[0], max_bytes=RECORD_BYTES_MAX)
    first, *rest = head.folded.credits
    for changes, reason in (
        ({"credits": (replace(first, tokens=first.tokens + 1), *rest)}, "more than its tokens"),
        ({"credits": (*rest, first)}, "order of peers"),
        ({"seal": bytes(32)}, "another chain"),
    ):
        (tmp_path / "folded").write_bytes(data)
        with_head(tmp_path / "folded", **changes)
        with pytest.raises(LedgerError, match=reason) as error:
            verified(tmp_path / "folded")
        assert error.value.round == head.folded.round


@pytest.mark.parametrize(
    "damage", ["missing", "torn", "garbage", "garbage behind", "other run", "flipped"]
)
def test_lost_receipts_come_back_as_far_as_messages_are_at_hand(founder, damage):
    path = home(founder) / RECEIPTS_FILE
    records, data = records_of(path), path.read_bytes()
    folded, commits = split(records)
    last = [message for message in commits if message.slot.round > len(chain_of(founder)) - 2]
    if damage == "missing":
        path.unlink()
    elif damage == "torn":
        path.write_bytes(data[:-5])
    elif damage == "garbage":
        write_records(path, [b"x", *records[1:]])
    elif damage == "garbage behind":
        write_records(path, [records[0], b"x", *records[1:]])
    elif damage == "other run":
        write_records(path, [encode(replace(folded, run=bytes(32))), *records[1:]])
    else:
        spoiled = bytearray(data)
        spoiled[len(data) // 3] ^= 1
        path.write_bytes(bytes(spoiled))
    log = reopened(founder)
    log.begin(genesis(manifest(), 0, folded.genesis_root).value, last)
    kept = split(records_of(path))
    assert kept[0] == folded
    assert {message.digest for message in last} <= {message.digest for message in kept[1]}
    log.keep(last)  # Once each, however often.
    log.close()
    kept = split(records_of(path))
    assert len(kept[1]) == len({message.digest for message in kept[1]})
    source = ledger_of(founder)
    rounds = {message.slot.round for message in last}
    assert not list(check_receipts(manifest(), folded, source.rounds(), own=rounds))


# Crashes ----------------------------------------------------------------------------------------

FOLDER = Path("/run")


def machine(before: Operations | None = None) -> SimFiles:
    files = SimFiles(random.Random(0))
    make_folder_durably(FOLDER, files)
    files.before = before
    return files


class Life:
    """What one node's ledger is given, and the rounds whose receipts it has promised to keep."""

    def __init__(self) -> None:
        journal = played().nodes[peer(FOUNDER)].disk.journal
        folded, commits = journal.read_receipts()
        assert folded is not None
        self.start = genesis(manifest(), 0, folded.genesis_root).value
        self.chain = list(journal.read_chain(1, ROUNDS))
        self.commits = {
            link.value.round: [m for m in commits if m.digest in link.value.commits]
            for link in self.chain
        }
        self.promised = 0

    def page(self, first: int, count: int) -> list[SealCertificate]:
        return self.chain[first - 1 : first - 1 + count]

    def log(self, files: SimFiles, *, era_rounds: int = 2) -> ReceiptLog:
        log = ReceiptLog(FOLDER / RECEIPTS_FILE, era_rounds=era_rounds, files=files)
        log.begin(self.start, ())
        return log

    def live(self, files: SimFiles) -> None:
        """All rounds, with a restart among them; a round whose `keep` returned is promised."""
        self.promised = 0
        log = self.log(files)
        for index in range(1, ROUNDS + 1):
            log.keep(self.commits[index])
            self.promised = index
            log.tidy(index, self.page)
            if index == ROUNDS // 2:
                log = self.log(files)

    def sums(self, through: int) -> dict[bytes, int]:
        """The tokens of each peer up to a round."""
        found: dict[bytes, int] = {}
        for index in range(1, through + 1):
            for message in self.commits[index]:
                body = decode_body(message)
                assert isinstance(body, Commit)
                found[message.sender] = found.get(message.sender, 0) + body.tokens
        return found

    def check(self, files: SimFiles) -> None:
        """Nothing that was promised is gone, and what is folded is what it was."""
        folded, commits = self.log(files).read()
        assert folded is not None
        here = {message.digest for message in commits}
        whole = {n for n, of in self.commits.items() if here.issuperset(m.digest for m in of)}
        assert set(range(folded.round + 1, self.promised + 1)) <= whole
        assert {entry.peer: entry.tokens for entry in folded.credits} == self.sums(folded.round)


def test_life_without_a_crash_folds_more_than_once():
    life, operations = Life(), Operations()
    life.live(machine(operations))
    assert sum(name == "rename" for name, _ in operations.seen) > 1


@pytest.mark.parametrize("how", ["cut", "torn", errno.EIO, errno.ENOSPC], ids=str)
def test_no_operation_at_which_the_power_goes_or_the_disk_fails_loses_a_receipt(how, seed):
    life, operations = Life(), Operations()
    life.live(machine(operations))
    rng = random.Random(f"{seed}/receipts")
    for stop in range(len(operations.seen)):
        files = machine(Operations(stop=stop, how=how))
        with suppress(PowerCut, OSError):
            life.live(files)
        files.before = None
        for fates in fates_of(files.num_unsynced, rng, 3):
            left = copy.deepcopy(files, {id(files.stream): files.stream})
            left.power_off(fates)
            life.check(left)
            life.check(left)
