"""Open runs: no result on the word of liars (R2, R8). Pure deciders over a RoundView.

So many voters sum each slice that one of them is honest, whoever lies. Its result is taken once
so many AGGs name the same root (`protocol.rounds.reducers`); where they differ, or one does not
come, the next in rank sums too, and the odd one out is caught by comparison. A node that sums
believes its own sum. Among friends the first AGG is enough.

Rules that judge whole vectors need the Gram matrix of the listed contributions first. It is the sum
of one for each slice, which the same reducers announce as GRAM, and which is believed alike.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from protocol.errors import ProofError
from protocol.evidence import Evidence, may_be_accused, words_needed, wrong_sum_evidence
from protocol.gram_wire import wire_bytes
from protocol.identity import PeerId
from protocol.messages import Kind, List, Slot
from protocol.rounds.reducers import Slice
from protocol.rounds.round_view import RoundView
from protocol.rounds.seating import weighed


@dataclass(frozen=True, slots=True)
class ResultPlace:
    """Where a result cell belongs: the AGG's root over cells [first, stop)."""

    root: bytes
    first: int
    stop: int


def agreed_root(view: RoundView, digest: bytes, piece: Slice) -> bytes | None:
    """The root of a slice's result that may be believed; None while there is none.

    Once believed, another is not: its cells would not be of one sum.
    """
    said = {peer: agg.root for peer, agg in view.agg_of(digest, piece).items()}
    return _believed(view, said, view.sums.agreed, (digest, piece.first))


def _believed(
    view: RoundView,
    said: Mapping[PeerId, bytes],
    known: dict[tuple[bytes, int], bytes],
    place: tuple[bytes, int],
) -> bytes | None:
    """What reducers said of one slice, as far as it may be believed; `known` remembers it."""
    if view.copies == 1 or not said:
        return next(iter(said.values()), None)
    if view.me in said:
        return said[view.me]
    if place not in known:
        groups = alike(said)
        # A member that nobody else is in reach of sums itself. An observer takes the word of those
        # who are left in reach, unless somebody has said otherwise.
        is_unopposed = not view.is_member and len(groups) == 1
        for value, peers in sorted(groups.items()):
            others = view.peers.expected - peers
            if view.roles.belief.is_enough(peers) or (is_unopposed and not others):
                known[place] = value
    return known.get(place)


def alike(said: Mapping[PeerId, bytes]) -> dict[bytes, set[PeerId]]:
    """Who says what."""
    groups: dict[bytes, set[PeerId]] = {}
    for peer, value in said.items():
        groups.setdefault(value, set()).add(peer)
    return groups


# Partial Gram matrices ----------------------------------------------------------------------------


def agreed_gram(view: RoundView, digest: bytes, piece: Slice) -> bytes | None:
    """The partial Gram matrix of a slice that may be believed; None while there is none.

    Believed as a result is: of enough reducers who agree, or of oneself. Those that are not of the
    LIST's rows count for nothing.
    """
    if view.config.everybody_sums:
        return view.sums.grams.get((digest, piece.first))  # Its own.
    body = view.ballots.list_of(digest)
    if body is None:
        return None
    size = wire_bytes(_num_rows(view, body))
    said = {
        peer: gram.stats
        for peer, gram in view.gram_of(digest, piece).items()
        if len(gram.stats) == size
    }
    return _believed(view, said, view.sums.grams, (digest, piece.first))


def unmeasured(view: RoundView, digest: bytes) -> list[Slice]:
    """The slices whose partial Gram matrix is awaited; none where the rule needs none."""
    if not view.config.uses_gram:
        return []
    return [piece for piece in view.slices if agreed_gram(view, digest, piece) is None]


def _num_rows(view: RoundView, body: List) -> int:
    """The rows that a rule sees of a LIST; while COMMITs are missing, the most that it may be."""
    may_drop = view.config.clock.admission.ramp or view.config.audits.rate
    listed = view.listed(body) if may_drop else None
    if not listed:
        return len(body.commits)
    return len(weighed(view.roster, view.config.clock.admission, listed, view.config.audits))


def whole_gram(view: RoundView, digest: bytes) -> tuple[bytes, ...] | None:
    """The partial Gram matrices of all slices in order, nothing where the rule needs none; None
    while one is missing."""
    if not view.config.uses_gram:
        return ()
    found = [agreed_gram(view, digest, piece) for piece in view.slices]
    return None if None in found else tuple(stats for stats in found if stats is not None)


def note_grams(view: RoundView, now_s: float) -> None:
    """A Gram matrix more that may be believed is progress: the attempt's clock stands still.

    Not every one that is heard: else a liar could hold the round up with what nobody believes.
    """
    for digest, _ in view.ballots.certified_lists() if view.config.uses_gram else ():
        count = len(view.slices) - len(unmeasured(view, digest))
        if count > view.sums.measured.get(digest, (0, 0.0))[0]:
            view.sums.measured[digest] = (count, now_s)
            view.times.progress_s = now_s
        if digest not in view.sums.summable_s and _is_measured_for_all(view, digest):
            view.sums.summable_s[digest] = now_s


def _is_measured_for_all(view: RoundView, digest: bytes) -> bool:
    """Whether so many agree on the Gram matrix of each slice that all others believe it as well:
    this node believes its own without them."""
    for piece in view.slices:
        said = {peer: gram.stats for peer, gram in view.gram_of(digest, piece).items()}
        if not any(view.roles.belief.is_enough(peers) for peers in alike(said).values()):
            return False
    return True


def take_own_sum(
    view: RoundView, digest: bytes, piece: Slice, root: bytes, *, is_mute: bool
) -> None:
    """The own sum of a slice is in the store: its result, for this node. So always where everybody
    sums.

    Not in an open run where it cannot be said, because signatures are lost (R12): nobody compares
    it then, and the AGGs of others may well agree on another. Their cells take its place.
    """
    held, cells = view.cells.results.setdefault(digest, set()), range(piece.first, piece.stop)
    own = view.agg_of(digest, piece).get(view.me)
    is_compared = view.copies > 1 and not view.config.everybody_sums
    if is_mute and is_compared and (own is None or own.root != root):
        held.difference_update(cells)
    else:
        held.update(cells)


def result_place(view: RoundView, digest: bytes, cell: int) -> ResultPlace | None:
    """Where a result cell of a LIST belongs, once an AGG of its slice may be believed."""
    for piece in view.slices:
        if piece.first <= cell < piece.stop:
            root = agreed_root(view, digest, piece)
            return None if root is None else ResultPlace(root, piece.first, piece.stop)
    return None


def caught(view: RoundView, digest: bytes, piece: Slice) -> set[PeerId]:
    """Reducers whose AGG names another root than the one that is believed."""
    root = agreed_root(view, digest, piece)
    if view.copies == 1 or root is None:
        return set()
    return {peer for peer, agg in view.agg_of(digest, piece).items() if agg.root != root}


def is_agreed(view: RoundView, digest: bytes, piece: Slice) -> bool:
    """Whether enough reducers say of a slice what this node says: others can check it then."""
    said = {peer: agg.root for peer, agg in view.agg_of(digest, piece).items()}
    agreeing = alike(said).get(said.get(view.me, b""), set())
    return view.roles.belief.is_enough(agreeing) or view.peers.expected <= agreeing


def call_substitutes(view: RoundView, *, now_s: float, deadline_s: float) -> None:
    """Let the next in rank sum a slice of a certified LIST of which AGGs differ, or one does not
    come though its reducer seems to live: each for a deadline.

    The same of GRAMs. While one is awaited nobody can sum, and only its slice is late.
    """
    for digest, _ in () if view.config.everybody_sums else view.ballots.certified_lists():
        since_s = view.sums.certified_s.get(digest, now_s)
        if view.copies == 1:
            # On slow lines a second sum is slower still.
            since_s = max(since_s, view.times.progress_s)
        awaited = unmeasured(view, digest)
        due_s = since_s + deadline_s
        if view.config.uses_gram and not awaited:
            count, measured_s = view.sums.measured.get(digest, (0, since_s))
            since_s = measured_s if count == len(view.slices) else now_s
            due_s = view.sums.summable_s.get(digest, now_s) + deadline_s
        late = int((now_s - since_s) / deadline_s)
        for piece in awaited or view.slices:
            said: Mapping[PeerId, bytes]
            if awaited:
                said = {peer: gram.stats for peer, gram in view.gram_of(digest, piece).items()}
            else:
                said = {peer: agg.root for peer, agg in view.agg_of(digest, piece).items()}
            groups = alike(said)
            if any(view.roles.belief.is_enough(peers) for peers in groups.values()):
                if now_s >= due_s and not awaited:
                    _replace_silent(view, digest, piece, now_s=now_s, deadline_s=deadline_s)
                continue
            if now_s >= due_s:
                owing = owing_sums(view, piece, said.keys())
                view.lapses.late_to_sum |= owing
                # Before, it may have lacked what others were told.
                if now_s >= due_s + view.config.relayed_s:
                    view.lapses.owed_sums |= {(peer, piece.first) for peer in owing}
            wrong = _contradicted(view, groups)
            if late and view.roles.belief.words > 1:
                # All who are late at once: one for each deadline, b liars could hold a round up.
                first = piece.reducers[: view.roles.belief.num_needed(piece.reducers)]
                wrong += len(set(first).difference(said))
                wrong = min(wrong, view.roles.belief.words - 1)
            view.gathering().call(piece, max(late, wrong))


def _replace_silent(
    view: RoundView, digest: bytes, piece: Slice, *, now_s: float, deadline_s: float
) -> None:
    """Among friends: who says what a slice sums to, and lets nobody have it, is one of nobody."""
    said = view.agg_of(digest, piece).keys()
    held = view.cells.results.get(digest, set())
    if view.copies > 1 or view.me in said or held.issuperset(range(piece.first, piece.stop)):
        return
    if not any(view.cells.is_moving(digest, p, now_s=now_s, within_s=deadline_s / 2) for p in said):
        view.lapses.lapsed |= said - view.peers.suspects
        view.gathering().call(piece, 1)


def owing_sums(view: RoundView, piece: Slice, said: Collection[PeerId]) -> set[PeerId]:
    """Who is to sum that slice first, and has not said what it comes to."""
    first = piece.reducers[: view.roles.belief.num_needed(piece.reducers)]
    return set(first).difference(said, view.peers.suspects, view.roles.set_back, {view.me})


def _contradicted(view: RoundView, groups: Mapping[bytes, set[PeerId]]) -> int:
    """How many words of a slice are wrong at most, by what others say: so many more may be needed.

    Of those whose words count, and not more than may lie: nobody else can make all sum everything.
    """
    belief = view.roles.belief
    if belief.words > 1:
        groups = {value: peers & belief.voters for value, peers in groups.items()}
        groups = {value: peers for value, peers in groups.items() if peers}
    if len(groups) < 2:
        return 0
    sizes = [len(peers) for peers in groups.values()]
    most = sum(sizes) - min(sizes)
    return min(most, belief.words - 1) if belief.words > 1 else len(groups) - 1


# Accusing -----------------------------------------------------------------------------------------
#
# R10: who said of a slice what its parts do not give, by what voters found.
#
# One honest voter is among more voters than may lie, and it summed the slice itself. So whoever
# differs from what they all say lied, or its machine errs. Nobody needs the parts to see that.

JUDGED = (Kind.AGG, Kind.GRAM)
"""Kinds that are a pure function of listed bytes (R7)."""


def wrong_sums(view: RoundView, slot: Slot) -> Iterator[tuple[PeerId, Evidence | None]]:
    """Who said something else in that slot than so many voters as are needed, with the evidence;
    without it where it would be too large.

    Once of each: whoever is convicted is left out, and so is this node.
    """
    if view.config.trust != "open" or slot.kind not in JUDGED:
        return
    said = {p: e.message for p, e in view.ballots.of(slot.kind, 0, slot.subject).items()}
    groups = alike({peer: message.body for peer, message in said.items()})
    needed = words_needed(len(view.roles.electorate))
    for body, peers in sorted(groups.items()) if len(groups) > 1 else ():
        judges = sorted(peers.intersection(view.roles.electorate))[:needed]
        if len(judges) < needed:
            continue
        for peer in sorted(said.keys() - view.peers.convicted - {view.me}):
            if said[peer].body == body or not may_be_accused(view.seals.named, peer):
                continue
            others = tuple(said[judge] for judge in judges)
            try:
                yield peer, wrong_sum_evidence(view.seals.named, said[peer], others)
            except ProofError:
                yield peer, None
