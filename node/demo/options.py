"""What a demo is asked to do."""

from dataclasses import dataclass
from pathlib import Path

from protocol.errors import ConfigError

PEERS_MIN, PEERS_MAX = 2, 16
"""One node is no swarm; beyond sixteen, loopback and one set of cores show nothing new."""

ROUNDS_MAX = 10_000

PEERS_TO_KILL_ONE = 4
"""With three voters or fewer, a dead one leaves too small a majority to show anything."""

TEST_SWITCHES = ("own-update", "flip-byte", "skip-outer-state", "no-directory")
"""For tests only: each breaks a node on purpose, to show that the demo's checks can fail.

own-update        the aggregate is replaced by one's own update
flip-byte         one byte of one part is flipped on its way
skip-outer-state  the latecomer, and only it, skips the outer state when it synchronises
no-directory      looking peers up in the DHT finds nobody
"""

LATECOMER_SWITCH = "skip-outer-state"


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
        if not PEERS_MIN <= self.peers <= PEERS_MAX:
            raise ConfigError(f"--peers {self.peers} is not in {PEERS_MIN}..{PEERS_MAX}")
        if not 1 <= self.rounds <= ROUNDS_MAX:
            raise ConfigError(f"--rounds {self.rounds} is not in 1..{ROUNDS_MAX}")
        if self.test_switch is not None and self.test_switch not in TEST_SWITCHES:
            raise ConfigError(f"no test switch {self.test_switch!r}; {', '.join(TEST_SWITCHES)}")

    @property
    def kills(self) -> bool:
        """Whether the founder is to be killed in mid-round."""
        return self.peers >= PEERS_TO_KILL_ONE

    def switches_for(self, *, is_late: bool) -> tuple[str, ...]:
        """The test switches that a node is started with."""
        if self.test_switch is None or (self.test_switch == LATECOMER_SWITCH and not is_late):
            return ()
        return (self.test_switch,)
