"""What a node says in the directory under its run's topic."""

from dataclasses import dataclass
from typing import Annotated

from protocol import limits
from protocol.wire import Size


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a node says under its run's topic: where it listens, and the work that it has done."""

    addresses: Annotated[
        tuple[Annotated[str, Size(1, limits.ADDRESS_BYTES_MAX)], ...],
        Size(0, limits.ADDRESSES_PER_PEER_MAX),
    ]
    work: Annotated[bytes, Size(0, limits.JOIN_WORK_BYTES)] = b""
    """A member's solution of the run's join puzzle, if the run has one: what shows that the writer
    has to do with the run. Empty for others."""
