"""Who sums so that the fewest bytes travel: few each cell, or everybody all cells (R8). Pure."""

from protocol import limits
from protocol.manifest import OuterSpec
from protocol.rounds.belief import copies, liars
from training.compression import make_codec, result_codec

BUTTERFLY, GATHER = "butterfly", "gather"

EXPECTED_PEERS = 8
"""For so many a founder's file chooses where it says nothing: nobody knows how many come."""


def num_reducers(peers: int, trust: str, topology: str) -> int:
    """How many sum each cell; each has the result of what it summed."""
    if topology == GATHER:
        return peers
    # In an open run in which all vote more than may lie.
    return min(peers, max(copies(trust), liars(peers, trust) + 1))


def topology_for(spec: OuterSpec, trust: str, peers: int = EXPECTED_PEERS) -> str:
    """Gather where all contributions whole are fewer bytes than shares of them and of the result.

    Never with two rounds in flight (R5): nobody explored that.
    Raises ConfigError for a codec that is none.
    """
    if spec.overlap > 1:
        return BUTTERFLY
    numel = limits.CELL_ELEMENTS_MAX
    payload = make_codec(spec).payload_bytes(numel)
    result = result_codec(spec).payload_bytes(numel)
    reducers = num_reducers(peers, trust, BUTTERFLY)
    of_few = payload * reducers * (peers - 1) + result * (peers - reducers)
    return GATHER if payload * peers * (peers - 1) < of_few else BUTTERFLY


def other_than(topology: str) -> str:
    """The other one."""
    return BUTTERFLY if topology == GATHER else GATHER
