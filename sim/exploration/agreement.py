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

`Supply` is the same round where every voter is a reducer too (S2, L1): parts travel, HAVEs say who
is complete, the closer proposes from what it has heard, reducers sum. Anybody may die at any point,
and be suspected. Bytes that only the dead have are lost; what they have said may still arrive.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, combinations
from typing import NamedTuple

from protocol.frames import Bulk
from protocol.identity import PeerId
from protocol.messages import Have, Kind, List, NewAttempt, Seal
from protocol.rounds.roster import closer
from protocol.rounds.round_view import RoundView
from sim.exploration.machines import GoodRun, Machines, MachinesState, Moves, holds, parts_due
from sim.exploration.peers import Deed, MachinePeer, Move, Peers, fork
from sim.exploration.table import Letter, Post, Table

# What there is to hear ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Offer:
    """Messages that together tell something: the attempt, what it is of, and how it is told."""

    attempt: int
    digest: bytes
    deeds: tuple[Deed, ...]
    words: str = ""


@dataclass(frozen=True, slots=True)
class Board:
    """What the messages that were sent have to offer to everybody."""

    lists: dict[int, list[Letter]]
    first_of: dict[bytes, Deed]
    certificates: tuple[Offer, ...]
    finals: tuple[Offer, ...]


def heard(letters: list[Letter]) -> tuple[Deed, ...]:
    """The deeds of hearing these messages."""
    return tuple(("hear", letter.number) for letter in letters)


class Boards:
    """The boards of all sets of messages, each made once."""

    def __init__(self, table: Table, post: Post) -> None:
        self._table, self._post = table, post
        self._boards: dict[int, Board] = {}

    def of(self, sent: int) -> Board:
        """What a set of messages has to offer; remembered."""
        sent = self._post.counted(sent)
        known = self._boards.get(sent)
        if known is None:
            known = self._boards[sent] = self._make(sent)
        return known

    def _make(self, sent: int) -> Board:
        facts, basis = self._post.facts(sent), self._table.head.value.digest
        lists = {attempt: letters for (_, attempt), letters in sorted(facts.lists.items())}
        first_of: dict[bytes, Deed] = {}
        for letters in lists.values():
            for letter in letters:
                first_of.setdefault(letter.proposes, ("hear", letter.number))
        certificates = tuple(
            Offer(attempt, digest, heard(self._post.smallest_quorum(basis, votes)))
            for (_, attempt, digest), votes in sorted(facts.votes.items())
            if (basis, attempt, digest) in facts.certified
        )
        by_value: dict[bytes, list[list[Letter]]] = {}
        for (_, _, value), seals in sorted(facts.seals.items()):
            by_value.setdefault(value, []).append(seals)
        finals = []
        for groups in by_value.values():
            together = [letter for seals in groups for letter in seals]
            for seals in [*groups, together] if len(groups) > 1 else groups:
                if self._post.is_quorum(basis, {letter.sender for letter in seals}):
                    finals += self._final_offers(seals, first_of)
        return Board(lists, first_of, certificates, tuple(finals))

    def _final_offers(self, seals: list[Letter], first_of: dict[bytes, Deed]) -> list[Offer]:
        """Who hears the LIST first still VOTEs for it; who hears it last only adds its SEAL."""
        body = seals[0].body
        assert isinstance(body, Seal)
        digest = body.list_digest
        whose = ", ".join(self._table.names[letter.sender] for letter in seals)
        words = f"hears the SEALs of {self._table.name_of_list(digest)} by {whose} and adopts it"
        hear, result = heard(seals), ("result", digest)
        orders = ((first_of[digest], *hear, result), (*hear, result, first_of[digest]))
        return [Offer(seals[0].attempt, digest, deeds, words) for deeds in orders]


# The round ----------------------------------------------------------------------------------------


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


class Agreement(Machines):
    """The model: voters A, B, ... and the member R that holds all parts."""

    keeps_idle = loses_results = True

    def __init__(
        self, scope: AgreementScope, *, helpers: int | None = None, num_cells: int = 1
    ) -> None:
        self.scope = scope
        num_helpers = scope.attempts if helpers is None else helpers
        table = Table(voters=scope.voters, helpers=num_helpers, num_cells=num_cells)
        post = Post()
        post.rosters[table.head.value.digest] = table.head.value.roster
        peers = Peers(post, table.config)
        super().__init__(table, post, peers, every=scope.every, rules=scope.rules)
        self._names = [self.table.names[peer] for peer in self.table.voters]
        head = self.table.head.value
        self._closers = [
            closer(head.roster, head.digest, 0, attempt) for attempt in range(scope.attempts)
        ]
        self.boards = Boards(self.table, self.post)
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

    def start(self) -> MachinesState:
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
        return MachinesState(tuple(numbers), sent, scope.restarts, scope.sleeps, scope.disks)

    def fails_to_finish(self, state: MachinesState) -> str:
        """Why the living do not seal in a good run from here; empty also if they are no quorum."""
        names = self.table.voters
        dead = [peer for seat, peer in enumerate(names) if state.dead >> seat & 1]
        if not self.post.is_quorum(self.table.head.value.digest, set(names) - set(dead)):
            return ""
        living = [fork(peer) for peer in self._living(state)]
        finds = self._options[0] if self._options else frozenset()
        until = self.table.head.value.round + 1
        return GoodRun(self.table, living, dead, until=until).fails(helper_finds=finds)

    def _living(self, state: MachinesState) -> list[MachinePeer]:
        return [
            self.peers.states[number]
            for seat, number in enumerate(state.peers)
            if not state.dead >> seat & 1
        ]

    def moves(self, state: MachinesState) -> Moves:
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

    def _moves_of(self, state: MachinesState, seat: int) -> Moves:
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
            yield from self._after(state, seat, label, (("time-out",),))
        yield from self._propose(state, seat, view, name)
        yield from self._hear_lists(state, seat, view, name)
        yield from self._results(state, seat, view, name)
        yield from self._mishaps(state, seat, name)

    def _propose(self, state: MachinesState, seat: int, view: RoundView, name: str) -> Moves:
        attempt = view.attempt
        if self._closers[attempt] != view.me or view.ballots.of(Kind.LIST, attempt):
            return
        if not self.scope.dutiful:
            for index in range(len(self._options)):
                label = f"{name} proposes {self._name(index)} in attempt {attempt}"
                yield from self._after(state, seat, label, (("propose", index),))
            return
        for told, reports in self._quorums_of_reports(state, view):
            effect = self.peers.do(state.peers[seat], reports)[1]
            if effect.sent:
                yield from self._after(state, seat, f"{name}{told}", reports)
                continue
            for option in range(len(self._options)):
                number = self._haves[option, attempt]
                if self._has_said_else(view, number):
                    continue
                have = ("hear", number)
                label = f"{name}{told} finds {self._name(option)} complete"
                yield from self._after(state, seat, label, (*reports, have, ("deadline", 4)))
            # Without a HAVE it calls itself, and lists whose parts it holds: nobody's if they are
            # lost. From the third attempt on the round then carries.
            waited: tuple[Deed, ...] = (*reports, ("deadline", 4))
            if self.peers.do(state.peers[seat], waited)[1].sent:
                yield from self._after(state, seat, f"{name}{told} has waited", waited)

    def _has_said_else(self, view: RoundView, number: int) -> bool:
        """Whether the helper is known to have said another HAVE: it says one in an attempt."""
        there = view.ballots.of(Kind.HAVE, view.attempt).get(self.table.helpers[0])
        return there is not None and there.message != self.post.letters[number].message

    def _quorums_of_reports(self, state: MachinesState, view: RoundView) -> Iterator[Move]:
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

    def _hear_lists(self, state: MachinesState, seat: int, view: RoundView, name: str) -> Moves:
        board = self.boards.of(state.sent)
        for attempt, letters in board.lists.items():
            if attempt < view.attempt or view.me in view.ballots.of(Kind.VOTE, attempt):
                continue
            for letter in letters:
                is_known = view.ballots.find(letter.message.digest) is not None
                hear: tuple[Deed, ...] = () if is_known else (("hear", letter.number),)
                label = "" if is_known else f"{name} hears the LIST of attempt {attempt}"
                if hear and self.peers.do(state.peers[seat], hear)[1].sent:
                    yield from self._after(state, seat, label, hear)
                elif view.own.lock is not None:
                    yield from self._shown(state, seat, label or name, hear)

    def _shown(self, state: MachinesState, seat: int, label: str, hear: tuple[Deed, ...]) -> Moves:
        """A locked peer is shown certificates that might unlock it for this LIST."""
        for offer in self.boards.of(state.sent).certificates:
            deeds = (*offer.deeds, *hear)
            if self.peers.do(state.peers[seat], deeds)[1].sent:
                what = self.table.name_of_list(offer.digest)
                shown = f"is shown the certificate of {what} in attempt {offer.attempt}"
                yield from self._after(
                    state, seat, f"{label} and {shown}" if hear else f"{label} {shown}", deeds
                )

    def _results(self, state: MachinesState, seat: int, view: RoundView, name: str) -> Moves:
        """The result of a certified LIST arrives, in time or after its attempt was left."""
        board = self.boards.of(state.sent)
        for offer in board.certificates:
            attempt, digest = offer.attempt, offer.digest
            if view.me in view.ballots.of(Kind.SEAL, attempt, view.basis):
                continue
            deeds = (*offer.deeds, ("result", digest))
            if attempt < view.attempt:
                if digest in view.outcome.applied and view.ballots.certificate(attempt, digest):
                    continue
                deeds = (board.first_of[digest], *deeds)
            elif view.ballots.list_of(digest) is None:
                continue  # First it hears the LIST, which is a move of its own.
            effect = self.peers.do(state.peers[seat], deeds)[1]
            if effect.sent or (attempt < view.attempt and self._closes_later(seat, view.attempt)):
                what = self.table.name_of_list(digest)
                label = f"{name} gets the result of {what}, certified in attempt {attempt}"
                yield from self._after(state, seat, label, deeds)

    def _closes_later(self, seat: int, attempt: int) -> bool:
        """Whether a dutiful closer could still take up a result that is too late to be sealed."""
        closers = self._closers[attempt:]
        return self.scope.dutiful and self.table.voters[seat] in closers

    def _finals(self, state: MachinesState) -> Moves:
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
                    yield from self._after(state, seat, label, offer.deeds)
        if len(values) > 1:
            label = " and ".join(label for label in values.values() if label)
            yield label, state._replace(wrong="S1: two seals of one round can be adopted")

    def _status(self, state: MachinesState, seat: int, name: str) -> Moves:
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
                    yield from self._after(
                        state, seat, f"{name} hears the STATUS of {len(heard)}", deeds
                    )
                return


# Bytes and deaths ---------------------------------------------------------------------------------


class Losses(NamedTuple):
    """How many may die, over how many cells."""

    deaths: int = 1
    num_cells: int = 1


class Supply(Agreement):
    """Voters that hold their own bytes."""

    def __init__(self, scope: AgreementScope, losses: Losses) -> None:
        self.losses = losses
        super().__init__(scope, helpers=0, num_cells=losses.num_cells)

    def moves(self, state: MachinesState) -> Moves:
        """What the living may do, what may arrive, and who may die."""
        for seat, number in enumerate(state.peers):
            if state.dead >> seat & 1:
                continue
            peer = self.peers.states[number]
            if state.dead.bit_count() < self.losses.deaths:
                dead = state._replace(dead=state.dead | 1 << seat)
                yield f"{self._names[seat]} dies", dead
            yield from self._moves_of(state, seat)
            if self._acts(peer):
                yield from self._bytes_of(state, seat, peer)
        yield from self._finals(state)

    def _acts(self, peer: MachinePeer) -> bool:
        machine = peer.machine
        is_within = machine.view.attempt < self.scope.attempts
        return is_within and len(peer.chain) == 1 and not machine.is_muted

    # Moves of bytes -----------------------------------------------------------------------------

    def _bytes_of(self, state: MachinesState, seat: int, peer: MachinePeer) -> Moves:
        name, view = self._names[seat], peer.machine.view
        living = self._living(state)
        for sender, commit, cell in parts_due(view, living):
            label = f"the part of {self.table.names[sender]} reaches {name}"
            label += f" for cell {cell}" if self.losses.num_cells > 1 else ""
            yield from self._after(state, seat, label, (("part", commit, cell),))
        if view.own_slices() and view.me not in view.ballots.of(Kind.HAVE, view.attempt):
            yield from self._after(
                state, seat, f"the deadline passes at {name}", (("deadline", 2),)
            )
        dead = [p for i, p in enumerate(self.table.voters) if state.dead >> i & 1]
        if dead and not view.peers.suspects.issuperset(dead):
            yield from self._after(state, seat, f"{name} suspects the dead", (("suspect", *dead),))

    def _propose(self, state: MachinesState, seat: int, view: RoundView, name: str) -> Moves:
        attempt = view.attempt
        if self._closers[attempt] != view.me or view.ballots.of(Kind.LIST, attempt):
            return
        haves = [
            letter
            for letter in self.post.of(state.sent)
            if isinstance(letter.body, Have)
            and letter.attempt == attempt
            and letter.sender != view.me
        ]
        subsets = list(chain.from_iterable(combinations(haves, n) for n in range(len(haves) + 1)))
        for told, reports in self._quorums_of_reports(state, view):
            if reports and self.peers.do(state.peers[seat], reports)[1].sent:
                yield from self._after(state, seat, f"{name}{told}", reports)
                continue
            for chosen in subsets:
                told_all = (*reports, *heard(list(chosen)))
                whose = ", ".join(self.table.names[letter.sender] for letter in chosen)
                what = f"hears the HAVE of {whose}" if chosen else "has waited"
                for deeds in (told_all, (*told_all, ("deadline", 4))):
                    if self._proposes(state.peers[seat], deeds):
                        label = f"{name}{told} {what}"
                        yield from self._after(state, seat, label, deeds)
                        break

    def _proposes(self, number: int, deeds: tuple[Deed, ...]) -> bool:
        """Whether the closer speaks: it proposes, or gives up because nobody is complete."""
        sent = self.peers.do(number, deeds)[1].sent
        return any(isinstance(self.post.letters[n].body, List | NewAttempt) for n in sent)

    def _results(self, state: MachinesState, seat: int, view: RoundView, name: str) -> Moves:
        """A certificate arrives, and lets a reducer sum; or a cell of the result does."""
        board = self.boards.of(state.sent)
        living = self._living(state)
        for offer in board.certificates:
            digest = offer.digest
            what = self.table.name_of_list(digest)
            if view.ballots.list_of(digest) is None:
                continue
            if (offer.attempt, digest) not in view.ballots.certified():
                effect = self.peers.do(state.peers[seat], offer.deeds)[1]
                if effect.sent:
                    label = f"{name} hears that {what} is certified in attempt {offer.attempt}"
                    yield from self._after(state, seat, label, offer.deeds)
            for cell in view.cells.missing_results(digest):
                if any(holds(other, Bulk.RESULT, digest, cell) for other in living):
                    deeds = (*offer.deeds, ("cell", digest, cell))
                    label = f"the result of {what} reaches {name}"
                    label += f" for cell {cell}" if self.losses.num_cells > 1 else ""
                    yield from self._after(state, seat, label, deeds)
