"""What a node tells of itself while it runs: events for programs, log lines for people."""

import logging
from math import inf
from typing import TYPE_CHECKING

import trio

from node.status.board import FORGOTTEN, EventLog, peer_texts
from protocol import events as ev
from protocol.catching_up.catchup import CatchUp
from protocol.core.node_core import NodeCore
from protocol.identity import PeerId, peer_id_text, short_id
from protocol.messages import SealValue
from protocol.rounds.round_machine import RoundMachine
from protocol.rounds.round_view import RoundView

if TYPE_CHECKING:
    from protocol.catching_up.catchup import CatchUpProgress

logger = logging.getLogger(__name__)

FAULTS_SHOWN_MAX, FAULTS_SHOWN_S = 20, 10.0
"""Log at most FAULTS_SHOWN_MAX faults per FAULTS_SHOWN_S seconds: a hostile peer can cause
thousands per second."""

PROGRESS_S = 2.0
"""Seconds between two progress reports of a fetch."""

FORGOTTEN_S = 30.0
"""After this time a node that lost its log has heard from all peers in reach, and caught up."""


_SHORT = (
    "sealing pauses: {count} of {voters} voters are in reach, and an open run needs two thirds; "
    "contributions wait for them"
)


def why_left_out(
    view: RoundView, *, wants_seat: bool, has_spent: bool, equal_steps: bool
) -> str | None:
    """What kept this node out of a sealed round, a key of `node.status.records.LEFT_OUT`; None
    where it has no seat and wants none. `has_spent` says whether others have waited for it enough.
    """
    own, me = view.own, view.me
    if not view.is_member:
        return "seat" if wants_seat else None
    if own.contribution is not None and not own.commit:
        return "silent" if own.held_until_s is None else "held"
    handed_s = view.arrivals.commit_s.get(me, -inf) if own.commit else inf
    others_s = [said_s for (_, peer), said_s in view.lapses.said_s.items() if peer != me]
    if handed_s < min(others_s, default=inf):
        return "line"  # It was there before anybody had said what is.
    if has_spent:
        return "given_up"
    return "equal_steps" if equal_steps else "training"


class Narrator:
    """Tells what happens, as it happens; decides nothing."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._phase = ("", 0, 0)
        self._round_began_s = trio.current_time()
        self._faults_since_s, self._num_faults = -FAULTS_SHOWN_S, 0
        self._forgot_s: float | None = None
        self._forgot_round = 0
        self._is_short = False
        self._is_waiting = False
        self._held_round, self._held_s = 0, inf
        self._progress: CatchUpProgress | None = None
        self._progress_s = -inf

    def sealed(
        self,
        action: ev.Adopt,
        view: RoundView,
        traffic: tuple[int, int],
        train_loss: float | None,
        left_out: str | None,
    ) -> None:
        """A round is final; `view` is what it looked like, `traffic` bytes up and down so far."""
        value, now_s = action.certificate.value, trio.current_time()
        commits = (view.ballots.commit_of(digest) for digest in value.commits)
        wall_s, self._round_began_s = now_s - self._round_began_s, now_s
        self._log.emit(
            "sealed",
            round=value.round,
            digest=value.digest.hex(),
            listed=peer_texts(tuple(sorted(commit[0] for commit in commits if commit))),
            members=len(value.roster.seats),
            voters=sum(1 for seat in value.roster.seats if seat.voter_since >= 0),
            attempt=view.attempt,
            was_listed=action.was_listed,
            left_out=left_out,
            wall_s=round(wall_s, 4),
            bytes_up=traffic[0],
            bytes_down=traffic[1],
            train_loss=train_loss,
        )
        logger.info(
            "round sealed round=%d listed=%d members=%d attempt=%d wall_s=%.2f",
            value.round,
            len(value.commits),
            len(value.roster.seats),
            view.attempt,
            wall_s,
        )

        self._set_back(view, value)

    def _set_back(self, view: RoundView, value: SealValue) -> None:
        """Who is set back by this seal, because it kept more voters waiting than may lie (R8)."""
        before = {seat.peer: seat.set_back_until for seat in view.seals.head.roster.seats}
        for seat in value.roster.seats:
            if seat.set_back_until <= before.get(seat.peer, 0):
                continue
            until = seat.set_back_until
            logger.warning("set back peer=%s until_round=%d", short_id(seat.peer), until)
            self._log.emit(
                "set_back",
                peer=peer_id_text(seat.peer),
                round=value.round,
                until=until,
                is_own=seat.peer == view.me,
            )

    def advanced(self, action: ev.Advance) -> None:
        """A round is sealed provisionally: no quorum is in reach (R4)."""
        value = action.certificate.value
        logger.info(
            "round sealed provisionally round=%d listed=%d", value.round, len(value.commits)
        )
        self._log.emit(
            "provisional",
            round=value.round,
            digest=value.digest.hex(),
            listed=len(value.commits),
            members=len(value.roster.seats),
            was_listed=action.was_listed,
            ends_run=value.clock.ends_run,
        )

    def confirmed(self, action: ev.Confirm) -> None:
        """A provisional round is final now."""
        value = action.certificate.value
        logger.info("provisional round is final round=%d", value.round)
        self._log.emit("confirmed", round=value.round, digest=value.digest.hex())

    def fell_back(self, action: ev.FallBack) -> None:
        """Provisional rounds are lost to others."""
        final, lost = action.final.value.round, action.lost.value.round
        logger.warning("branch given up rounds=%d from=%d", lost - final, final + 1)
        self._log.emit("branch_lost", round=final, rounds=lost - final)

    def look(self, core: NodeCore, parts_in_flight: int) -> None:
        """After every event: what the node is at, and waits for."""
        machine = core.machine
        self.phase(machine.view, parts_in_flight)
        self.holding(machine)
        self.silence(machine)
        self.quorum(machine.view)
        self.catching_up(core.catchup)
        if core.wants_seat and not (core.catchup.is_busy or core.is_finished):
            self.turn(machine.view, core.manifest.admission.seats)

    def history(self, known: ev.HistoryKnown) -> None:
        """How well it is known that the history is the one that the swarm lived through."""
        logger.info("history round=%d others=%d", known.round, known.num_others)
        self._log.emit(
            "history",
            round=known.round,
            peer=peer_id_text(known.source),
            others=known.num_others,
            in_link=known.is_named,
        )

    def torn(self, found: ev.TwoHistories) -> None:
        """Two histories of the run, each with certificates that hold."""
        peers = (peer_id_text(found.source), peer_id_text(found.witness))
        logger.error("two histories round=%d peers=%s", found.ours.value.round, " ".join(peers))
        self._log.emit(
            "two_histories",
            round=found.ours.value.round,
            peers=list(peers),
            digests=[found.ours.value.digest.hex(), found.theirs.value.digest.hex()],
        )

    def resync(self, reason: str) -> None:
        """The own state is not what was sealed."""
        logger.warning("resync reason=%s", reason)
        self._log.emit("resync", reason=reason)

    def fault(self, fault: ev.Fault) -> None:
        """A peer broke the protocol."""
        now_s = trio.current_time()
        if now_s - self._faults_since_s >= FAULTS_SHOWN_S:
            if self._num_faults > FAULTS_SHOWN_MAX:
                count = self._num_faults - FAULTS_SHOWN_MAX
                logger.warning("more faults count=%d", count)
                self._log.emit("more_faults", count=count)
            self._faults_since_s, self._num_faults = now_s, 0
        self._num_faults += 1
        if self._num_faults > FAULTS_SHOWN_MAX:
            return
        logger.warning("fault peer=%s reason=%s", short_id(fault.peer), fault.reason)
        self._log.emit("fault", peer=peer_id_text(fault.peer), reason=fault.reason)

    def link(self, event: ev.Linked | ev.Unlinked, linked: tuple[PeerId, ...]) -> None:
        """A control stream came or went; `linked` are all there are now."""
        if isinstance(event, ev.Unlinked) and event.is_gone:
            logger.info("gone peer=%s", short_id(event.peer))
            return
        name = "linked" if isinstance(event, ev.Linked) else "unlinked"
        logger.info("%s peer=%s", name, short_id(event.peer))
        self._log.emit(name, peer=peer_id_text(event.peer), linked=peer_texts(linked))

    def holding(self, machine: RoundMachine) -> None:
        """Tell once in a round that it is held for peers that take the state from here (R11), if it
        is for longer than a moment."""
        view, now_s = machine.view, trio.current_time()
        num_peers = machine.giving.num_held_for(view.basis)
        if not num_peers:
            self._held_s = inf
            return
        self._held_s = min(self._held_s, now_s)
        if now_s >= self._held_s + PROGRESS_S and view.index != self._held_round:
            self._held_round = view.index
            logger.info("round held for takers round=%d peers=%d", view.index, num_peers)
            self._log.emit("holding", round=view.index, peers=num_peers)

    def silence(self, machine: RoundMachine) -> None:
        """Tell once if the node waits for a memory that it cannot get (R12)."""
        is_stuck = machine.has_forgotten or machine.may_contradict
        if not (is_stuck and machine.view.is_quorum_alone):
            self._forgot_s = None
            return
        now_s, index = trio.current_time(), machine.view.index
        if self._forgot_s is None or self._forgot_round != index:
            # Rounds go by where all that it had signed in them is filed again.
            self._forgot_s, self._forgot_round = now_s, index
        elif now_s - self._forgot_s >= FORGOTTEN_S:
            self._forgot_s = inf
            text = FORGOTTEN.format(where=f"round {machine.view.index}")
            logger.warning(text)
            self._log.emit("warning", key="memory", text=text)

    def quorum(self, view: RoundView) -> None:
        """Tell once if too few voters are in reach for an open run to seal (R3), and when they are
        back."""
        voters = set(view.roles.electorate)
        reachable = voters - (view.peers.suspects - {view.me})
        is_short = view.config.trust == "open" and not view.has_quorum(reachable)
        if is_short and not self._is_short:
            text = _SHORT.format(count=len(reachable), voters=len(voters))
            logger.warning(text)
            self._log.emit("warning", key="voters", text=text)
        elif self._is_short and not is_short:
            logger.info("enough voters are in reach again round=%d", view.index)
        self._is_short = is_short

    def turn(self, view: RoundView, seats: int) -> None:
        """Tell once if all seats are taken, so that this node waits for its turn (R1)."""
        is_waiting = not view.is_member and len(view.members) >= seats
        if is_waiting and not self._is_waiting:
            logger.info("waits for its turn round=%d seats=%d", view.index, seats)
            self._log.emit("unseated", round=view.index, seats=seats)
        self._is_waiting = is_waiting

    def catching_up(self, catchup: CatchUp) -> None:
        """Tell how far it is, now and then, while it takes longer than a moment."""
        now_s = trio.current_time()
        progress = catchup.progress(now_s) if catchup.is_busy else None
        if progress is None:
            self._progress = None
            return
        begun, self._progress = self._progress, progress
        if begun is None or begun.what != progress.what:
            self._progress_s = now_s  # What is soon over is told when it is.
        elif now_s >= self._progress_s + PROGRESS_S:
            self._progress_s = now_s
            logger.info("catching up %s", progress.text)
            self._log.emit(
                "catching_up",
                what=progress.what,
                round=progress.round,
                done=progress.done,
                total=progress.total,
                sources=progress.sources,
                bytes_per_s=round(progress.bytes_per_s),
                text=progress.text,
            )

    def phase(self, view: RoundView, parts_in_flight: int) -> None:
        """Tell the phase of the round when it changes: this is how one watches a round."""
        if view.ballots.certified():
            phase = "certified"
        elif parts_in_flight:
            phase = "pushing"
        elif view.own.commit:
            phase = "committed"
        else:
            phase = "training"
        now = (phase, view.index, view.attempt)
        if now != self._phase:
            if now[1] != self._phase[1] and view.is_member:
                self._log.emit("seated", round=view.index)
            self._phase = now
            self._log.emit("phase", round=view.index, phase=phase, attempt=view.attempt)
