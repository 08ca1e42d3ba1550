"""The model of running branches (R4): real machines, sides that come and go, every order of events.

Links join peers into sides. Within a side a peer hears, at any time or never, what another one of
it holds, cut off before its SEALs or before its VOTEs or whole; meets it, answered or not; gets
bytes that somebody there has. Suspicions follow the links, peer by peer, at any time. Peers are
killed and restart, freeze and wake. What is decided is decided by `protocol.rounds.round_machine`
and `protocol.rounds.standing`, which is told of heartbeats and branches as a NodeCore tells it. The
store is a toy that does what `node.holdings.shard_store` does to states.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from blake3 import blake3

from protocol import events as ev
from protocol.errors import ProofError
from protocol.frames import Branch, Bulk
from protocol.identity import KeyedHashSigner, PeerId
from protocol.messages import Kind, SealCertificate, SealValue
from protocol.rounds.restart import Restart
from protocol.rounds.round_machine import RoundMachine
from protocol.rounds.round_view import RoundConfig, RoundView
from protocol.rounds.standing import ASK_AFTER_S, WAIT_S, Meeting, Reach, _Peer
from sim.exploration import peers
from sim.exploration.explorer import Later
from sim.exploration.machines import Machines, MachinesState, Moves, holds, parts_due
from sim.exploration.peers import Deed, Effect, MachinePeer, Move, Peers, key_of
from sim.exploration.table import Post, Table, contributed, toy_config

# One machine that may go on without a quorum ------------------------------------------------------

IGNORED = {
    **peers.IGNORED,
    Reach: ("lost_s",),
    Meeting: ("_signer",),
    _Peer: ("since_s", "asked_s"),
}
"""There is no grace: what counts is whom one suspects; and nobody asks twice in vain."""

LATER_S = WAIT_S + 1.0
"""Whenever time passes, it is long enough for who waits for the branch of somebody it has met."""


def branching(config: RoundConfig) -> RoundConfig:
    """That config, with R4 and no grace: suspicions come when they come."""
    return replace(config, survive="any", grace_s=0.0)


@dataclass(slots=True)
class BranchPeer(MachinePeer):
    """See Peer. `branch` is its log of provisional seals; `state` and `final` are the roots in its
    store, `steps` what each LIST was applied on."""

    meeting: Meeting = field(kw_only=True)
    state: bytes = field(kw_only=True)
    final: bytes = field(kw_only=True)
    branch: tuple[SealCertificate, ...] = ()
    steps: dict[bytes, tuple[bytes, bool]] = field(default_factory=dict)

    def _act(self, action: ev.RoundAction) -> Iterator[ev.RoundEvent]:
        match action:
            case ev.Apply(list_digest=digest, is_empty=is_empty):
                view = self.machine.standing.about(digest) or self.machine.view
                self.steps[digest] = (view.seals.head.root, is_empty)
                if not is_empty:
                    self.results.add(digest)
                yield ev.Applied(digest, self._taken(digest), view.seals.head.root)
            case ev.Adopt(certificate=certificate, was_listed=was_listed):
                self._judge_outcome(certificate.value, was_listed)
                self.state = self.final = self._taken(certificate.value.list_digest)
                self.branch = ()
                yield from MachinePeer._act(self, action)
            case ev.Advance(certificate=certificate, was_listed=was_listed):
                self._judge_outcome(certificate.value, was_listed)
                self.state = self._taken(certificate.value.list_digest)
                self.branch = (*self.branch, certificate)
                self.known.append(certificate)
            case ev.Confirm(certificate=certificate):
                self.final = self._taken(certificate.value.list_digest)
                self.chain, self.branch = (*self.chain, certificate), self.branch[1:]
                self.adopted.append(certificate)
            case ev.FallBack():
                self.state, self.branch = self.final, ()
            case _:
                yield from MachinePeer._act(self, action)

    def _taken(self, digest: bytes) -> bytes:
        base, is_empty = self.steps[digest]
        return base if is_empty else blake3(b"applied" + base + digest).digest()

    def _judge_outcome(self, value: SealValue, was_listed: bool) -> None:
        """R6: the trainer is told the truth about the COMMIT that this node signed there."""
        me = self.machine.view.me
        own = {
            message.digest
            for message in self.journal.values()
            if (message.sender, message.slot.kind) == (me, Kind.COMMIT)
        }
        if was_listed != bool(own & set(value.commits)):
            self.broken = "R6: the trainer is told a wrong outcome"

    # Deeds --------------------------------------------------------------------------------------

    def notice(self, lost: frozenset[PeerId]) -> None:
        """The links to these are gone, those to all others are there."""
        for peer in sorted(lost):
            self.meeting.left(peer)
        self.tell(ev.SuspicionsChanged(lost))

    def meet(self, other: "BranchPeer", *, is_answered: bool) -> None:
        """A heartbeat of a peer; then, if it is answered, the question for its branch."""
        machine, meeting, theirs = self.machine, self.meeting, other.machine
        peer, standing = theirs.view.me, theirs.standing
        final, head = standing.final.value.round, standing.head.value.digest
        meeting.heard(peer, final, head, now_s=self.now_s - ASK_AFTER_S)
        meeting._peers[peer].asked_s = None
        asked = {question.peer for question in meeting.ask(machine.standing, now_s=self.now_s)}
        if is_answered and peer in asked:
            for sent in Meeting.answer(standing, machine.view.me, machine.head.digest):
                assert isinstance(sent.frame, Branch)
                try:
                    meeting.arrived(peer, sent.frame, machine.standing)
                except ProofError as error:
                    self.broken = f"an honest peer is blamed: {error}"
                    return
        self._look()
        path = meeting.choose(machine.standing)
        if path is not None:
            self._carry_out(list(machine.follow(path, self.now_s)))
        self.tell(ev.Tick())

    def _look(self) -> None:
        """What a core tells its machine of the branches of others, with every heartbeat."""
        machine, meeting = self.machine, self.meeting
        is_open = meeting.is_open(machine.standing, now_s=self.now_s)
        machine.meets(is_behind=meeting.is_behind(machine.head), is_meeting=is_open)

    def catch_up(self, other: "BranchPeer") -> None:
        """Take over the final chain of a peer: what the own branch has of it is confirmed, else its
        last state is fetched."""
        links = other.chain[len(self.chain) :]
        own = {link.value.digest for link in self.machine.standing.branch}
        if links[-1].value.digest in own:
            self._carry_out(list(self.machine.confirm(list(links), self.now_s)))
        else:
            self.chain, self.branch = other.chain, ()
            self.state = self.final = links[-1].value.root
            self.machine.reset(links[-1], now_s=self.now_s, before=other.chain[-2].value)
            self.adopted += links
        self._look()
        self.tell(ev.Tick())

    def later(self, steps: int) -> None:
        """Time passes."""
        self.now_s += steps * LATER_S
        self._look()
        self.tell(ev.Tick())

    def pass_deadline(self, deadlines: float) -> None:
        """See Peer."""
        self.now_s += LATER_S
        self._look()
        MachinePeer.pass_deadline(self, deadlines)

    def time_out(self) -> None:
        """See Peer."""
        self.now_s += LATER_S
        self._look()
        MachinePeer.time_out(self)

    def contribute(self) -> None:
        """The trainer hands over what it made on the anchor in the store."""
        rounds = self.machine.standing.worked_for
        view = next(one for one in rounds if one.is_member and one.own.contribution is None)
        made = contributed(view.me, view.index, view.cells.num_cells, view.basis.hex())
        self.tell(replace(made, basis=view.basis))

    def restart(self, *, is_lost: bool = False) -> None:
        """R12: killed, and started again from what is on the disk."""
        assert not is_lost
        old = self.machine
        fresh = RoundMachine(
            old.config, KeyedHashSigner(old.view.me), self.chain[0], now_s=self.now_s
        )
        restart = Restart(
            chain=self.chain,
            branch=self.branch,
            messages=tuple(message for _, message in sorted(self.journal.items())),
            results=frozenset(self.results),
        )
        fresh.resume(restart, now_s=self.now_s)
        self.machine, self.meeting = fresh, Meeting(KeyedHashSigner(old.view.me))
        self.tell(ev.Tick())

    # Answers ------------------------------------------------------------------------------------

    def has_result(self, digest: bytes, cell: int) -> bool:
        """Whether it can give that cell of the result of a LIST."""
        return digest in self.results or holds(self, Bulk.RESULT, digest, cell)

    def wrong(self) -> str:
        """See MachinePeer."""
        standing = self.machine.standing
        if (self.final, self.state) != (standing.final.value.root, standing.head.value.root):
            return "I2: the state in the store is not the one that is sealed"
        if [link.value.digest for link in self.branch] != [
            link.value.digest for link in standing.branch
        ]:
            return "I1: the branch on the disk is another one"
        if self.chain[-1].value.digest != standing.final.value.digest:
            return "I1: the chain on the disk ends with another seal"
        # With two rounds in flight the first one only stands for what came before (R5).
        path = [*self.chain[self.machine.config.clock.lag - 1 :], *self.branch]
        for before, link in pairwise(path):
            if link.value.before != before.value.digest:
                return "S5: a seal stands on another one than the one before it"
        counted = [commit for link in path for commit in link.value.commits]
        if len(counted) != len(set(counted)):
            return "S5: a contribution counts twice"
        if not self.journal.keys() >= {
            digest for link in self.branch for digest in link.value.commits
        }:
            return (
                "I5: it may make a round final of which it would have no receipts after a restart"
            )
        view = self.machine.view
        if view.is_provisional and not view.peers.expected:
            return "L1: it may seal a round, but nobody in reach may contribute"
        left = len(standing.given_up)
        if len(standing.views) != len(standing.branch) + 1 or left > GIVEN_UP_MAX:
            return f"I7: {len(standing.views)} rounds are kept, and {left} that were left"
        return ""

    def key(self) -> bytes:
        """See Peer."""
        disk = (sorted(self.journal), sorted(self.results), self.broken)
        chain = [link.value.digest for link in (*self.chain, *self.branch)]
        met = (self.meeting, self.meeting.is_open(self.machine.standing, now_s=self.now_s))
        # Any of the rounds may be the one to work in next.
        phases = self.phase(), *map(self.phase_of, self.machine.standing.views)
        parts = (self.machine, phases, met, disk, chain, self.state, self.final)
        return key_of(parts, IGNORED)


GIVEN_UP_MAX = 16
"""Rounds that were left, and may come back: in the few moves of an exploration never so many."""


class BranchPeers(Peers):
    """See Peers."""

    states: list[MachinePeer]

    def at(self, number: int) -> BranchPeer:
        """The peer of that state; it must not be changed."""
        peer = self.states[number]
        assert isinstance(peer, BranchPeer)
        return peer

    def fresh(self, peer: PeerId, head: SealCertificate) -> BranchPeer:
        """See Peers."""
        signer, root = KeyedHashSigner(peer), head.value.root
        plain = Peers.fresh(self, peer, head)
        return BranchPeer(
            plain.machine, plain.chain, meeting=Meeting(signer), state=root, final=root
        )

    def _carry_out(self, peer: MachinePeer, deed: Deed) -> None:
        assert isinstance(peer, BranchPeer)
        match deed:
            case ("notice", *lost):
                peer.notice(frozenset(PeerId(one) for one in lost if isinstance(one, bytes)))
            case ("meet", int(number), bool(is_answered)):
                peer.meet(self.at(number), is_answered=is_answered)
            case ("catch up", int(number)):
                peer.catch_up(self.at(number))
            case ("later", int(steps)):
                peer.later(steps)
            case ("cells", bytes(digest)):
                peer.result(digest)
            case _:
                Peers._carry_out(self, peer, deed)


# What a machine may be told next ------------------------------------------------------------------

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
        if machine.is_muted or view.times.opened_s is None:
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
            for _, commit, cell in parts_due(view, givers)
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
                any(giver.has_result(digest, c) for giver in givers)
                for c in one.cells.missing_results(digest)
            )
        ]
        if results:
            yield "gets the results", tuple(("cells", digest) for digest in results)


def is_trained_for(view: RoundView, last_round: int) -> bool:
    """Whether the own trainer has still to give something for that round."""
    return view.is_member and view.own.contribution is None and view.index <= last_round


def _wanted(view: RoundView) -> Iterator[bytes]:
    """LISTs whose results a peer asks for: certified ones, and the one that it follows."""
    digests = [digest for digest, _ in view.ballots.certified_lists()]
    sealed = view.ballots.sealed(view.seals.before)
    if view.outcome.followed:
        digests.append(view.outcome.followed)
    if sealed is not None:
        digests.append(sealed[0].list_digest)
    for digest in dict.fromkeys(digests):
        if view.ballots.list_of(digest) is not None and view.cells.missing_results(digest):
            yield digest


# The model ----------------------------------------------------------------------------------------


def groups(links: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Who hears whom."""
    return [tuple(i for i, at in enumerate(links) if at == side) for side in sorted(set(links))]


def partitions(num_peers: int, prefix: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Every way of parting peers into groups that hear each other."""
    if len(prefix) == num_peers:
        yield prefix
        return
    for side in range(max(prefix, default=-1) + 2):
        yield from partitions(num_peers, (*prefix, side))


_OTHER_KIND = {Kind.VOTE: Kind.PVOTE, Kind.PVOTE: Kind.VOTE}

GOOD_ROUNDS = 120
"""So often may all be told all there is, and time pass, until L1 is broken."""


class RunningBranches(Machines):
    """R4 with running machines, for `sim.exploration.explorer`. It begins behind the trace
    `before`."""

    peers: BranchPeers
    adopts = ", and adopts a round"

    def __init__(self, span: BranchSpan, before: Iterable[str] = ()) -> None:
        self.span = span
        cells = span.fragment_cells
        table = Table(voters=span.voters, helpers=0, members=span.members, fragment_cells=cells)
        table.config = toy_config(*cells, lag=span.lag)
        post, head = Post(), table.head
        post.rosters[head.value.digest] = head.value.roster
        if span.lag > 1:
            post.rosters[head.value.before] = head.value.roster
            post.starts.add(head.value.digest)
        peers = BranchPeers(post, branching(table.config))
        super().__init__(table, post, peers, every=span.every, rules=True)
        self._ids = [*table.voters, *table.members]
        self._seats = range(len(self._ids))
        self._partitions = list(partitions(len(self._ids)))
        self._last_round = head.value.round + span.rounds
        self._moves = BranchMoves(span, peers, table.names, self._last_round)
        self._start = self._fresh()
        self._start = Later(self, before).start()

    def start(self) -> MachinesState:
        """All are linked, at the head; or behind what came before."""
        return self._start

    def _fresh(self) -> MachinesState:
        head = self.table.head
        numbers = tuple(self.peers.number(self.peers.fresh(peer, head)) for peer in self._ids)
        span = self.span
        state = MachinesState(numbers, 0, span.restarts, span.sleeps)
        state = state._replace(links=(0,) * len(numbers), changes=span.changes)
        for seat in self._seats if span.is_brisk else ():
            state = next(self._after(state, seat, "has trained", (("contribute",),)))[1]
        return state

    def moves(self, state: MachinesState) -> Moves:
        """Everything that may happen next.

        Sides that never meet again do so one after another: nothing that is wrong is ever undone,
        so it makes no difference which of them goes first.
        """
        if state.changes:
            for links in self._partitions:
                if links != state.links:
                    sides = "|".join(self._names(side) for side in groups(links))
                    after = state._replace(links=links, changes=state.changes - 1)
                    yield f"links become {sides}", after
        for side in groups(state.links):
            found = [move for seat in side for move in self._of_seat(state, seat)]
            yield from found
            if found and not (state.changes or state.restarts or state.sleeps):
                return

    def _of_seat(self, state: MachinesState, seat: int) -> Moves:
        name = self.table.names[self._ids[seat]]
        for label, deeds in self._deeds(state, seat):
            yield from self._after(state, seat, f"{name} {label}", deeds)
        yield from self._mishaps(state, seat, name)

    # What may happen to one peer ----------------------------------------------------------------

    def _deeds(self, state: MachinesState, seat: int) -> Iterator[Move]:
        number = state.peers[seat]
        side = self._side(state, seat)
        lost = self._lost(state, seat)
        machine = self.peers.at(number).machine
        if machine._suspects != lost:
            who = self._names(self._ids.index(peer) for peer in sorted(lost))
            yield f"knows {who or 'nobody'} to be out of reach", (("notice", *sorted(lost)),)
        if not self.span.is_brisk:
            yield from self._coming(number, [state.peers[other] for other in side])
        yield from self._moves.own(number)
        known = [state.peers[o] for o in side if self._ids[o] not in machine._suspects]
        for other in known:
            yield from self._moves.between(number, other)
        yield from self._moves.told(number, tuple(known) if self.span.is_brisk else ())

    def _do(
        self, state: MachinesState, seat: int, deeds: tuple[Deed, ...]
    ) -> tuple[int, Effect] | None:
        done = super()._do(state, seat, deeds)
        return self._at_once(state, seat, *done) if done and self.span.is_brisk else done

    def _at_once(
        self, state: MachinesState, seat: int, number: int, effect: Effect
    ) -> tuple[int, Effect]:
        """What a brisk peer does behind whatever happens to it: it trains, and gets the parts."""
        side = [state.peers[other] for other in self._side(state, seat)]
        due = self._coming(number, side)
        while due and not effect.broken:
            number, more = self.peers.do(number, due[0][1])
            sent, adopted = effect.sent + more.sent, effect.adopted + more.adopted
            effect = Effect(sent, adopted, more.broken)
            due = self._coming(number, side)
        return number, effect

    def _coming(self, number: int, side: list[int]) -> list[Move]:
        """What its trainer and the bytes of its side would bring a peer by now."""
        bytes_due = (*self._moves.parts(number, side), *self._moves.results(number, side))
        return [*self._moves.training(number), *bytes_due]

    def _wrong_step(self, state: MachinesState, seat: int, effect: Effect) -> str:
        wrong = super()._wrong_step(state, seat, effect)
        return wrong or (self._broken_rule(state.sent, effect) if self.span.rules else "")

    def _broken_rule(self, sent: int, effect: Effect) -> str:
        """What R4 forbids, whether harm came of it or not."""
        final = self.post.facts(sent).final if effect.adopted else {}
        if not set(effect.adopted) <= {value for values in final.values() for value in values}:
            return "R4: a seal is final of which no quorum of voters gave a SEAL in one attempt"
        for letter in (self.post.letters[number] for number in effect.sent):
            other = _OTHER_KIND.get(letter.message.slot.kind)
            if other is None:
                continue
            place = replace(letter.message.slot, kind=other)
            before = self.post.of(sent)
            if any(x.sender == letter.sender and x.message.slot == place for x in before):
                return "R4: a VOTE and a PVOTE of one peer in one attempt"
        return ""

    # L1 -----------------------------------------------------------------------------------------

    def fails_to_finish(self, state: MachinesState) -> str:
        """Why the rounds that anybody works in do not become final though all are linked from here
        on, alive, and told everything; and why all do not stand on one head then."""
        state = state._replace(links=(0,) * len(self._ids))
        until = max(self.peers.at(n).machine.standing.top.index for n in state.peers)
        steps = 1
        for _ in range(GOOD_ROUNDS):
            told = self._told_all(state, until)
            if told.wrong:
                return f"in a good run: {told.wrong}"
            machines = [self.peers.at(number).machine for number in told.peers]
            if min(machine.head.round for machine in machines) >= until:
                heads = {machine.standing.head.value.digest for machine in machines}
                return "" if len(heads) == 1 else "S5: all are told all, and stand apart"
            # States look the same until something is due: then it has to be a longer time.
            steps = steps + 1 if told == state else 1
            state = told
            for seat in self._seats:
                after = next(self._after(state, seat, "waits", (("later", steps),)), None)
                state = after[1] if after is not None else state
        return "L1: the living never seal"

    def _told_all(self, state: MachinesState, until: int) -> MachinesState:
        seats = list(self._seats)
        while seats and not state.wrong:
            seat = seats.pop(0)
            for _, deeds in self._kind_deeds(state, seat, until):
                after = next(self._after(state, seat, "", deeds), None)
                if after is not None:
                    state, seats = after[1], [*self._seats]
                    break
        return state

    def _kind_deeds(self, state: MachinesState, seat: int, until: int) -> Iterator[Move]:
        number, lost = state.peers[seat], self._lost(state, seat)
        peer = self.peers.at(number)
        if peer.machine._suspects != lost:
            yield "", (("notice", *sorted(lost)),)
        if any(is_trained_for(view, until) for view in peer.machine.standing.worked_for):
            yield "", (("contribute",),)
        others = [state.peers[other] for other in self._side(state, seat)]
        for other in others:
            yield from self._moves.between(number, other)
        yield from self._moves.told(number, tuple(others))
        yield from self._moves.parts(number, others)
        yield from self._moves.results(number, others)

    # Words --------------------------------------------------------------------------------------

    def _side(self, state: MachinesState, seat: int) -> list[int]:
        return [s for s in self._seats if s != seat and state.links[s] == state.links[seat]]

    def _lost(self, state: MachinesState, seat: int) -> frozenset[PeerId]:
        side = state.links[seat]
        return frozenset(self._ids[s] for s in self._seats if state.links[s] != side)

    def _names(self, seats: Iterable[int]) -> str:
        return "".join(self.table.names[self._ids[seat]] for seat in seats)
