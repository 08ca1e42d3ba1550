"""NodeCore: everything that a node decides, as one pure machine over one shard.

Composes rounds, liveness, relay and catching up. The edge (`node.exchange` over libp2p, or the
simulator's world) feeds it events with the monotonic time and carries out its actions in order.
"""

from collections.abc import Iterable, Iterator

from node import events as ev
from node import roster as rosters
from node.catchup import CatchUp
from node.liveness import Liveness
from node.relay import Relay, message_ids, pack
from node.restart import Restart, was_listed
from node.round import RoundMachine
from node.round_view import ResultPlace, RoundConfig, RoundView
from protocol import limits
from protocol.errors import DecodeError, ProofError
from protocol.frames import (
    Bulk,
    Chain,
    Frame,
    Heartbeat,
    Hello,
    Messages,
    Refusal,
    StatusAnswer,
    StatusAsk,
    Want,
    WantChain,
)
from protocol.identity import PeerId, Signer
from protocol.manifest import RunManifest
from protocol.messages import (
    List,
    NewAttempt,
    SealCertificate,
    SignedMessage,
    decode_body,
    decode_message,
    is_signed,
)

CHAIN_KEPT = 64
"""Seals in memory, at most 34 KiB each; older ones are read from the journal when a peer asks."""


class NodeCore:
    """One node's decisions. One owner calls `handle`; `wakeup_s` says when at the latest."""

    def __init__(
        self,
        manifest: RunManifest,
        config: RoundConfig,
        signer: Signer,
        genesis: SealCertificate,
        *,
        now_s: float,
    ) -> None:
        self.manifest = manifest
        self.machine = RoundMachine(config, signer, genesis, now_s=now_s)
        self.liveness = Liveness(
            signer.peer_id,
            heartbeat_s=manifest.timing.heartbeat_s,
            suspect_s=manifest.timing.suspect_s,
            now_s=now_s,
            rare=config.rare,
        )
        self.chain = [genesis]
        self._signer = signer
        self._me = signer.peer_id
        self._relay = Relay(self._me, settle_s=manifest.timing.heartbeat_s / 2, rare=config.rare)
        self._catchup = CatchUp(signer, config.trust, config.rare)
        self._rare = config.rare
        self._rounds: dict[PeerId, int] = {}
        self._newest = 0
        """The newest of them."""
        self._suspects: frozenset[PeerId] = frozenset()
        self._nonce = 0
        self.wants_seat = True
        self._seat_asked = b""

    # What the edge may ask ----------------------------------------------------------------------

    @property
    def is_finished(self) -> bool:
        """Whether the last seal of the run is adopted."""
        return self.machine.head.clock.ends_run

    @property
    def rounds(self) -> dict[PeerId, int]:
        """The round that each linked peer said it works on."""
        return dict(self._rounds)

    def views(self) -> tuple[RoundView, ...]:
        """The round under way, and the one before while stragglers may need it."""
        previous = self.machine.previous
        return (self.machine.view, previous) if previous else (self.machine.view,)

    def part_root(self, commit_digest: bytes) -> bytes | None:
        """The root of a contribution whose COMMIT is known."""
        for view in self.views():
            commit = view.ballots.commit_of(commit_digest)
            if commit is not None:
                return commit[1].root
        return None

    def result_place(self, digest: bytes, cell: int) -> ResultPlace | None:
        """Where a result cell of a LIST belongs, once an AGG of its slice is known."""
        places = (view.result_place(digest, cell) for view in self.views())
        return next((place for place in places if place is not None), None)

    def awaits_state(self, certificate: SealCertificate) -> bool:
        """Whether that state is still wanted; asked before the own state is replaced by it."""
        return certificate == self._catchup.wanted

    def trim_chain(self) -> None:
        """Keep the newest seals only; called once all of them are in the journal."""
        del self.chain[:-CHAIN_KEPT]

    def wakeup_s(self, now_s: float) -> float:
        """When a Tick is due if nothing happens before."""
        return min(self.machine.wakeup_s(), now_s + self.liveness.tick_interval_s)

    def start(self, now_s: float, restart: Restart | None = None) -> list[ev.CoreAction]:
        """The first actions: train if seated, else ask for a seat.

        `restart` is what a node that ran before goes on from; its state is in the store.
        """
        is_listed, has_run = False, restart is not None and restart.has_run
        if restart is not None and restart.has_run:
            self.chain = list(restart.chain)
            self.machine.resume(restart, now_s=now_s)
            is_listed = was_listed(restart, self._me)
        # Who lost signatures, or seals that it had signed behind, cannot know what became of its
        # contributions: e = 0 (R6).
        is_known = has_run and restart is not None and restart.is_whole
        train = self._train(was_listed=is_listed, is_resync=not is_known)
        return [*train, *self._after(now_s)]

    # Events -------------------------------------------------------------------------------------

    def handle(self, event: ev.CoreEvent, now_s: float) -> list[ev.CoreAction]:
        """Take one event in; the actions that are due, in order."""
        # Nearly all of a node's own work passes here: lists, for generators in generators cost more
        # than most of what they would carry.
        actions: list[ev.CoreAction] = []
        if self.liveness.tick(now_s):
            actions += self._wake(now_s)
        if isinstance(event, ev.FrameArrived):
            self.liveness.heard(event.peer, now_s)
            actions += self._frame(event.peer, event.frame, now_s)
        else:
            actions += self._take(event, now_s)
        actions += self._after(now_s)
        return actions

    def _wake(self, now_s: float) -> Iterator[ev.CoreAction]:
        """R3: having slept, say nothing until a quorum has told where it is."""
        self._nonce += 1
        yield from self._round(ev.Woke(), now_s)
        for peer in self.liveness.linked:
            yield ev.Send(peer, StatusAsk(nonce=self._nonce))

    def _take(self, event: ev.LocalEvent, now_s: float) -> Iterator[ev.CoreAction]:
        match event:
            case ev.Linked(peer=peer):
                self.liveness.link_up(peer, now_s)
                yield ev.Send(peer, self._heartbeat())
                if self.machine.is_asking:
                    yield ev.Send(peer, StatusAsk(nonce=self._nonce))
            case ev.Unlinked(peer=peer):
                self.liveness.link_down(peer, now_s)
                self._relay.drop_link(peer)
                self._rounds.pop(peer, None)
                self._newest = max(self._rounds.values(), default=0)
            case ev.BytesArrived(peer=peer, is_state=is_state, subject=subject):
                self.liveness.heard(peer, now_s)
                if is_state:
                    self._catchup.moved(peer, now_s=now_s)
                else:
                    self.machine.view.moved(subject, peer, now_s)
            case ev.SeatProven(basis=basis, proof=proof):
                yield from self._expand(self.machine.take_seat(basis, proof), now_s)
            case ev.StateReady(certificate=certificate):
                yield from self._resynced(certificate, now_s)
            case ev.StateFailed(basis=basis):
                if self._catchup.wanted and self._catchup.wanted.value.digest == basis:
                    self._catchup.give_up()
            case ev.TrainerReady():
                self.wants_seat = True
            case ev.Leaving():
                self.wants_seat = False
                yield from self._expand(self.machine.leave(), now_s)
            case _:
                yield from self._round(event, now_s)

    def _after(self, now_s: float) -> list[ev.CoreAction]:
        """What every event may have made due: suspicions, heartbeats, catching up, a seat."""
        machine = self.machine
        actions: list[ev.CoreAction] = []
        suspects = self.liveness.suspects(machine.view.members, now_s)
        if suspects != self._suspects:
            self._suspects = suspects
            actions += self._round(ev.SuspicionsChanged(suspects), now_s)
        if self.liveness.beat_due(now_s) and not self._rare("beat-skipped"):
            beat = self._heartbeat()
            for peer in self.liveness.linked:
                actions.append(ev.Send(peer, beat))
                if machine.is_asking:
                    actions.append(ev.Send(peer, StatusAsk(nonce=self._nonce)))
        if now_s >= machine.wakeup_s():
            # Whatever the event was: bytes that keep arriving must not hold up the deadlines.
            actions += self._round(ev.Tick(), now_s)
        view, catchup = machine.view, self._catchup
        if self._newest > view.index or not catchup.is_at_rest:
            moved_s = view.progress_s
            actions += catchup.consider(view.head, self._rounds, moved_s=moved_s, now_s=now_s)
        machine.is_held = catchup.wanted is not None
        if not view.is_member:
            actions += self._seat()
        return actions

    def _seat(self) -> Iterator[ev.CoreAction]:
        """R11: ask for a seat once per round, with the state of its head in hand."""
        view = self.machine.view
        is_current = self.wants_seat and not self._catchup.source and not self.is_finished
        if is_current and self._seat_asked != view.basis:
            self._seat_asked = view.basis
            yield ev.ProveSeat(view.basis)

    def _heartbeat(self) -> Heartbeat:
        view, links = self.machine.view, self.liveness.linked[:256]
        return Heartbeat(round=view.index, head=view.basis, held=message_ids(view), links=links)

    # Frames -------------------------------------------------------------------------------------

    def _frame(self, peer: PeerId, frame: Frame, now_s: float) -> Iterable[ev.CoreAction]:
        match frame:
            case Heartbeat():
                if self._rounds.get(peer) != frame.round:
                    self._rounds[peer] = frame.round
                    self._newest = max(self._rounds.values())
                return self._relay.fill(peer, frame, self.views(), now_s)
            case Messages(messages=messages):
                return self._messages(peer, messages, now_s)
            case _:
                return self._other_frame(peer, frame, now_s)

    def _messages(
        self, peer: PeerId, messages: tuple[SignedMessage, ...], now_s: float
    ) -> list[ev.CoreAction]:
        actions: list[ev.CoreAction] = []
        for message in messages:
            due = self._message(peer, message, now_s)
            actions += due
            if any(isinstance(action, ev.Fault) and action.peer == peer for action in due):
                break  # Each bad signature costs a check; one is enough to know.
        return actions

    def _other_frame(self, peer: PeerId, frame: Frame, now_s: float) -> Iterator[ev.CoreAction]:
        match frame:
            case Want(bulk=bulk, subject=subject, cells=cells):
                if not self._rare("want-ignored"):
                    yield ev.Push(peer, bulk, subject, cells)
            case WantChain(first=first):
                yield from self._send_chain(peer, first)
            case Chain(seals=seals):
                yield from self._chain_arrived(peer, seals, now_s)
            case StatusAsk() if self.machine.has_forgotten:
                pass  # It would be taken for a memory.
            case StatusAsk(nonce=nonce):
                # What either has signed (R3); the rest its heartbeats ask for, once and not of all.
                signed = [m for view in self.views() for m in view.ballots.messages()]
                yield from pack(peer, [m for m in signed if m.sender in (peer, self._me)])
                view = self.machine.view
                answer = StatusAnswer(nonce=nonce, round=view.may_be_open, head=view.basis)
                yield ev.Send(peer, answer)
            case StatusAnswer(nonce=nonce, round=round_index):
                if nonce == self._nonce:
                    yield from self._round(ev.StatusHeard(peer, round_index), now_s)
            case Hello() | Refusal():
                yield ev.Fault(peer, f"{type(frame).__name__} in the middle of a conversation")

    def _message(self, source: PeerId, message: SignedMessage, now_s: float) -> list[ev.CoreAction]:
        """File a signed message, after those that it quotes; forward it if it was new."""
        view = self.machine.view
        slot = message.slot
        if slot.run != view.head.run or slot.shard != view.head.shard:
            return [ev.Fault(source, "a message of another run or shard")]
        is_next = slot.round == view.index + 1
        is_known = view.ballots.find(message.digest) or message.digest in view.early
        if is_known or not (is_next or slot.basis == view.basis):
            return []
        try:
            body = decode_body(message)
        except DecodeError as error:
            return [ev.Fault(source, f"malformed message: {error}")]
        if not is_signed(message, self._signer):
            return [ev.Fault(source, f"{slot.kind.name} is not signed by its sender")]
        # Only of peers that matter here: anybody can make up keys, and every entry is memory.
        if message.sender in view.member_set:
            self.liveness.heard(message.sender, now_s)
        actions: list[ev.CoreAction] = []
        if isinstance(body, List | NewAttempt):
            actions += self._quoted(source, body.certificate, now_s)
        actions += self._round(ev.Heard(message, body), now_s)
        if view.ballots.find(message.digest):
            view.moved(message.digest, message.sender, now_s)  # A COMMIT announces its parts.
            self._relay.note(message, now_s)
            actions += self._relay.forward(message, source, self.liveness.linked)
        return actions

    def _quoted(
        self, source: PeerId, certificate: tuple[bytes, ...], now_s: float
    ) -> Iterator[ev.CoreAction]:
        for data in certificate:
            try:
                vote, body = decode_message(data)
            except DecodeError as error:
                yield ev.Fault(source, f"malformed VOTE in a certificate: {error}")
                return
            # A certificate quotes votes, which quote nothing: no deeper nesting than this.
            if not isinstance(body, List | NewAttempt):
                yield from self._message(source, vote, now_s)

    # Chain and state ----------------------------------------------------------------------------

    def _send_chain(self, peer: PeerId, first: int) -> Iterator[ev.CoreAction]:
        first = max(1, first)
        known = first - self.chain[0].value.round
        if known < 0:
            yield ev.SendChain(peer, first)
            return
        seals = self.chain[known : known + limits.CHAIN_PAGE_SEALS]
        step = limits.CHAIN_SEALS_PER_FRAME_MAX
        for start in range(0, len(seals), step):
            yield ev.Send(peer, Chain(seals=tuple(seals[start : start + step])))

    def _chain_arrived(
        self, peer: PeerId, seals: tuple[SealCertificate, ...], now_s: float
    ) -> Iterator[ev.CoreAction]:
        try:
            yield from self._catchup.extend(peer, seals, now_s=now_s)
        except ProofError as error:
            yield ev.Fault(peer, f"bad chain: {error}")

    def _resynced(self, certificate: SealCertificate, now_s: float) -> Iterator[ev.CoreAction]:
        if certificate != self._catchup.wanted:
            return
        self.chain += self._catchup.finish()
        self.machine.reset(certificate, now_s=now_s)
        yield from self._train(was_listed=False, is_resync=True)

    def _train(self, *, was_listed: bool, is_resync: bool) -> Iterator[ev.CoreAction]:
        head, samples = self.machine.head, self.machine.config.clock.samples_each
        leases = {} if self.is_finished else rosters.leases(head, samples)[0]
        lease = leases.get(self._me, ())
        yield ev.Train(self.machine.certificate, lease, was_listed, is_resync)

    # Rounds -------------------------------------------------------------------------------------

    def _round(self, event: ev.RoundEvent, now_s: float) -> Iterable[ev.CoreAction]:
        due = self.machine.handle(event, now_s)
        return self._expand(due, now_s) if due else ()

    def _expand(self, actions: Iterable[ev.RoundAction], now_s: float) -> Iterator[ev.CoreAction]:
        """Turn a machine's broadcasts and pulls into frames; add what follows from a final seal."""
        for action in actions:
            match action:
                case ev.Broadcast(message=message):
                    self._relay.note(message, now_s)
                    frame = Messages(messages=(message,))
                    for peer in self.liveness.linked:
                        yield ev.Send(peer, frame)
                case ev.Pull(source=source, bulk=bulk, subject=subject, cells=cells):
                    if source not in self.liveness.linked and bulk is Bulk.RESULT:
                        source = self._relay.detour(self._rounds, self.machine.view) or source
                    if source in self.liveness.linked:
                        yield ev.Send(source, Want(bulk=bulk, subject=subject, cells=cells))
                case ev.Resync():
                    self._catchup.is_forced = True
                    yield action
                case ev.Adopt(certificate=certificate, was_listed=was_listed):
                    self.chain.append(certificate)
                    self._catchup.abandon()
                    self._relay.forget(m for v in self.views() for m in v.ballots.messages())
                    yield action
                    yield from self._train(was_listed=was_listed, is_resync=False)
                case _:
                    yield action
