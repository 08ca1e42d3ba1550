"""Real processes: one member says one thing as fast as it can, and the others go on.

    python -m pytest -m slow tests/e2e/test_floods.py      a minute and a half for each kind

FLOODS=all takes every kind of `sim.attacks.flooding`.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sim.attacks.flooding import FLOODS
from sim.local.local_node import LocalNode
from sim.local.options import LocalOptions, found_run
from tests.e2e.swarm import NodeUnderTest, Swarm

pytestmark = [pytest.mark.slow, pytest.mark.net]

LIAR = ("nice", sys.executable, "-P", "-m", "sim.local.lying_node", "--flood")
HONEST = "ABCD"
BEFORE_S, FLOOD_S, SETTLE_S, AFTER_S, JOIN_S = 12.0, 30.0, 5.0, 12.0, 20.0
MEMORY_MIB = 32
LISTENS, SIGN = "listening", "floods"
WORST = ("AGG", "GRAM", "HAVE", "Heartbeat", "Heartbeat, long", "SEAT", "StatusAsk", "Want")
KINDS = sorted(FLOODS) if os.environ.get("FLOODS") == "all" else WORST


class Run:
    """Honest nodes of one open run on loopback, and more that are started later."""

    def __init__(self, folder: Path) -> None:
        for name in ("nodes", "logs", "traces"):
            (folder / name).mkdir(parents=True)
        self.options = LocalOptions(
            peers=len(HONEST), folder=folder, duration_s=60.0, train_s=0.4, trust="open"
        )
        self.path = folder / "manifest.msgpack"
        manifest = found_run(self.options, state=folder / "nodes" / "A", manifest_path=self.path)
        self.swarm = Swarm(manifest, [])

    def start(self, name: str, command: tuple[str, ...] = ()) -> NodeUnderTest:
        """A node more, which is told the address of the first."""
        nodes = self.swarm.nodes
        told = [event for event in (nodes[0].events if nodes else []) if event["event"] == LISTENS]
        found = LocalNode(
            name=name,
            folder=self.options.folder,
            bootstrap=tuple(told[0]["addresses"][:1]) if told else (),
        )
        words = found.arguments(self.options, self.path)
        node = NodeUnderTest(name, found.folder / "nodes" / name, words[4:])
        node.command = command or tuple(words[:4])
        nodes.append(node)
        node.start()
        listens = (LISTENS, "listening of " + name)
        self.swarm.wait(listens[1], lambda: any(e["event"] == LISTENS for e in node.events))
        return node

    @property
    def honest(self) -> list[NodeUnderTest]:
        return self.swarm.nodes[: len(HONEST)]

    def pace(self, seconds: float) -> float:
        """Rounds in a minute of that time, of whoever has the fewest."""
        before = [node.sealed() for node in self.honest]
        self.swarm.pause(seconds)
        found = [node.sealed() - had for node, had in zip(self.honest, before, strict=True)]
        return 60.0 * min(found) / seconds

    def memory_mib(self) -> list[float]:
        """Of each honest network process."""
        found = []
        for node in self.honest:
            assert node.process is not None
            status = Path(f"/proc/{node.process.pid}/status").read_text()
            found.append(int(status.partition("VmRSS:")[2].split()[0]) / 1024)
        return found

    def blamed(self) -> set[str]:
        """Whom the honest named as at fault."""
        events = [event for node in self.honest for event in list(node.events)]
        return {event["peer"] for event in events if event["event"] == "fault"}


@contextmanager
def run_of(folder: Path, kind: str) -> Iterator[Run]:
    """Whose last node floods while there is a file SIGN in the folder."""
    run = Run(folder)
    try:
        for name in HONEST:
            run.start(name)
        run.start("X", (*LIAR, kind, "--while", str(folder / SIGN)))
        (folder / "all-here").touch()
        run.swarm.until_round(3)
        yield run
    finally:
        for node in run.swarm.nodes:
            if node.is_running:
                node.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of processes in /proc")
@pytest.mark.parametrize("kind", KINDS)
def test_flood_of_a_niced_process_stops_no_round_and_no_newcomer_and_is_named(tmp_path, kind):
    folder = tmp_path / "run"
    with run_of(folder, kind) as run:
        before, memory = run.pace(BEFORE_S), run.memory_mib()
        flooder = run.swarm.nodes[-1]
        assert not run.blamed()
        (folder / SIGN).touch()
        during = run.pace(FLOOD_S / 2)
        late = run.start("E")
        run.swarm.wait("a newcomer", lambda: late.sealed() > 0, timeout_s=JOIN_S)
        during = (during + run.pace(FLOOD_S / 2)) / 2
        run.swarm.wait("its name", run.blamed, timeout_s=30.0)
        grown = [now - was for now, was in zip(run.memory_mib(), memory, strict=True)]
        flooder.kill()
        run.swarm.pause(SETTLE_S)
        after, blamed = run.pace(AFTER_S), run.blamed()
        told = f"{kind}: {before:.0f}, {during:.0f}, {after:.0f} rounds a minute"
        sys.stdout.write(f"{told}; grown by {max(grown):.0f} MiB; blamed: {len(blamed)}\n")
        mine = {e["peer"] for e in flooder.events if e["event"] == LISTENS}
        assert during >= before / 3, told
        assert after >= 0.7 * before, told
        assert max(grown) <= MEMORY_MIB
        assert blamed == mine
