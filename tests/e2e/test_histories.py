"""Whoever has the founder's key writes the run's history anew, with real processes: a newcomer that
hears of both takes neither, and whoever lived through the right one goes on."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from node.peers.two_histories import PROOF_FILE, keep_told
from node.state.folder import KEY_FILE, mark_unsigned, run_folder
from protocol.catching_up.chain_sources import NamedSeal
from tests.e2e.swarm import NodeUnderTest, Swarm, address_of, started, swarm_of

FAR = 24
"""So many rounds, and a newcomer takes a state."""


def told(node: NodeUnderTest, event: str) -> list[dict[str, Any]]:
    return [one for one in node.life() if one["event"] == event]


@contextmanager
def forged(swarm: Swarm, folder: Path) -> Iterator[NodeUnderTest]:
    """A node with the founder's key that founds the run once more, alone."""
    state = folder / "forger"
    state.mkdir(mode=0o700)
    shutil.copy2(folder / "n0" / KEY_FILE, state / KEY_FILE)
    mark_unsigned(state, swarm.manifest.digest)
    forger = started(swarm, state, [])
    try:
        swarm.wait("a forged history", lambda: forger.sealed() >= FAR)
        yield forger
    finally:
        forger.kill()


@contextmanager
def two_histories(folder: Path) -> Iterator[tuple[Swarm, NodeUnderTest, NodeUnderTest]]:
    """A swarm whose founder has left, one of its nodes, and the forger."""
    with swarm_of(folder, 3, trust="friends") as swarm:
        founder, honest, _ = swarm.nodes
        swarm.wait("three voters", lambda: any(e["voters"] == 3 for e in told(honest, "sealed")))
        founder.leave()
        swarm.nodes.remove(founder)
        swarm.until_round(FAR)
        with forged(swarm, folder) as forger:
            yield swarm, honest, forger


@pytest.mark.slow
def test_newcomer_that_hears_two_histories_takes_neither_and_stops_with_the_proof(
    tmp_path: Path,
) -> None:
    with two_histories(tmp_path) as (swarm, honest, forger):
        addresses = [address_of(forger), address_of(honest)]
        newcomer = started(swarm, tmp_path / "newcomer", addresses)
        assert newcomer.ended(timeout_s=60.0) == 4
        assert told(newcomer, "two_histories")
        assert not told(newcomer, "synced")
        proof = run_folder(newcomer.state, swarm.manifest.digest) / PROOF_FILE
        assert "peers tell two histories" in newcomer.log()
        assert str(proof) in newcomer.log()
        newcomer.start()
        assert newcomer.ended(timeout_s=30.0) == 4, "it forgot what it had found"
        newest = honest.sealed()
        swarm.wait("the others go on", lambda: honest.sealed() >= newest + 5)
        # The seal of a fresh invite link says which is the right one.
        (digest,) = honest.seals()[newest]
        keep_told(proof.parent, NamedSeal(newest, bytes.fromhex(digest)))
        newcomer.start()
        try:
            swarm.wait("seals", lambda: len(newcomer.seals().keys() & honest.seals().keys()) > 2)
            common = newcomer.seals().keys() & honest.seals().keys()
            assert all(newcomer.seals()[at] == honest.seals()[at] for at in common)
        finally:
            newcomer.kill()


@pytest.mark.slow
def test_newcomer_that_only_the_forger_told_says_so_and_stops_when_another_comes(
    tmp_path: Path,
) -> None:
    with two_histories(tmp_path) as (swarm, honest, forger):
        newcomer = started(swarm, tmp_path / "newcomer", [address_of(forger)])
        swarm.wait("a state", lambda: bool(told(newcomer, "synced")))
        (known,) = told(newcomer, "history")
        assert (known["others"], known["in_link"]) == (0, False)
        # A second newcomer, told both, brings the first one together with the others.
        other = started(swarm, tmp_path / "other", [address_of(newcomer), address_of(honest)])
        try:
            assert newcomer.ended(timeout_s=60.0) == 4
            assert told(newcomer, "two_histories")
        finally:
            other.kill()
