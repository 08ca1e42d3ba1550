"""Liars who share what they know: in worlds all of a round, in real nodes their own work."""

import math
import threading
from dataclasses import replace

import numpy as np
import pytest

from node.holdings.shard_store import ShardStore
from protocol.errors import ConfigError
from protocol.identity import KeyedHashSigner
from sim.attacks import ATTACKS, Context
from sim.attacks.alone import TOGETHER, Accomplice, Conspiracy, lies_named, lies_of_nodes
from sim.attacks.seam import Attack, Vector
from sim.attacks.values import Alie
from sim.local.local_node import LocalNode
from sim.local.lying_node import SharingLiar
from sim.local.options import LocalOptions
from sim.robustness.trial import limit_of
from sim.trials.playing import play
from sim.trials.scenario import overridden
from sim.trials.scenario_file import read_scenario
from sim.trials.trial import Outcome, run_trial
from tests.node.builders import peers_named, toy_manifest


def store_of(aggregator: str = "default") -> ShardStore:
    toy = toy_manifest(peers_named(1)[0])
    outer = replace(toy.outer, codec="none", aggregator=aggregator)
    manifest = replace(toy, outer=outer)
    return ShardStore(manifest, 0, np.zeros(manifest.layout(0).fragment_numels[0], np.float32))


def work_of(store: ShardStore, rows: int, seed: int) -> np.ndarray:
    numel = store.layout.fragment_numels[0]
    return np.random.default_rng(seed).normal(1.0, 1.0, size=(rows, numel)).astype(np.float32)


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", TOGETHER)
def test_liars_all_send_what_the_attack_makes_of_all_honest_work(name, seed):
    store, peers = store_of(), peers_named(8)
    made_PN = work_of(store, 8, seed)
    honest, liars = sorted(peers[:6]), sorted(peers[6:])
    conspiracy = Conspiracy(ATTACKS[name](), liars)
    for peer, row_N in zip([*honest, *liars], made_PN, strict=True):
        conspiracy.made(peer, store.state.root, row_N)
    sent = [
        store.decode(Accomplice(name, liar, conspiracy).contribution(store.encode(row_N), store, 0))
        for liar, row_N in zip(liars, made_PN[6:], strict=True)
    ]
    if name in ("fang", "shift"):  # One draws for each liar, the other starts from its work.
        assert not np.array_equal(sent[0], sent[1])
    else:
        assert np.array_equal(sent[0], sent[1])
    assert not any(np.array_equal(sent[0], row_N) for row_N in made_PN[6:])
    if name == "alie":
        wide_HN = made_PN[:6].astype(np.float64)
        wanted_N = wide_HN.mean(axis=0) - 1.5 * wide_HN.std(axis=0, ddof=1)
        np.testing.assert_allclose(sent[0], wanted_N, rtol=1e-5, atol=1e-6)
    if name == "shift":
        wanted_BN = made_PN[6:] - made_PN[:6].mean(axis=0)
        np.testing.assert_allclose(sent, wanted_BN, rtol=1e-4, atol=1e-5)
    if name == "mimic":
        assert any(np.array_equal(sent[0], row_N) for row_N in made_PN[:6])


def test_liar_waits_for_all_others_and_one_who_comes_late_says_what_the_others_said(seed):
    store, peers = store_of(), sorted(peers_named(4))
    made_PN, root = work_of(store, 4, seed), store.state.root
    conspiracy = Conspiracy(ATTACKS["ipm"](), peers[2:])
    first, late = (Accomplice("ipm", peer, conspiracy) for peer in peers[2:])
    conspiracy.made(peers[0], root, made_PN[0])
    assert first.is_waiting(store, peers[:2])
    conspiracy.made(peers[1], root, made_PN[1])
    assert not first.is_waiting(store, peers[:2])
    assert first.is_waiting(store, peers), "the other liar has trained nothing yet"
    sent = [one.contribution(store.encode(made_PN[2]), store, 0) for one in (first, late)]
    assert sent[0] == sent[1]


def test_liars_of_a_world_commit_to_what_all_honest_peers_of_the_round_made(monkeypatch, seed):
    rounds, told = 4, []

    class Watched(Alie):
        def send(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Vector:
            told.append((honest_HN.copy(), own_BN.copy()))
            return super().send(honest_HN, own_BN, context)

    monkeypatch.setitem(ATTACKS._factories, "alie", Watched)
    found = liars_of_world("alie:0.25", seed, peers=8, rounds=rounds)
    assert found.violation is None
    assert found.rounds_sealed == rounds
    # Nobody was told twice in a round, and each time all were there: six honest, two liars.
    assert len(told) == rounds
    assert {(len(honest), len(own)) for honest, own in told} == {(6, 2)}
    moved = [np.linalg.norm(honest.mean(axis=0)) for honest, _ in told]
    assert all(length > 0.0 for length in moved)


def liars_of_world(
    attack: str, seed: int, *, peers: int, rounds: int, aggregator: str = "default"
) -> Outcome:
    """The small text model in rounds of the protocol."""
    scenario = overridden(read_scenario("open-liars"), peers=peers, rounds=rounds, attack=attack)
    return run_trial(replace(scenario, aggregator=aggregator), seed)


def loss_of(found: Outcome) -> float:
    assert found.loss_last is not None
    return found.loss_last


@pytest.mark.slow
@pytest.mark.parametrize("name", TOGETHER)
def test_default_rule_bounds_what_liars_cost_who_know_all(name, seed):
    clean, bent = (
        liars_of_world(attack, seed, peers=12, rounds=12) for attack in ("none", f"{name}:0.25")
    )
    assert (clean.violation, bent.violation) == (None, None)
    assert (bent.rounds_sealed, bent.banned) == (12, 0)
    limit = limit_of(name, 12, 3)
    assert limit is not None
    assert loss_of(bent) <= loss_of(clean) * (1.0 + limit / 100.0)


@pytest.mark.slow
def test_mean_is_ruined_by_liars_of_a_world_whom_the_default_rule_bears(seed):
    with np.errstate(all="ignore"):  # A model that is ruined has no logarithm to speak of.
        clean, bare = (
            liars_of_world(attack, seed, peers=8, rounds=8, aggregator="mean")
            for attack in ("none", "searched_ipm:0.25")
        )
    assert loss_of(clean) < 1.5
    assert not math.isfinite(loss_of(bare)) or loss_of(bare) > 2.0 * loss_of(clean)


def test_nobody_lies_where_the_attack_is_none(seed):
    scenario = overridden(read_scenario("open-liars"), peers=4, rounds=2, attack="none")
    assert scenario.attack == ""
    assert play(scenario, seed).outcome.violation is None


def test_real_liars_send_the_same_from_each_others_files(tmp_path, seed):
    store, signers = store_of(), [KeyedHashSigner(peer) for peer in peers_named(2)]
    made_BN = work_of(store, 2, seed)
    liars = [SharingLiar("alie", tmp_path, 2, patience_s=30.0) for _ in signers]
    sent: dict[int, np.ndarray] = {}

    def contribute(number: int) -> None:
        liars[number].began(signers[number])
        payloads = store.encode(made_BN[number])
        sent[number] = store.decode(liars[number].contribution(payloads, store, 0))

    threads = [threading.Thread(target=contribute, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(sent[0], sent[1])
    wide_BN = made_BN.astype(np.float64)
    wanted_N = wide_BN.mean(axis=0) - 1.5 * wide_BN.std(axis=0, ddof=1)
    np.testing.assert_allclose(sent[0], wanted_N, rtol=1e-5, atol=1e-6)


def test_real_liar_whose_companions_are_gone_goes_on_with_its_own_work(tmp_path, seed):
    store = store_of()
    own_N = work_of(store, 1, seed)[0]
    liar = SharingLiar("ipm", tmp_path, 3, patience_s=0.0)
    liar.began(KeyedHashSigner(peers_named(1)[0]))
    (tmp_path / f"{store.state.root.hex()[:32]}-0-junk").write_bytes(b"\x00" * 4 * len(own_N))
    (tmp_path / f"{store.state.root.hex()[:32]}-0-{'ab' * 32}").write_bytes(b"torn")
    sent_N = store.decode(liar.contribution(store.encode(own_N), store, 0))
    np.testing.assert_allclose(sent_N, -0.6 * own_N, rtol=1e-5)


def test_real_liars_are_told_where_they_share_and_one_alone_is_refused(tmp_path):
    lies = lies_of_nodes("alie:0.25", 8)
    assert lies == lies_named("alie:0.25", 8)
    options = LocalOptions(
        peers=8, folder=tmp_path, rounds=3, duration_s=None, trust="open", attack=lies
    )
    node = LocalNode("G", tmp_path, (), is_liar=True)
    words = node.arguments(options, tmp_path / "manifest")
    assert words[words.index("--shared") + 1] == str(tmp_path / "liars")
    assert words[words.index("--liars") + 1] == "2"
    with pytest.raises(ConfigError, match="two liars"):
        lies_of_nodes("alie:0.25", 4)
    assert all(issubclass(type(ATTACKS[name]()), Attack) for name in TOGETHER)
