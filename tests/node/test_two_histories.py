"""What a node knows of its history from elsewhere outlives its end, and binds its next start."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from node.holdings.journal import FileJournal
from node.peers.two_histories import (
    PROOF_FILE,
    TOLD_FILE,
    check_history,
    keep_told,
    keep_two_histories,
    read_told,
)
from protocol.catching_up.chain_sources import NamedSeal
from protocol.errors import StateError, TwoHistoriesError
from protocol.histories import TwoHistories
from protocol.messages import SealCertificate
from tests.node.builders import head_of, peers_named

A, B, C = peers_named(3)
HEAD = head_of((A, B))
ROUNDS = 6


def seal(index: int, *commits: bytes) -> SealCertificate:
    return replace(HEAD, value=replace(HEAD.value, round=index, commits=commits))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[FileJournal]:
    """Of a run's folder, with the seals of six rounds."""
    journal = FileJournal(tmp_path)
    journal.extend_chain([seal(index) for index in range(1, ROUNDS + 1)])
    yield journal
    journal.close()


def found(index: int) -> TwoHistories:
    return TwoHistories(seal(index), seal(index, b"x" * 32), B, C)


def test_seal_of_a_link_is_kept_and_the_latest_one_counts(tmp_path: Path) -> None:
    assert read_told(tmp_path) is None
    keep_told(tmp_path, NamedSeal(4, b"4" * 32))
    keep_told(tmp_path, NamedSeal(9, b"9" * 32))
    keep_told(tmp_path, NamedSeal(5, b"5" * 32))
    assert read_told(tmp_path) == NamedSeal(9, b"9" * 32)


def test_kept_seal_that_cannot_be_read_is_no_missing_one(tmp_path: Path) -> None:
    (tmp_path / TOLD_FILE).write_bytes(b"\x00")
    with pytest.raises(StateError, match="join again by a fresh link"):
        read_told(tmp_path)


def test_history_with_the_seal_of_the_link_goes_on(tmp_path: Path, journal: FileJournal) -> None:
    for told in (NamedSeal(4, seal(4).value.digest), NamedSeal(ROUNDS + 1, b"l" * 32)):
        keep_told(tmp_path, told)
        assert check_history(tmp_path, journal) == told


def test_history_without_the_seal_of_the_link_does_not_go_on(
    tmp_path: Path, journal: FileJournal
) -> None:
    keep_told(tmp_path, NamedSeal(4, b"l" * 32))
    with pytest.raises(TwoHistoriesError, match="another seal of round 4"):
        check_history(tmp_path, journal)


def test_node_that_found_two_histories_waits_for_a_link_that_names_a_later_seal(
    tmp_path: Path, journal: FileJournal
) -> None:
    assert check_history(tmp_path, journal) is None
    path = keep_two_histories(tmp_path, found(3))
    assert path == tmp_path / PROOF_FILE
    for told in (None, NamedSeal(2, seal(2).value.digest)):
        if told is not None:
            keep_told(tmp_path, told)
        with pytest.raises(TwoHistoriesError, match=r"which part in round 3.*fresh invite link"):
            check_history(tmp_path, journal)
    told = NamedSeal(3, seal(3).value.digest)
    keep_told(tmp_path, told)
    assert check_history(tmp_path, journal) == told


def test_history_that_may_be_the_forged_one_does_not_go_on_by_a_seal_beyond_it(
    tmp_path: Path, journal: FileJournal
) -> None:
    keep_two_histories(tmp_path, found(3))
    keep_told(tmp_path, NamedSeal(ROUNDS + 1, b"l" * 32))
    with pytest.raises(TwoHistoriesError, match="move that folder away"):
        check_history(tmp_path, journal)
    keep_two_histories(tmp_path, found(ROUNDS + 1))  # They part behind what is here.
    assert check_history(tmp_path, journal) is not None


def test_damaged_proof_is_no_reason_to_go_on(tmp_path: Path, journal: FileJournal) -> None:
    (tmp_path / PROOF_FILE).write_bytes(b"\x92")
    with pytest.raises(StateError, match="cannot read"):
        check_history(tmp_path, journal)
