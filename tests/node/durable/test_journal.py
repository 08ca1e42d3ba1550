"""R12: what must survive is on disk before it is needed, and no crash or bad byte passes for it."""

import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest

from node.holdings.journal import BRANCH_FILE, CHAIN_FILE, SLOTS_FILE, FileJournal
from node.holdings.record_log import RecordLog
from protocol import limits
from protocol.messages import SealCertificate
from tests.node.builders import Voice, head_of, peers_named

A, B, C = peers_named(3)
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


# Signatures -------------------------------------------------------------------------------------


def test_messages_come_back_in_order_over_several_starts_and_once_each(tmp_path, opened):
    for start in range(0, 5, 2):
        written(tmp_path, MESSAGES[max(0, start - 1) : start + 2])
    assert list(opened(tmp_path).messages()) == MESSAGES


def test_messages_outlive_a_kill_right_after_they_were_recorded(tmp_path, opened):
    code = f"""
import os, signal, sys
from pathlib import Path
from node.holdings.journal import FileJournal
from tests.node.durable.test_journal import MESSAGES, chain_of
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
        journal.extend_chain(chain_of(HEAD.value.round + rounds)[0 if rounds == 0 else -1 :])
        later = Voice(A, replace(HEAD.value, round=HEAD.value.round + rounds))
        journal.record([later.vote([]).message])
        sizes.append((tmp_path / SLOTS_FILE).stat().st_size)
    assert max(sizes[5:]) <= 5 * sizes[0]
    kept = [message.slot.round for message in opened(tmp_path).messages()]
    assert kept[-2:] == [23, 24]


def test_damage_among_the_signatures_is_a_loss_until_it_is_forgiven(tmp_path, opened):
    written(tmp_path, MESSAGES[:4])
    written(tmp_path, MESSAGES[4:])
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


def test_damage_that_is_found_while_the_log_is_cut_is_a_loss_at_the_next_start(tmp_path, opened):
    journal = opened(tmp_path, rotate_bytes=1)
    for message in MESSAGES[:3]:
        journal.record([message])
    path = tmp_path / SLOTS_FILE
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    journal.record([MESSAGES[3]])  # Cuts the log.
    journal.close()
    assert opened(tmp_path).is_lost


def test_chain_without_signatures_is_a_loss_and_a_first_start_is_none(tmp_path, opened):
    journal = opened(tmp_path)
    assert not journal.is_lost
    journal.extend_chain(chain_of(1))
    journal.close()
    assert not opened(tmp_path).is_lost
    (tmp_path / SLOTS_FILE).unlink()
    assert opened(tmp_path).is_lost


@pytest.mark.parametrize(
    ("of_slots", "last", "is_lost"),
    [
        (0, 3, True),
        (1, 3, True),
        (2, 3, False),  # A crash between chain and signatures may leave that.
        (3, 3, False),
        (0, 1, False),  # So in the first round.
        (3, 2, False),  # The chain was cut.
    ],
)
def test_chain_with_a_seal_of_ours_tells_that_the_signatures_behind_it_are_gone(
    tmp_path, opened, of_slots, last, is_lost
):
    chain, messages = [], []
    for certificate in chain_of(3):
        value = certificate.value
        voice = Voice(A, replace(value, round=value.round - 1))
        messages.append(voice.seal(value).message)
        others = Voice(C, replace(value, round=value.round - 1)).seal(value).message
        chain.append(replace(certificate, seals=(messages[-1].encoded, others.encoded)))
    journal = opened(tmp_path)
    journal.record(messages[:of_slots])
    journal.extend_chain(chain[:last])
    assert not opened(tmp_path, me=B).is_lost
    assert opened(tmp_path, me=A).is_lost is is_lost
    assert opened(tmp_path).is_lost is is_lost


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


@pytest.mark.parametrize("bad", [b"no certificate", chain_of(4)[3].encoded], ids=["bytes", "gap"])
def test_record_that_does_not_follow_ends_the_chain_which_is_kept_as_it_was(tmp_path, opened, bad):
    journal = opened(tmp_path)
    journal.extend_chain(chain_of(2))
    journal.close()
    log = RecordLog(tmp_path / CHAIN_FILE)
    log.append([bad, chain_of(5)[4].encoded])
    log.close()
    before = (tmp_path / CHAIN_FILE).read_bytes()
    journal = opened(tmp_path)
    assert list(journal.chain()) == chain_of(2)
    assert journal.damage.endswith("2 are whole")
    assert (tmp_path / "set-aside" / CHAIN_FILE).read_bytes() == before
    # What comes next stands in its place, not behind it.
    journal.extend_chain(chain_of(3)[2:])
    assert list(journal.read_chain(1, 9)) == chain_of(3)
    assert list(opened(tmp_path).chain()) == chain_of(3)


def test_record_that_is_no_message_is_a_loss_and_takes_nothing_along(tmp_path, opened):
    written(tmp_path, MESSAGES[:2])
    log = RecordLog(tmp_path / SLOTS_FILE)
    log.append([b"no message", MESSAGES[2].encoded])
    log.close()
    journal = opened(tmp_path)
    assert journal.is_lost
    assert list(journal.messages()) == MESSAGES[:2], "what stands behind it counts for nothing"
    journal.forgive_loss()
    journal.record(MESSAGES[2:])
    journal = opened(tmp_path)
    assert list(journal.messages()) == MESSAGES
    assert not journal.is_lost


def test_chain_that_the_disk_damages_gets_no_gap(tmp_path, opened):
    journal = opened(tmp_path)
    for certificate in chain_of(4):
        journal.extend_chain([certificate])
    path = tmp_path / CHAIN_FILE
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1  # In the second of four.
    path.write_bytes(data)
    with pytest.raises(OSError, match="damaged the chain"):
        journal.extend_chain(chain_of(6)[3:])
    assert list(opened(tmp_path).chain()) == chain_of(1)


def test_chain_that_is_cut_is_kept_as_it_was_and_told_of_once(tmp_path, opened):
    opened(tmp_path).extend_chain(chain_of(4)[:1])
    for certificate in chain_of(4)[1:]:
        opened(tmp_path).extend_chain([certificate])
    path = tmp_path / CHAIN_FILE
    whole = path.read_bytes()
    bent = bytearray(whole)
    bent[len(bent) // 2] ^= 1
    path.write_bytes(bent)
    journal = opened(tmp_path)
    assert str(tmp_path / "set-aside" / CHAIN_FILE) in journal.damage
    assert journal.damage.endswith("2 are whole")
    assert len(journal.chain()) == 2
    journal.extend_chain(chain_of(4)[2:])
    assert not opened(tmp_path).damage
    # Damaged once more, the longer copy stays.
    path.write_bytes(bytes(len(whole)))
    opened(tmp_path)
    assert (tmp_path / "set-aside" / CHAIN_FILE).read_bytes() == bent
    opened(tmp_path).extend_chain(chain_of(8))
    opened(tmp_path).extend_chain(chain_of(9)[8:])
    bent = bytearray(path.read_bytes())
    bent[10] ^= 1
    path.write_bytes(bent)
    opened(tmp_path)
    assert (tmp_path / "set-aside" / CHAIN_FILE).read_bytes() == bent
    # A shorter one is kept beside it, and named.
    for certificate in chain_of(3):
        opened(tmp_path).extend_chain([certificate])
    shorter = bytearray(path.read_bytes())
    shorter[len(shorter) // 2] ^= 1
    path.write_bytes(shorter)
    kept = tmp_path / "set-aside" / f"{CHAIN_FILE}.1"
    assert str(kept) in opened(tmp_path).damage
    assert kept.read_bytes() == shorter
    assert (tmp_path / "set-aside" / CHAIN_FILE).read_bytes() == bent


def test_page_of_seals_that_is_cut_is_kept_though_nobody_is_told_of_damage(tmp_path, opened):
    opened(tmp_path).extend_chain(chain_of(4))
    path = tmp_path / CHAIN_FILE
    bent = bytearray(path.read_bytes())
    bent[len(bent) // 3] ^= 1  # In the second of four.
    path.write_bytes(bent)
    journal = opened(tmp_path)
    assert len(journal.chain()) == 1
    assert not journal.damage
    assert (tmp_path / "set-aside" / CHAIN_FILE).read_bytes() == bent


def test_tail_that_a_crash_tore_off_is_no_damage_of_the_chain(tmp_path, opened):
    opened(tmp_path).extend_chain(chain_of(3))
    path = tmp_path / CHAIN_FILE
    path.write_bytes(path.read_bytes()[:-5])
    assert not opened(tmp_path).damage
    assert not (tmp_path / "set-aside").exists()


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


def test_result_that_is_bad_is_written_anew_when_it_is_made_again(tmp_path, opened):
    opened(tmp_path).keep_result(7, DIGEST, [b"cells"])
    (path,) = (tmp_path / "results").iterdir()
    path.write_bytes(b"spoiled" + path.read_bytes())
    journal = opened(tmp_path)
    assert journal.results(7) == {}
    journal.keep_result(7, DIGEST, [b"cells"])
    assert opened(tmp_path).results(7) == {DIGEST: b"cells"}


def test_results_stay_until_checkpoints_have_them_and_for_those_who_step_through_them(
    tmp_path, opened
):
    journal = opened(tmp_path)
    kept = limits.RESULT_ROUNDS_KEPT
    rounds = range(3, 3 + kept + 5)
    for index in rounds:
        journal.keep_result(index, DIGEST, [b"cell"])
    journal.saved_up_to(rounds[-1])
    held = [bool(journal.results(index)) for index in rounds]
    assert held == [False] * 5 + [True] * kept
    # Checkpoints that are so far behind need more of them; nothing goes that they lack.
    journal = opened(tmp_path / "slow")
    for index in rounds:
        journal.keep_result(index, DIGEST, [b"cell"])
    journal.saved_up_to(6)
    assert [bool(journal.results(index)) for index in rounds] == [False] * 2 + [True] * (kept + 3)
    journal.close()
    (tmp_path / "slow" / "results" / ".writing-round-000008-00.bin").write_bytes(b"half")
    opened(tmp_path / "slow")
    assert not list((tmp_path / "slow" / "results").glob(".writing-*"))


def test_slots_of_a_branch_stay_until_its_rounds_are_final(tmp_path, opened):
    journal = opened(tmp_path, rotate_bytes=1)
    journal.extend_chain(chain_of(HEAD.value.round))
    files = []
    for rounds in range(20):
        later = Voice(A, replace(HEAD.value, round=HEAD.value.round + rounds))
        journal.record([later.vote([]).message])
        files.append((tmp_path / SLOTS_FILE).stat().st_ino)
    num_rewritten = sum(before != after for before, after in pairwise(files))
    assert num_rewritten <= 5, "once it is twice as long as it was then"
    kept = [message.slot.round for message in opened(tmp_path).messages()]
    assert kept == [HEAD.value.round + 1 + rounds for rounds in range(20)]


def branch_of(length: int, name: int = 0) -> list[SealCertificate]:
    """Provisional certificates of the rounds behind HEAD, each on the one before."""
    links: list[SealCertificate] = []
    for number in range(length):
        before = links[-1].value if links else HEAD.value
        clock = replace(before.clock, step=name)
        value = replace(
            before, round=before.round + 1, before=before.digest, basis=before.digest, clock=clock
        )
        links.append(SealCertificate(value=value, seals=(bytes([number]),)))
    return links


def test_branch_is_there_again_as_far_as_it_was_given(tmp_path, opened):
    journal = opened(tmp_path)
    assert list(journal.branch()) == []
    for link in branch_of(2):
        journal.extend_branch(link)
    journal = opened(tmp_path)
    assert list(journal.branch()) == branch_of(2)
    journal.extend_branch(branch_of(3)[2])
    assert list(opened(tmp_path).branch()) == branch_of(3)
    other = branch_of(2, name=1)
    journal.leave_branch()
    assert list(opened(tmp_path).branch()) == []
    for link in other:
        journal.extend_branch(link)
    assert list(opened(tmp_path).branch()) == other


def test_damaged_branch_is_cut_where_it_does_not_follow(tmp_path, opened):
    journal = opened(tmp_path)
    for link in branch_of(3):
        journal.extend_branch(link)
    data = bytearray((tmp_path / BRANCH_FILE).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / BRANCH_FILE).write_bytes(bytes(data))
    again = opened(tmp_path)
    assert list(again.branch()) == branch_of(1)
    assert not again.is_lost
