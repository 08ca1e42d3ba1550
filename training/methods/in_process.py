"""Methods that no node runs yet, and `barnraise compare` does, in one process: what they are.

A node seals rounds of one anchor (R7). Where replicas have weights of their own, or an anchor moves
under those who train, there is nothing to seal: no bit promise. `sim.methods` runs them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

SAM_RADIUS = 0.05
"""Of sharpness-aware minimization, within the 0.01 to 0.1 of DFedSAM's authors."""


def _both_ways(peers: int) -> float:
    """A contribution goes out, an anchor comes back from another peer that must send it."""
    del peers
    return 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InProcess:
    """One such method. `instead` is the nearest preset that nodes run."""

    summary: str
    lacks: str
    """What a node would need."""
    common_anchor: bool = False
    instead: str = "local_sgd"
    copies: Callable[[int], float] = _both_ways
    """How often the weights leave a peer in a round, on average over so many peers."""

    inner_steps: int = 50
    sam_radius: float = 0.0
    is_assigned: bool = False
    """See `training.methods.presets.Preset`, all three."""


_OWN_WEIGHTS = "replicas with weights of their own"
_OLD_ANCHORS = "contributions to older anchors"


def _ring(steps: int) -> Callable[[int], float]:
    return lambda peers: steps * (2.0 if peers > 2 else float(peers - 1))


IN_PROCESS: Mapping[str, InProcess] = {
    "gossip": InProcess(
        summary="pairwise gossip, everybody averages with one other",
        lacks=_OWN_WEIGHTS,
        copies=lambda peers: 2 * (peers // 2) / peers,
    ),
    "gossip_corrected": InProcess(
        summary="pairwise gossip, means keep the variance of their matrices",
        lacks=_OWN_WEIGHTS,
        copies=lambda peers: 2 * (peers // 2) / peers,
    ),
    "gossip_ring": InProcess(
        summary="gossip with both neighbours of a ring", lacks=_OWN_WEIGHTS, copies=_ring(1)
    ),
    "gossip_multi_step": InProcess(
        summary="gossip on a ring, four steps of it in a round", lacks=_OWN_WEIGHTS, copies=_ring(4)
    ),
    "gossip_accelerated": InProcess(
        summary="gossip on a ring, four steps with a shift register",
        lacks=_OWN_WEIGHTS,
        copies=_ring(4),
    ),
    "noloco": InProcess(
        summary="NoLoCo, DiLoCo's outer step with one other, drawn anew for each round",
        lacks=_OWN_WEIGHTS,
        instead="diloco",
        copies=lambda peers: 4 * (peers // 2) / peers,
    ),
    "dfedsam": InProcess(
        summary="DFedSAM, gradients from a little uphill, four steps of gossip on a ring",
        lacks=_OWN_WEIGHTS,
        instead="fedsam",
        copies=_ring(4),
        sam_radius=SAM_RADIUS,
    ),
    "acid": InProcess(
        summary="A2CiD2, two copies of the weights that meet between steps, on a ring",
        lacks=_OWN_WEIGHTS,
        copies=lambda peers: float(peers > 1),
        inner_steps=1,
    ),
    "fedcompass": InProcess(
        summary="FedCompass, more steps for faster peers, so that they come together",
        lacks="steps that are told it by others",
        instead="a_edit",
        # The more unequal they are, the fewer steps has a round: of `sim.methods` half.
        copies=lambda peers: 2 * _both_ways(peers),
        is_assigned=True,
    ),
    "fedbuff": InProcess(
        summary="FedBuff, a step for each half of all contributions, whoever they are from",
        lacks=_OLD_ANCHORS,
    ),
    "fedfix": InProcess(
        summary="FedFix, a step in fixed intervals of whatever came", lacks=_OLD_ANCHORS
    ),
    "modest": InProcess(
        summary="MoDeST, FedAvg of half of all peers, drawn anew for each round",
        lacks="a draw in each round (in nodes peers beyond [admission] seats take turns)",
        common_anchor=True,
        instead="fedavg",
        copies=lambda peers: 2.0 * max(1, peers // 2) / peers,
    ),
}

NOT_YET: Mapping[str, str] = {
    "dadao": "strongly convex losses, which no network has; 'acid' is the gossip for these",
}
"""Presets that are no preset yet, and what each of them still needs."""
