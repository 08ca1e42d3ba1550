"""R12: what a disk leads to, whole, damaged or of somebody else."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from node.holdings.recovery import StoredState, recover, take_state
from node.holdings.shard_store import ShardStore
from protocol.identity import PeerId
from protocol.messages import Kind, Seal, SealCertificate, SealValue, SignedMessage
from protocol.rounds.chain import genesis
from protocol.rounds.restart import Restart, own_seal, was_listed
from sim.world.disk import Disk
from sim.world.world import World, peer_named
from tests.node.builders import Voice
from tests.sim.worlds import world_of

ROUNDS = 7


@dataclass
class Stored:
    """What recovery asks a journal for, and the checkpoints beside it; to be spoiled at will."""

    stored_chain: list[SealCertificate] = field(default_factory=list)
    stored_branch: list[SealCertificate] = field(default_factory=list)
    stored_messages: list[SignedMessage] = field(default_factory=list)
    stored_results: dict[int, Mapping[bytes, bytes]] = field(default_factory=dict)
    states: list[StoredState] = field(default_factory=list)
    is_lost: bool = False
    receipts: list[SignedMessage] = field(default_factory=list)
    """The last COMMITs that recovery has for the ledger."""

    def chain(self):
        return self.stored_chain

    def branch(self):
        return self.stored_branch

    def messages(self):
        return self.stored_messages

    def begin_receipts(self, start, messages):
        assert start.round == 0
        self.receipts = list(messages)

    def results(self, round_index):
        return self.stored_results.get(round_index, {})


@pytest.fixture(scope="module")
def world() -> World:
    world = world_of(1, seed=5, rounds=40)
    world.until_round(ROUNDS)
    return world


@pytest.fixture
def disk(world) -> Stored:
    """What a copy of the disk of the world's one node has, with three checkpoints on it."""
    (node,) = world.nodes.values()
    disk = Disk(random.Random(0))
    disk.roll_back(node.disk.image())
    disk.reopen()
    found = Stored(
        stored_chain=list(disk.journal.chain()),
        stored_messages=list(disk.journal.messages()),
        stored_results={n: disk.journal.results(n) for n in range(20) if disk.journal.results(n)},
        states=list(disk.states()),
    )
    assert len(found.states) == 3
    return found


def recovered(world: World, disk: Any) -> tuple[Restart, ShardStore]:
    zeros_N = np.zeros(world.manifest.layout(0).fragment_numels[0], dtype=np.float32)
    store = ShardStore(world.manifest, 0, zeros_N)
    start = genesis(world.manifest, 0, store.state.root)
    restart = recover(start, store, disk, disk.states)
    final, head = restart.chain[-1].value, (*restart.chain, *restart.branch)[-1].value
    assert store.state.root == head.root, "the state in the store is that of the head"
    assert store.final.root == final.root
    return restart, store


def test_commits_of_the_last_rounds_come_back_to_the_ledger_if_a_seal_lists_them(world, disk):
    disk.stored_messages = disk.stored_messages[-40:]
    recovered(world, disk)
    listed = {name for link in disk.stored_chain for name in link.value.commits}
    here = {message.digest for message in disk.stored_messages}
    assert {message.digest for message in disk.receipts} == listed & here != set()


def test_whole_disk_leads_to_the_last_seal_though_its_checkpoint_is_older(world, disk):
    restart, _ = recovered(world, disk)
    (node,) = world.nodes.values()
    assert restart.chain == tuple(node.core.chain)
    assert (restart.silent_through, restart.is_lost, restart.has_run) == (0, False, True)
    assert own_seal(restart, restart.chain[-1].value, node.peer)
    assert was_listed(restart, node.peer)
    assert not was_listed(restart, peer_named("somebody else"))


def test_results_of_the_journal_follow_a_state_that_came_from_others(world, disk):
    donor, _ = recovered(world, disk)
    _, there = recovered(world, disk)
    # Of this disk all checkpoints are gone, and the first results, so that nothing leads anywhere.
    disk.states = []
    disk.stored_results = {n: r for n, r in disk.stored_results.items() if n > 1}
    restart, store = recovered(world, disk)
    assert (len(restart.chain), restart.results) == (1, frozenset())
    newest = donor.chain[-1].value
    taken = take_state(store, disk, newest.round, there.state)
    assert taken == {newest.list_digest}
    assert store.result_cells(newest.list_digest) == there.result_cells(newest.list_digest)
    # One that is sealed by this node alone is behind it: others are bound to it, and have it not.
    older = donor.chain[-2].value
    assert take_state(store, disk, older.round, there.state) == {
        older.list_digest,
        newest.list_digest,
    }


@pytest.mark.parametrize("lost", [1, 2])
def test_older_checkpoint_leads_to_the_same_seal_when_newer_ones_are_bad(world, disk, lost):
    disk.states = disk.states[lost:]
    restart, _ = recovered(world, disk)
    assert restart.chain[-1].value.round == len(disk.stored_chain)
    assert restart.silent_through == 0


def test_checkpoint_that_is_not_what_was_sealed_is_passed_over(world, disk, caplog):
    newest = disk.states[0]
    for bad in (
        replace(newest, anchor_N=newest.anchor_N + np.float32(1)),
        replace(newest, seal=bytes(32)),
        replace(newest, round=len(disk.stored_chain) + 1),
    ):
        restart, _ = recovered(world, replace(disk, states=[bad, *disk.states[1:]]))
        assert restart.chain[-1].value.round == len(disk.stored_chain)
        assert "checkpoint skipped" in caplog.text
        caplog.clear()


def test_what_the_disk_lost_is_told(world, disk):
    def told(stored: Any) -> list[str]:
        texts: list[str] = []
        zeros_N = np.zeros(world.manifest.layout(0).fragment_numels[0], dtype=np.float32)
        store = ShardStore(world.manifest, 0, zeros_N)
        start = genesis(world.manifest, 0, store.state.root)
        recover(start, store, stored, stored.states, tell=texts.append)
        return texts

    assert told(disk) == []
    newest = disk.states[0].round
    (later, behind) = told(
        replace(disk, stored_chain=disk.stored_chain[:2], stored_results={}, states=disk.states[:2])
    )
    assert f"up to round {newest}" in later
    assert "of 2 sealed rounds this disk has the state of 0" in behind


def test_lost_result_leaves_the_node_behind_and_silent_in_what_it_may_have_signed(world, disk):
    first = min(disk.stored_results)
    del disk.stored_results[first]
    disk.states = []
    restart, _ = recovered(world, disk)
    assert restart.chain[-1].value.round == 0, f"results start with round {first}"
    assert restart.silent_through == len(disk.stored_chain)


def test_result_with_a_changed_byte_is_not_taken(world, disk, caplog):
    disk.states = disk.states[2:]
    index = disk.states[0].round + 1
    ((digest, data),) = disk.stored_results[index].items()
    disk.stored_results[index] = {digest: bytes([data[0] ^ 1]) + data[1:]}
    restart, _ = recovered(world, disk)
    assert restart.chain[-1].value.round == index - 1
    assert "not what was sealed" in caplog.text


def test_chain_of_another_run_is_cut_where_it_no_longer_fits(world, disk, caplog):
    strange = disk.stored_chain[3]
    disk.stored_chain[3] = replace(strange, value=replace(strange.value, run=bytes(32)))
    disk.states = []
    restart, _ = recovered(world, disk)
    assert len(restart.chain) == 4, "as far as it is of this run, from its first round on"
    assert "another run or branch" in caplog.text


def test_signatures_beyond_the_head_keep_their_rounds_silent(world, disk):
    del disk.stored_chain[-2:]
    restart, _ = recovered(world, disk)
    signed = max(message.slot.round for message in restart.messages)
    assert restart.chain[-1].value.round + 1 < signed
    assert restart.silent_through == signed


@pytest.mark.parametrize("fault", ["none", "lost", "changed", "gap"])
def test_branch_is_stepped_again_as_far_as_its_results_are_here(world, disk, fault):
    disk.stored_chain, branch = disk.stored_chain[:-3], disk.stored_chain[-3:]
    disk.stored_branch = [branch[0], branch[2]] if fault == "gap" else branch
    ((digest, data),) = disk.stored_results[branch[1].value.round].items()
    if fault == "lost":
        disk.stored_results[branch[1].value.round] = {}
    elif fault == "changed":
        spoiled = bytes([data[0] ^ 1]) + data[1:]
        disk.stored_results[branch[1].value.round] = {digest: spoiled}
    restart, _ = recovered(world, disk)
    assert restart.chain[1:] == tuple(disk.stored_chain)
    assert restart.branch == tuple(branch if fault == "none" else branch[:1])


def given_up(head: SealValue, peer: PeerId, rounds: int) -> tuple[SealValue, list[SignedMessage]]:
    """What a peer signed on a branch behind `head`, and the value that a further round gets."""
    signed = []
    for index in range(rounds):
        voice = Voice(peer, head)
        value = replace(
            head,
            round=head.round + 1,
            before=head.digest,
            basis=head.digest,
            root=bytes([index]) * 32,
        )
        body = Seal(value=value.digest, list_digest=value.list_digest, root=value.root)
        signed += [
            voice.commit().message,
            voice.sign(Kind.PSEAL, body, subject=head.digest),
        ]
        head = value
    return head, signed


def test_what_was_signed_on_a_branch_that_was_given_up_keeps_no_round_silent(world, disk):
    # Otherwise one lost disk and one restart of four end a run: two of them sign nothing for good.
    (node,) = world.nodes.values()
    fork = disk.stored_chain[-3].value
    head, signed = given_up(fork, node.peer, rounds=8)
    disk.stored_messages += signed
    restart, _ = recovered(world, disk)
    assert max(m.slot.round for m in restart.messages) > restart.chain[-1].value.round + 1
    assert restart.silent_through == 0
    sealed = Voice(node.peer, head).seal(replace(head, round=head.round + 1)).message
    disk.stored_messages += [*signed, sealed]
    restart, _ = recovered(world, disk)
    assert restart.silent_through == sealed.slot.round, "a SEAL is of the final chain"


def test_empty_disk_is_a_first_start(world):
    restart, _ = recovered(world, Stored())
    assert not restart.has_run
    assert restart.messages == ()
