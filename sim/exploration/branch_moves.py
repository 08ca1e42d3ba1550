"""What a running machine may be told next, where R4 is explored: by itself, and from its side.

Each answer follows from the states of the peers alone, and is worked out once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from protocol.frames import Bulk
from protocol.identity import PeerId
from protocol.messages import Kind
from protocol.rounds.round_view import RoundView
from sim.exploration.branch_peers import BranchPeer, BranchPeers
from sim.exploration.peers import Deed

SEALS = (Kind.SEAL, Kind.PSEAL)
DECISIONS = (*SEALS, Kind.VOTE, Kind.PVOTE, Kind.AGG)
CUTS: tuple[tuple[Kind, ...], ...] = ((), SEALS, DECISIONS)
"""What of the news of a peer is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchSpan:
    """How much is explored; voters A, B, ... all have a machine.

    `changes` of links to any partition; a peer has nothing to give once `ahead` provisional rounds
    or `rounds` in all are behind it; nobody tries more than `attempts` of its own accord. `cuts` is
    how finely news may be lost: whole or not at all, without SEALs, without VOTEs. Who `is_brisk`
    trains and gets bytes at once, and hears all of its side at a time. Deadlines pass only if
    `is_late`, heartbeats come without an answer only if `is_unanswered`. L1 is asked of every
    `every`-th state; 0 for never. Without `rules` only what is promised is asked for. With `lag` 2
    two rounds are in flight (R5), on fragments of so many cells.
    """

    voters: int
    members: int = 0
    rounds: int = 2
    ahead: int = 1
    changes: int = 2
    attempts: int = 1
    restarts: int = 0
    sleeps: int = 0
    cuts: int = 1
    is_brisk: bool = False
    is_late: bool = False
    is_unanswered: bool = False
    every: int = 0
    rules: bool = True
    lag: int = 1
    fragment_cells: tuple[int, ...] = (1,)


Move = tuple[str, tuple[Deed, ...]]


class BranchMoves:
    """The moves of single peers, by the numbers of their states."""

    def __init__(
        self, span: BranchSpan, peers: BranchPeers, names: dict[PeerId, str], last_round: int
    ) -> None:
        self._span, self._peers, self._names = span, peers, names
        self._last_round = last_round
        self._heard: dict[tuple[int, int], list[Move]] = {}
        self._said: dict[tuple[int, tuple[int, ...]], list[Move]] = {}
        self._alone: dict[int, list[Move]] = {}

    def own(self, number: int) -> list[Move]:
        """What a peer does by itself."""
        if number not in self._alone:
            self._alone[number] = list(self._find_own(self._peers.at(number)))
        return self._alone[number]

    def _find_own(self, peer: BranchPeer) -> Iterator[Move]:
        machine, span = peer.machine, self._span
        view = machine.view
        if machine.is_muted or view.opened_s is None:
            return
        if span.is_late:
            if view.own_slices() and view.me not in view.ballots.of(Kind.HAVE, view.attempt):
                yield "waits until its deadline", (("deadline", 2),)
            if view.closer(view.attempt) == view.me and view.proposal() is None:
                yield "waits no longer for HAVEs", (("deadline", 4),)
        if view.is_voter and view.attempt + 1 < span.attempts:
            yield f"enters attempt {view.attempt + 1}", (("time-out",),)

    def training(self, number: int) -> Iterator[Move]:
        """Its trainer is through."""
        standing = self._peers.at(number).machine.standing
        is_on = len(standing.branch) < self._span.ahead
        if is_on and any(is_trained_for(view, self._last_round) for view in standing.worked_for):
            yield "has trained", (("contribute",),)

    def between(self, number: int, other: int) -> list[Move]:
        """What a peer may have from another one."""
        place = (number, other)
        if place not in self._heard:
            self._heard[place] = list(self._find_between(number, other))
        return self._heard[place]

    def _find_between(self, number: int, other: int) -> Iterator[Move]:
        peer, giver = self._peers.at(number), self._peers.at(other)
        machine, theirs = peer.machine, giver.machine
        name = self._names[theirs.view.me]
        if machine.is_asking:
            may_be_open = theirs.standing.top.may_be_open + self._span.lag - 1
            status: Deed = ("status", theirs.view.me, may_be_open)
            yield f"hears the STATUS of {name}", (status,)
        if len(giver.chain) > len(peer.chain):
            yield f"catches up with {name}", (("catch up", other),)
        own, final = machine.standing.head.value.digest, machine.head.digest
        if own != theirs.standing.head.value.digest or own != final:
            yield f"meets {name}", (("meet", other, True),)
            if self._span.is_unanswered:
                yield f"hears a heartbeat of {name}", (("meet", other, False),)
        if not self._span.is_brisk:
            yield from self.told(number, (other,))

    def told(self, number: int, others: tuple[int, ...]) -> list[Move]:
        """What a peer hears of some, whole or cut off."""
        place = (number, others)
        if place not in self._said:
            self._said[place] = list(self._find_told(number, others))
        return self._said[place]

    def _find_told(self, number: int, others: tuple[int, ...]) -> Iterator[Move]:
        peer = self._peers.at(number)
        names = "".join(self._names[self._peers.at(o).machine.view.me] for o in others)
        seen: set[tuple[Deed, ...]] = set()
        for lost in CUTS[: self._span.cuts]:
            news = [
                deed for other in others for deed in self._news(peer, self._peers.at(other), lost)
            ]
            deeds = tuple(dict.fromkeys(news))
            if deeds and deeds not in seen:
                seen.add(deeds)
                but = f" but the {', '.join(kind.name for kind in lost)}" if lost else ""
                yield f"hears {names}{but}", deeds

    def _news(self, peer: BranchPeer, giver: BranchPeer, lost: tuple[Kind, ...]) -> Iterator[Deed]:
        """What `giver` holds of the rounds that `peer` knows, and `peer` has not heard."""
        for view in giver.machine.views:
            own = peer.machine.standing.on(view.basis)
            if own is None:
                continue
            for message in view.ballots.messages():
                if message.slot.kind not in lost and own.ballots.find(message.digest) is None:
                    yield "hear", self._peers.post.number(message)

    def parts(self, number: int, side: list[int]) -> Iterator[Move]:
        """What somebody of the side has, and the peer sums."""
        peer = self._peers.at(number)
        givers = [self._peers.at(other) for other in side]
        parts: list[Deed] = [
            ("part", commit, cell)
            for view in peer.machine._worked_in
            for piece in view.own_slices()
            for _, commit, _ in view.commits()
            for cell in view.missing_parts(commit, piece)
            if any(giver.holds(Bulk.PART, commit, cell) for giver in givers)
        ]
        if parts:
            yield "gets the parts", tuple(parts)

    def results(self, number: int, side: list[int]) -> Iterator[Move]:
        """What somebody of the side has, and the peer would ask for."""
        peer = self._peers.at(number)
        givers = [self._peers.at(other) for other in side]
        results = [
            digest
            for one in peer.machine.standing.under_way
            for digest in _wanted(one)
            if all(
                any(g.holds(Bulk.RESULT, digest, c) for g in givers)
                for c in one.missing_results(digest)
            )
        ]
        if results:
            yield "gets the results", tuple(("cells", digest) for digest in results)


def is_trained_for(view: RoundView, last_round: int) -> bool:
    """Whether the own trainer has still to give something for that round."""
    return view.is_member and view.contribution is None and view.index <= last_round


def _wanted(view: RoundView) -> Iterator[bytes]:
    """LISTs whose results a peer asks for: certified ones, and the one that it follows."""
    digests = [digest for digest, _ in view.ballots.certified_lists()]
    sealed = view.ballots.sealed(view.before)
    if view.followed:
        digests.append(view.followed)
    if sealed is not None:
        digests.append(sealed[0].list_digest)
    for digest in dict.fromkeys(digests):
        if view.ballots.list_of(digest) is not None and view.missing_results(digest):
            yield digest
