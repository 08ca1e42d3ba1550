"""What audits ask of the edge and are told by it (R10); `node.events` has all the others."""

from dataclasses import dataclass

from protocol.identity import PeerId
from protocol.messages import Commit
from training.channel.exchange import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkDone:
    """What a trainer keeps of a round, as `protocol.audits.Work` says it."""

    trace: tuple[bytes, ...]
    before: bytes
    after: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """Run a segment of somebody's round again; all that it begins with is here. Answer with Reran.

    `lease` is what the round was to be trained on. `inherited` are the roots that moments and
    residual may have had at its begin; empty where nobody here knows. `step` is the sealed clock's
    before the round.
    """

    commit_digest: bytes
    sender: PeerId
    commit: Commit
    round: int
    segment: int
    lease: Lease
    inherited: tuple[tuple[bytes, bytes], ...] = ()
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reran:
    """The end that a segment came to, named as `node.rules.auditing.end_of` names the one that its
    COMMIT says; empty if it could not be run: then nothing is said."""

    commit_digest: bytes
    segment: int
    found: bytes
