"""A latecomer, a kill and a partition while fragments are streamed in four bits with feedback.

All invariants are watched in it: I2 sums each LIST once more from the wire bytes and steps the
anchor by it, so what was applied is what was sealed; I5 follows every peer's residual of every
fragment from COMMIT to COMMIT, so nothing of it is lost or counted twice (R6). With two rounds in
flight, where there are no branches, all that was sealed is summed up at the end as well.
"""

import random
from collections import Counter
from dataclasses import replace

import pytest

from node.holdings.states import round_config
from protocol.messages import Commit
from sim.processes.recipe import outer_spec
from sim.world.toy_run import toy_run
from sim.world.trainer import SimTrainer
from tests.node.builders import peers_named, toy_manifest
from tests.sim.applied import Applied
from tests.sim.worlds import WatchedWorld
from training.compression import Encoded
from training.compression.blocks import GRADES, GradedCodec
from training.methods.presets import PRESETS

CELLS, PEERS = (2, 1, 3, 1), 5
OVERLAP = {"streaming_sync": 1, "streaming_diloco": 2}
PRESETS_HERE = tuple(OVERLAP)
ROUNDS = {"streaming_sync": 14, "streaming_diloco": 18}
"""Where two rounds are in flight a seat comes later: who lost its own has time to come back."""

CUT_S = 20.0
"""Virtual seconds of a partition at most. The sides may need each other: where one has the quorum
of a round and the other that of the next, which knows another voter."""


def stream(
    seed: int, preset: str, *, is_summed: bool = False, is_graded: bool = False
) -> WatchedWorld:
    """Play one world to its end; where what falls is drawn. If it `is_summed` the outer step is
    plain, and what it applied must be the sum of what was sealed. Where it `is_graded` each peer
    encodes in bits of its own, others in each round."""
    luck = random.Random(f"{seed}/streaming")
    peers = peers_named(PEERS + 1)
    *members, late = peers
    manifest = toy_run(
        peers[0], rounds=ROUNDS[preset], cells=CELLS, timing=toy_manifest(peers[0]).timing
    )
    outer = outer_spec(preset, PRESETS[preset](ROUNDS[preset]))
    assert (outer.codec, outer.feedback, outer.overlap) == ("e3m0", 1.0, OVERLAP[preset])
    if is_graded:
        outer = replace(outer, codec="graded")
    if is_summed:
        outer = replace(outer, optimizer="sgd", learning_rate=1.0, momentum=0.0)
    world = WatchedWorld(replace(manifest, outer=outer), seed=seed)
    config = round_config(world.manifest)
    for number, peer in enumerate(members):
        waiting = replace(config, wait_seats=PEERS - 1) if number == 0 else config
        world.join(peer, config=waiting)
    applied = Applied(world) if is_summed else None
    killed = luck.choice(members[1:])
    world.until_round(luck.randint(2, 4))
    world.crash(killed)
    world.join(late)
    world.until_round(luck.randint(6, 7))
    world.bounce(killed)
    world.until_round(8)
    everybody, cut = luck.sample(peers, len(peers)), luck.choice((1, 2))
    world.partition([everybody[:cut], everybody[cut:]])
    until_s = world.now_s + CUT_S
    world.run(lambda: world.now_s >= until_s or world.is_round_of_most(10), max_s=2 * CUT_S)
    world.repair()
    world.finish()
    assert len(world.living()) == PEERS + 1
    if applied is not None:
        applied.check(ROUNDS[preset], PEERS + 1)
    return world


def check(world: WatchedWorld) -> None:
    """Everybody ends with the same bits, and all took part in what they are made of."""
    listed = {peer for peers in world.listed.values() for peer in peers}
    assert listed == set(world.nodes)
    commits = world.checks.records.history.commits.values()
    bodies = [said.body for said in commits]
    afters = {body.residual_after for body in bodies if isinstance(body, Commit)}
    assert len(afters) > 2 * (PEERS + 1), "the feedback has something to carry"


@pytest.mark.quick(1)
@pytest.mark.parametrize("preset", PRESETS_HERE)
def test_latecomer_kill_and_partition_leave_one_state(seed: int, preset: str) -> None:
    check(stream(seed, preset, is_summed=preset == "streaming_diloco"))


@pytest.mark.extended
@pytest.mark.parametrize("preset", PRESETS_HERE)
def test_peers_that_encode_in_bits_of_their_own_have_one_state(seed: int, preset: str) -> None:
    """Sums and residuals are made again from the wire, where nothing but sizes tells the bits."""
    sizes: Counter[int] = Counter()
    encode = SimTrainer.contribute
    with pytest.MonkeyPatch.context() as patch:

        def counted(trainer: SimTrainer, stream: random.Random) -> Encoded:
            encoded = encode(trainer, stream)
            sizes[len(encoded.payloads[0])] += 1
            return encoded

        patch.setattr(SimTrainer, "contribute", counted)
        check(stream(seed, preset, is_summed=preset == "streaming_diloco", is_graded=True))
    cell = {GradedCodec().at(bits, 1024).payload_bytes(1024) for bits in GRADES}
    assert len(cell) == 3
    assert cell <= sizes.keys()


@pytest.mark.slow
@pytest.mark.parametrize("world_seed", range(100))
@pytest.mark.parametrize("preset", PRESETS_HERE)
def test_latecomer_kill_and_partition_leave_one_state_over_100_seeds(
    world_seed: int, preset: str
) -> None:
    check(stream(world_seed, preset))


@pytest.mark.slow
@pytest.mark.parametrize("world_seed", range(100))
def test_what_was_applied_in_flight_is_what_was_sealed_over_100_seeds(world_seed: int) -> None:
    check(stream(world_seed, "streaming_diloco", is_summed=True))
