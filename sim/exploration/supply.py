"""Who holds which bytes, who dies, and whether the living can always finish (S2, L1).

One round in which every voter is a reducer too: parts travel, HAVEs say who is complete, the closer
proposes from what it has heard, reducers sum. Anybody may die at any point, and be suspected.
Bytes that only the dead have are lost; what they have said may still arrive.
"""

from collections.abc import Iterator
from itertools import chain, combinations
from typing import NamedTuple

from protocol.frames import Bulk
from protocol.messages import Have, Kind, List, NewAttempt, Seal
from protocol.rounds.round_view import RoundView
from sim.exploration.agreement import Agreement, AgreementScope, AgreementState
from sim.exploration.board import heard
from sim.exploration.goodrun import holds
from sim.exploration.peers import Deed, MachinePeer


class Losses(NamedTuple):
    """How many may die, over how many cells; `strict` asks that all listed bytes stay alive."""

    deaths: int = 1
    num_cells: int = 1
    strict: bool = False


class Supply(Agreement):
    """Voters that hold their own bytes."""

    def __init__(self, scope: AgreementScope, losses: Losses) -> None:
        self.losses = losses
        super().__init__(scope, helpers=0, num_cells=losses.num_cells)

    def moves(self, state: AgreementState) -> Iterator[tuple[str, AgreementState]]:
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

    def check(self, state: AgreementState) -> str:
        """Safety in every state, and the rest where it is asked for."""
        if self.losses.strict and not state.wrong:
            return self._lost_bytes(state)
        return super().check(state)

    def _lost_bytes(self, state: AgreementState) -> str:
        """S2 to the letter: every listed part of a sealed round is with somebody alive."""
        facts = self.post.facts(state.sent)
        final = facts.final.get(self.table.head.value.digest, set())
        for (_, _, value), seals in facts.seals.items():
            if value not in final:
                continue
            sealed = seals[0].body
            assert isinstance(sealed, Seal)
            for commit in self._listed(state, sealed.list_digest):
                for cell in range(self.losses.num_cells):
                    if not any(holds(p, Bulk.PART, commit, cell) for p in self._living(state)):
                        return "S2 to the letter: sealed, and nobody alive has a listed part"
        return ""

    def _listed(self, state: AgreementState, digest: bytes) -> tuple[bytes, ...]:
        for number in state.peers:
            body = self.peers.states[number].machine.view.ballots.list_of(digest)
            if body is not None:
                return body.commits
        return ()

    # Moves of bytes -----------------------------------------------------------------------------

    def _bytes_of(
        self, state: AgreementState, seat: int, peer: MachinePeer
    ) -> Iterator[tuple[str, AgreementState]]:
        name, view = self._names[seat], peer.machine.view
        living = self._living(state)
        for piece in view.own_slices():
            for sender, commit, _ in view.commits():
                for cell in view.missing_parts(commit, piece):
                    if any(holds(other, Bulk.PART, commit, cell) for other in living):
                        label = f"the part of {self.table.names[sender]} reaches {name}"
                        label += f" for cell {cell}" if self.losses.num_cells > 1 else ""
                        yield self._after(state, seat, label, (("part", commit, cell),))
        if view.own_slices() and view.me not in view.ballots.of(Kind.HAVE, view.attempt):
            yield self._after(state, seat, f"the deadline passes at {name}", (("deadline", 2),))
        dead = [p for i, p in enumerate(self.table.voters) if state.dead >> i & 1]
        if dead and not view.suspects.issuperset(dead):
            yield self._after(state, seat, f"{name} suspects the dead", (("suspect", *dead),))

    def _propose(
        self, state: AgreementState, seat: int, view: RoundView, name: str
    ) -> Iterator[tuple[str, AgreementState]]:
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
                yield self._after(state, seat, f"{name}{told}", reports)
                continue
            for chosen in subsets:
                told_all = (*reports, *heard(list(chosen)))
                whose = ", ".join(self.table.names[letter.sender] for letter in chosen)
                what = f"hears the HAVE of {whose}" if chosen else "has waited"
                for deeds in (told_all, (*told_all, ("deadline", 4))):
                    if self._proposes(state.peers[seat], deeds):
                        label = f"{name}{told} {what}"
                        yield self._after(state, seat, label, deeds)
                        break

    def _proposes(self, number: int, deeds: tuple[Deed, ...]) -> bool:
        """Whether the closer speaks: it proposes, or gives up because nobody is complete."""
        sent = self.peers.do(number, deeds)[1].sent
        return any(isinstance(self.post.letters[n].body, List | NewAttempt) for n in sent)

    def _results(
        self, state: AgreementState, seat: int, view: RoundView, name: str
    ) -> Iterator[tuple[str, AgreementState]]:
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
                    yield self._after(state, seat, label, offer.deeds)
            for cell in view.missing_results(digest):
                if any(holds(other, Bulk.RESULT, digest, cell) for other in living):
                    deeds = (*offer.deeds, ("cell", digest, cell))
                    label = f"the result of {what} reaches {name}"
                    label += f" for cell {cell}" if self.losses.num_cells > 1 else ""
                    yield self._after(state, seat, label, deeds)
