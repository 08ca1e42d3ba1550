"""Open rules: three honest machines and one liar who signs whatever it likes, whenever it likes.

Four vote, so one may lie (b = 1) and three are a quorum. All that the liar could sign within the
scope lies ready from the start (`lies.py`) and may be told to each honest peer or not, in any
order: two LISTs, VOTEs, SEALs or COMMITs in one slot, one thing to one peer and another to the
next, or nothing.

Reductions, each of which leaves out no behaviour that anybody could see:

- Messages that change nothing until something else arrives are told just before that, as in
  `agreement`: VOTEs and SEALs as the quorum that they make, with the liar's among them or without;
  AGGs with the cell that they make believed, or that a lie is to make believed.
- What the liar told somebody *before* the VOTE or SEAL by which it is one of a quorum, is told when
  that quorum is there: until then nobody could see a difference.
- Honest closers propose any LIST whose COMMITs they know, in any attempt, as if they knew of no
  lock and of no liar: what must never happen may not rest on them. Where L1 is asked they do as
  they should.
"""

from collections.abc import Iterator
from typing import NamedTuple

from protocol.messages import Agg, Kind, Seal, Slot
from protocol.rounds.round_view import RoundView
from sim.exploration.board import heard
from sim.exploration.copies import fork
from sim.exploration.goodrun import GoodRun
from sim.exploration.lies import ANYBODY, LiarScope, LiarTable
from sim.exploration.peers import Deed, Effect, MachinePeer
from sim.exploration.post import Letter
from sim.exploration.toys import state_after, sum_root


class LiarState(NamedTuple):
    """Each honest peer by number, what they sent, what may still happen, and what is wrong."""

    peers: tuple[int, ...]
    sent: int
    restarts: int = 0
    wrong: str = ""


class Lying:
    """The model: voters A, B and C, and the liar L."""

    def __init__(self, scope: LiarScope) -> None:
        self.scope, self.lies = scope, LiarTable(scope)
        self.table, self.post, self.peers = self.lies.table, self.lies.post, self.lies.peers
        self._asked, self._endings = 0, dict[tuple[int, ...], str]()

    # The model ----------------------------------------------------------------------------------

    def start(self) -> LiarState:
        """The honest have committed."""
        sent = self.post.add(0, tuple(self.lies.said_first))
        return LiarState(self.lies.start, sent, self.scope.restarts)

    def key(self, state: LiarState) -> LiarState:
        """States are values."""
        return state

    def check(self, state: LiarState) -> str:
        """What a move found to be wrong, and where it is asked for, that a good run seals."""
        self._asked += 1
        if state.wrong or not self.scope.every or self._asked % self.scope.every:
            return state.wrong
        return self.fails_to_finish(state)

    def fails_to_finish(self, state: LiarState) -> str:
        """Why the honest do not seal once the liar is silent."""
        known = self._endings.get(state.peers)
        if known is None:
            known = self._endings[state.peers] = self._ending(state)
        return known

    def _ending(self, state: LiarState) -> str:
        living = [fork(self.peers.states[number]) for number in state.peers]
        is_caught = self.scope.bans and self._is_caught(living)
        until = self.table.head.value.round + 1 + is_caught
        failed = GoodRun(self.table, living, self.lies.liars, until=until).fails()
        if failed or not is_caught:
            return failed
        is_banned = all(self.lies.liar in peer.machine.head.roster.banned for peer in living)
        return "" if is_banned else "R1: who signed two messages in a slot is not banned"

    def _is_caught(self, living: list[MachinePeer]) -> bool:
        """Whether the honest together have heard two messages of the liar in one slot."""
        said: dict[Slot, set[bytes]] = {}
        for peer in living:
            for message in peer.machine.view.ballots.messages():
                if message.sender == self.lies.liar:
                    said.setdefault(message.slot, set()).add(message.digest)
        return any(len(digests) > 1 for digests in said.values())

    def moves(self, state: LiarState) -> Iterator[tuple[str, LiarState]]:
        """Everything that may happen next."""
        for seat, number in enumerate(state.peers):
            peer = self.peers.states[number]
            view = peer.machine.view
            if len(peer.chain) == 1 and view.attempt < self.scope.attempts:
                name = self.table.names[view.me]
                for label, deeds in self._deeds(state, number):
                    moved = self._after(state, seat, f"{name} {label}", deeds)
                    if moved is not None:
                        yield moved
                after = state._replace(restarts=state.restarts - 1)
                again: tuple[Deed, ...] = (("restart",), ("contribute",))
                moved = self._after(after, seat, f"{name} is killed and restarts", again)
                if state.restarts and moved is not None:
                    yield moved

    def _after(
        self, state: LiarState, seat: int, label: str, deeds: tuple[Deed, ...]
    ) -> tuple[str, LiarState] | None:
        number, effect = self.peers.do(state.peers[seat], deeds)
        if number == state.peers[seat] and not effect.broken:
            return None
        numbers = (*state.peers[:seat], number, *state.peers[seat + 1 :])
        wrong = effect.broken or self.post.wrong(state.sent | self.lies.ready, effect.sent)
        if not (self.scope.rules or wrong.startswith(("S1", "S3"))):
            wrong = effect.broken
        wrong = wrong or self._wrong_of(self.peers.states[number], effect)
        said = self.table.said(self.post.letters[n] for n in effect.sent)
        sent = self.post.add(state.sent, effect.sent)
        return (f"{label}: {said}" if said else label), state._replace(
            peers=numbers, sent=sent, wrong=wrong
        )

    def _wrong_of(self, peer: MachinePeer, effect: Effect) -> str:
        """Wrong sums, and honest peers without their seats, in what it sealed or adopted."""
        sealed = [self.post.letters[n].body for n in effect.sent]
        for body in sealed:
            if isinstance(body, Seal) and body.root != state_after(body.list_digest):
                return "a SEAL of a sum that the parts do not give"
        found = [*peer.machine.view.values.values(), *(link.value for link in peer.chain[1:])]
        for value in found:
            if value.root != state_after(value.list_digest):
                return "a sum that the parts do not give is taken for the result"
            if not value.roster.voter_set.issuperset(self.lies.honest):
                return "an honest voter loses its seat"
            if ANYBODY in value.roster.member_set or value.clock.ends_run:
                return "one voter's word seats somebody, or ends the run"
        return ""

    # What may happen to one peer ----------------------------------------------------------------

    def _deeds(self, state: LiarState, number: int) -> Iterator[tuple[str, tuple[Deed, ...]]]:
        view = self.peers.states[number].machine.view
        if view.attempt + 1 < self.scope.attempts:
            yield f"enters attempt {view.attempt + 1}", (("time-out",),)
        for name, old in self.lies.old.items():
            yield f"is told what {name} committed in the round before", (("hear", old),)
        is_closer = self.lies.closers[view.attempt] == view.me
        if is_closer and not view.ballots.of(Kind.LIST, view.attempt):
            for index, body in enumerate(self.lies.options):
                if view.listed(body) is not None:
                    what = self.table.name_of_list(view.ballots.list_digest(body))
                    yield f"proposes {what} in attempt {view.attempt}", (("propose", index),)
        yield from self._commits_for(view)
        yield from self._lists_for(state, number)
        yield from self._results_for(state, number)
        yield from self._finals_for(state, number)

    def _commits_for(self, view: RoundView) -> Iterator[tuple[str, tuple[Deed, ...]]]:
        for name, number in self.lies.commits.items():
            if name.isdigit():
                digest = self.post.letters[number].message.digest
                yield f"hears COMMIT {name} of L", (("hear", number),)
                if view.ballots.commit_of(digest) is not None:
                    yield f"gets the part of COMMIT {name} of L", (("part", digest, 0),)

    def _lists_for(self, state: LiarState, number: int) -> Iterator[tuple[str, tuple[Deed, ...]]]:
        view = self.peers.states[number].machine.view
        facts = self.post.facts(state.sent | self.lies.ready)
        for (_, attempt), letters in sorted(facts.lists.items()):
            if attempt < view.attempt or view.me in view.ballots.of(Kind.VOTE, attempt):
                continue
            there = view.ballots.of(Kind.LIST, attempt)
            for letter in letters:
                is_known = view.ballots.find(letter.message.digest) is not None
                if there and not is_known:
                    continue  # A second one is no proposal.
                hear: tuple[Deed, ...] = () if is_known else (("hear", letter.number),)
                label = f"hears LIST {self._name(letter)} of attempt {attempt}"
                if hear and self.peers.do(number, hear)[1].sent:
                    yield label, hear
                elif view.lock is not None:
                    for what, deeds in self._offers(state, view):
                        if self.peers.do(number, (*deeds, *hear))[1].sent:
                            yield f"{label} and {what}", (*deeds, *hear)

    def _offers(self, state: LiarState, view: RoundView) -> Iterator[tuple[str, tuple[Deed, ...]]]:
        """Certificates that may be shown: of all honest VOTEs, or with the liar's."""
        facts = self.post.facts(state.sent | self.lies.ready)
        for (_, attempt, digest), votes in sorted(facts.votes.items()):
            what = f"is shown the certificate of {self.table.name_of_list(digest)} in {attempt}"
            for mine in self._quorums(votes):
                hear = heard(mine)
                yield what, hear
                before = self.lies.others[Kind.VOTE, attempt]
                if before and any(letter.sender == self.lies.liar for letter in mine):
                    yield f"{what}, though L said other things", (*before, *hear)

    def _quorums(self, letters: list[Letter]) -> Iterator[list[Letter]]:
        """The first honest senders that are a quorum, and those that are one with the liar."""
        basis = self.table.head.value.digest
        honest = [letter for letter in letters if letter.sender != self.lies.liar]
        if alone := self.post.smallest_quorum(basis, honest):
            yield alone
        for liar in (letter for letter in letters if letter.sender == self.lies.liar):
            if together := self.post.smallest_quorum(basis, [liar, *honest]):
                yield sorted(together, key=lambda letter: letter.sender)

    def _results_for(self, state: LiarState, number: int) -> Iterator[tuple[str, tuple[Deed, ...]]]:
        """A certificate arrives, what was said of its sum, and a result, right or wrong."""
        view = self.peers.states[number].machine.view
        facts = self.post.facts(state.sent | self.lies.ready)
        for (_, attempt, digest), votes in sorted(facts.votes.items()):
            is_sealed = view.me in view.ballots.of(Kind.SEAL, attempt, view.basis)
            if is_sealed or view.ballots.list_of(digest) is None:
                continue
            label = f"has {self.table.name_of_list(digest)} certified in {attempt}"
            for mine in self._quorums(votes):
                hear = heard(mine)
                for words, sums in self._sums_of(state, digest):
                    deeds = (*hear, *sums)
                    if self.peers.do(number, deeds)[1].sent:
                        yield f"{label}{words}", deeds
                    before = self.lies.others[Kind.VOTE, attempt]
                    if before and any(letter.sender == self.lies.liar for letter in mine):
                        yield f"{label}{words}, though L said other things", (*before, *deeds)

    def _sums_of(self, state: LiarState, digest: bytes) -> Iterator[tuple[str, tuple[Deed, ...]]]:
        """What is said of the sum of a LIST, and the cell that fits it.

        Where nobody lies about it and all have all parts, only that it comes, as in `agreement`.
        """
        if not (self.scope.sums or self.scope.commits):
            yield " and its result", (("result", digest),)
            return
        honest: tuple[Deed, ...] = tuple(
            ("hear", letter.number)
            for letter in self.post.of(state.sent)
            if isinstance(letter.body, Agg) and letter.body.list_digest == digest
        )
        right, wrong = self.lies.sums[digest]
        root = sum_root(digest, 0, 1)
        yield ", summed by some", (*honest, ("cell", digest, 0, root))
        yield " and summed", (*honest, *right, ("cell", digest, 0, root))
        yield " and sums itself", (*honest, ("deadline", 2))
        if self.scope.sums:
            cell: Deed = ("cell", digest, 0, sum_root(digest, 0, 1, is_right=False))
            yield " and a lie about its sum", (*wrong, cell)
            yield " and one lie about its sum", (*wrong, *honest, cell)

    def _finals_for(self, state: LiarState, number: int) -> Iterator[tuple[str, tuple[Deed, ...]]]:
        """A quorum of SEALs arrives."""
        facts = self.post.facts(state.sent | self.lies.ready)
        for (_, attempt, _), seals in sorted(facts.seals.items()):
            for mine in self._quorums(seals):
                body = mine[0].body
                assert isinstance(body, Seal)
                digest = body.list_digest
                lists = [
                    x for x in self.post.of(state.sent | self.lies.ready) if x.proposes == digest
                ]
                hear = heard(mine)
                first: tuple[Deed, ...] = (("hear", lists[0].number),) if lists else ()
                what = f"hears the SEALs of {self.table.name_of_list(digest)} in {attempt}"
                for words, sums in self._sums_of(state, digest):
                    for deeds in ((*first, *hear, *sums), (*hear, *sums, *first)):
                        if self.peers.do(number, deeds)[1].adopted:
                            yield f"{what}{words}", deeds

    def _name(self, letter: Letter) -> str:
        return self.table.name_of_list(letter.proposes)
