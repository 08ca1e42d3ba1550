"""Swarms in one process that no node is: gossip, contributions when they are ready, drawn peers."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from protocol.errors import StateError
from protocol.manifest import RunManifest
from sim.methods.compare_main import run_swarm, swarm_of
from sim.methods.gossip import MIXINGS, GossipSwarm, Pairwise, Ring
from sim.methods.virtual_swarm import (
    AsyncSwarm,
    Baton,
    SampledSwarm,
    fedbuff_weights,
    fedfix_weights,
)
from tests.training.quadratics import Quadratics, Vector, quadratic_manifest
from training.loop.diloco import DiLoCo
from training.loop.replicas import MemorySession, Swarm
from training.methods.presets import IN_PROCESS, PRESETS

REPLICAS, ROUNDS = 4, 6
ROUNDS_LONG = 100


def trained(swarm: Swarm, quadratics: Quadratics) -> list[list[tuple[int, int]]]:
    """The samples that each replica was given, per round that it trained."""
    leases: list[list[tuple[int, int]]] = [[] for _ in range(swarm.replicas)]

    def work(session: MemorySession) -> None:
        model = Vector()
        diloco = DiLoCo(model, torch.optim.SGD(model.parameters(), lr=1.0), exchange=session)
        while not diloco.finished:
            if diloco.local_step == 0:
                leases[session.replica].append(diloco.lease[0])
            gradient_D = quadratics.gradient(session.replica, model.x.detach().numpy())
            model.x.grad = torch.from_numpy(gradient_D.astype(np.float32))
            diloco.step()

    run_swarm(swarm, work)
    return leases


def manifest_of(preset: str = "fedavg", rounds: int = ROUNDS) -> RunManifest:
    return quadratic_manifest(preset, rounds=rounds, inner_steps=3)


def averaged(quadratics: Quadratics) -> np.ndarray:
    return quadratics.train(manifest_of()).anchor


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", MIXINGS)
def test_gossip_mixes_what_replicas_trained(seed: int, name: str) -> None:
    quadratics, mixing = Quadratics(REPLICAS, seed), MIXINGS[name]()
    swarm = GossipSwarm(manifest_of("gossip"), REPLICAS, mixing=mixing)
    trained(swarm, quadratics)
    x_RD: np.ndarray = np.ones((REPLICAS, 6))
    for index in range(ROUNDS):
        for replica in range(REPLICAS):
            for _ in range(3):
                x_RD[replica] -= 0.05 * quadratics.gradient(replica, x_RD[replica])
        x_RD = mixing.mix(x_RD, index)
    assert np.abs(np.stack(swarm.own) - x_RD).max() <= 1e-5
    assert swarm.payload_bytes == 4 * 6 * REPLICAS * mixing.copies(REPLICAS) * ROUNDS
    assert swarm.disagreement > 1e-3
    assert len(swarm.finals()) == REPLICAS


def test_four_steps_of_gossip_leave_a_third_of_the_disagreement_of_one(seed: int) -> None:
    """MGS on a ring of eight whose data differ (DFedSAM)."""
    quadratics = Quadratics(8, seed)
    one, four = (GossipSwarm(manifest_of("gossip"), 8, mixing=Ring(steps=n)) for n in (1, 4))
    for swarm in (one, four):
        trained(swarm, quadratics)
    assert four.disagreement <= one.disagreement / 3


def test_gossip_of_everybody_with_everybody_is_averaging(seed: int) -> None:
    """A ring of three."""
    quadratics = Quadratics(3, seed)
    swarm = GossipSwarm(manifest_of("gossip"), 3, mixing=Ring())
    trained(swarm, quadratics)
    assert np.abs(np.stack(swarm.own) - averaged(quadratics)).max() <= 1e-5


def test_who_is_absent_neither_gives_nor_takes(seed: int) -> None:
    quadratics = Quadratics(REPLICAS, seed)
    absent = frozenset((index, 1) for index in range(ROUNDS))
    swarm = GossipSwarm(manifest_of("gossip"), REPLICAS, absent, mixing=Pairwise())
    trained(swarm, quadratics)
    assert np.array_equal(swarm.own[1], np.ones(6, dtype=np.float32))
    assert all(np.abs(swarm.own[replica] - 1.0).max() > 0.1 for replica in (0, 2, 3))


def asynchronous(manifest: RunManifest, seconds: tuple[float, ...], **how: float) -> AsyncSwarm:
    shares = [1.0 / len(seconds)] * len(seconds)
    interval_s, size = how.get("interval_s", 0.0), int(how.get("size", 0))
    if interval_s:
        weights = fedfix_weights(shares, seconds, interval_s)
    else:
        weights = fedbuff_weights(shares, seconds, size)
    return AsyncSwarm(
        manifest, len(seconds), seconds=seconds, weights=weights, interval_s=interval_s, size=size
    )


def test_fedfix_of_equal_speeds_is_averaging(seed: int) -> None:
    quadratics = Quadratics(REPLICAS, seed)
    swarm = asynchronous(manifest_of(), (1.0,) * REPLICAS, interval_s=1.0)
    leases = trained(swarm, quadratics)
    assert np.abs(swarm.anchor - averaged(quadratics)).max() <= 1e-5
    assert swarm.clock.round == ROUNDS
    given = sorted(lease for of_one in leases for lease in of_one)
    assert len(set(given)) == len(given) == REPLICAS * ROUNDS, "nobody's samples twice"


@pytest.mark.parametrize("how", [{"interval_s": 1.0}, {"size": 2}])
def test_what_was_trained_last_is_summed_too(seed: int, how: dict[str, float]) -> None:
    swarm = asynchronous(manifest_of(rounds=7), (1.0, 2.0, 4.0), **how)
    leases = trained(swarm, Quadratics(3, seed))
    samples = sum(stop - start for of_one in leases for start, stop in of_one)
    assert samples == swarm.num_samples
    context = swarm.manifest.model.setting("context")
    assert swarm.clock.tokens == samples * context
    assert not swarm.handed


@pytest.mark.parametrize("how", [{"interval_s": 1.0}, {"size": 2}])
def test_fast_replicas_come_as_often_as_they_are_fast(seed: int, how: dict[str, float]) -> None:
    quadratics = Quadratics(3, seed)
    swarm = asynchronous(manifest_of(rounds=40), (1.0, 2.0, 4.0), **how)
    leases = trained(swarm, quadratics)
    numbers = [len(of_one) for of_one in leases]
    assert 3 * 40 <= sum(numbers) < 3 * 41
    assert numbers[0] == pytest.approx(2 * numbers[1], abs=2)
    assert numbers[1] == pytest.approx(2 * numbers[2], abs=2)
    again = asynchronous(manifest_of(rounds=40), (1.0, 2.0, 4.0), **how)
    trained(again, quadratics)
    assert np.array_equal(again.anchor, swarm.anchor), "virtual time has one history"


def test_drawing_all_is_averaging_and_drawing_some_lets_others_rest(seed: int) -> None:
    quadratics = Quadratics(REPLICAS, seed)
    everybody = SampledSwarm(manifest_of("fedavg"), REPLICAS, size=REPLICAS)
    trained(everybody, quadratics)
    assert np.abs(everybody.anchor - averaged(quadratics)).max() <= 1e-5
    some = SampledSwarm(manifest_of("fedavg"), 8, size=3)
    leases = trained(some, Quadratics(8, seed))
    assert sum(map(len, leases)) == 3 * ROUNDS
    assert some.attempts == [(index, 3) for index in range(ROUNDS)]
    assert len({len(of_one) for of_one in leases}) > 1


def test_round_that_too_few_survive_is_drawn_again_without_the_dead(seed: int) -> None:
    killed = frozenset(range(8, 16))
    swarm = SampledSwarm(manifest_of("fedavg", 30), 16, size=4, killed=killed, killed_from=10)
    leases = trained(swarm, Quadratics(16, seed))
    assert swarm.clock.round == 30
    by_round = [come for index, come in swarm.attempts if index > 10]
    assert by_round == [4] * 19
    assert len([1 for index, _ in swarm.attempts if index == 10]) <= 2
    assert swarm.attempts[10][1] < 4, "somebody died in that round"
    assert all(len(leases[replica]) > 1 for replica in range(8))


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", IN_PROCESS)
def test_every_preset_of_one_process_has_its_swarm(seed: int, name: str) -> None:
    assert PRESETS[name](100).lacks
    swarm = swarm_of(quadratic_manifest(name, rounds=ROUNDS_LONG), REPLICAS)
    assert type(swarm) is not Swarm
    quadratics = Quadratics(REPLICAS, seed)
    before = np.abs(1.0 - quadratics.best_D).mean()
    trained(swarm, quadratics)
    # Of replicas with weights of their own the mean: each is drawn to its own data.
    final_N = np.mean([final_N for (final_N,) in swarm.finals()], axis=0)
    assert np.abs(final_N - quadratics.best_D).mean() < before
    sent = swarm.payload_bytes / (4 * 6 * REPLICAS * ROUNDS_LONG)
    if not isinstance(swarm, GossipSwarm):
        # Both ways: what came in goes out again.
        sent *= 2
    assert sent == pytest.approx(IN_PROCESS[name].copies(REPLICAS), rel=0.3)


def test_failure_of_one_replica_is_that_of_the_run() -> None:
    def work(number: int) -> int:
        if number == 1:
            raise ZeroDivisionError
        baton.wait(number)
        return number

    with Baton(3, work) as baton:
        assert baton.run(0)
        assert not baton.run(0)
        with pytest.raises(ZeroDivisionError):
            baton.run(1)
        assert baton.run(2)
    with pytest.raises(StateError, match="is over"):
        baton._futures[2].result()


def test_presets_without_a_common_anchor_promise_no_bits() -> None:
    without = {name for name in PRESETS if not PRESETS[name](100).common_anchor}
    assert without == {name for name in IN_PROCESS if not IN_PROCESS[name].common_anchor}
    assert "modest" not in without
    assert replace(PRESETS["gossip"](100), lacks="").codec == "none"
