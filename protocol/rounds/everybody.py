"""Where every member sums all cells itself (R8): which LISTs, of whose parts, and when not. Pure.

Nobody sends a result that all others make themselves. So no word of a reducer has to be believed,
also not in open runs, and a member that is late sums what is final from the parts that others still
hold. Only where those are gone a result is asked for after all: whoever is locked on a LIST holds
it, also behind a restart that its parts did not survive (R2). Who has no seat yet takes results, as
everywhere: it is not sent the parts, and one result is less work than they.
"""

from collections.abc import Iterator, Sequence

from protocol.identity import PeerId
from protocol.messages import Kind, List, Seal
from protocol.rounds.round_view import RoundView


def lists_to_sum(view: RoundView) -> Sequence[tuple[bytes, List]]:
    """LISTs that may be summed here: those certified; where everybody sums also that which others
    have sealed."""
    certified = view.ballots.certified_lists()
    if not view.everybody_sums:
        return certified
    found = list(certified)
    digest = sealed_list(view)
    body = view.ballots.list_of(digest) if digest else None
    if body is not None and digest not in {known for known, _ in found}:
        found.append((digest, body))
    return [(one, body) for one, body in found if view.missing_results(one)]


def note_lists(view: RoundView, now_s: float) -> None:
    """Since when there is something to sum."""
    digests = [digest for digest, _ in view.ballots.certified_lists()]
    if view.everybody_sums and (sealed := sealed_list(view)):
        digests.append(sealed)
    for digest in digests:
        view.certified_s.setdefault(digest, now_s)


def sealed_list(view: RoundView) -> bytes:
    """The LIST that is sealed: for good, or by others of a branch."""
    sealed = view.ballots.sealed(view.before)
    return sealed[0].list_digest if sealed else view.followed


def holders_of_more(view: RoundView, commit: bytes) -> Iterator[PeerId]:
    """Who has probably summed a LIST with that contribution, and so holds its parts: whoever said
    what it sums to, or sealed it; of a sealed one, everybody in reach may."""
    for digest, body in lists_to_sum(view):
        if commit not in body.commits:
            continue
        yield from view.agg_of(digest, view.slices[0])
        for kind in (Kind.SEAL, Kind.PSEAL):
            for attempt in view.ballots.attempts(kind):
                for sealer, seal in view.ballots.bodies(kind, Seal, attempt, view.before):
                    if seal.list_digest == digest:
                        yield sealer
        if digest == sealed_list(view):
            yield from sorted(view.expected)


def is_summed_elsewhere(view: RoundView, digest: bytes, *, now_s: float, deadline_s: float) -> bool:
    """Whether the result of a LIST is to be asked for, because it is not summed here.

    On a branch that others went on from they keep the results alone (R4). Else for a deadline the
    parts are asked for, which all who sealed had, and longer while they come.
    """
    if digest == view.followed or not view.is_member:
        return True
    since_s = view.certified_s.get(digest, now_s)
    if now_s < since_s + deadline_s:
        return False
    body = view.ballots.list_of(digest)
    commits = body.commits if body is not None else ()
    lately_s = now_s - deadline_s / 2
    return not any(
        at_s > lately_s and subject in commits for (subject, _), at_s in view.moved_s.items()
    )
