"""Who sends which cells to whom, and who sums them: small pure deciders over a RoundView.

Each returns the actions that are due now and remembers in the view what it has asked for.
"""

from collections.abc import Collection, Iterator, Sequence

from protocol.events import Apply, ListEntry, Measure, Pull, Push, Reduce, RoundAction
from protocol.frames import Bulk
from protocol.identity import PeerId
from protocol.messages import Have, Kind, List, Seal
from protocol.rounds.agreed import agreed_root, call_substitutes, caught, is_agreed, whole_gram
from protocol.rounds.proposal import call_holders, held_throughout, said_haves
from protocol.rounds.reducers import Slice, unpack_senders
from protocol.rounds.round_view import Request, RoundView
from protocol.rounds.seating import weighed

# Everybody ----------------------------------------------------------------------------------------
#
# Where every member sums all cells itself (R8): which LISTs, of whose parts, and when not.
#
# Nobody sends a result that all others make themselves. So no word of a reducer has to be believed,
# also not in open runs, and a member that is late sums what is final from the parts that others
# still hold. Only where those are gone a result is asked for after all: whoever is locked on a LIST
# holds it, also behind a restart that its parts did not survive (R2). Who has no seat yet takes
# results, as everywhere: it is not sent the parts, and one result is less work than they.


def lists_to_sum(view: RoundView) -> Sequence[tuple[bytes, List]]:
    """LISTs that may be summed here: those certified; where everybody sums also that which others
    have sealed."""
    certified = view.ballots.certified_lists()
    if not view.config.everybody_sums:
        return certified
    found = list(certified)
    digest = sealed_list(view)
    body = view.ballots.list_of(digest) if digest else None
    if body is not None and digest not in {known for known, _ in found}:
        found.append((digest, body))
    return [(one, body) for one, body in found if view.cells.missing_results(one)]


def note_lists(view: RoundView, now_s: float) -> None:
    """Since when there is something to sum."""
    digests = [digest for digest, _ in view.ballots.certified_lists()]
    if view.config.everybody_sums and (sealed := sealed_list(view)):
        digests.append(sealed)
    for digest in digests:
        view.sums.certified_s.setdefault(digest, now_s)


def sealed_list(view: RoundView) -> bytes:
    """The LIST that is sealed: for good, or by others of a branch."""
    sealed = view.ballots.sealed(view.seals.before)
    return sealed[0].list_digest if sealed else view.outcome.followed


def holders_of_more(view: RoundView, commit: bytes) -> Iterator[PeerId]:
    """Who has probably summed a LIST with that contribution, and so holds its parts: whoever said
    what it sums to, or sealed it; of a sealed one, everybody in reach may."""
    for digest, body in lists_to_sum(view):
        if commit not in body.commits:
            continue
        yield from view.agg_of(digest, view.slices[0])
        for kind in (Kind.SEAL, Kind.PSEAL):
            for attempt in view.ballots.attempts(kind):
                for sealer, seal in view.ballots.bodies(
                    kind, Seal, attempt, view.seals.before
                ).items():
                    if seal.list_digest == digest:
                        yield sealer
        if digest == sealed_list(view):
            yield from sorted(view.peers.expected)


def is_summed_elsewhere(view: RoundView, digest: bytes, *, now_s: float, deadline_s: float) -> bool:
    """Whether the result of a LIST is to be asked for, because it is not summed here.

    On a branch that others went on from they keep the results alone (R4). Else for a deadline the
    parts are asked for, which all who sealed had, and longer while they come.
    """
    if digest == view.outcome.followed or not view.is_member:
        return True
    since_s = view.sums.certified_s.get(digest, now_s)
    if now_s < since_s + deadline_s:
        return False
    body = view.ballots.list_of(digest)
    commits = body.commits if body is not None else ()
    lately_s = now_s - deadline_s / 2
    return not any(
        at_s > lately_s and subject in commits for (subject, _), at_s in view.cells.moved_s.items()
    )


# Supply -------------------------------------------------------------------------------------------

PART_RETRIES, RESULT_RETRIES = 2, 4
"""How often in a deadline cells may be asked for of which nothing comes, at first."""

SOURCES_AT_ONCE_MAX = 3
"""Peers of which a part is asked at once, at most: each is as many bytes again."""


def push_parts(view: RoundView) -> Iterator[RoundAction]:
    """The own contribution, slice by slice, to whoever gathers it now.

    A suspicion moves the slice to the substitute, and the part goes there too.
    """
    if view.own.commit not in view.cells.parts or view.cells.pushed_among == view.peers.expected:
        return
    view.cells.pushed_among = view.peers.expected
    gathering = view.gathering()
    for piece in view.slices:
        for target in gathering.targets(piece, view.me):
            place = ("part", view.own.commit, piece.first, target)
            if target != view.me and place not in view.cells.requested:
                view.cells.requested.add(place)
                if view.rare("part-unpushed"):
                    continue
                yield Push(target, Bulk.PART, view.own.commit, _cells(piece))


def pull_parts(view: RoundView, *, now_s: float, deadline_s: float) -> Iterator[RoundAction]:
    """Parts that a reducer should have and has not.

    The first reducer trusts the senders to push for half a deadline, and longer while bytes come; a
    substitute was not pushed to, and asks at once. Parts of a certified LIST are asked for from
    everybody who said HAVE.
    """
    certified = lists_to_sum(view)
    if view.times.opened_s is None and not (certified and view.config.everybody_sums):
        return
    call_holders(view, now_s=now_s, deadline_s=deadline_s)
    call_substitutes(view, now_s=now_s, deadline_s=deadline_s)
    gathering = view.gathering()
    if not gathering.kept:
        return  # As nearly everybody.
    wanted = {digest for _, body in certified for digest in body.commits}
    # Of a certified LIST also what its sender contradicts: another voter may be locked on it.
    known = [(commit[0], d) for d in wanted if (commit := view.ballots.commit_of(d))]
    contributed = sorted(known) if certified else [(s, d) for s, d, _ in view.commits()]
    for piece in gathering.kept:
        if certified and all(
            _reduce_of(view, digest, piece) in view.cells.requested for digest, _ in certified
        ):
            continue  # Summed: all that is wanted is here.
        is_first = view.attempt == 0 and gathering.is_soon(piece)
        is_soon = is_first and _is_early(view, now_s, deadline_s)
        if is_soon and not wanted and not view.rare("part-at-once"):
            continue
        for sender, digest in contributed:
            missing = view.cells.missing_parts(digest, piece)
            if not missing:
                continue
            if is_soon and view.config.everybody_sums and sender in view.peers.expected:
                continue  # Others have it already; here it comes unasked.
            if not gathering.holds(piece, sender):
                continue
            retry_s = deadline_s / PART_RETRIES
            if is_first and view.cells.is_moving(digest, sender, now_s=now_s, within_s=retry_s):
                continue  # It comes unasked.
            # Before the sources, which take longer to find.
            if view.may_ask(digest, piece.first, now_s=now_s, retry_s=retry_s):
                sources = _part_sources(view, sender, missing[0])
                sources += _summing(view, digest, piece, sources)
            else:
                sources = _new_holders(view, sender, digest, piece)
            at_once = _sources_at_once(view, sender)
            for source in view.ask(digest, piece.first, sources, now_s=now_s, at_once=at_once):
                yield Pull(source, Bulk.PART, digest, missing)


def _sources_at_once(view: RoundView, sender: PeerId) -> int:
    """Of how many a part is asked at once.

    A sender that keeps its part from this node alone, with others that claim what they do not give,
    must not make it late with its HAVE, or one that denies what others hold: so in open runs one
    more is asked than may lie. A sender without a vote is none of those who are counted there.
    """
    words = view.roles.belief.words
    num = words + (words > 1 and sender not in view.roles.belief.voters)
    return min(max(1, num), SOURCES_AT_ONCE_MAX)


def _is_early(view: RoundView, now_s: float, deadline_s: float) -> bool:
    """Whether half a deadline for what is pushed is not over."""
    return view.times.opened_s is not None and now_s < view.times.opened_s + deadline_s / 2


def _part_sources(view: RoundView, sender: PeerId, cell: int) -> list[PeerId]:
    """The sender first, then reducers that say they hold its part of that cell."""
    sources = [sender] if sender in view.peers.expected else []
    for attempt in view.ballots.attempts(Kind.HAVE):
        for reducer, body in said_haves(view, attempt).items():
            holds = any(
                run.first <= cell < run.stop and sender in unpack_senders(run.senders, view.members)
                for run in body.held
            )
            if holds and reducer in view.peers.expected and reducer not in sources:
                sources.append(reducer)
    return [peer for peer in sources if peer != view.me]


def _new_holders(view: RoundView, sender: PeerId, commit: bytes, piece: Slice) -> list[PeerId]:
    """Substitutes that have said, since that part was asked for, that they hold it, and were not
    asked. Now they are, at once: who was asked before gave nothing, and whoever still lacks it in
    the end denies it."""
    asked = view.cells.asked.get((commit, piece.first))
    if asked is None or not view.lapses.second_call_s:
        return []  # As nearly always.
    return sorted(
        peer
        for (attempt, peer), said_s in view.lapses.said_s.items()
        if said_s >= asked.at_s and peer in view.peers.expected - {view.me, sender, *asked.sources}
        for hold in [view.ballots.bodies(Kind.HOLD, Have, attempt).get(peer)]
        if sender in held_throughout(view, hold, piece)
    )


def _summing(
    view: RoundView, commit: bytes, piece: Slice, known: Collection[PeerId]
) -> Iterator[PeerId]:
    """Whoever said of a LIST what its slice sums to, and so has all its parts: in open runs, and
    where everybody sums.

    A HAVE does not name that of a COMMIT which its sender contradicts, and liars name what they
    will; but others may be locked on what it is part of.
    """
    left_out = {view.me, *view.peers.suspects, *known}
    if view.config.everybody_sums:
        more = dict.fromkeys(holders_of_more(view, commit))
        yield from (peer for peer in more if peer not in left_out)
        return
    for digest, body in view.ballots.certified_lists() if view.copies > 1 else ():
        if commit in body.commits:
            yield from sorted(view.agg_of(digest, piece).keys() - left_out)


def has_lost_parts(view: RoundView) -> bool:
    """R3: whether the LIST certified in this attempt needs a part that died with its only holders.

    Not asked of a LIST that was certified before: somebody may hold its whole result.
    """
    certified = view.ballots.certified()
    for attempt, digest in certified:
        is_first = [other for _, other in certified].count(digest) == 1
        if attempt != view.attempt or not is_first or _has_whole_result(view, digest):
            continue
        body = view.ballots.list_of(digest)
        listed = view.listed(body) if body is not None else None
        gone = [entry for entry in listed or () if entry[0] in view.peers.suspects]
        for piece in view.slices if gone else ():
            is_summed = not view.agg_of(digest, piece).keys() <= view.peers.suspects
            if not is_summed and any(_is_lost(view, *entry[:2], piece) for entry in gone):
                return True
    return False


def _is_lost(view: RoundView, sender: PeerId, commit: bytes, piece: Slice) -> bool:
    """Whether nobody in reach says that it holds a sender's part of a slice, nor does this node."""
    missing = view.cells.missing_parts(commit, piece)
    return bool(missing) and not _part_sources(view, sender, missing[0])


def _has_whole_result(view: RoundView, digest: bytes) -> bool:
    """Whether a peer in reach has sealed a LIST, and so holds its result."""
    return any(_sealers(view, digest))


def _sealers(view: RoundView, digest: bytes) -> Iterator[PeerId]:
    """Peers in reach that have sealed a LIST, for good or provisionally."""
    for kind in (Kind.SEAL, Kind.PSEAL):
        for attempt in view.ballots.attempts(kind):
            for sealer, body in view.ballots.bodies(kind, Seal, attempt, view.seals.before).items():
                if body.list_digest == digest and sealer not in view.peers.suspects:
                    yield sealer


def _reduce_of(view: RoundView, digest: bytes, piece: Slice) -> Request:
    """The place in `requested` of the sum of a slice."""
    return ("reduce", digest, piece.first, view.me)


def reduce_slices(view: RoundView) -> Iterator[RoundAction]:
    """Sum a slice once its LIST is certified and every listed part is here; never before.

    What was summed and kept is pushed once it is wanted.
    """
    for digest, body in lists_to_sum(view):
        for piece in view.own_slices():
            is_here = view.cells.results.get(digest, set()).issuperset(_cells(piece))
            if is_here and view.me in view.agg_of(digest, piece):
                yield from push_results(view, digest, piece)
        grams = whole_gram(view, digest)
        if grams is None:
            continue
        for piece, entries in _summable(view, digest, body, "reduce"):
            yield Reduce(digest, entries, piece.first, piece.stop, grams)


def measure_slices(view: RoundView) -> Iterator[RoundAction]:
    """Find the partial Gram matrix of a slice of a certified LIST, where the rule asks for it.

    Not again of one that was announced before a restart.
    """
    for digest, body in lists_to_sum(view) if view.config.uses_gram else ():
        for piece, entries in _summable(view, digest, body, "measure"):
            if view.me not in view.gram_of(digest, piece):
                yield Measure(digest, entries, piece.first, piece.stop)


def _summable(
    view: RoundView, digest: bytes, body: List, deed: str
) -> Iterator[tuple[Slice, tuple[ListEntry, ...]]]:
    """Own slices of which every listed part is here, and to which that was not done: now it is."""
    due = [
        piece
        for piece in view.own_slices()
        if (deed, digest, piece.first, view.me) not in view.cells.requested
    ]
    listed = view.listed(body) if due else None
    if not listed:
        return
    rows = weighed(view.roster, view.config.clock.admission, listed, view.config.audits)
    entries = tuple(ListEntry(*row) for row in rows)
    for piece in due:
        # Of those too that weigh nothing: what is listed was contributed.
        if not any(view.cells.missing_parts(commit, piece) for _, commit, _ in listed):
            view.cells.requested.add((deed, digest, piece.first, view.me))
            yield piece, entries


def push_results(view: RoundView, digest: bytes, piece: Slice) -> Iterator[RoundAction]:
    """The result of a slice, to every member that is expected to need it.

    A substitute keeps it for those who ask, until all who come before it are suspected, or caught,
    or kept this node waiting.
    In open runs nobody can check it before another reducer has said the same. Where everybody sums
    nobody needs it.
    """
    if view.config.everybody_sums:
        return
    before = set(piece.reducers[: piece.reducers.index(view.me)])
    if view.copies > 1:
        before -= caught(view, digest, piece)
        if not is_agreed(view, digest, piece):
            return
    place = ("result", digest, piece.first, view.me)
    if (
        place in view.cells.requested
        or not before <= view.peers.suspects | view.lapses.lapsed | view.lapses.late_to_sum
    ):
        return
    view.cells.requested.add(place)
    if view.rare("result-unpushed"):
        return
    for member in sorted(view.peers.expected - {view.me}):
        yield Push(member, Bulk.RESULT, digest, _cells(piece))


def pull_results(view: RoundView, *, now_s: float, deadline_s: float) -> Iterator[RoundAction]:
    """Results that should be here by now.

    Members are pushed to, and ask after half a deadline; at once where whoever summed is suspected
    and somebody has the whole result. An observer and a straggler ask at once, but only for what is
    final, or what they follow on a branch. Where everybody sums, results are for those alone who
    cannot.
    """
    final = sealed_list(view)
    digests = [final] if final else []
    if view.is_speaker:
        digests += [digest for digest, _ in view.ballots.certified_lists() if digest != final]
    for digest in digests:
        missing = set(view.cells.missing_results(digest))
        if not missing:
            continue
        times = {"now_s": now_s, "deadline_s": deadline_s}
        if view.config.everybody_sums and not is_summed_elsewhere(view, digest, **times):
            continue
        certified_s = view.sums.certified_s.get(digest, now_s)
        is_due = digest == final or now_s >= certified_s + deadline_s / 2
        is_due = is_due or view.rare("result-at-once")
        if not (is_due or view.peers.suspects):
            continue
        for piece in view.slices:
            cells = tuple(cell for cell in _cells(piece) if cell in missing)
            if view.copies > 1 and agreed_root(view, digest, piece) is None:
                continue  # Nobody could check them.
            retry_s = deadline_s / RESULT_RETRIES
            # Before the sources, which take longer to find.
            if not (cells and view.may_ask(digest, piece.first, now_s=now_s, retry_s=retry_s)):
                continue
            find = _result_sources if is_due else _sources_behind_the_dead
            sources = find(view, digest, piece)
            if not sources:
                continue
            if view.cells.is_moving(digest, sources[0], now_s=now_s, within_s=retry_s):
                continue  # It comes unasked, from who summed it.
            for source in view.ask(digest, piece.first, sources, now_s=now_s):
                yield Pull(source, Bulk.RESULT, digest, cells)


def retry_times(view: RoundView, deadline_s: float, *, now_s: float) -> list[float]:
    """When cells may be asked for that were not asked for last time; some may be past."""
    times = [certified_s + deadline_s / 2 for certified_s in view.sums.certified_s.values()]
    lately_s = now_s - deadline_s / min(PART_RETRIES, RESULT_RETRIES)
    retries_s: dict[bytes, float] = {}
    for key, at_s in view.cells.moved_s.items():
        if at_s > lately_s:
            subject = key[0]
            retry_s = retries_s.get(subject)
            if retry_s is None:
                retry_s = retries_s[subject] = _retry_s(view, subject, deadline_s)
            if retry_s:
                times.append(at_s + retry_s)
    for asked in view.cells.asked:
        subject = asked[0]
        retry_s = retries_s.get(subject)
        if retry_s is None:
            retry_s = retries_s[subject] = _retry_s(view, subject, deadline_s)
        if retry_s:
            times.append(view.ask_due_s(*asked, retry_s))
    return times


def _retry_s(view: RoundView, subject: bytes, deadline_s: float) -> float:
    """How long after its last cells a subject is asked for again; 0 where nothing is missing."""
    # Nearly everybody sums nothing, and is told of every COMMIT.
    if view.ballots.commit_of(subject) is None:
        return deadline_s / RESULT_RETRIES if view.cells.missing_results(subject) else 0.0
    own_slices = view.own_slices()
    if own_slices and view.cells.lacks_part(subject, own_slices):
        return deadline_s / PART_RETRIES
    return 0.0


def _sources_behind_the_dead(view: RoundView, digest: bytes, piece: Slice) -> list[PeerId]:
    """Who has the result of a slice that nobody pushes any more: all who summed are suspected."""
    pushing = view.agg_of(digest, piece).keys()
    if not pushing or not pushing <= view.peers.suspects:
        return []
    return [peer for peer in dict.fromkeys(_sealers(view, digest)) if peer != view.me]


def _result_sources(view: RoundView, digest: bytes, piece: Slice) -> list[PeerId]:
    """Who announced the result, then whoever sealed, then all other members."""
    sources = list(view.agg_of(digest, piece))
    for kind in (Kind.SEAL, Kind.PSEAL):
        for attempt in view.ballots.attempts(kind):
            sources += view.ballots.of(kind, attempt, view.seals.before)
    sources += view.members
    left_out = {view.me, *view.peers.suspects, *caught(view, digest, piece)}
    return [peer for peer in dict.fromkeys(sources) if peer not in left_out]


def apply_results(view: RoundView) -> Iterator[RoundAction]:
    """Take the outer step once every cell of a certified or final LIST has its result."""
    complete = {digest: not body.commits for digest, body in view.ballots.certified_lists()}
    sealed = sealed_list(view)
    # What others sealed may be here before the LIST that says what it is of: by that alone whoever
    # takes the step finds the round, and a step that is asked for too early is asked for in vain.
    if sealed and (body := view.ballots.list_of(sealed)) is not None:
        complete.setdefault(sealed, not body.commits)
    for digest, is_empty in complete.items():
        place = ("apply", digest, 0, view.me)
        if place not in view.cells.requested and (
            is_empty or not view.cells.missing_results(digest)
        ):
            view.cells.requested.add(place)
            yield Apply(digest, is_empty)


def _cells(piece: Slice) -> tuple[int, ...]:
    return tuple(range(piece.first, piece.stop))
