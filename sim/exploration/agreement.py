"""One round of R2 among real machines: attempts, certificates, locks, late results, finality.

The round begins in the middle: every COMMIT has arrived everywhere. Members that do not vote hold
all parts; they sum, and say in each attempt what they hold: any of the LISTs of the case. Whoever
votes is a shipped RoundMachine, with its journal and its clock.

Reductions, each of which leaves out no behaviour that anybody could see:

- A message that changes nothing until something else arrives is delivered just before that: VOTEs
  as the quorum that certifies, with the result that then is sealed or the LIST that they unlock;
  SEALs as the quorum that makes final; reports and HAVEs when the closer proposes from them. Below
  a quorum the machines read none of these (`Ballots.certificate`, `sealed`, `propose`).
- Who enters a later attempt does so by time-outs or by its LIST: to hear of it in a report is a
  time-out that leaves fewer reports behind.
- Which of several VOTEs prove a certificate, or SEALs a seal, changes no decision: the first.
- A muted peer hears nothing but STATUS; what it would hear, it hears after.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from protocol.identity import PeerId
from protocol.messages import Kind
from protocol.rounds.roster import closer
from protocol.rounds.round_view import RoundView
from sim.exploration.board import Boards
from sim.exploration.copies import fork
from sim.exploration.goodrun import GoodRun
from sim.exploration.peers import Deed, MachinePeer, Peers
from sim.exploration.post import Post
from sim.exploration.table import Table


class AgreementState(NamedTuple):
    """Each voter's state by number, all messages sent, what may still happen, what is wrong.

    `dead` is a bit mask over the voters.
    """

    peers: tuple[int, ...]
    sent: int
    restarts: int
    sleeps: int
    disks: int
    wrong: str = ""
    dead: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreementScope:
    """How much is explored.

    `lists` are the sets of senders that may be found complete. A closer that is not `dutiful`
    proposes any of them in any attempt, as if it knew nothing: safety must not rest on it. `rules`
    asks for the rules behind S1 and S3 too: the fence, the locks. From every `every`-th state a
    good run is tried (L1); 0 for none.
    """

    voters: int
    attempts: int
    lists: int = 2
    dutiful: bool = True
    restarts: int = 0
    sleeps: int = 0
    disks: int = 0
    rules: bool = True
    every: int = 0


class Agreement:
    """The model: voters A, B, ... and the member R that holds all parts."""

    def __init__(
        self, scope: AgreementScope, *, helpers: int | None = None, num_cells: int = 1
    ) -> None:
        self.scope = scope
        num_helpers = scope.attempts if helpers is None else helpers
        self.table = Table(voters=scope.voters, helpers=num_helpers, num_cells=num_cells)
        self.post = Post()
        self.post.rosters[self.table.head.value.digest] = self.table.head.value.roster
        self.peers = Peers(self.post, self.table.config)
        self._names = [self.table.names[peer] for peer in self.table.voters]
        head = self.table.head.value
        self._closers = [
            closer(head.roster, head.digest, 0, attempt) for attempt in range(scope.attempts)
        ]
        self.boards = Boards(self.table, self.post)
        self._asked = 0
        self._commits = self._all_commits()
        self._options = self._all_options()
        self._haves = {
            (option, attempt): self.post.number(self.table.have(senders, attempt))
            for option, senders in enumerate(self._options)
            for attempt in range(scope.attempts)
        }
        self.peers.lists = [
            self.table.list_of(self._digests_of(senders)) for senders in self._options
        ]

    # The model ----------------------------------------------------------------------------------

    def start(self) -> AgreementState:
        """All have committed, and heard all COMMITs."""
        numbers = []
        sent = 0
        hear = tuple(("hear", number) for number in self._commits.values())
        for peer in self.table.voters:
            number, effect = self.peers.do(self._committed[peer], hear)
            sent = self.post.add(sent, effect.sent)
            numbers.append(number)
        sent = self.post.add(sent, (*self._commits.values(), *self._said_first))
        scope = self.scope
        return AgreementState(tuple(numbers), sent, scope.restarts, scope.sleeps, scope.disks)

    def key(self, state: AgreementState) -> AgreementState:
        """States are values."""
        return state

    def check(self, state: AgreementState) -> str:
        """What a move found to be wrong, and where it is asked for, that a good run seals."""
        self._asked += 1
        if state.wrong or not self.scope.every or self._asked % self.scope.every:
            return state.wrong
        return self.fails_to_finish(state)

    def fails_to_finish(self, state: AgreementState) -> str:
        """Why the living do not seal in a good run from here; empty also if they are no quorum."""
        names = self.table.voters
        dead = [peer for seat, peer in enumerate(names) if state.dead >> seat & 1]
        if not self.post.is_quorum(self.table.head.value.digest, set(names) - set(dead)):
            return ""
        living = [fork(peer) for peer in self._living(state)]
        finds = self._options[0] if self._options else frozenset()
        until = self.table.head.value.round + 1
        return GoodRun(self.table, living, dead, until=until).fails(helper_finds=finds)

    def _living(self, state: AgreementState) -> list[MachinePeer]:
        return [
            self.peers.states[number]
            for seat, number in enumerate(state.peers)
            if not state.dead >> seat & 1
        ]

    def moves(self, state: AgreementState) -> Iterator[tuple[str, AgreementState]]:
        """Everything that may happen next."""
        for seat in range(len(state.peers)):
            yield from self._moves_of(state, seat)
        yield from self._finals(state)

    def _all_commits(self) -> dict[PeerId, int]:
        commits = {
            peer: self.post.number(self.table.commit(peer)) for peer in self.table.helpers[:1]
        }
        self._committed: dict[PeerId, int] = {}
        self._said_first: list[int] = []
        for peer in self.table.voters:
            fresh = self.peers.fresh(peer, self.table.head)
            fresh.contribute()
            said = [self.post.number(message) for message in fresh.sent]
            commits[peer] = said[0]
            self._said_first += said
            self._committed[peer] = self.peers.number(fresh)
        for sender, number in commits.items():
            self.table.senders[self.post.letters[number].message.digest] = sender
        return commits

    def _all_options(self) -> list[frozenset[PeerId]]:
        if not self.table.helpers:
            return []
        helper, first = self.table.helpers[0], self.table.voters[0]
        all_three = [frozenset({helper}), frozenset({helper, first}), frozenset({first})]
        return all_three[: self.scope.lists]

    def _digests_of(self, senders: frozenset[PeerId]) -> dict[PeerId, bytes]:
        return {p: self.post.letters[self._commits[p]].message.digest for p in senders}

    # Moves of one peer --------------------------------------------------------------------------

    def _moves_of(self, state: AgreementState, seat: int) -> Iterator[tuple[str, AgreementState]]:
        peer = self.peers.states[state.peers[seat]]
        if len(peer.chain) > 1:
            return  # It is in the next round.
        name, view = self._names[seat], peer.machine.view
        if view.attempt >= self.scope.attempts:
            return  # Beyond the bound: the closer of the last attempt gave it up at once.
        if peer.machine.is_muted:
            yield from self._status(state, seat, name)
            return
        if view.attempt + 1 < self.scope.attempts:
            label = f"{name} enters attempt {view.attempt + 1}"
            yield self._after(state, seat, label, (("time-out",),))
        yield from self._propose(state, seat, view, name)
        yield from self._hear_lists(state, seat, view, name)
        yield from self._results(state, seat, view, name)
        yield from self._mishaps(state, seat, name)

    def _after(
        self, state: AgreementState, seat: int, label: str, deeds: tuple[Deed, ...]
    ) -> tuple[str, AgreementState]:
        """The state after deeds to one peer; the label also says what it signed."""
        number, effect = self.peers.do(state.peers[seat], deeds)
        wrong = effect.broken or self.post.wrong(state.sent, effect.sent)
        if not self.scope.rules and not wrong.startswith(("S1", "S3")):
            wrong = effect.broken
        numbers = (*state.peers[:seat], number, *state.peers[seat + 1 :])
        said = self.table.said(self.post.letters[n] for n in effect.sent)
        following = state._replace(
            peers=numbers, sent=self.post.add(state.sent, effect.sent), wrong=wrong
        )
        return (f"{label}: {said}" if said else label), following

    def _propose(
        self, state: AgreementState, seat: int, view: RoundView, name: str
    ) -> Iterator[tuple[str, AgreementState]]:
        attempt = view.attempt
        if self._closers[attempt] != view.me or view.ballots.of(Kind.LIST, attempt):
            return
        if not self.scope.dutiful:
            for index in range(len(self._options)):
                label = f"{name} proposes {self._name(index)} in attempt {attempt}"
                yield self._after(state, seat, label, (("propose", index),))
            return
        for told, reports in self._quorums_of_reports(state, view):
            effect = self.peers.do(state.peers[seat], reports)[1]
            if effect.sent:
                yield self._after(state, seat, f"{name}{told}", reports)
                continue
            for option in range(len(self._options)):
                number = self._haves[option, attempt]
                if self._has_said_else(view, number):
                    continue
                have = ("hear", number)
                label = f"{name}{told} finds {self._name(option)} complete"
                yield self._after(state, seat, label, (*reports, have, ("deadline", 4)))
            # Without a HAVE it calls itself, and lists whose parts it holds: nobody's if they are
            # lost. From the third attempt on the round then carries.
            waited: tuple[Deed, ...] = (*reports, ("deadline", 4))
            if self.peers.do(state.peers[seat], waited)[1].sent:
                yield self._after(state, seat, f"{name}{told} has waited", waited)

    def _has_said_else(self, view: RoundView, number: int) -> bool:
        """Whether the helper is known to have said another HAVE: it says one in an attempt."""
        there = view.ballots.of(Kind.HAVE, view.attempt).get(self.table.helpers[0])
        return there is not None and there.message != self.post.letters[number].message

    def _quorums_of_reports(
        self, state: AgreementState, view: RoundView
    ) -> Iterator[tuple[str, tuple[Deed, ...]]]:
        if view.attempt == 0:
            yield "", ()
            return
        others = [
            letter
            for letter in self.post.reports(state.sent)
            if letter.attempt == view.attempt and letter.sender != view.me
        ]
        for count in range(len(others) + 1):
            for chosen in combinations(others, count):
                senders = {view.me, *(letter.sender for letter in chosen)}
                if view.has_quorum(senders):
                    names = ", ".join(self.table.names[letter.sender] for letter in chosen)
                    told = f", told of the locks of {names}," if chosen else ""
                    yield told, tuple(("hear", letter.number) for letter in chosen)

    def _name(self, option: int) -> str:
        return self.table.name_of_set(self._options[option])

    def _hear_lists(
        self, state: AgreementState, seat: int, view: RoundView, name: str
    ) -> Iterator[tuple[str, AgreementState]]:
        board = self.boards.of(state.sent)
        for attempt, letters in board.lists.items():
            if attempt < view.attempt or view.me in view.ballots.of(Kind.VOTE, attempt):
                continue
            for letter in letters:
                is_known = view.ballots.find(letter.message.digest) is not None
                hear: tuple[Deed, ...] = () if is_known else (("hear", letter.number),)
                label = "" if is_known else f"{name} hears the LIST of attempt {attempt}"
                if hear and self.peers.do(state.peers[seat], hear)[1].sent:
                    yield self._after(state, seat, label, hear)
                elif view.lock is not None:
                    yield from self._shown(state, seat, label or name, hear)

    def _shown(
        self, state: AgreementState, seat: int, label: str, hear: tuple[Deed, ...]
    ) -> Iterator[tuple[str, AgreementState]]:
        """A locked peer is shown certificates that might unlock it for this LIST."""
        for offer in self.boards.of(state.sent).certificates:
            deeds = (*offer.deeds, *hear)
            if self.peers.do(state.peers[seat], deeds)[1].sent:
                what = self.table.name_of_list(offer.digest)
                shown = f"is shown the certificate of {what} in attempt {offer.attempt}"
                yield self._after(
                    state, seat, f"{label} and {shown}" if hear else f"{label} {shown}", deeds
                )

    def _results(
        self, state: AgreementState, seat: int, view: RoundView, name: str
    ) -> Iterator[tuple[str, AgreementState]]:
        """The result of a certified LIST arrives, in time or after its attempt was left."""
        board = self.boards.of(state.sent)
        for offer in board.certificates:
            attempt, digest = offer.attempt, offer.digest
            if view.me in view.ballots.of(Kind.SEAL, attempt, view.basis):
                continue
            deeds = (*offer.deeds, ("result", digest))
            if attempt < view.attempt:
                if digest in view.applied and view.ballots.certificate(attempt, digest):
                    continue
                deeds = (board.first_of[digest], *deeds)
            elif view.ballots.list_of(digest) is None:
                continue  # First it hears the LIST, which is a move of its own.
            effect = self.peers.do(state.peers[seat], deeds)[1]
            if effect.sent or (attempt < view.attempt and self._closes_later(seat, view.attempt)):
                what = self.table.name_of_list(digest)
                label = f"{name} gets the result of {what}, certified in attempt {attempt}"
                yield self._after(state, seat, label, deeds)

    def _closes_later(self, seat: int, attempt: int) -> bool:
        """Whether a dutiful closer could still take up a result that is too late to be sealed."""
        closers = self._closers[attempt:]
        return self.scope.dutiful and self.table.voters[seat] in closers

    def _finals(self, state: AgreementState) -> Iterator[tuple[str, AgreementState]]:
        """SEALs of one value arrive: those of each attempt, and those of all together.

        Who adopts a value and signs nothing with it only stops to act: no move, unless somebody
        could adopt another value.
        """
        values: dict[bytes, str] = {}
        for seat, number in enumerate(state.peers):
            peer = self.peers.states[number]
            if len(peer.chain) > 1:
                values[peer.chain[1].value.digest] = ""
                continue
            for offer in self.boards.of(state.sent).finals:
                effect = self.peers.do(number, offer.deeds)[1]
                label = f"{self._names[seat]} {offer.words}"
                for value in effect.adopted:
                    values[value] = label
                if effect.adopted and (effect.sent or effect.broken):
                    yield self._after(state, seat, label, offer.deeds)
        if len(values) > 1:
            label = " and ".join(label for label in values.values() if label)
            yield label, state._replace(wrong="S1: two seals of one round can be adopted")

    # Restarts, sleep, lost disks ----------------------------------------------------------------

    def _mishaps(
        self, state: AgreementState, seat: int, name: str
    ) -> Iterator[tuple[str, AgreementState]]:
        fewer = state._replace(restarts=state.restarts - 1)
        slept = state._replace(sleeps=state.sleeps - 1)
        replaced = state._replace(disks=state.disks - 1)
        mishaps: tuple[tuple[int, str, Deed, AgreementState], ...] = (
            (state.restarts, "is killed and restarts", ("restart",), fewer),
            (state.restarts, "restarts without its results", ("restart", "no results"), fewer),
            (state.sleeps, "freezes and wakes", ("wake",), slept),
            (state.disks, "loses its disk and restarts", ("lost disk",), replaced),
        )
        has_results = bool(self.peers.states[state.peers[seat]].results)
        for left, words, deed, after in mishaps:
            if left and (has_results or deed[-1] != "no results"):
                yield self._after(after, seat, f"{name} {words}", (deed,))

    def _status(
        self, state: AgreementState, seat: int, name: str
    ) -> Iterator[tuple[str, AgreementState]]:
        """The STATUS of as many others as it takes, and the COMMITs that come with it."""
        machine = self.peers.states[state.peers[seat]].machine
        if not machine.is_asking:
            return
        view = machine.view
        others = [
            self.peers.states[number].machine
            for index, number in enumerate(state.peers)
            if index != seat
        ]
        commits = tuple(("hear", number) for number in self._commits.values())
        heard: list[Deed] = []
        for other in sorted(others, key=lambda machine: machine.view.me):
            if not other.has_forgotten:
                heard.append(("status", other.view.me, other.view.may_be_open))
            deeds = (*heard, *commits)
            after = self.peers.states[self.peers.do(state.peers[seat], deeds)[0]]
            if not after.machine.is_asking or len(heard) == view.num_to_ask:
                if not after.machine.is_asking:
                    yield self._after(
                        state, seat, f"{name} hears the STATUS of {len(heard)}", deeds
                    )
                return
