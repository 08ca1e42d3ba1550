"""Real nodes that lie: what they contribute, who they are, and what they weigh."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from node.holdings.shard_store import ShardStore
from node.plane.hooks import NodeHooks
from node.reporting.tracing import Convicted, Signed
from protocol.entry_kinds import Accusation
from protocol.errors import ConfigError
from protocol.identity import KeyedHashSigner, PeerId
from protocol.messages import Gram, Kind, decode_body, sign_message
from sim.attacks import ATTACKS
from sim.attacks.alone import (
    ALONE,
    IN_WORLDS,
    Lies,
    hooks_of,
    lies_named,
    lies_of_nodes,
)
from sim.attacks.work import Liar
from sim.local.local_node import LYING_COMMAND, LocalNode
from sim.local.options import LocalOptions, local_manifest
from sim.local.verdict import weights_of
from sim.world.toy_run import toy_run
from tests.node.builders import peers_named, toy_manifest
from tests.protocol.entry_vectors import EVIDENCE
from tests.sim.worlds import WatchedWorld


def store_of(codec: str) -> ShardStore:
    toy = toy_manifest(peers_named(1)[0])
    manifest = replace(toy, outer=replace(toy.outer, codec=codec))
    return ShardStore(manifest, 0, np.zeros(manifest.layout(0).fragment_numels[0], np.float32))


@pytest.mark.parametrize("codec", ["none", "fp16", "int8"])
@pytest.mark.parametrize("name", [name for name in ALONE if ATTACKS[name]().hooks() is None])
def test_liar_contributes_what_its_attack_makes_and_everybody_would_take_it(name, codec, seed):
    store, liar = store_of(codec), Liar(name)
    numel = store.layout.fragment_numels[0]
    luck = np.random.default_rng(seed)
    is_bent = False
    for _ in range(3):
        honest = store.encode(0.01 * luck.normal(size=numel).astype(np.float32))
        sent = liar.contribution(honest, store, 0)
        root, norms = store.contribute(sent)
        assert len(root) == 32
        assert np.isfinite(norms).all()
        assert NodeHooks().contribution(honest, store, 0) is honest
        assert store.decode(sent).any() == (name != "zero")
        is_bent |= list(sent) != list(honest)
    assert is_bent
    assert name in ATTACKS


def test_scaled_contribution_is_a_thousand_times_as_long_and_flipped(seed):
    store = store_of("none")
    own_N = np.random.default_rng(seed).normal(size=store.layout.fragment_numels[0])
    payloads = store.encode(own_N.astype(np.float32))
    sent_N = store.decode(Liar("scale").contribution(payloads, store, 0))
    assert np.allclose(sent_N, -1000.0 * store.decode(payloads), rtol=1e-6)


def test_liars_who_draw_do_so_each_by_itself_and_again_the_same(seed):
    store = store_of("none")
    honest = store.encode(np.ones(store.layout.fragment_numels[0], np.float32))

    def noise(peer: PeerId, world_seed: int) -> np.ndarray:
        liar = hooks_of("gaussian", world_seed)
        liar.began(KeyedHashSigner(peer))
        return store.decode(liar.contribution(honest, store, 0)).astype(np.float64)

    one, other = peers_named(2)
    drawn = [noise(one, seed), noise(other, seed), noise(one, seed + 1)]
    assert np.array_equal(noise(one, seed), drawn[0])
    cosines = np.corrcoef(drawn)[np.triu_indices(3, k=1)]
    assert np.abs(cosines).max() < 0.5


def test_stale_liar_repeats_its_work_on_the_same_fragment(seed):
    toy = toy_manifest(peers_named(1)[0])
    manifest = toy_run(toy.founder, rounds=5, cells=(2, 1), timing=toy.timing)
    manifest = replace(manifest, outer=replace(manifest.outer, codec="none"))
    numels = manifest.layout(0).fragment_numels
    assert numels[0] != numels[1]
    store = ShardStore(manifest, 0, np.zeros(sum(numels), np.float32))
    liar, luck = Liar("stale"), np.random.default_rng(seed)
    made = {f: luck.normal(size=(3, numels[f])).astype(np.float32) for f in (0, 1)}
    for index in range(3):
        for fragment in (0, 1):
            payloads = store.encode(made[fragment][index], fragment=fragment)
            sent = liar.contribution(payloads, store, fragment)
            # The delay is longer than there are rounds.
            sent_N = store.decode(sent, fragment=fragment)
            np.testing.assert_array_equal(sent_N, made[fragment][0])


def test_share_of_liars_is_read_and_rounded_down_to_one_at_least():
    assert lies_named("scale:0.25", 8) == Lies("scale", 2)
    assert lies_named("zero:0.01", 8) == Lies("zero", 1)
    for text in ("scale", "scale:", "scale:0", "scale:0.5", "scale:nan", "scale:x", "nosuch:0.25"):
        with pytest.raises(ConfigError, match="--attack"):
            lies_named(text, 8)


@pytest.mark.parametrize("name", sorted(IN_WORLDS))
def test_lies_in_the_midst_of_training_are_for_worlds(name):
    assert lies_named(f"{name}:0.25", 8) == Lies(name, 2)
    with pytest.raises(ConfigError, match="barnraise sim"):
        lies_of_nodes(f"{name}:0.25", 8)


def test_liars_are_another_program_and_their_run_is_open(tmp_path):
    lies = Lies("scale", 1)
    options = LocalOptions(
        peers=4, folder=tmp_path, rounds=3, duration_s=None, trust="open", attack=lies
    )
    manifest = local_manifest(options, peers_named(1)[0])
    assert (manifest.trust, manifest.outer.aggregator) == ("open", "default")
    for is_liar in (False, True):
        node = LocalNode("D", tmp_path, (), is_liar=is_liar)
        words = node.arguments(options, tmp_path / "manifest")
        begins = words[: len(LYING_COMMAND) + 2] == [*LYING_COMMAND, "--attack", "scale"]
        assert begins == is_liar
    friends = local_manifest(replace(options, trust="friends", attack=None), peers_named(1)[0])
    assert (friends.trust, friends.outer.aggregator) == ("friends", "mean")


def test_lying_auditor_of_a_run_without_audits_is_refused(tmp_path):
    shared = {"peers": 4, "folder": tmp_path, "rounds": 3, "duration_s": None, "trust": "open"}
    lies = Lies("lying_auditor", 1)
    assert LocalOptions(**shared, attack=lies, audits=0.5).attack == lies
    with pytest.raises(ConfigError, match="lying_auditor needs --audits"):
        LocalOptions(**shared, attack=lies)


@pytest.mark.parametrize("aggregator", ["mean", "krum"])
def test_weights_are_the_factors_of_the_rule_from_what_was_signed(aggregator, seed):
    peers = peers_named(4)
    toy = toy_manifest(peers[0], rounds=4)
    outer = replace(toy.outer, aggregator=aggregator)
    world = WatchedWorld(replace(toy, outer=outer), seed=seed)
    records: list[Any] = []
    world.tracers.append(records.append)
    for peer in peers:
        world.join(peer)
    world.finish()
    found = weights_of(world.manifest, records)
    assert found.keys() == {peer for listed in world.listed.values() for peer in listed}
    assert all(0.0 <= weight <= 1.0 for weight in found.values())
    # Each round's shares sum to one, whoever it lists.
    times = {peer: sum(peer in listed for listed in world.listed.values()) for peer in found}
    total = sum(weight * times[peer] for peer, weight in found.items())
    assert total == pytest.approx(len(world.listed))
    per_round = [found[peer] * times[peer] for peer in found]
    if aggregator == "krum":
        assert all(share == pytest.approx(round(share)) for share in per_round), "one row each"
    # What a convicted reducer said of the same slices, and first, changes nothing.
    lies = [_lie(record) for record in records if _is_gram(record)]
    assert bool(lies) == (aggregator == "krum")
    proof = replace(EVIDENCE[Accusation.WRONG_SUM], subject=LIAR)
    convicted = Convicted(at_s=0.0, peer=peers[0], evidence=proof)
    assert weights_of(world.manifest, [*lies, convicted, *records, *lies]) == found
    assert not lies or weights_of(world.manifest, [*records, *lies]) != found


LIAR = PeerId(bytes([7]) * 32)


def _is_gram(record: Any) -> bool:
    return isinstance(record, Signed) and record.message.slot.kind is Kind.GRAM


def _lie(record: Signed) -> Signed:
    body = decode_body(record.message)
    assert isinstance(body, Gram)
    stats = np.frombuffer(body.stats, dtype="<f8").copy()
    stats[0] = 1e6 * stats[0] + 1.0
    signer, slot = KeyedHashSigner(LIAR), record.message.slot
    message = sign_message(signer, slot, replace(body, stats=stats.tobytes()))
    return Signed(at_s=record.at_s, peer=LIAR, message=message)
