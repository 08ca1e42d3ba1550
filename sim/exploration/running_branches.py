"""The model of running branches (R4): real machines, sides that come and go, every order of events.

Links join peers into sides. Within a side a peer hears, at any time or never, what another one of
it holds, cut off before its SEALs or before its VOTEs or whole; meets it, answered or not; gets
bytes that somebody there has. Suspicions follow the links, peer by peer, at any time. Peers are
killed and restart, freeze and wake. What is decided is decided by `protocol.rounds.round_machine`
and `protocol.rounds.standing`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from protocol.identity import PeerId
from protocol.messages import Kind
from sim.exploration.branch_moves import BranchMoves, BranchSpan, Move, is_trained_for
from sim.exploration.branch_peers import BranchPeers, branching
from sim.exploration.branch_state import groups, partitions
from sim.exploration.explorer import Later
from sim.exploration.peers import Deed, Effect
from sim.exploration.post import Post
from sim.exploration.table import Table
from sim.exploration.toys import toy_config

_OTHER_KIND = {Kind.VOTE: Kind.PVOTE, Kind.PVOTE: Kind.VOTE}

GOOD_ROUNDS = 120
"""So often may all be told all there is, and time pass, until L1 is broken."""


class BranchesState(NamedTuple):
    """Each peer by number, its side, all messages sent, what may still happen, what is wrong."""

    peers: tuple[int, ...]
    links: tuple[int, ...]
    sent: int
    changes: int
    restarts: int
    sleeps: int
    wrong: str = ""


class RunningBranches:
    """R4 with running machines, for `sim.exploration.explorer`. It begins behind the trace
    `before`."""

    def __init__(self, span: BranchSpan, before: Iterable[str] = ()) -> None:
        self.span = span
        cells = span.fragment_cells
        self.table = Table(
            voters=span.voters, helpers=0, members=span.members, fragment_cells=cells
        )
        self.table.config = toy_config(*cells, lag=span.lag)
        head = self.table.head
        self.post = Post()
        self.post.rosters[head.value.digest] = head.value.roster
        if span.lag > 1:
            self.post.rosters[head.value.before] = head.value.roster
            self.post.starts.add(head.value.digest)
        self.peers = BranchPeers(self.post, branching(self.table.config))
        self._ids = [*self.table.voters, *self.table.members]
        self._seats = range(len(self._ids))
        self._partitions = list(partitions(len(self._ids)))
        self._last_round = head.value.round + span.rounds
        self._moves = BranchMoves(span, self.peers, self.table.names, self._last_round)
        self._asked = 0
        self._start = self._fresh()
        self._start = Later(self, before).start()

    def start(self) -> BranchesState:
        """All are linked, at the head; or behind what came before."""
        return self._start

    def _fresh(self) -> BranchesState:
        head = self.table.head
        numbers = tuple(self.peers.number(self.peers.fresh(peer, head)) for peer in self._ids)
        span = self.span
        state = BranchesState(
            numbers, (0,) * len(numbers), 0, span.changes, span.restarts, span.sleeps
        )
        for seat in self._seats if span.is_brisk else ():
            state = next(self._after(state, seat, "has trained", (("contribute",),)))[1]
        return state

    def key(self, state: BranchesState) -> BranchesState:
        """States are values."""
        return state

    def check(self, state: BranchesState) -> str:
        """Safety, and where it is asked for, that all rounds under way become final."""
        self._asked += 1
        if state.wrong or not self.span.every or self._asked % self.span.every:
            return state.wrong
        return self.fails_to_heal(state)

    def moves(self, state: BranchesState) -> Iterator[tuple[str, BranchesState]]:
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

    def _of_seat(self, state: BranchesState, seat: int) -> Iterator[tuple[str, BranchesState]]:
        for label, deeds in self._deeds(state, seat):
            yield from self._after(state, seat, label, deeds)
        if state.restarts:
            after = state._replace(restarts=state.restarts - 1)
            yield from self._after(after, seat, "is killed and restarts", (("restart",),))
        if state.sleeps:
            after = state._replace(sleeps=state.sleeps - 1)
            yield from self._after(after, seat, "freezes and wakes", (("wake",),))

    # What may happen to one peer ----------------------------------------------------------------

    def _deeds(self, state: BranchesState, seat: int) -> Iterator[Move]:
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

    def _after(
        self, state: BranchesState, seat: int, label: str, deeds: tuple[Deed, ...]
    ) -> Iterator[tuple[str, BranchesState]]:
        number, effect = self.peers.do(state.peers[seat], deeds)
        if number == state.peers[seat] and not effect.broken:
            return  # It changed nothing.
        if self.span.is_brisk:
            number, effect = self._at_once(state, seat, number, effect)
        numbers = (*state.peers[:seat], number, *state.peers[seat + 1 :])
        wrong = effect.broken or self.post.wrong(state.sent, effect.sent)
        if effect.adopted and not wrong:
            wrong = self._split(numbers)
        sent = self.post.add(state.sent, effect.sent)
        if self.span.rules and not wrong:
            wrong = self._broken_rule(sent, effect)
        said = self.table.said(self.post.letters[n] for n in effect.sent)
        words = f"{self.table.names[self._ids[seat]]} {label}"
        if effect.adopted:
            words += ", and adopts a round"
        following = state._replace(peers=numbers, sent=sent, wrong=wrong)
        yield f"{words}: {said}" if said else words, following

    def _at_once(
        self, state: BranchesState, seat: int, number: int, effect: Effect
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

    def _split(self, numbers: tuple[int, ...]) -> str:
        found: dict[int, bytes] = {}
        for number in numbers:
            for certificate in self.peers.at(number).chain:
                value = certificate.value
                if found.setdefault(value.round, value.digest) != value.digest:
                    return "S1: two peers have adopted different seals of one round"
        return ""

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

    def fails_to_heal(self, state: BranchesState) -> str:
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

    def _told_all(self, state: BranchesState, until: int) -> BranchesState:
        seats = list(self._seats)
        while seats and not state.wrong:
            seat = seats.pop(0)
            for _, deeds in self._kind_deeds(state, seat, until):
                after = next(self._after(state, seat, "", deeds), None)
                if after is not None:
                    state, seats = after[1], [*self._seats]
                    break
        return state

    def _kind_deeds(self, state: BranchesState, seat: int, until: int) -> Iterator[Move]:
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

    def _side(self, state: BranchesState, seat: int) -> list[int]:
        return [s for s in self._seats if s != seat and state.links[s] == state.links[seat]]

    def _lost(self, state: BranchesState, seat: int) -> frozenset[PeerId]:
        side = state.links[seat]
        return frozenset(self._ids[s] for s in self._seats if state.links[s] != side)

    def _names(self, seats: Iterable[int]) -> str:
        return "".join(self.table.names[self._ids[seat]] for seat in seats)
