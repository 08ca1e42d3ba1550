"""Watches a world: the invariants over its records, and those that look into its nodes."""

from collections.abc import Iterator

from node.reporting.tracing import Began, Record
from protocol import events as ev
from protocol.identity import KeyedHashSigner, PeerId, Signer
from protocol.messages import Kind
from sim.checks.accounting import LedgerDisk, Ledgers, OwnRounds
from sim.checks.bounds import Bounds
from sim.checks.invariants import ALL, Circumstances, Invariants, raise_first
from sim.checks.keeping import Hearing, Keeping
from sim.checks.leaks import LeavingCheck
from sim.checks.progress import ProgressCheck
from sim.checks.reference import Reference
from sim.world.nodes import signer_named
from sim.world.world import SimNode, World, genesis_of


class Checks:
    """All that is checked in one world. Made by `watch`."""

    def __init__(self, world: World, names: frozenset[str]) -> None:
        self._world = world
        self._names = names
        self._record: Record | None = None
        self.records = Invariants(
            world.manifest,
            signer=_verifier(world),
            names=names,
            # In a world progress is measured by what is known of it, not by who says something.
            circumstances=Circumstances(is_world=True, may_skip=world.settings.rare > 0.0),
        )
        history = self.records.history
        self.reference = Reference(history, world)
        self.progress = ProgressCheck(history, world)
        self.hearing = Hearing(history, world, self.progress)
        self.keeping = Keeping(history, world, self.hearing)
        self.bounds = Bounds(world)
        self.leaving = LeavingCheck(self.records.leaks, world)
        self._own_rounds = OwnRounds()
        self._watches_progress, self._counts = "I4" in names, "I7" in names
        self._unseen: dict[PeerId, SimNode] = {}
        """Processes that began, and have not handled an event yet."""

    def disk_replaced(self, peer: PeerId) -> None:
        """Somebody took a node's disk away, or set it back: what was promised of it is void."""
        self.records.disk_replaced(peer)
        self._own_rounds.disk_replaced(peer)
        self.progress.lost(peer)

    def saw(self, record: Record) -> None:
        """A tracer of the world."""
        self._record = record
        if self._world.nodes[record.peer].is_bent:
            self.records.bend(record.peer)
        self.records.saw(record)
        self._own_rounds.saw(record)
        if "I2" in self._names and isinstance(record, self.reference.kinds):
            raise_first("I2", self.reference.saw(record), self._record)
        if "I6" in self._names and isinstance(record, self.hearing.kinds):
            raise_first("I6", self.hearing.saw(record), self._record)
        if isinstance(record, self.keeping.kinds):
            found = tuple(self.keeping.saw(record))
            if "I9" in self._names:
                raise_first("I9", found, self._record)
        if isinstance(record, Began):
            node = self._world.nodes[record.peer]
            self._unseen[record.peer] = node
            if record.is_lost:
                self.progress.lost(record.peer)
            if "I8" in self._names:
                raise_first("I8", self.leaving.began(node), self._record)

    def asked(self, world: World, node: SimNode, action: ev.CoreAction | None) -> None:
        """A trigger of the world."""
        del world
        raise_first("I8", self.leaving.asked(node, action), self._record)

    def looked(self, node: SimNode) -> None:
        """A node is through with an event."""
        if node.is_bent:
            self.records.bend(node.peer)  # It may have summed, and be mute: then it signs nothing.
        if self._unseen and self._unseen.get(node.peer) is node:
            del self._unseen[node.peer]
            if "I1" in self._names:
                raise_first("I1", self._forgotten(node), self._record)
        # All look now and then, and most events of a world are not the time for it.
        if self._watches_progress and self._world.now_s >= self.progress.look_s:
            raise_first("I4", self.progress.look(), self._record)
        if self._world.now_s >= self.hearing.look_s:
            self.hearing.look()
        if self._counts and self._world.events >= self.bounds.next_look:
            raise_first("I7", self.bounds.look(node), self._record)

    def finish(self) -> None:
        """The world stands still. Raises InvariantBroken where that breaks a promise."""
        self._record = None
        self.records.finish()
        if "I2" in self._names:
            raise_first("I2", self.reference.finish(), self._record)
        if "I5" in self._names:
            ledgers: dict[bytes, Ledgers] = {}
            for _, node in sorted(self._world.nodes.items()):
                raise_first("I5", self._receipts(node, ledgers), self._record)
        if "I7" in self._names:
            for _, node in sorted(self._world.nodes.items()):
                raise_first("I7", self.bounds.look(node), self._record)
        if "I8" in self._names:
            raise_first("I8", self.leaving.finish(), self._record)

    def _receipts(self, node: SimNode, ledgers: dict[bytes, Ledgers]) -> Iterator[str]:
        """I5: what a node keeps of the run adds up to it. Of one that is down nothing is asked."""
        if not (node.is_alive or node.is_over):
            return
        folded, commits = node.disk.journal.read_receipts()
        if folded is None:
            yield "keeps no ledger"
            return
        if folded.genesis_root not in ledgers:
            manifest, seated = self._world.manifest, self._world.settings.seated
            start = genesis_of(manifest, folded.genesis_root, seated).value
            ledgers[folded.genesis_root] = Ledgers(manifest, start)
        chain = node.disk.journal._chain.read(0, self._world.manifest.rounds)
        kept = LedgerDisk(chain, folded, commits)
        yield from ledgers[folded.genesis_root].check(kept, self._own_rounds.of(node.peer))

    def _forgotten(self, node: SimNode) -> Iterator[str]:
        """I1: what a node signed in the round that it comes back to is filed again, or it is mute.

        A signature that is forgotten may be given once more, for something else.
        """
        view = node.core.machine.view
        if node.core.machine._silence.has_lost(view) or node.core.machine.has_forgotten:
            return
        for slot, digest in self.records.history.signed_in(node.peer, view.basis):
            if view.ballots.find(digest) is None:
                yield f"comes back and has forgotten its {Kind(slot.kind).name} of this round"


def _verifier(world: World) -> Signer:
    """By the rules of the world's own signers; it signs nothing."""
    if world.settings.is_signing_for_real:
        return signer_named("checks")
    return KeyedHashSigner(world.manifest.founder)


def watch(world: World, names: frozenset[str] = ALL) -> Checks:
    """Check these invariants after every event of a world, from now on.

    The object that is returned has to be told when it is over, with `finish`.
    """
    checks = Checks(world, names)
    world.tracers.append(checks.saw)
    world.looks.append(checks.looked)
    if "I8" in names and world.settings.is_signing_for_real:
        world.triggers.append(checks.asked)  # Before each action; there is no secret otherwise.
    return checks
