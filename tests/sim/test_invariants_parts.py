"""The parts of the invariants that compute something, against what they watch; I4, I8, traces."""

import base64
import itertools
import random
from dataclasses import replace
from unittest.mock import patch

import base58
import numpy as np
import pytest

from node.holdings.shard_store import ShardStore
from node.reporting.tracing import Began, Ended, Record, Signed, Used, trace_line
from protocol import leases as shipped
from protocol.catching_up.catchup import CatchUp
from protocol.errors import DecodeError
from protocol.grid import cell_root
from protocol.identity import KeyedHashSigner
from protocol.messages import Interval, Kind, NewAttempt, Roster
from protocol.rounds import roster as rosters
from sim.checks import accounting, reference
from sim.checks import reference as arithmetic
from sim.checks.forks import Forks
from sim.checks.history import Electorate, History
from sim.checks.invariants import Circumstances, InvariantBroken
from sim.checks.leaks import Needles
from sim.checks.traces import Stalls, merge_traces, seal_within_s
from sim.trials.watching import watch
from sim.world.world import World
from tests.node.builders import Voice, head_of, peers_named, seat
from tests.sim.recorded import clean_records, manifest_of_record, verdict
from training.compression import CODECS
from training.numeric.arithmetic import weighted_sum

SEED = bytes(range(7, 39))


@pytest.mark.parametrize("trust", ["friends", "open"])
@pytest.mark.parametrize("count", range(1, 8))
def test_quorum_is_that_of_the_roster(count, trust):
    peers = peers_named(count + 1)
    ages = random.Random(count).choices(range(4), k=count)
    seats = [seat(peer, since=age) for peer, age in zip(peers, ages, strict=False)]
    roster = Roster(
        seats=tuple(sorted([*seats, seat(peers[-1], since=-1)], key=lambda s: s.peer)), window=(1,)
    )
    electorate = Electorate(roster, trust)
    for size in range(count + 2):
        for some in itertools.combinations(peers, size):
            expected = rosters.has_quorum(roster, some, trust=trust)
            assert electorate.is_quorum(set(some)) == expected


def test_leases_are_those_that_nodes_take(seed):
    rng = random.Random(seed)
    for _ in range(300):
        bounds = sorted(rng.sample(range(400), 2 * rng.randint(0, 6)))
        gaps = tuple(zip(bounds[::2], bounds[1::2], strict=True))
        value = head_of(peers_named(rng.randint(1, 5))).value
        intervals = tuple(Interval(first=first, stop=stop) for first, stop in gaps)
        value = replace(value, clock=replace(value.clock, unused=intervals, cursor=400))
        each = rng.randint(1, 150)
        turn = rng.choice((1, 2))  # Genesis leases two rounds where they overlap.
        mine, free, cursor = accounting._leases(value, each, turn)
        theirs, clock = rosters.leases(value, each, turn=turn)
        assert {peer: tuple(lease) for peer, lease in mine.items()} == theirs
        assert (tuple(free), cursor) == (
            tuple((gap.first, gap.stop) for gap in clock.unused),
            clock.cursor,
        )
        lease = next(iter(mine.values()))
        count = rng.randint(0, each)
        assert tuple(accounting._split(lease, count)[1]) == shipped.part_of_lease(
            tuple(lease), count, each - count
        )


@pytest.mark.parametrize("optimizer", ["nesterov", "sgd"])
@pytest.mark.parametrize("codec", ["none", "fp16", "int8", "sparse2bit"])
def test_reference_gives_the_bits_of_the_store(codec, optimizer, seed):
    manifest = manifest_of_record()
    momentum = 0.5 if optimizer == "nesterov" else 0.0
    outer = replace(manifest.outer, codec=codec, optimizer=optimizer, momentum=momentum)
    manifest = replace(manifest, outer=outer)
    numel = manifest.layout(0).fragment_numels[0]
    rng = np.random.default_rng(seed)
    anchor_N = rng.standard_normal(numel).astype(np.float32)
    store = ShardStore(manifest, 0, anchor_N)
    expected = arithmetic.Expected(anchor_N, dict(store.state.slots))
    for index in range(1, 4):
        rows = []
        for peer in peers_named(3):
            wire_N = (0.1 * rng.standard_normal(numel)).astype(np.float32)
            wire_N = CODECS[codec]().decode(CODECS[codec]().encode(wire_N), numel)
            rows.append((peer, int(rng.integers(1, 1000)), wire_N))
        weights_P = np.array([float(tokens) for _, tokens, _ in rows])
        coefficients_P = store.aggregator.coefficients(np.empty(0), weights_P)
        sum_N = weighted_sum(np.stack([wire_N for _, _, wire_N in rows]), coefficients_P)
        digest = bytes([index]) * 32
        for cell in range(store.layout.num_cells(0)):
            start, stop = store.layout.cell_range(0, cell)
            payload = store._result_codec.encode(sum_N[start:stop])
            store._results_of(digest).put(cell, payload, cell_root(payload))
        store.apply(digest, is_empty=False, round_index=index)
        store.adopt(digest)
        shuffled = random.Random(seed).sample(rows, len(rows))
        aggregate_N = arithmetic.aggregate(outer, shuffled, manifest.cell_elements)
        expected = arithmetic.outer_step(outer, expected, aggregate_N, index)
        assert reference._difference(expected, store.state) == ""
    bent_N = expected.anchor_N.copy()
    bent_N[3] = np.nextafter(bent_N[3], np.float32(9.0))
    bent = replace(expected, anchor_N=bent_N)
    assert reference._difference(bent, store.state) == "the anchor"


# I4 ---------------------------------------------------------------------------------------------


def idle_world(num_dead, *, survive="any"):
    """Four nodes that vote, of which some die, and the others decide nothing any more."""
    world = World(replace(manifest_of_record(), survive=survive), seed=1)
    checks = watch(world, frozenset({"I4"}))
    peers = [world.peer(name) for name in ("n0", "n1", "n2", "n3")]
    for peer in peers:
        world.join(peer)
    world.run(lambda: all(node.round >= 5 for node in world.nodes.values()), 60.0)
    for peer in peers[:num_dead]:
        world.crash(peer)
    for node in world.nodes.values():
        node.core.machine.view.outcome.is_diverged = True
    return world, checks


def test_world_in_which_a_quorum_does_nothing_is_found():
    world, _ = idle_world(0)
    with pytest.raises(InvariantBroken, match="voters can work"):
        world.run(lambda: False, 200.0)


def test_world_without_a_quorum_may_stand_still():
    world, checks = idle_world(3, survive="quorum")
    with pytest.raises(TimeoutError):
        world.run(lambda: False, 200.0)
    assert checks.progress.slowest < 1.0


@pytest.mark.extended
def test_node_that_does_not_come_back_to_a_quorum_that_works_is_found():
    world = World(manifest_of_record(60), seed=1)
    checks = watch(world, frozenset({"I4"}))
    peers = [world.peer(name) for name in ("n0", "n1", "n2", "n3")]
    for peer in peers:
        world.join(peer)
    world.run(lambda: all(node.round >= 2 for node in world.nodes.values()), 60.0)
    deaf = world.nodes[peers[3]]
    deaf.core.machine.view.outcome.is_diverged = True
    with (
        patch.object(CatchUp, "consider", lambda *_, **__: []),
        pytest.raises(InvariantBroken, match="it stays at round 2"),
    ):
        world.run(lambda: False, 200.0)
    final = checks.records.history.final
    assert final is not None
    assert final.round >= 5


def test_traces_of_running_processes_that_seal_nothing_for_long():
    manifest = manifest_of_record()
    peers = sorted({record.peer for record in clean_records()})
    start = [record for record in clean_records() if record.at_s < 8.0]
    within_s = seal_within_s(manifest, train_s=3.0, deadline_s=manifest.timing.deadline_cap_s)

    def going_on(running, until_s):
        return [
            Used(at_s=float(at_s), peer=peer, memory_bytes=1, files=1, tasks=1, messages=1)
            for at_s in range(8, int(until_s), 2)
            for peer in running
        ]

    def found(records, **known):
        return verdict(records, frozenset({"I4"}), Circumstances(**known))

    assert found([*start, *going_on(peers, 8.0 + within_s / 2)]) is None
    assert "nothing was sealed" in found([*start, *going_on(peers, 12.0 + within_s)]).text
    assert "nothing was sealed" in found([*start, *going_on(peers, 60)], stall_s=20.0).text
    # One process of four is no quorum.
    assert found([*start, *going_on(peers[:1], 20.0 + 2 * within_s)]) is None
    ended = [Ended(at_s=8.0, peer=peer, reason="left") for peer in peers]
    late = going_on(peers[:1], 20.0 + 2 * within_s)
    assert found([*start, *ended, *late]) is None


def test_what_a_driver_does_to_processes_gives_them_time_again():
    stalls = Stalls(History("friends"), manifest_of_record(), stall_s=20.0)
    assert stalls._since_s == 0.0
    stalls.disturbed(30.0)
    stalls.disturbed(10.0)
    assert stalls._since_s == 30.0


def test_every_failed_attempt_gives_more_time():
    manifest = manifest_of_record()
    times_s = [
        seal_within_s(manifest, train_s=1.0, deadline_s=2.0, time_outs=count) for count in range(12)
    ]
    assert times_s[:9] == sorted(set(times_s[:9]))
    assert times_s[-1] == times_s[-2]


# I8 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        bytes,
        lambda seed: seed.hex().encode(),
        lambda seed: seed.hex().upper().encode(),
        base58.b58encode,
        base64.b64encode,
        base64.urlsafe_b64encode,
        lambda seed: base64.b64encode(b"x" + seed + b"yz"),
        lambda seed: base64.b64encode(b"xx" + seed + b"yz"),
        lambda seed: base64.urlsafe_b64encode(b"xxxx" + seed),
    ],
    ids=["raw", "hex", "HEX", "base58", "base64", "url", "base64+1", "base64+2", "url+1"],
)
def test_seed_is_found_in_every_form(form):
    needles = Needles(SEED)
    assert needles.find(b"before " + form(SEED) + b" behind") is not None
    other = bytes([SEED[0] ^ 1]) + SEED[1:-1] + bytes([SEED[-1] ^ 1])
    assert needles.find(b"before " + form(other[:16] + bytes(16)) + b" behind") is None


# Traces -----------------------------------------------------------------------------------------


def written(folder, records):
    paths = []
    for peer in sorted({record.peer for record in records}):
        paths.append(folder / f"{peer.hex()[:8]}.jsonl")
        lines = [trace_line(record) for record in records if record.peer == peer]
        paths[-1].write_text("".join(line + "\n" for line in lines))
    return paths


def test_files_of_traces_are_checked_as_the_world_itself(tmp_path):
    paths = written(tmp_path, clean_records())
    merged = list(merge_traces(paths))
    assert sorted(map(trace_line, merged)) == sorted(map(trace_line, clean_records()))
    assert [record.at_s for record in merged] == sorted(record.at_s for record in merged)
    assert verdict(merged, circumstances=Circumstances(skew_s=0.5)) is None


def test_clocks_that_are_a_little_apart_break_nothing():
    peers = sorted({record.peer for record in clean_records()})
    ahead_s = {peer: 0.1 * number for number, peer in enumerate(peers)}
    moved = [replace(r, at_s=r.at_s + ahead_s[r.peer]) for r in clean_records()]
    moved.sort(key=lambda record: record.at_s)
    assert verdict(moved) is not None
    assert verdict(moved, circumstances=Circumstances(skew_s=0.5)) is None
    # What is wrong is found all the same, a little later.
    votes = [r for r in moved if getattr(r, "message", None) and r.message.slot.kind.name == "VOTE"]
    fewer = [r for r in moved if r not in votes[-3:]]
    assert verdict(fewer, circumstances=Circumstances(skew_s=0.5)).name == "I3"


def test_torn_last_line_is_passed_over_and_a_strange_one_is_named(tmp_path):
    paths = written(tmp_path, clean_records())
    whole = paths[0].read_text()
    paths[0].write_text(whole[:-40])
    assert len(list(merge_traces(paths))) == len(clean_records()) - 1
    lines = whole.splitlines(keepends=True)
    paths[0].write_text("".join([*lines[:3], "{}\n", *lines[3:]]))
    with pytest.raises(DecodeError, match=r"line 4"):
        list(merge_traces(paths))
    with pytest.raises(OSError, match="missing"):
        list(merge_traces([tmp_path / "missing"]))


# I3 of open runs ----------------------------------------------------------------------------------


def skips(*reports, voters: int = 5) -> list[str]:
    """What I3 finds where voters report attempts, each as (number, attempt)."""
    peers = peers_named(voters)
    head = head_of(peers)
    history = History("open")
    forks = Forks(history, KeyedHashSigner(peers[0]), "open")
    report = NewAttempt(lock_attempt=-1, commits=(), drifts=(), certificate=(), missing=())
    records: list[Record] = [
        Began(at_s=0.0, peer=peer, round=head.value.round + 1, head=head, is_lost=False)
        for peer in peers
    ]
    for at, (number, attempt) in enumerate(reports):
        peer = peers[number]
        message = Voice(peer, head.value).sign(Kind.NEWATTEMPT, report, attempt)
        records.append(Signed(at_s=1.0 + at, peer=peer, message=message))
    found = []
    for record in records:
        history.saw(record)
        found += [text for text in forks.saw(record) if "follows" in text]
    return found


def test_whoever_is_led_to_an_attempt_may_give_it_up_before_it_has_said_anything():
    # b = 1: two voters show attempt 1, and it is hopeless where the third one comes to it.
    assert not skips((0, 1), (1, 1), (2, 2))
    assert not skips((0, 1), (1, 1), (0, 2), (2, 2))


def test_one_step_is_all_that_anybody_takes_beyond_what_more_voters_show_than_may_lie():
    assert skips((0, 1), (2, 2)) == ["follows 1 voters of 5 into attempt 2"]
    assert skips((0, 1), (0, 2), (0, 3), (2, 3)) == ["follows 1 voters of 5 into attempt 3"]
    assert skips((0, 1), (1, 1), (2, 3)) == ["follows 0 voters of 5 into attempt 3"]


# I2: who is bent ----------------------------------------------------------------------------------


def test_whoever_sums_wrongly_is_known_for_it_though_it_says_nothing_meanwhile():
    world = World(manifest_of_record(), seed=1)
    checks = watch(world, frozenset({"I2"}))
    peer = world.peer("n0")
    world.join(peer)
    world.run(lambda: world.nodes[peer].is_alive, 5.0)
    records, node = checks.records, world.nodes[peer]
    assert peer not in records.history.bent
    node.sums_wrongly = True
    checks.looked(node)
    assert peer in records.history.bent
