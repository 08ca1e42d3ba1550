"""I5 over the disks of a world: they are judged together, and the one that differs is found."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from protocol.messages import SealCertificate
from protocol.rounds.chain import genesis
from protocol.wire import decode, encode
from sim.checks.accounting import LedgerDisk, Ledgers
from tests.node.ledger_run import FOUNDER, LATE, ROUNDS, SECOND, manifest, peer, played

EVERYBODY = {FOUNDER: range(1, ROUNDS), SECOND: range(1, ROUNDS), LATE: ()}
"""Rounds that each has made final itself; the third has fetched its first ones."""


def disk_of(name: str) -> LedgerDisk:
    journal = played().nodes[peer(name)].disk.journal
    folded, commits = journal.read_receipts()
    assert folded is not None
    return LedgerDisk(journal._chain.read(0), folded, commits)


def ledgers() -> Ledgers:
    root = disk_of(FOUNDER).folded.genesis_root
    return Ledgers(manifest(), genesis(manifest(), 0, root).value)


def with_more_tokens(record: bytes) -> bytes:
    seal = decode(SealCertificate, record)
    clock = replace(seal.value.clock, tokens=seal.value.clock.tokens + 1)
    return encode(replace(seal, value=replace(seal.value, clock=clock)))


def test_sound_disks_of_a_world_are_sound():
    checked = ledgers()
    for name, own in EVERYBODY.items():
        assert checked.check(disk_of(name), frozenset(own)) == []


DAMAGES: dict[str, Callable[[LedgerDisk], LedgerDisk]] = {
    "no receipts": lambda disk: replace(disk, commits=[]),
    "one receipt less": lambda disk: replace(disk, commits=disk.commits[1:]),
    "a seal of more tokens": lambda disk: replace(
        disk, chain=[*disk.chain[:-1], with_more_tokens(disk.chain[-1])]
    ),
    "a gap in the chain": lambda disk: replace(disk, chain=[*disk.chain[:2], *disk.chain[3:]]),
    "a chain that is too short": lambda disk: replace(disk, chain=disk.chain[:2]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_disk_that_differs_is_found_behind_sound_ones(damage):
    checked, own = ledgers(), frozenset(EVERYBODY[FOUNDER])
    assert checked.check(disk_of(FOUNDER), own) == []
    assert checked.check(DAMAGES[damage](disk_of(FOUNDER)), own)
    assert checked.check(disk_of(SECOND), own) == []


def test_same_disk_is_judged_by_the_rounds_that_it_must_prove():
    checked, disk = ledgers(), DAMAGES["no receipts"](disk_of(FOUNDER))
    assert checked.check(disk, frozenset()) == []
    assert checked.check(disk, frozenset({2}))
