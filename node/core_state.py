"""What a NodeCore is made of, and what follows from the actions of its RoundMachine. Pure."""

from collections.abc import Callable, Iterable, Iterator

from node import events as ev
from node.cells.shard_store import CellSizes
from node.gossip.quotas import Quota
from node.peers.budgets import PASSED_ON
from node.peers.liveness import Liveness
from node.peers.relay import Relay, heartbeat
from node.round import RoundMachine
from node.rules import roster as rosters
from node.rules.auditing import Audits
from node.rules.meeting import Meeting
from node.rules.round_view import RoundConfig, RoundView
from node.state_transfer.catchup import CatchUp
from protocol import limits
from protocol.frames import (
    BranchEnd,
    Bulk,
    Heartbeat,
    Messages,
    wants,
)
from protocol.identity import PeerId, Signer
from protocol.manifest import RunManifest
from protocol.messages import (
    SealCertificate,
)

CHAIN_KEPT = 64
"""Seals in memory, at most 36 KiB each; older ones are read from the journal when a peer asks."""


class CoreState:
    """See NodeCore."""

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
        self.audits = Audits(manifest, config, signer, genesis.value)
        self.machine.audits = self.audits
        self.liveness = Liveness(
            signer.peer_id,
            heartbeat_s=manifest.timing.heartbeat_s,
            suspect_s=manifest.timing.suspect_s,
            now_s=now_s,
            rare=config.rare,
        )
        self.chain = [genesis]
        self.signer = signer
        self._me = signer.peer_id
        self._relay = Relay(self._me, settle_s=manifest.timing.heartbeat_s / 2, rare=config.rare)
        self._passed_on = Quota(PASSED_ON)
        """What others may have this node check in the name of each peer."""
        self.catchup = CatchUp(signer, config.trust, CellSizes.from_manifest(manifest), config.rare)
        self._meeting = Meeting(signer)
        self._rare = config.rare
        self._rounds: dict[PeerId, int] = {}
        self._newest = 0
        """The newest of them."""
        self._suspects: frozenset[PeerId] = frozenset()
        self._overdrawn: dict[PeerId, float] = {}
        """Who sends more than its share, and until when it counts as suspected for that."""
        self._nonce = 0
        self.wants_seat = True
        self.may_sit: Callable[[PeerId], bool] = lambda _: True
        """Who may ask for a seat; the edge knows, in runs for the invited."""
        self._seat_asked = b""
        self._is_astray = False
        """Whether a branch was given up, and the trainer has not heard of it."""
        self._told = b""
        """The head that the last heartbeat told of."""

    # What the edge may ask ----------------------------------------------------------------------

    @property
    def is_finished(self) -> bool:
        """Whether the last seal of the run is adopted."""
        return self.machine.head.clock.ends_run

    @property
    def rounds(self) -> dict[PeerId, int]:
        """The round behind the last final seal of each linked peer, as it said."""
        return dict(self._rounds)

    def views(self) -> tuple[RoundView, ...]:
        """The round under way, those of the own branch, and the one before while stragglers may
        need it."""
        return self.machine.views

    def awaits_state(self, certificate: SealCertificate) -> bool:
        """Whether that state is still wanted; asked before the own state is replaced by it."""
        return certificate == self.catchup.wanted

    def sealed(self, digest: bytes) -> SealCertificate | None:
        """The final seal of that digest, if it is one of the newest: what a joiner may ask for."""
        found = (seal for seal in reversed(self.chain) if seal.value.digest == digest)
        return next(found, None)

    def trim_chain(self) -> None:
        """Keep the newest seals only; called once all of them are in the journal."""
        del self.chain[:-CHAIN_KEPT]

    def wakeup_s(self, now_s: float) -> float:
        """When a Tick is due if nothing happens before."""
        return min(self.machine.wakeup_s(), now_s + self.liveness.tick_interval_s)

    # What it does by itself ---------------------------------------------------------------------

    def _catches_up(self, peer: PeerId, now_s: float) -> Iterator[ev.CoreAction]:
        """R11: a peer asks for the chain; short rounds are held for it, if it may sit. It hears how
        far the chain goes: what the last heartbeat told is many short rounds ago."""
        if self.may_sit(peer) and not (peer in self.machine.convicted or self.audits.is_shut(peer)):
            self.machine.courtesy.asked(peer, now_s)
            yield ev.Send(peer, self._heartbeat(now_s))

    def _believes_open(self, peer: PeerId, is_open: int) -> bool:
        """R12: whether a STATUS fits the heartbeat before it, whose seals its sender can be asked
        for; it matters to who forgot what it signed.

        Behind a final seal may be a branch; and a round that was SEALed may have led to the next.
        """
        config, working = self.machine.config, self._rounds.get(peer)
        if not self.machine.has_forgotten:
            return True
        ahead = config.clock.lag + limits.BRANCH_ROUNDS_MAX * config.may_branch
        return working is not None and is_open <= working + ahead

    def _heartbeat(self, now_s: float) -> Heartbeat:
        standing = self.machine.standing
        branch: tuple[BranchEnd, ...] = ()
        if standing.branch:
            head = standing.head.value.digest
            branch = (BranchEnd(final=self.machine.head.round, head=head),)
        return heartbeat(self.machine.view, self.liveness, branch, now_s)

    def _meet(self, now_s: float) -> Iterator[ev.CoreAction]:
        """R4: who is on a branch meets who is not, or on another one."""
        machine, meeting = self.machine, self._meeting
        if not machine.config.may_branch:
            return
        is_behind = meeting.is_behind(machine.head, machine.doubted)
        is_open = meeting.is_open(machine.standing, now_s=now_s)
        machine.meets(is_behind=is_behind, is_meeting=is_open)
        yield from meeting.ask(machine.standing, now_s=now_s)
        path = None if self.catchup.is_busy else meeting.choose(machine.standing)
        if path is not None:
            yield from self._expand(machine.follow(path, now_s), now_s)

    def _train(
        self, head: SealCertificate, *, was_listed: bool, is_resync: bool = False
    ) -> Iterator[ev.CoreAction]:
        standing, samples = self.machine.standing, self.machine.config.clock.samples_each
        view, leases = standing.top, {}
        derived = self.machine.config.derived
        find = rosters.leased_for if derived is None else derived.leased_for
        if not head.value.clock.ends_run:
            leases = find(view.index, view.named, samples)
        is_needed = view.contribution is None and self._me in leases
        if standing.beside is not None and not is_needed:
            # What the head's round needs of the trainer is here, or nothing is: it has no seat yet.
            view = standing.beside
            leases = find(view.index, view.named, samples)
        lease, is_resync = leases.get(self._me, ()), is_resync or self._is_astray
        if is_resync:
            standing.resynced()
        self._is_astray = False
        bases = tuple(one.basis for one in standing.worked_for)
        yield ev.Train(head, lease, was_listed, is_resync, view.index, view.basis, bases)

    def _train_beside(self) -> Iterator[ev.CoreAction]:
        """R5: the next round has its contribution, so the trainer goes on for the one behind it."""
        standing = self.machine.standing
        beside = standing.beside
        is_due = beside is not None and beside.contribution is None
        if is_due and standing.top.contribution is not None:
            yield from self._train(standing.head, was_listed=False)

    # Rounds -------------------------------------------------------------------------------------

    def _round(self, event: ev.RoundEvent, now_s: float) -> Iterable[ev.CoreAction]:
        due = self.machine.handle(event, now_s)
        return self._expand(due, now_s) if due else ()

    def _audit(self, certificate: SealCertificate, now_s: float) -> Iterator[ev.CoreAction]:
        """R10: the round before the one that is final now may be looked at."""
        machine = self.machine
        assert machine.previous is not None
        due = self.audits.sealed(machine.previous, certificate.value, machine.convicted)
        yield from self._expand(due, now_s)

    def _expand(self, actions: Iterable[ev.RoundAction], now_s: float) -> Iterator[ev.CoreAction]:
        """Turn a machine's broadcasts and pulls into frames; add what follows from a final seal."""
        for action in actions:
            if isinstance(action, ev.Broadcast):
                message = action.message
                self._relay.note(message, now_s)
                yield ev.SendAll(self.liveness.linked, Messages(messages=(message,)))
                continue
            if isinstance(action, ev.RecordSlot | ev.RecordProof | ev.Push):
                yield action
                continue
            match action:
                case ev.Pull(source=source, bulk=bulk, subject=subject, cells=cells):
                    if source not in self.liveness.linked and bulk is Bulk.RESULT:
                        source = self._relay.detour(self._rounds, self.machine.view) or source
                    if source in self.liveness.linked:
                        for want in wants(bulk, subject, cells):
                            yield ev.Send(source, want)
                case ev.Resync():
                    self.catchup.is_forced = True
                    yield action
                case ev.Adopt(certificate=certificate, is_doubtful=is_doubtful):
                    self.chain.append(certificate)
                    self.catchup.overtaken()
                    self.machine.rates.fade()
                    self._relay.forget(self.views())
                    yield action
                    was_listed = action.was_listed
                    yield from self._train(
                        certificate, was_listed=was_listed, is_resync=is_doubtful
                    )
                    yield from self._audit(certificate, now_s)
                case ev.Advance(certificate=certificate, is_doubtful=is_doubtful):
                    self.machine.rates.fade()
                    self._relay.forget(self.views())
                    yield action
                    # Back on a branch that was left before, what was committed there stands.
                    view = self.machine.standing.on(certificate.value.digest)
                    if view is None or not view.own_commit:
                        was_listed = action.was_listed
                        yield from self._train(
                            certificate, was_listed=was_listed, is_resync=is_doubtful
                        )
                case ev.Confirm(certificate=certificate):
                    self.chain.append(certificate)
                    self.catchup.overtaken()
                    self._relay.forget(self.views())
                    yield action
                    if certificate.value.clock.ends_run:
                        yield from self._train(certificate, was_listed=False)
                case ev.FallBack(final=final):
                    self._is_astray = True
                    yield action
                    standing = self.machine.standing
                    base = standing.base
                    rounds = standing.worked_for if base.is_overlapped else [base]
                    is_there = base.before == final.value.digest
                    if is_there and not all(view.own_commit for view in rounds):
                        yield from self._train(final, was_listed=False)
                case _:
                    yield action
