"""What `barnraise bench fault` and `barnraise bench allreduce` are asked to do."""

import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from node.demo.node_process import NODE_COMMAND
from node.state.config import SECURITIES
from protocol.errors import ConfigError
from sim.bench.moments import MOMENTS, RANDOM, ROLES
from sim.local.options import ELEMENTS_MAX, ELEMENTS_MIN, PEERS_MAX, PEERS_MIN, LocalOptions
from training.aggregation import AGGREGATORS
from training.compression import CODECS

FAULTS = ("kill", "freeze", "none")
PEERS_FOR_FAULT = 3
REPEAT_MAX = 1000
TRAINER = "sim.bench.trainer"
PROFILED_NODE_COMMAND = (sys.executable, "-P", "-m", "sim.bench.profiled_node")

WAIT_SEATS_S = 120.0
"""Four nodes with 10^8 elements have four rounds behind them after 75 s on two cores. Of a founder
that goes on before the others have seats, they would run after the head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What every bench is told. `folder` is where everything goes; it must be new or empty."""

    peers: int
    elements: int
    folder: Path
    seed: int = 0
    train_s: float = 0.2
    codec: str = "none"
    aggregator: str = "mean"
    momentum: float = 0.0
    """Of the outer step (Nesterov); 0 takes plain averaging, which keeps nothing."""

    security: str = "tls"
    """How connections are encrypted; see `NodeConfig.security`."""

    keep_state: bool = False
    is_profiled: bool = False
    """Whether all processes are sampled for what they work for."""

    def __post_init__(self) -> None:
        if not PEERS_MIN <= self.peers <= PEERS_MAX:
            raise ConfigError(f"--peers {self.peers} is not in {PEERS_MIN}..{PEERS_MAX}")
        if not ELEMENTS_MIN <= self.elements <= ELEMENTS_MAX:
            raise ConfigError(
                f"--elements {self.elements} is not in {ELEMENTS_MIN}..{ELEMENTS_MAX}"
            )
        if self.codec not in CODECS:
            raise ConfigError(f"--codec {self.codec!r} is none of {', '.join(CODECS)}")
        if self.aggregator not in AGGREGATORS:
            known = ", ".join(AGGREGATORS)
            raise ConfigError(f"--aggregator {self.aggregator!r} is none of {known}")

        if self.security not in SECURITIES:
            raise ConfigError(f"--security {self.security!r} is none of {', '.join(SECURITIES)}")
        if not 0.0 <= self.momentum < 1.0:
            raise ConfigError(f"--momentum {self.momentum} is not in [0, 1)")

    def local(self, folder: Path, seed: int, words: tuple[str, ...] = ()) -> LocalOptions:
        """The swarm of one run of the bench; `words` are more options of its trainers."""
        return LocalOptions(
            peers=self.peers,
            elements=self.elements,
            folder=folder,
            seed=seed,
            train_s=self.train_s,
            security=self.security,
            wait_seats_s=WAIT_SEATS_S,
            trainer_module=TRAINER,
            trainer_words=words,
            node_command=PROFILED_NODE_COMMAND if self.is_profiled else NODE_COMMAND,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOptions(BenchOptions):
    """`bench fault`. Without a fault it counts whom a calm swarm of `rounds` rounds excludes."""

    fault: str = "kill"
    moment: str = RANDOM
    victim: str = RANDOM
    repeat: int = 5
    rounds: int = 200

    def __post_init__(self) -> None:
        BenchOptions.__post_init__(self)
        for name, value, known in (
            ("fault", self.fault, FAULTS),
            ("moment", self.moment, (*MOMENTS, RANDOM)),
            ("victim", self.victim, (*ROLES, RANDOM)),
        ):
            if value not in known:
                raise ConfigError(f"--{name} {value!r} is none of {', '.join(known)}")
        if self.fault != "none" and self.peers < PEERS_FOR_FAULT:
            raise ConfigError(
                f"--fault takes at least {PEERS_FOR_FAULT} peers: of {self.peers}, one that is "
                "missing may leave no quorum"
            )
        if self.fault == "freeze" and not hasattr(signal, "SIGSTOP"):
            raise ConfigError("--fault freeze: this system has no signal that does it")
        if not 1 <= self.repeat <= REPEAT_MAX:
            raise ConfigError(f"--repeat {self.repeat} is not in 1..{REPEAT_MAX}")
        if self.rounds < 1:
            raise ConfigError(f"--rounds {self.rounds} is not above 0")

    @property
    def is_calm(self) -> bool:
        """Whether nothing is done to anybody."""
        return self.fault == "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllreduceOptions(BenchOptions):
    """`bench allreduce`: `rounds` are measured, after those in which the swarm comes together."""

    rounds: int = 3

    def __post_init__(self) -> None:
        BenchOptions.__post_init__(self)
        if self.is_profiled and not hasattr(signal, "SIGPROF"):
            raise ConfigError("--profile: this system has no signal that it is taken by")
        if self.rounds < 1:
            raise ConfigError(f"--rounds {self.rounds} is not above 0")
