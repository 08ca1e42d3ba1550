"""What a demo is asked to do."""

from dataclasses import dataclass
from pathlib import Path

from sim.processes.node_process import check_test_switch
from sim.processes.sitting import check_range

PEERS_MIN, PEERS_MAX = 2, 16
"""One node is no swarm; beyond sixteen, loopback and one set of cores show nothing new."""

ROUNDS_MAX = 10_000

PEERS_TO_KILL_ONE = 4
"""With three voters or fewer, a dead one leaves too small a majority to show anything."""

LATECOMER_SWITCH = "skip-outer-state"
"""The latecomer, and only it, is started with this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """One demo. `folder` is where everything that it writes goes; it must be new or empty."""

    peers: int
    rounds: int
    seed: int
    folder: Path
    keep_state: bool = False
    """Leave the nodes' keys and checkpoints there."""

    test_switch: str | None = None

    def __post_init__(self) -> None:
        check_range("--peers", self.peers, PEERS_MIN, PEERS_MAX)
        check_range("--rounds", self.rounds, 1, ROUNDS_MAX)
        check_test_switch(self.test_switch)

    @property
    def kills(self) -> bool:
        """Whether the founder is to be killed in mid-round."""
        return self.peers >= PEERS_TO_KILL_ONE

    def switches_for(self, *, is_late: bool) -> tuple[str, ...]:
        """The test switches that a node is started with."""
        if self.test_switch is None or (self.test_switch == LATECOMER_SWITCH and not is_late):
            return ()
        return (self.test_switch,)
