"""How a newcomer of an open run comes to its weight: probation, its turn, the ramp.

Pure functions of manifest and seals (R9), so equal on every peer to the bit. Whoever is seated by
the first round is a *founding* member: the founder waited for it, and it weighs as everybody did.
Everybody later has `SeatRecord.earned`, which counts listed rounds:

    0 .. probation            weighs nothing, and nobody believes its reports of others
    probation                 waits for its turn: the growth cap of R1, for weights
    probation + k, k <= ramp  weighs k / ramp of what its tokens weigh

What it contributes meanwhile is asked, moved, listed and credited like all else; it is left out of
the rows that the rule sees, so that it is no vote of a rule of ranks either. A seat that is lost
takes with it what was earned.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from blake3 import blake3

from protocol.evidence import may_judge_voters, words_needed
from protocol.identity import PeerId
from protocol.manifest import NO_AUDITS, AdmissionSpec, AuditSpec
from protocol.messages import Commit, Roster, SeatRecord

# Unaudited ----------------------------------------------------------------------------------------
#
# What those weigh together whose training nobody can run again (R10).
#
# A function of the seal that names the roster and of the listed COMMITs, which say each sender's
# class: so equal on every peer to the bit. The encoding is audited whatever the class; training is
# only where so many voters of the sender's class are listed that their words would convict it. A
# class that is too small for that may train whatever it likes, so all such together weigh at most
# the manifest's share of a round.

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


# Ramp ---------------------------------------------------------------------------------------------

FOUNDING_ROUND = 1
"""The seal of this round names the founding members: genesis has the founder alone."""

ERA_ROUNDS = 16
"""In so many rounds at most a quarter of those who count come to count, and at least one (R1)."""


def parts(seat: SeatRecord, law: AdmissionSpec) -> int:
    """What a token of that seat weighs, in parts of `law.ramp`; 1 in a run without a ramp."""
    if not law.ramp:
        return 1
    if seat.seated <= FOUNDING_ROUND:
        return law.ramp
    return min(max(0, seat.earned - law.probation), law.ramp)


def counting(roster: Roster, law: AdmissionSpec) -> frozenset[PeerId]:
    """The members whose work weighs something, and whose reports of others count."""
    return frozenset(seat.peer for seat in roster.seats if parts(seat, law))


def weighed(
    roster: Roster,
    law: AdmissionSpec,
    listed: Sequence[tuple[PeerId, bytes, Commit]],
    audits: AuditSpec = NO_AUDITS,
) -> list[tuple[PeerId, bytes, int]]:
    """Sender, COMMIT digest and weight of those that are summed, in the order of `listed`.

    Those whose training nobody can run again weigh a share together, in runs with audits.

    Where nobody listed counts all of them stay, with no weight: no rule makes anything of that, so
    the result is zero. Were they summed instead, a closer could list newcomers alone.
    """
    seats = {seat.peer: seat for seat in roster.seats}
    rows = [(p, digest, c.tokens * parts(seats[p], law)) for p, digest, c in listed]
    if audits.rate:
        classes = [(p, c.work[0].device) for p, _, c in listed if c.work]
        rows = capped(rows, unaudited(roster, classes), audits)
    return [row for row in rows if row[2]] or rows


def earned(
    seats: Mapping[PeerId, SeatRecord],
    listed: Collection[PeerId],
    round_index: int,
    law: AdmissionSpec,
) -> dict[PeerId, SeatRecord]:
    """The seats after a round that listed these; `seats` are all those that its seal has.

    Turns are drawn by round and peer, so that a new identity with a low id gains nothing. Where
    nobody who counts is left, those count who have earned most: a run of nobody else goes on with
    whom it has.
    """
    if not law.ramp:
        return dict(seats)
    found = dict(seats)
    full = law.probation + law.ramp
    # Whoever takes its seat with this seal was in no round yet.
    newcomers = [p for p, seat in seats.items() if FOUNDING_ROUND < seat.seated < round_index]
    for peer in newcomers:
        had = seats[peer].earned
        if peer in listed and had != law.probation and had < full:
            found[peer] = replace(seats[peer], earned=had + 1)
    counted = [peer for peer, seat in found.items() if parts(seat, law)]
    waiting = [p for p in newcomers if seats[p].earned == law.probation and p in listed]
    turns: list[PeerId] = []
    if not counted:
        most = max((found[peer].earned for peer in newcomers), default=0)
        turns = [peer for peer in newcomers if found[peer].earned == most]
    elif round_index % max(1, ERA_ROUNDS // max(1, len(counted) // 4)) == 0:
        mark = round_index.to_bytes(8, "big")
        turns = sorted(waiting, key=lambda peer: blake3(mark + peer).digest())[:1]
    for peer in turns:
        found[peer] = replace(found[peer], earned=law.probation + 1)
    return found
