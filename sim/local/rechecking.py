"""A node that was not there when liars were banned, and checks every ban alone.

It joins in the midst of a run with liars, told one address and nothing else, and follows without a
seat. The manifest, the chain and the evidence come to it as they come to any latecomer. What it
found is read out of its own trace, and out of nobody else's.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from node.reporting.trace_file import read_trace
from node.reporting.tracing import Adopted, Began, Confirmed, Convicted, Synced
from protocol.errors import DecodeError, PeerError
from protocol.evidence import Evidence, decode_evidence
from protocol.identity import PeerId, Signer
from protocol.messages import decode_message
from protocol.slots import FilledSlot
from protocol.wire import decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Rechecked:
    """What one latecomer says of the bans of a run."""

    node: str
    joined: int
    """The round whose state it took first, -1 if it came too late for any."""

    bans: Mapping[PeerId, bool] = field(default_factory=dict)
    """Whom the swarm's seals ban; whether this node's own seals do, and it holds evidence that
    proves itself."""

    num_before: int = 0
    """Of them, those whose lie was signed for a round that was over before it came."""

    @property
    def is_complete(self) -> bool:
        """Whether it has checked every ban there is."""
        return all(self.bans.values())


def rechecked(
    node: str, trace: Path, banned: Collection[PeerId], run: bytes, signer: Signer
) -> Rechecked:
    """What a latecomer's trace says of these bans; `signer` checks signatures. A trace that cannot
    be read says nothing of any of them."""
    held: dict[PeerId, Evidence] = {}
    sealed: set[PeerId] = set()
    joined = -1
    # A node that came too late has no trace, or one without a line.
    records = []
    with suppress(FileNotFoundError, DecodeError):
        records = read_trace(trace)
    for record in records:
        match record:
            case Convicted():
                with suppress(PeerError):
                    found = decode_evidence(record.evidence.encoded, run, signer)
                    held[found.subject] = found
            case Synced(certificate=certificate):
                joined = certificate.value.round if joined < 0 else joined
                sealed.update(certificate.value.roster.banned)
            case Adopted(certificate=certificate) | Confirmed(certificate=certificate):
                sealed.update(certificate.value.roster.banned)
            case Began(head=head):
                sealed.update(head.value.roster.banned)
            case _:
                pass
    bans = {peer: peer in held and peer in sealed for peer in sorted(banned)}
    before = sum(is_shown and _is_of(held[p], joined) for p, is_shown in bans.items())
    return Rechecked(node=node, joined=joined, bans=bans, num_before=before)


def _is_of(evidence: Evidence, latest: int) -> bool:
    """Whether what convicts was signed for a round up to that one."""
    try:
        return decode(FilledSlot, evidence.second).slot.round <= latest
    except DecodeError:  # A VERDICT is there as a whole.
        return decode_message(evidence.second)[0].slot.round <= latest
