"""Who may be shown the states behind a COMMIT, and from when on (R10). Pure.

Nobody before the beacon chose: whoever knew earlier could bend what nobody will look at, and states
are large. Then whom it may have drawn for that very segment; and where such a peer calls it wrong,
every voter, of whoever has it.
"""

from collections.abc import Iterator

from node.rules.audit_draw import may_accuse
from node.rules.audit_rounds import AuditedRound, Rounds
from protocol.identity import PeerId
from protocol.manifest import AuditSpec
from protocol.messages import Commit, Outcome

Key = tuple[bytes, int]
"""COMMIT digest and segment."""


def is_accused(rounds: Rounds, law: AuditSpec, on: AuditedRound, key: Key) -> bool:
    """Whether somebody calls it wrong who was drawn for it: to be asked again once the seal is here
    that drew."""
    behind = rounds.at(on.round + 1)
    return behind is not None and any(
        verdict.outcome is not Outcome.RIGHT and may_accuse(law, on, behind.beacon, peer, key)
        for peer, (_, verdict) in on.words.get(key, {}).items()
    )


def may_see(rounds: Rounds, law: AuditSpec, me: PeerId, peer: PeerId, subject: bytes) -> bool:
    """Whether a peer may be shown that state or residual by this node."""
    for on in rounds.judged():
        behind = rounds.at(on.round + 1)
        if behind is None:
            continue
        for message, commit in on.listed():
            for segment in _segments_of(commit, subject, law.segments):
                key = (message.digest, segment)
                is_own = message.sender == me
                if is_own and may_accuse(law, on, behind.beacon, peer, key):
                    return True
                if peer in on.named.roster.voter_set and is_accused(rounds, law, on, key):
                    return True
    return False


def _segments_of(commit: Commit, subject: bytes, segments: int) -> Iterator[int]:
    """The segments of a COMMIT that begin with it; the last one is the encoding."""
    trace = commit.work[0].trace
    yield from (number for number, root in enumerate(trace[: segments + 1]) if root == subject)
    if commit.residual_before == subject and subject != trace[-1]:
        yield segments
