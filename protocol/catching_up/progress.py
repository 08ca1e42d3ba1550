"""How far catching up is, for people."""

from dataclasses import dataclass

from protocol import limits


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a node is: `done` of `total` seals of the chain, or bytes of state or results."""

    what: str
    round: int
    done: int
    total: int
    sources: int
    bytes_per_s: float

    @property
    def text(self) -> str:
        """For people: `state of round 42: 40 % from 3 peers, 12.0 MiB/s`."""
        share = 100 * self.done // self.total if self.total else 100
        if self.what == "chain":
            return f"seals up to round {self.round}: {share} % checked"
        peers = "1 peer" if self.sources == 1 else f"{self.sources} peers"
        what = "state of" if self.what == "state" else "results up to"
        rate = f"{self.bytes_per_s / limits.MIB:.1f} MiB/s"
        return f"{what} round {self.round}: {share} % from {peers}, {rate}"
