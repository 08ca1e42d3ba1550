"""Worlds with two rounds in flight (R5)."""

import functools
from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import patch

import pytest

from node.holdings.states import round_config
from node.reporting.tracing import Adopted, Record, Signed, Synced
from protocol.grid import EMPTY_ROOT
from protocol.identity import KeyedHashSigner, PeerId
from protocol.messages import Commit, Kind, decode_body, decode_message
from sim.checks.accounting import Accounting
from sim.checks.invariants import InvariantBroken, Invariants
from sim.trials.scenario import overridden
from sim.trials.scenario_file import read_scenario
from sim.trials.trial import run_trial
from sim.world.links import Link
from sim.world.nodes import Device
from sim.world.toy_run import toy_run
from sim.world.trainer import SimTrainer
from tests.node.builders import peers_named, toy_manifest
from tests.sim.recorded import body_of, signed_anew
from tests.sim.worlds import WatchedWorld

CELLS, ROUNDS, PEERS = (2, 1, 3), 10, 4


def world_of(seed: int, *, lag: int) -> WatchedWorld:
    peers = peers_named(PEERS)
    manifest = toy_run(peers[0], rounds=ROUNDS, cells=CELLS, timing=toy_manifest(peers[0]).timing)
    outer = replace(manifest.outer, codec="int4", overlap=lag)
    manifest = replace(manifest, outer=outer)
    # Agreement takes a few times as long as training: who waits for seals mostly waits.
    link, device = Link(latency_s=(0.1, 0.2)), Device(train_s=(0.3, 0.4))
    world = WatchedWorld(manifest, seed=seed, link=link, device=device)
    config = round_config(manifest)
    for number, peer in enumerate(peers):
        waiting = replace(config, wait_seats=PEERS - 1) if number == 0 else config
        world.join(peer, config=waiting)
    return world


@functools.cache
def played(seed: int, lag: int) -> tuple[float, list[Record]]:
    """How long a world without faults takes, and all its records; several tests look at it."""
    world = world_of(seed, lag=lag)
    records: list[Record] = []
    world.tracers.append(records.append)
    world.finish()
    return world.now_s, records


def signed_early(records: list[Record]) -> Iterator[tuple[Kind, int]]:
    """What nodes signed of a round while the one before it was not final at theirs."""
    finals: dict[bytes, int] = {}
    for record in records:
        if isinstance(record, Adopted | Synced):
            finals[record.peer] = record.certificate.value.round
        elif isinstance(record, Signed):
            slot = record.message.slot
            if slot.round > finals.get(record.peer, 0) + 1:
                yield Kind(slot.kind), slot.round


def test_round_is_never_sealed_while_the_one_before_is_open(seed):
    assert not list(signed_early(played(seed, 1)[1]))
    early = list(signed_early(played(seed, 2)[1]))
    # R5: its value names the seal before, and its root is over what the rounds before changed.
    assert Kind.SEAL not in {kind for kind, _ in early}
    # A round beside another one is the rule and no accident.
    assert len({index for kind, index in early if kind is Kind.COMMIT}) >= 3


def test_round_is_voted_on_and_summed_while_the_one_before_is_open():
    # How far the second round gets meanwhile is luck: in about every other world it gets there.
    worlds = [{kind for kind, _ in signed_early(played(seed, 2)[1])} for seed in range(6)]
    assert sum({Kind.COMMIT, Kind.HAVE, Kind.VOTE, Kind.AGG} <= kinds for kinds in worlds) >= 2


def test_trainers_that_need_not_wait_for_seals_are_through_sooner(seed):
    assert played(seed, 2)[0] < 0.8 * played(seed, 1)[0]


def test_latecomer_kill_and_restart_with_two_rounds_in_flight(seed):
    """All invariants are watched: no sample twice, no residual lost, equal states everywhere."""
    world = world_of(seed, lag=2)
    *_, other, last = peers_named(PEERS)
    world.until_round(3)
    world.crash(last)
    world.until_round(4)
    world.bounce(other)
    world.until_round(6)
    world.bounce(last)
    world.finish()
    assert len(world.living()) == PEERS


def test_residual_that_is_settled_by_the_seal_of_the_round_before_is_found(seed):
    """A trainer that takes the seal of r for an answer to its contribution to r + 1 (R6)."""
    settle = SimTrainer._settle

    def hasty(trainer, anchor_N, sealed, fates):
        settle(trainer, anchor_N, sealed + 1, fates)

    with patch.object(SimTrainer, "_settle", hasty), pytest.raises(InvariantBroken, match="I5"):
        world_of(seed, lag=2).finish()


def commit_of(records: list[Record], peer: PeerId, index: int) -> int:
    """Where that peer signs its COMMIT of that round."""
    return next(
        place
        for place, record in enumerate(records)
        if isinstance(record, Signed)
        and (record.peer, record.message.slot.kind) == (peer, Kind.COMMIT)
        and record.message.slot.round == index
    )


def fetching(records: list[Record], peer: PeerId, sealed: int) -> list[Record]:
    """The same, but that the peer fetches that seal right before its COMMIT of the next round."""
    adopted = next(
        record
        for record in records
        if isinstance(record, Adopted)
        and (record.peer, record.certificate.value.round) == (peer, sealed)
    )
    first = commit_of(records, peer, sealed + 1)
    certificate, root = adopted.certificate, adopted.root
    fetched = Synced(at_s=records[first].at_s, peer=peer, certificate=certificate, root=root)
    changed = [*records[:first], fetched, *records[first:]]
    return [record for record in changed if record is not adopted]


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("index", "residual", "is_broken"),
    [
        # The round before on the fragment was in flight at the fetch: void, whatever became of it.
        (7, EMPTY_ROOT, False),
        (7, bytes(range(32)), True),
        # What was before it there is behind the fetch.
        (8, EMPTY_ROOT, True),
        (10, EMPTY_ROOT, True),
    ],
    ids=["in flight", "anything", "behind", "later"],
)
def test_residual_may_be_void_behind_what_was_in_flight_at_a_fetch(
    seed, index, residual, is_broken
):
    peer, *_ = peers_named(PEERS)
    found = found_with(seed, fetching(played(seed, 2)[1], peer, 3), peer, index, residual)
    assert ("residual says otherwise" in found) == is_broken


@pytest.mark.extended
def test_residual_goes_on_behind_a_fetch_of_who_did_not_know_of_the_round_before(seed):
    """Then nothing of it was in flight: seal 2 names round 4, and is fetched as well."""
    peer, *_ = peers_named(PEERS)
    records = [
        record
        for record in fetching(played(seed, 2)[1], peer, 3)
        if not (isinstance(record, Adopted) and record.peer == peer)
        or record.certificate.value.round != 2
    ]
    found = found_with(seed, records, peer, 7, EMPTY_ROOT)
    assert "residual says otherwise" in found


def found_with(seed: int, records: list[Record], peer: PeerId, index: int, residual: bytes) -> str:
    """What I5 finds up to that COMMIT, if it says that it goes on from that residual."""
    last = commit_of(records, peer, index)
    own = records[last]
    assert isinstance(own, Signed)
    body = replace(body_of(own.message), residual_before=residual)
    changed = replace(own, message=signed_anew(own.message, body))
    manifest = world_of(seed, lag=2).manifest
    signer = KeyedHashSigner(manifest.founder)
    checks = Invariants(manifest, signer=signer, names=frozenset({"I5"}))
    try:
        for record in (*records[:last], changed):
            checks.saw(record)
    except InvariantBroken as error:
        return error.text
    return ""


def test_commit_proves_the_seal_that_names_its_round(seed):
    """Else nobody would vote for long, or nobody could COMMIT before the seal before (R1)."""
    records = played(seed, 2)[1]
    messages = [record.message for record in records if isinstance(record, Signed)]
    # Whom the first seal seats is a member from round 3 on, and first proves the seal of that.
    commits = [one for one in messages if one.slot.kind is Kind.COMMIT and one.slot.round >= 5]
    assert len(commits) >= PEERS
    for message in commits:
        body = decode_body(message)
        assert isinstance(body, Commit)
        slot = decode_message(body.seal)[0].slot
        assert (slot.kind, slot.round) == (Kind.SEAL, message.slot.round - 2)


@pytest.mark.slow
def test_contribution_that_is_bound_behind_a_fetch_leaves_no_residual_in_a_world():
    """A node is killed right before the COMMIT of the round beside, and back one round late."""
    scenario = read_scenario("overlap")
    assert run_trial(scenario, 4).violation is None
    with patch.object(Accounting, "_fetched", lambda self, peer, value: None):
        violation = run_trial(scenario, 4).violation
    assert violation is not None
    assert "residual says otherwise" in violation.text


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_two_rounds_in_flight_keep_all_promises_whatever_goes_wrong(seed):
    scenario = overridden(read_scenario("overlap"), peers=6)
    assert run_trial(scenario, seed).violation is None
