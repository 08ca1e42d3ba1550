"""Who may be shown the states behind a COMMIT, and from when on (R10). Pure.

Nobody before the beacon chose: whoever knew earlier could bend what nobody will look at, and states
are large. Then whom it may have drawn for that very segment; and where such a peer calls it wrong,
every voter, of whoever fetched it. What is one's own is shown for one's own COMMIT alone: who names
the root of somebody else's state makes nobody send that to all voters.
"""

from collections.abc import Iterator

from protocol.auditing.audit_draw import may_accuse
from protocol.auditing.audit_rounds import AuditedRound, Rounds
from protocol.identity import PeerId
from protocol.manifest import AuditSpec
from protocol.messages import Commit, Outcome

FETCHED_WITHIN = 2
"""Seals behind that which draws, at which a state is asked for at the latest; of those called in by
a VERDICT later, but then somebody is accused."""

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
    about = [
        (message.sender == me, on, (message.digest, segment))
        for on in rounds.judged()
        for message, commit in on.listed()
        for segment in _segments_of(commit, subject, law.segments)
    ]
    has_made = any(is_own for is_own, _, _ in about)
    for is_own, on, key in about:
        behind = rounds.at(on.round + 1)
        if behind is None or (has_made and not is_own):
            continue
        if is_own and may_accuse(law, on, behind.beacon, peer, key):
            return True
        if peer in on.named.roster.voter_set and is_accused(rounds, law, on, key):
            return True
    return False


def closed_rounds(rounds: Rounds, law: AuditSpec, me: PeerId) -> tuple[int, ...]:
    """The rounds of which nobody may be shown this node's work any more.

    None before its beacon is known; then those whom it may have drawn have two seals to fetch what
    they were drawn for, and one more in which they may be behind. Who is called in by a VERDICT
    comes later, and then somebody is accused.
    """
    found = []
    for on in rounds.judged():
        behind, newest = rounds.at(on.round + 1), rounds.newest
        if behind is None or newest is None:
            continue
        own = [message.digest for message, _ in on.listed() if message.sender == me]
        keys = [(commit, segment) for commit in own for segment in range(law.segments + 1)]
        is_drawn = any(
            may_accuse(law, on, behind.beacon, voter, key)
            for key in keys
            for voter in on.named.roster.voters
        )
        is_late = newest.round > on.round + 1 + FETCHED_WITHIN
        is_disputed = any(is_accused(rounds, law, on, key) for key in keys)
        if (is_late or not is_drawn) and not is_disputed:
            found.append(on.round)
    return tuple(found)


def _segments_of(commit: Commit, subject: bytes, segments: int) -> Iterator[int]:
    """The segments of a COMMIT that begin with it; the last one is the encoding."""
    trace = commit.work[0].trace
    yield from (number for number, root in enumerate(trace[: segments + 1]) if root == subject)
    if commit.residual_before == subject and subject != trace[-1]:
        yield segments
