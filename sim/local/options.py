"""What `barnraise local` is asked to do."""

import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from node.demo.node_process import NODE_COMMAND
from node.demo.options import TEST_SWITCHES
from protocol import limits
from protocol.errors import ConfigError
from sim.attacks.alone import Lies, check_audits
from sim.local.shape import Shape
from training.methods.presets import PRESETS

PEERS_MIN, PEERS_MAX = 2, 32
PEERS_FOR_CHAOS = 3
"""With two voters the elder one alone is a quorum, and without it nothing goes on."""

ELEMENTS_MIN, ELEMENTS_MAX = 1024, 100_000_000

KINDS = {
    "kill": "a process dies at once, and starts again later",
    "freeze": "a node's processes stand still for a while",
    "churn": "nodes leave, come back, and new ones join",
    "stall": "a node's network line stands still, connections open",
    "reset": "all connections of a node break",
    "partition": "nothing passes between some nodes and the others, connections open",
}
NEEDS_SIGNALS = ("freeze",)
NEEDS_SHAPER = ("stall", "reset", "partition")
NEEDS_DIALLER = ("partition",)
"""The shaper must know both ends of a connection, which only Linux tells."""

TRUSTS = ("friends", "open")
TRAINERS = ("made-up", "real")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """One run of real nodes. `folder` is where everything goes; it must be new or empty."""

    peers: int
    folder: Path
    rounds: int | None = None
    """The run's last round; None where `duration_s` ends it."""

    duration_s: float | None = 60.0
    shape: Shape | None = None
    kinds: tuple[str, ...] = ()
    """Faults that are dealt, one every `every_s` seconds."""

    every_s: float = 10.0
    seed: int = 0
    node_command: tuple[str, ...] = NODE_COMMAND
    """Which program is the network process."""

    trainer: str = "made-up"
    trainer_module: str = "sim.local.made_up_trainer"
    """Which program makes up what is contributed."""

    trainer_words: tuple[str, ...] = ()
    """More of its options."""

    train_s: float = 0.5
    """Seconds of made-up training per round."""

    wait_seats_s: float = 12.0
    """So long the founder waits for the seats of the others with its first round."""

    security: str = "tls"
    """How connections are encrypted; see `NodeConfig.security`."""

    elements: int = 100_000
    """Parameters of the made-up model; as many as fit its shapes, a few less."""

    fragments: int = 1
    """Of the model, synced in turn."""

    seats: int = limits.SEATS_MAX
    """So many contribute to a round."""

    preset: str | None = None
    """The method; None is the demo's. It also says into how many fragments, where it cuts."""

    then: tuple[str, int] | None = None
    """Another method, from that round on."""

    lag: int | None = None
    """Rounds in flight, L of R1; None are the preset's."""

    steps: int | None = None
    """Inner steps of a round of real training; None are the preset's, or the demo's."""

    is_reckless: bool = False
    """Deal faults also where they leave less than a quorum."""

    keep_state: bool = False
    trust: str = "friends"
    audits: float = 0.0
    """How many each contribution meets, on average, in open runs."""

    attack: Lies | None = None
    """What the last nodes that start together contribute instead of their work."""

    test_switch: str | None = None
    """Bends the second node, to show that the checks can fail."""

    def __post_init__(self) -> None:
        if not PEERS_MIN <= self.peers <= PEERS_MAX:
            raise ConfigError(f"--peers {self.peers} is not in {PEERS_MIN}..{PEERS_MAX}")
        if (self.rounds is None) == (self.duration_s is None):
            raise ConfigError("give either --rounds or --duration")
        if self.rounds is not None and not 1 <= self.rounds <= limits.ROUNDS_MAX:
            raise ConfigError(f"--rounds {self.rounds} is not in 1..{limits.ROUNDS_MAX}")
        if self.trainer not in TRAINERS:
            raise ConfigError(f"--trainer {self.trainer!r} is none of {', '.join(TRAINERS)}")
        if not ELEMENTS_MIN <= self.elements <= ELEMENTS_MAX:
            raise ConfigError(
                f"--elements {self.elements} is not in {ELEMENTS_MIN}..{ELEMENTS_MAX}"
            )
        if self.test_switch is not None and self.test_switch not in TEST_SWITCHES:
            raise ConfigError(f"no test switch {self.test_switch!r}; {', '.join(TEST_SWITCHES)}")
        if self.preset is not None and self.preset not in PRESETS:
            raise ConfigError(f"--preset {self.preset!r} is none of {', '.join(PRESETS)}")
        if self.then is not None and self.then[0] not in PRESETS:
            raise ConfigError(f"--then {self.then[0]!r} is none of {', '.join(PRESETS)}")
        if self.preset is not None and (lacks := PRESETS[self.preset](1).lacks):
            raise ConfigError(f"--preset {self.preset!r}: no node runs it, it needs {lacks}")
        if self.trust not in TRUSTS:
            raise ConfigError(f"--trust {self.trust!r} is none of {', '.join(TRUSTS)}")
        if self.lag not in (None, 1, 2):
            raise ConfigError(f"--lag {self.lag} is not in 1..2")
        if not 0.0 <= self.audits <= 1.0:
            raise ConfigError(f"--audits {self.audits} is not in 0..1")
        if self.audits and self.trust != "open":
            raise ConfigError("--audits is for open runs: friends trust each other")
        if self.attack is not None:
            check_audits(self.attack.name, self.audits)
        self._check_kinds()

    def _check_kinds(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown:
            raise ConfigError(f"--chaos: no fault {unknown[0]!r}; there are {', '.join(KINDS)}")
        if len(set(self.kinds)) != len(self.kinds):
            raise ConfigError("--chaos: a fault is named twice")
        if self.kinds and self.peers < PEERS_FOR_CHAOS and not self.is_reckless:
            raise ConfigError(
                f"--chaos takes at least {PEERS_FOR_CHAOS} peers: of {self.peers}, one that is "
                "missing is one too many. --reckless does it all the same"
            )
        if not sys.platform.startswith("linux"):
            for kind in NEEDS_DIALLER:
                if kind in self.kinds:
                    raise ConfigError(f"--chaos {kind}: only Linux tells whose a connection is")
        if not hasattr(signal, "SIGSTOP"):
            for kind in NEEDS_SIGNALS:
                if kind in self.kinds:
                    raise ConfigError(f"--chaos {kind}: this system has no signal that does it")

    @property
    def needs_shaper(self) -> bool:
        """Whether there is a proxy between the nodes."""
        return self.shape is not None or any(kind in NEEDS_SHAPER for kind in self.kinds)


def then_named(text: str | None) -> tuple[str, int] | None:
    """`eager:25` as a preset and a round. Raises ConfigError for no such text."""
    if text is None:
        return None
    name, _, number = text.partition(":")
    if not (number.isascii() and number.isdigit()) or int(number) < 1:
        raise ConfigError(f"--then {text!r} is no preset and round, such as eager:25")
    return name, int(number)


def kinds_named(text: str | None) -> tuple[str, ...]:
    """`kill,freeze` as a tuple; which kinds there are is checked with the other options."""
    return () if text is None else tuple(part.strip() for part in text.split(","))
