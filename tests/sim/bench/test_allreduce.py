"""Which rounds `bench allreduce` measures, with nodes that are made up."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from node.processes.children import first_error_nursery
from node.reporting.tracing import Record, Signed
from protocol.errors import StateError
from protocol.identity import PeerId
from sim.bench import allreduce
from sim.bench.allreduce import AllreduceRun
from tests.node.builders import Voice
from tests.sim.bench.scene import NAMES, PEERS, Scene, manifest_at

A, B, C = PEERS


class MadeUp:
    """Stands where a stage's watch stands: rounds are over as soon as their gate opens."""

    def __init__(self, scene: Scene, gate: Path, listed: Mapping[int, tuple[PeerId, ...]]) -> None:
        self._scene, self._gate, self._listed = scene, gate, listed
        self._index = 1
        self.records: list[Record] = []

    async def next(self) -> list[Record]:
        await trio.lowlevel.checkpoint()
        if not (self._gate / f"go-{self._index}").exists():
            for name in NAMES.values():
                (self._gate / f"ready-{name}-{self._index}".replace("1/", "")).touch()
            return []
        before = len(self._scene.records)
        head = self._scene.heads[-1]
        value = self._scene.play(self._listed.get(self._index, PEERS))
        message = Voice(A, head).seal(value).message
        self._scene.records.append(Signed(at_s=float(self._index), peer=A, message=message))
        self._index += 1
        fresh = self._scene.records[before:]
        self.records += fresh
        return fresh


def made_run(folder: Path, rounds: int, listed: Mapping[int, tuple[PeerId, ...]]) -> AllreduceRun:
    (folder / "gate").mkdir()
    nodes = [
        SimpleNamespace(name=name, pids=[], bytes_sent=0, seated=1 << 20, sealed=1 << 20)
        for name in "ABC"
    ]

    async def until(is_so: Any) -> None:
        assert is_so()

    stage: Any = SimpleNamespace(
        options=SimpleNamespace(folder=folder, peers=3),
        watch=MadeUp(Scene(manifest_at(folder)), folder / "gate", listed),
        nodes=nodes,
        peers=PEERS,
        is_profiled=False,
        swarm=SimpleNamespace(until=until),
    )
    return AllreduceRun(stage, rounds, lambda line: None)


async def played(run: AllreduceRun, rounds: int) -> list[int]:
    with trio.fail_after(60):
        async with first_error_nursery() as nursery:
            nursery.start_soon(run._let_gos)
            while len(run.rounds) < rounds:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    return [one.round for one in run.rounds]


async def test_round_that_left_somebody_out_is_not_measured(
    tmp_path: Path,
) -> None:
    """It moved fewer bytes: a swarm that drops its slowest would look fast."""
    run = made_run(tmp_path, 2, {3: (A, B)})
    assert await played(run, 2) == [2, 5]


async def test_swarm_that_always_leaves_somebody_out_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allreduce, "MISSES_MAX", 1)
    run = made_run(tmp_path, 9, {3: (A, B), 5: (B, C)})
    with pytest.raises(StateError, match="left somebody out"):
        await played(run, 9)
    assert [one.round for one in run.rounds] == [2]
