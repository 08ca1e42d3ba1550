"""What a node tells of itself while it runs: events for programs, log lines for people."""

import logging
from math import inf

import trio

from node import events as ev
from node.round import RoundMachine
from node.round_view import RoundView
from node.status.board import EventLog, peer_texts
from protocol.identity import PeerId, peer_id_text, short_id

logger = logging.getLogger(__name__)

FAULTS_SHOWN_MAX, FAULTS_SHOWN_S = 20, 10.0
"""So many per so long are told: a hostile peer makes thousands a second."""

FORGOTTEN_S = 30.0
"""By then whoever lost its memory has heard from the peers that are there, and caught up."""

_FORGOTTEN = (
    "the disk lost what this node signed, and of the voters in {where} no other can tell, so it "
    "waits and signs nothing: start the nodes that know of later rounds. If there are none, this "
    "run cannot go on: take its weights with barnraise export, and found another with "
    "barnraise run --new"
)


class Narrator:
    """Tells what happens, as it happens; decides nothing."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._phase = ("", 0, 0)
        self._round_began_s = trio.current_time()
        self._faults_since_s, self._num_faults = -FAULTS_SHOWN_S, 0
        self._forgot_s: float | None = None

    def sealed(
        self,
        action: ev.Adopt,
        view: RoundView,
        traffic: tuple[int, int],
        train_loss: float | None,
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
        name = "linked" if isinstance(event, ev.Linked) else "unlinked"
        logger.info("%s peer=%s", name, short_id(event.peer))
        self._log.emit(name, peer=peer_id_text(event.peer), linked=peer_texts(linked))

    def silence(self, machine: RoundMachine) -> None:
        """Tell once if the node waits for a memory that it cannot get (R12)."""
        if not (machine.has_forgotten and machine.view.is_quorum_alone):
            self._forgot_s = None
            return
        now_s = trio.current_time()
        if self._forgot_s is None:
            self._forgot_s = now_s
        elif now_s - self._forgot_s >= FORGOTTEN_S:
            self._forgot_s = inf
            text = _FORGOTTEN.format(where=f"round {machine.view.index}")
            logger.warning(text)
            self._log.emit("warning", key="memory", text=text)

    def phase(self, view: RoundView, parts_in_flight: int) -> None:
        """Tell the phase of the round when it changes: this is how one watches a round."""
        if view.ballots.certified():
            phase = "certified"
        elif parts_in_flight:
            phase = "pushing"
        elif view.own_commit:
            phase = "committed"
        else:
            phase = "training"
        now = (phase, view.index, view.attempt)
        if now != self._phase:
            if now[1] != self._phase[1] and view.is_member:
                self._log.emit("seated", round=view.index)
            self._phase = now
            self._log.emit("phase", round=view.index, phase=phase, attempt=view.attempt)
