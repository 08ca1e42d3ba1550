"""What those weigh together whose training nobody can run again (R10). Pure.

A function of the seal that names the roster and of the listed COMMITs, which say each sender's
class: so equal on every peer to the bit. The encoding is audited whatever the class; training is
only where so many voters of the sender's class are listed that their words would convict it. A
class that is too small for that may train whatever it likes, so all such together weigh at most
the manifest's share of a round.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from fractions import Fraction

from protocol.evidence import may_judge_voters, words_needed
from protocol.identity import PeerId
from protocol.manifest import AuditSpec
from protocol.messages import Roster

Row = tuple[PeerId, bytes, int]
"""Sender, COMMIT digest, weight."""


def answerable(roster: Roster, classes: Sequence[tuple[PeerId, str]]) -> frozenset[PeerId]:
    """Of the listed, with their classes, those whose training other listed voters of the class can
    run again, so many of them that their equal words convict."""
    voters = roster.voter_set
    judges = Counter(device for peer, device in classes if peer in voters)
    needed = words_needed(len(voters))
    return frozenset(p for p, device in classes if judges[device] - (p in voters) >= needed)


def unaudited(roster: Roster, classes: Sequence[tuple[PeerId, str]]) -> frozenset[PeerId]:
    """Of the listed, those whom the cap is for.

    Not voters of a roster of so few that nobody of them may lie. Nobody at all where nobody is
    answerable: a run of machines that all differ has no audits of training to lean on, and no share
    would say anything.
    """
    bound = answerable(roster, classes)
    if not bound:
        return frozenset()
    trusted = frozenset() if may_judge_voters(roster) else roster.voter_set
    return frozenset(peer for peer, _ in classes if peer not in bound and peer not in trusted)


def capped(rows: Sequence[Row], those: Collection[PeerId], law: AuditSpec) -> list[Row]:
    """The same rows; `those` weigh at most `law.unaudited` of all together, each in proportion.

    In whole numbers and exact fractions: nothing is rounded but each weight, down.
    """
    own = sum(weight for peer, _, weight in rows if peer in those)
    rest = sum(weight for peer, _, weight in rows if peer not in those)
    share = Fraction(law.unaudited)
    if not rest or own * (1 - share) <= rest * share:
        return list(rows)
    most = int(rest * share / (1 - share))
    return [(p, commit, w * most // own if p in those else w) for p, commit, w in rows]
