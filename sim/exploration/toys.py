"""What stands for training, sums and outer steps in a search: a digest for each."""

from blake3 import blake3

from protocol import events as ev
from protocol.identity import PeerId
from protocol.rounds.lapses import LearnedDeadline
from protocol.rounds.roster import ClockRules
from protocol.rounds.round_view import RoundConfig

DEADLINE_S = 10.0
"""Floor and cap of the learned deadline are equal, so that nothing learned matters."""


def toy_config(*fragment_cells: int, lag: int = 1, trust: str = "friends") -> RoundConfig:
    """What all machines here know besides the chain; `lag` is L of R1."""
    return RoundConfig(
        trust=trust,
        fragment_cells=fragment_cells,
        clock=ClockRules(samples_each=10, rounds=1000, tokens=0, lag=lag, trust=trust),
        deadline_floor_s=DEADLINE_S,
        deadline_cap_s=DEADLINE_S,
    )


def deadline() -> LearnedDeadline:
    """The deadline that all machines here have."""
    return LearnedDeadline(floor_s=DEADLINE_S, cap_s=DEADLINE_S)


def contributed(peer: PeerId, round_index: int, num_cells: int, mark: str = "") -> ev.Contributed:
    """What the trainer of `peer` hands over for a round."""
    return ev.Contributed(
        round=round_index,
        root=blake3(peer + round_index.to_bytes(8, "big") + mark.encode()).digest(),
        cell_norms=(1.0,) * num_cells,
        tokens=10,
        samples=10,
        steps=10,
        residual_before=bytes(32),
        residual_after=bytes(32),
    )


def sum_root(digest: bytes, first: int, stop: int, is_right: bool = True) -> bytes:
    """The root of the toy sum of a slice, or of one that the parts do not give."""
    mark = b"sum" if is_right else b"spoiled sum"
    return blake3(mark + digest + bytes([first, stop])).digest()


def state_after(digest: bytes) -> bytes:
    """The toy outer step: the root of the state that a LIST leads to."""
    return blake3(b"applied" + digest).digest()
