"""Several rounds, one message at a time: stragglers, restarts, lost disks, seats, first votes.

Nothing is reduced here. Every message that was sent may reach everybody in any order, also before
its round has begun there or never; parts and results travel as long as somebody has them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from protocol.frames import Bulk
from protocol.messages import Kind
from protocol.rounds.round_view import RoundView
from sim.exploration.explorer import Later
from sim.exploration.machines import GoodRun, Machines, MachinesState, Moves, holds, parts_due
from sim.exploration.peers import Deed, Effect, MachinePeer, Move, Peers, fork
from sim.exploration.table import Letter, Post, Table, toy_config


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """How much is explored: rounds, attempts in each, and faults.

    `members` have a seat and do not vote yet, `joiners` have none. Deadlines pass only if
    `is_late`. L1 is asked of every `every`-th state; 0 for never. If `active` names peers, all
    others do nothing. With `uses_gram` there are two cells, and nobody sums one before the Gram
    matrices of both are announced. If `everybody_sums`, all members do. `fragment_cells` are the
    cells of each fragment, where there is more than one; with `lag` 2 two rounds are in flight on
    them (R5).
    """

    voters: int
    members: int = 0
    joiners: int = 0
    rounds: int = 2
    attempts: int = 1
    restarts: int = 0
    disks: int = 0
    sleeps: int = 0
    is_late: bool = False
    every: int = 0
    active: str = ""
    uses_gram: bool = False
    everybody_sums: bool = False
    fragment_cells: tuple[int, ...] = ()
    lag: int = 1


class Rounds(Machines):
    """The model: A, B, ... vote or have seats, in this order; joiners come last.

    It begins behind the trace `before`, in which everybody acts.
    """

    adopts = ", and adopts the round"

    def __init__(self, span: Span, before: Iterable[str] = ()) -> None:
        self.span = span
        cells = span.fragment_cells or ((2,) if span.uses_gram else (1,))
        table = Table(voters=span.voters, helpers=0, members=span.members, fragment_cells=cells)
        config = toy_config(*cells, lag=span.lag)
        table.config = replace(config, uses_gram=span.uses_gram, everybody_sums=span.everybody_sums)
        post, head = Post(), table.head
        post.rosters[head.value.digest] = head.value.roster
        post.starts.add(head.value.digest)
        if span.lag > 1:
            post.rosters[head.value.before] = head.value.roster
        super().__init__(table, post, Peers(post, table.config), every=span.every, rules=True)
        self._ids = [*table.voters, *table.members]
        self._ids += [table.add_joiner(index) for index in range(span.joiners)]
        self._last_round = head.value.round + span.rounds
        self._active = ""
        self._start = self._fresh()
        self._start = Later(self, before).start()
        self._active = span.active

    def start(self) -> MachinesState:
        """All are at the head without contributions, or behind what came before."""
        return self._start

    def _fresh(self) -> MachinesState:
        numbers = tuple(
            self.peers.number(self.peers.fresh(peer, self.table.head)) for peer in self._ids
        )
        span = self.span
        return MachinesState(numbers, 0, span.restarts, span.sleeps, span.disks)

    def fails_to_finish(self, state: MachinesState) -> str:
        """Why the rounds that anybody has come to do not end."""
        living = [fork(self.peers.states[number]) for number in state.peers]
        latest = max(peer.machine.view.index for peer in living)
        until = min(latest, self._last_round)
        return GoodRun(self.table, living, (), until=until).fails()

    def moves(self, state: MachinesState) -> Moves:
        """Everything that may happen next."""
        for seat, number in enumerate(state.peers):
            peer = self.peers.states[number]
            name = self.table.names[self._ids[seat]]
            view = peer.machine.view
            if self._active and name not in self._active:
                continue
            if view.index <= self._last_round and view.attempt < self.span.attempts:
                for label, deeds in self._deeds(state, seat, peer):
                    yield from self._after(state, seat, f"{name} {label}", deeds)
                yield from self._mishaps(state, seat, name)

    def _wrong_step(self, state: MachinesState, seat: int, effect: Effect) -> str:
        """S4: one seal names roster, closer and slots of a round, for everybody."""
        named: dict[int, bytes] = {}
        for letter in self.post.of(state.sent) if effect.sent else ():
            slot = letter.message.slot
            if slot.kind is Kind.COMMIT and named.setdefault(slot.round, slot.basis) != slot.basis:
                return f"S4: two seals name the roster of round {self._round(slot.round)}"
        return super()._wrong_step(state, seat, effect)

    # What may happen to one peer ----------------------------------------------------------------

    def _deeds(self, state: MachinesState, seat: int, peer: MachinePeer) -> Iterator[Move]:
        machine, view = peer.machine, peer.machine.view
        rounds = machine.standing.worked_for
        if any(one.is_member and one.own.contribution is None for one in rounds):
            yield "has trained", (("contribute",),)
        if not view.is_member and view.me not in view.ballots.of(Kind.SEAT):
            yield "asks for a seat", (("seat",),)
        for letter in self.post.of(state.sent):
            if self._is_news(peer, letter):
                yield f"hears {self._words(letter)}", (("hear", letter.number),)
        if machine.is_asking:
            for other in self._others(state, seat):
                if not other.machine.has_forgotten:
                    name = self.table.names[other.machine.view.me]
                    index = other.machine.view.may_be_open + self.span.lag - 1
                    status: Deed = ("status", other.machine.view.me, index)
                    yield f"hears that {name} is in round {self._round(index)}", (status,)
        yield from self._bytes(state, peer)
        if machine.is_muted:
            return
        for one in rounds:
            yield from self._waits(peer, one)

    def _waits(self, peer: MachinePeer, view: RoundView) -> Iterator[Move]:
        """Deadlines of the round that is final next; of one beside it they pass with those."""
        if view.seals.is_beside:
            return
        if self.span.is_late and view.times.opened_s is not None:
            if view.own_slices() and not self._said(peer, Kind.HAVE, view.attempt):
                yield "waits until its deadline", (("deadline", 2),)
            if view.closer(view.attempt) == view.me and self._said(peer, Kind.HAVE, view.attempt):
                yield "waits no longer for HAVEs", (("deadline", 4),)
            if view.attempt not in view.lapses.second_call_s:
                yield "waits until substitutes are called", (("deadline", 3),)
        if (
            view.is_voter
            and view.times.opened_s is not None
            and view.attempt + 1 < self.span.attempts
        ):
            yield f"enters attempt {view.attempt + 1}", (("time-out",),)

    @staticmethod
    def _said(peer: MachinePeer, kind: Kind, attempt: int) -> bool:
        view = peer.machine.view
        return view.me in view.ballots.of(kind, attempt)

    def _is_news(self, peer: MachinePeer, letter: Letter) -> bool:
        view, slot = peer.machine.view, letter.message.slot
        on = peer.machine.standing.on(letter.basis)
        is_early = on is None or (on.seals.is_beside and slot.kind is Kind.SEAL)
        if is_early and view.index < slot.round <= view.index + self.span.lag:
            return letter.message.digest not in view.early
        if on is None or slot.kind is Kind.AGG:
            return False  # Nothing is decided by who announced a result.
        return on.ballots.find(letter.message.digest) is None

    def _bytes(self, state: MachinesState, peer: MachinePeer) -> Iterator[Move]:
        for view in peer.machine.standing.under_way:
            yield from self._bytes_of(state, view)

    def _bytes_of(self, state: MachinesState, view: RoundView) -> Iterator[Move]:
        everybody = [self.peers.states[number] for number in state.peers]
        for sender, commit, cell in parts_due(view, everybody):
            yield f"gets the part of {self.table.names[sender]}", (("part", commit, cell),)
        facts = self.post.facts(state.sent)
        lists = {
            letter.proposes
            for (basis, _), letters in facts.lists.items()
            for letter in letters
            if basis == view.basis
        }
        for digest in sorted(lists):
            if view.seals.is_beside and view.ballots.list_of(digest) is None:
                continue  # Its cells are taken for those of a round that is known.
            for cell in view.cells.missing_results(digest):
                if any(holds(other, Bulk.RESULT, digest, cell) for other in everybody):
                    what = self.table.name_of_list(digest)
                    yield f"gets the result of {what}", (("cell", digest, cell),)

    def _others(self, state: MachinesState, seat: int) -> Iterator[MachinePeer]:
        for index, number in enumerate(state.peers):
            if index != seat:
                yield self.peers.states[number]

    # Words --------------------------------------------------------------------------------------

    def _round(self, index: int) -> int:
        return index - self.table.head.value.round

    def _words(self, letter: Letter) -> str:
        """A message as those hear of it, rounds counted from 1."""
        slot, name = letter.message.slot, self.table.names[letter.sender]
        where = f" in attempt {slot.attempt}" if self.span.attempts > 1 else ""
        return f"the {slot.kind.name} of {name} of round {self._round(slot.round)}{where}"
