"""R12 with real processes and disks: `kill -9` at any moment, again and again."""

import random
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sim.local.verdict import compare_checkpoints
from tests.e2e.swarm import NodeUnderTest, Swarm, swarm_of

INNER_STEPS = 60
"""Who lost its seat hears of rounds by heartbeats: one that is over sooner is over before it can
ask for a seat in it."""


class Watch:
    """What every node ever signed, read from its disk whenever it is down."""

    def __init__(self, swarm: Swarm) -> None:
        self._swarm = swarm
        self.signed: dict[tuple[object, object], bytes] = {}

    def look(self, node: NodeUnderTest) -> None:
        for message in self._swarm.signatures(node):
            known = self.signed.setdefault((message.sender, message.slot), message.digest)
            assert known == message.digest, f"two values in one slot: {message.slot}"


def run_of_kills(
    swarm: Swarm, rng: random.Random, kills: int, strike: Callable[[list[NodeUnderTest]], None]
) -> None:
    """Kill, look at the disks, restart, and wait until the swarm has gone on; then compare."""
    watch = Watch(swarm)
    swarm.until_round(3)
    for number in range(kills):
        threading.Event().wait(rng.uniform(0.0, 3.0))
        before = {node.name: node.sealed() for node in swarm.nodes}
        strike(swarm.nodes)
        down = [node for node in swarm.nodes if not node.is_running]
        for node in down:
            watch.look(node)
            node.start()
        reached = max(before.values()) + 2
        swarm.wait(
            f"kill {number}: round {reached} on every node",
            lambda: all(node.sealed() >= reached for node in swarm.nodes),  # noqa: B023
        )
        for node in down:
            resumed = [
                e for e in node.events if e["life"] == node.lives and e["event"] == "resumed"
            ]
            assert resumed, f"{node.name} did not resume:\n{node.log()[-2000:]}"
            # What it had adopted and told is durable: it goes on there, or later.
            assert resumed[0]["round"] >= before[node.name] > 0
    for node in swarm.nodes:
        assert node.leave() == 0
        watch.look(node)
    _compare(swarm)


def _compare(swarm: Swarm) -> None:
    rounds: dict[int, set[str]] = {}
    for node in swarm.nodes:
        for index, digests in node.seals().items():
            rounds.setdefault(index, set()).update(digests)
        faults = [event for event in node.events if event["event"] in ("fault", "resync")]
        assert not faults, faults[:3]
    assert len(rounds) >= 5, "three before the first kill, two behind it"
    assert all(len(digests) == 1 for digests in rounds.values()), "a round has two seals"
    roots = {seal.digest: seal.root for node in swarm.nodes for seal in swarm.chain(node)}
    # Which rounds are written depends on how fast the disk is: no two nodes need have the same.
    for node in swarm.nodes:
        differing, compared = compare_checkpoints(swarm.manifest, [node.state], roots)
        assert not differing, differing
        assert compared > 0, f"{node.name} has no checkpoint of a sealed round"


def one_of(rng: random.Random) -> Callable[[list[NodeUnderTest]], None]:
    """The same node always, its network process mostly, its trainer now and then."""

    def strike(nodes: list[NodeUnderTest]) -> None:
        nodes[1].kill(trainer=rng.random() < 0.2)

    return strike


def all_of(rng: random.Random) -> Callable[[list[NodeUnderTest]], None]:
    """Both, in any order."""

    def strike(nodes: list[NodeUnderTest]) -> None:
        for node in rng.sample(nodes, len(nodes)):
            node.kill()

    return strike


def test_killed_node_resumes_and_digests_agree_in_a_few_kills(tmp_path: Path, seed) -> None:
    rng = random.Random(f"{seed}/kills")
    with swarm_of(tmp_path, 2, inner_steps=INNER_STEPS) as swarm:
        run_of_kills(swarm, rng, 1, one_of(rng))


@pytest.mark.slow
def test_killed_node_resumes_and_digests_agree_after_fifty_kills(tmp_path: Path, seed) -> None:
    rng = random.Random(f"{seed}/kills")
    with swarm_of(tmp_path, 2, inner_steps=INNER_STEPS) as swarm:
        run_of_kills(swarm, rng, 50, one_of(rng))


@pytest.mark.slow
@pytest.mark.parametrize("how", [one_of, all_of])
def test_killed_with_two_rounds_in_flight_resume_and_digests_agree(
    tmp_path: Path, seed, how
) -> None:
    """Who trains for a round while another one is in flight (R5, R6)."""
    rng = random.Random(f"{seed}/kills")
    # Longer rounds: nobody waits for a seal, so they are over sooner.
    inner_steps = 8 * INNER_STEPS
    with swarm_of(tmp_path, 2, inner_steps=inner_steps, preset="streaming_diloco") as swarm:
        swarm.wait(
            "a round of both",
            lambda: any(e["event"] == "sealed" and e["was_listed"] for e in swarm.nodes[1].events),
        )
        run_of_kills(swarm, rng, 4, how(rng))
        logs = [path.read_text() for node in swarm.nodes for path in node.state.rglob("node.log")]
    said = "".join(logs)
    # A trainer takes two seconds to come up, and may be killed before. Of those that came up all
    # but the first of each node go on from the disk; one may have died between the two lines.
    num_ready, num_taken = said.count("trainer ready"), said.count("inner state taken up")
    assert num_taken >= max(1, num_ready - len(swarm.nodes) - 1), (num_taken, num_ready)


@pytest.mark.slow
def test_killed_with_variates_resume_and_digests_agree(tmp_path: Path, seed) -> None:
    """SCAFFOLD: what corrects the steps is on the disk with what they led to."""
    rng = random.Random(f"{seed}/kills")
    with swarm_of(tmp_path, 2, inner_steps=INNER_STEPS, preset="scaffold") as swarm:
        run_of_kills(swarm, rng, 4, one_of(rng))
        kept = [path for node in swarm.nodes for path in node.state.rglob("round-*.safetensors")]
    assert any(b"variates/common_N" in path.read_bytes() for path in kept)


@pytest.mark.slow
def test_nodes_killed_together_resume_and_digests_agree_after_ten_kills(
    tmp_path: Path, seed
) -> None:
    rng = random.Random(f"{seed}/kills")
    with swarm_of(tmp_path, 2, inner_steps=INNER_STEPS) as swarm:
        run_of_kills(swarm, rng, 10, all_of(rng))


@pytest.mark.slow
def test_node_whose_folder_is_deleted_asks_keeps_silent_and_takes_part_again(
    tmp_path: Path,
) -> None:
    with swarm_of(tmp_path, 2, inner_steps=INNER_STEPS) as swarm:
        watch = Watch(swarm)
        swarm.until_round(3)
        _, node = swarm.nodes
        node.kill()
        watch.look(node)
        shutil.rmtree(swarm.folder(node))
        node.start()
        swarm.wait(
            "the node is listed again",
            lambda: any(e["event"] == "sealed" and e["was_listed"] for e in node.life()),
        )
        assert not (swarm.folder(node) / "slots.lost").exists()
        for other in swarm.nodes:
            assert other.leave() == 0
            watch.look(other)
        _compare(swarm)
