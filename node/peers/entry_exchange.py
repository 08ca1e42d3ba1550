"""The edge of gossip and the replicated state: links, clock and disk around `entry_gossip`.

It stands between the links and the driver: gossip's frames end here, all else passes. Whatever
fails here costs the node no round: a disk that takes no entries is a warning.
"""

import logging
import math
import platform
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from node.peers.links import Links, Tell
from node.processes.version import version
from node.state.config import PeerAddress
from node.state.evidence_files import save_evidence
from node.status.board import EventLog, StatusBoard
from node.status.records import PeerReport
from protocol import events as ev
from protocol import limits
from protocol.core.node_core import NodeCore
from protocol.entry_kinds import EntryKind, HasCheckpoint, Identity, Presence, Reading
from protocol.errors import LimitError, StateError
from protocol.evidence import Evidence
from protocol.gossip import GossipFrame
from protocol.gossiping.machine import Action, Gone, Gossip
from protocol.gossiping.settings import GossipSettings
from protocol.hybrid_clock import WallClock, stamp_s
from protocol.identity import PeerId, Signer, short_id
from protocol.shared_state.book import SharedState
from protocol.shared_state.entry_gossip import (
    EntryGossip,
    KeptCheckpoint,
    KeptText,
    NodeReading,
)
from protocol.shared_state.own import WrittenEntry
from protocol.shared_state.store import Store

if TYPE_CHECKING:
    from node.peers.access import Access

# Told ---------------------------------------------------------------------------------------------
#
# What peers say of themselves, for people to look at and for the search: who is known at all.

TELLING = (EntryKind.IDENTITY, EntryKind.PRESENCE, EntryKind.LEAVE)
"""The kinds that `all_told` is made of: it changes with their versions."""


def all_told(book: SharedState, first: Iterable[PeerId], *, most: int) -> dict[PeerId, PeerReport]:
    """Who has told what it is and has not left: of `first`, then of others, at most `most`.

    This node itself is left out. Entries of each are decoded, and no more than twice `most` are
    looked at: those who came to leave could be many.
    """
    others = (held.writer for held in book.held_of(EntryKind.IDENTITY))
    seen: set[PeerId] = {book.me}
    told: dict[PeerId, PeerReport] = {}
    for peer in chain(first, others):
        if len(told) >= most or len(seen) > 2 * most:
            break
        one = None if peer in seen else _told_by(book, peer)
        seen.add(peer)
        if one is not None:
            told[peer] = one
    return told


def _told_by(book: SharedState, peer: PeerId) -> PeerReport | None:
    identity, presence, left = (book.entry(peer, kind) for kind in TELLING)
    left_at = -1 if left is None else left.stamp
    if presence is not None and presence.stamp <= left_at:
        presence = None
    if identity is None or identity.stamp <= left_at:
        return None
    said, here = identity.content, None if presence is None else presence.content
    assert isinstance(said, Identity)
    return PeerReport(
        device=said.device,
        software=said.software,
        addresses=said.addresses,
        round=here.round if isinstance(here, Presence) else None,
        at_unix_s=stamp_s(identity.stamp if presence is None else presence.stamp),
    )


# The edge -----------------------------------------------------------------------------------------

logger = logging.getLogger(__name__)

KEEP_S = 1.0
"""Others' entries go to the disk in batches of so long."""

DEVICE_S = 10.0
"""From the start until a node says what it is without knowing what its trainer computes on."""

KNOWN_MAX = 256
"""Peers that are shown and dialled by their entries."""

TOLD_ADDRESSES_MAX = 2 * limits.ENTRY_ADDRESSES_MAX
"""Addresses of one member that the search is told: it keeps them all, and an entry is quickly
written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryParts:
    """What the exchange of state works with. `tell` takes what is not gossip's."""

    core: NodeCore
    signer: Signer
    store: Store
    log: EventLog
    tell: Tell
    addresses: Callable[[], Sequence[str]]
    """Where this node may be dialled, as it is announced."""

    checkpoint: Callable[[], Path | None] = lambda: None
    """The newest on the own disk."""

    text: Callable[[], KeptText | None] = lambda: None
    """What of the run's text is on the own disk, as its keeper announced it last."""

    first_round: int = 0
    """Of the newest seal on the own disk."""

    folder: Path | None = None
    """The run's, for copies of evidence."""

    device: str = ""
    dials: bool = True
    """Whether members that only their entries tell of are dialled."""

    wall_clock: WallClock = time.time
    rng: random.Random | None = None
    settings: GossipSettings | None = None


class EntryExchange:
    """One node's exchange of entries. `connect` it, `run` it, `close` it; `leave` comes between."""

    def __init__(self, parts: EntryParts) -> None:
        self._parts = parts
        store, wall_s, now_s = parts.store, parts.wall_clock(), trio.current_time()
        self.book = SharedState(
            parts.core.manifest.digest, parts.signer, floor=store.floor, must_ask=store.must_ask
        )
        self.book.restore(store.take_rows(), wall_s=wall_s)
        self.book.expire(wall_s)
        gossip = Gossip(
            parts.signer.peer_id,
            self.book,
            parts.rng or random.SystemRandom(),
            addresses=lambda: tuple(parts.addresses()),
            settings=parts.settings,
            now_s=now_s,
        )
        self.machine = EntryGossip(self.book, gossip, now_s=now_s)
        self.told: Mapping[PeerId, PeerReport] = {}
        """Who is known by entries and has not left; without this node."""

        self.num_unsent = 0
        """Frames to peers that were not linked."""

        self._software = _words(f"barnraise {version()}")
        self.access: Access | None = None
        """Of a run for the invited, what is to be written."""

        self._links: Links | None = None
        self._board: StatusBoard | None = None
        self._versions: tuple[int, ...] = ()
        self._told_due_s = now_s
        self._dialled: dict[PeerId, frozenset[str]] = {}
        self._earlier = trio.Event()
        self._sleeps_to_s = float("-inf")
        self._limiter = trio.CapacityLimiter(1)
        self._is_failing = False
        self._began_s = now_s
        self._kept_at: tuple[Path | None, KeptCheckpoint | None] = (None, None)
        if store.was_damaged:
            parts.log.emit(
                "warning",
                key="state",
                text="the replicated state was damaged and is set aside; peers have what is "
                "needed of it",
            )

    def connect(self, links: Links) -> None:
        """Say where frames go."""
        self._links = links

    async def tell(self, event: ev.CoreEvent | ev.Fault) -> None:
        """In the place of the driver's `tell`: takes gossip's frames, and lets all else pass."""
        now_s = trio.current_time()
        match event:
            case ev.FrameArrived(peer=peer, frame=frame) if isinstance(frame, GossipFrame):
                wall_s = self._parts.wall_clock()
                await self._carry_out(self.machine.frame(peer, frame, wall_s=wall_s, now_s=now_s))
                # Streams have a buffer: one that is full must not keep all others waiting.
                await trio.lowlevel.checkpoint()
                await self._tell_convicted()
                return
            case ev.Linked(peer=peer):
                await self._carry_out(self.machine.linked(peer, self._said_by(peer), now_s=now_s))
            case ev.Unlinked(peer=peer):
                await self._carry_out(self.machine.unlinked(peer, now_s=now_s))
        await self._parts.tell(event)

    async def run(self, board: StatusBoard) -> None:
        """Gossip, write and keep until cancelled. `board` knows how this node fares."""
        self._board, self._began_s = board, trio.current_time()
        await self._tell_convicted()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tick)
            while True:
                await self._keep()
                await trio.sleep(KEEP_S)

    async def leave(self, reason: str) -> None:
        """Tell that this node goes; in the queues of its neighbours when this returns."""
        written = self.machine.leave(reason, wall_s=self._parts.wall_clock())
        await self._publish(written)
        now_s = trio.current_time()
        # What waits for company goes now: there is no later.
        await self._carry_out(self.machine.tick(now_s=now_s))
        await self._carry_out(self.machine.farewell(now_s=now_s))

    def close(self) -> None:
        """Write what is left, and give the file back. Blocks; nothing else runs by then."""
        with suppress(StateError):
            self._parts.store.apply(self.book.take_changes())
        self._parts.store.close()

    async def accuse(self, evidence: Evidence) -> None:
        """What this node proved itself: keep it, tell all, and the core."""
        gossip, now_s = self.machine.gossip, trio.current_time()
        wall_s = self._parts.wall_clock()
        _, actions = gossip.publish(evidence.encoded, wall_s=wall_s, now_s=now_s)
        await self._carry_out(actions)
        await self._tell_convicted()

    async def _tell_convicted(self) -> None:
        """The core names them in its COMMITs."""
        evidence = self.book.take_banning()
        if evidence:
            await self._parts.tell(ev.EvidenceHeld(evidence))
        if (folder := self._parts.folder) is not None:
            for one in evidence:
                await self._try(partial(save_evidence, folder, one))

    # Gossip -------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            self._earlier = trio.Event()
            self._sleeps_to_s = self.machine.wakeup_s()
            with trio.move_on_at(self._sleeps_to_s):
                await self._earlier.wait()
            await self._carry_out(self.machine.tick(now_s=trio.current_time()))
            await trio.lowlevel.checkpoint()

    async def _carry_out(self, actions: Iterable[Action]) -> None:
        assert self._links is not None
        linked = frozenset(self._links.linked())
        for action in actions:
            match action:
                case ev.Send(peer=peer, frame=frame) if peer in linked:
                    self._links.send(peer, frame)
                case ev.Send():
                    self.num_unsent += 1
                case Gone(peer=peer):
                    logger.debug("gossip gives up peer=%s", short_id(peer))
                case ev.Fault():
                    await self._parts.tell(action)
        if self.machine.wakeup_s() < self._sleeps_to_s:
            self._earlier.set()

    def _said_by(self, peer: PeerId) -> tuple[str, ...]:
        assert self._links is not None
        return self._links.acquaintances().get(peer, ())

    # Entries ------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Write own entries that are due, keep others', see what they say."""
        if self._parts.core.machine.head.round < self._parts.first_round:
            return  # The core has not yet gone on from the disk.
        has_asked = self.book.must_ask and self.machine.has_asked(now_s=trio.current_time())
        # The disk first: a node that ends in between asks again.
        if has_asked and await self._try(self._parts.store.asked):
            self.book.asked()
        members = self._parts.core.machine.view.members
        wall_s, now_s = self._parts.wall_clock(), trio.current_time()
        written = self.machine.look(self._standing(), members, wall_s=wall_s, now_s=now_s)
        await self._publish((*written, *self._invited(wall_s)))
        changes = self.book.take_changes()
        if changes.stored or changes.dropped:
            # A batch that the disk does not take is not tried again: gossip brings entries anew,
            # and those that should have gone end by themselves.
            await self._try(lambda: self._parts.store.apply(changes))
        versions = tuple(self.book.versions[kind] for kind in TELLING)
        if versions != self._versions and now_s >= self._told_due_s:
            assert self._links is not None
            self._versions = versions
            self.told = all_told(self.book, (*members, *self._links.linked()), most=KNOWN_MAX)
            # Some milliseconds where they are many, and then there is always news.
            self._told_due_s = now_s + KEEP_S * len(self.told) / 32
        self._dial(members)

    def _invited(self, wall_s: float) -> Iterator[WrittenEntry]:
        """Whom this node invited, and whom it let in."""
        for kind, key, body in self.access.due() if self.access is not None else ():
            try:
                yield self.book.write(kind, key, body, wall_s=wall_s)
            except (LimitError, StateError) as error:
                logger.warning("not told kind=%s reason=%s", kind.name, error)

    async def _publish(self, written: Sequence[WrittenEntry]) -> None:
        """On the disk, then in the hands of others; nowhere if the disk does not take it."""
        if written and await self._try(lambda: self._parts.store.write_own(written)):
            wall_s, now_s = self._parts.wall_clock(), trio.current_time()
            await self._carry_out(self.machine.release(written, wall_s=wall_s, now_s=now_s))

    async def _try(self, work: Callable[[], None]) -> bool:
        """Do it in the thread of the disk; whether the disk took it. One warning until it does."""
        try:
            await trio.to_thread.run_sync(work, limiter=self._limiter)
        except StateError as error:
            if not self._is_failing:
                logger.warning("shared state not kept reason=%s", error)
                text = f"the disk takes no shared state: {error}"
                self._parts.log.emit("warning", key="state disk", text=text)
            self._is_failing = True
            return False
        if self._is_failing:
            self._is_failing = False
            self._parts.log.emit("warning", key="state disk", text="")
        return True

    # What this node is ----------------------------------------------------------------------------

    def _standing(self) -> NodeReading:
        core = self._parts.core
        view, head = core.machine.view, core.machine.head
        return NodeReading(
            identity=self._identity(),
            incarnation=self.machine.gossip.swim.incarnation,
            round=head.round,
            head=head.digest,
            is_seated=view.is_member,
            readings=_readings(self._board),
            checkpoint=self._kept(),
            text=self._parts.text(),
        )

    def _identity(self) -> Identity | None:
        """None until the trainer has told its device, or has taken long to."""
        trainer = self._board.trainer.device if self._board is not None else None
        if trainer is None and trio.current_time() - self._began_s < DEVICE_S:
            return None
        device = trainer or self._parts.device
        fitting = (
            address
            for address in self._parts.addresses()
            if 0 < len(address.encode()) <= limits.ENTRY_ADDRESS_BYTES_MAX
        )
        return Identity(
            name="",
            device=_words(f"{device} {sys.platform} {platform.machine()}"),
            software=self._software,
            upload_mbit=0,
            download_mbit=0,
            is_relay=False,
            addresses=tuple(islice(fitting, limits.ENTRY_ADDRESSES_MAX)),
        )

    def _kept(self) -> KeptCheckpoint | None:
        """The newest checkpoint whose seal was at hand when it was seen."""
        path = self._parts.checkpoint()
        if path is None or path == self._kept_at[0]:
            return self._kept_at[1]
        round_index = int(path.name.rpartition("-")[2]) - 1
        seals = (c for c in self._parts.core.chain if c.value.round == round_index)
        seal = next(seals, None)
        if seal is None:
            return self._kept_at[1]
        body = HasCheckpoint(
            shard=seal.value.shard,
            round=round_index,
            seal=seal.value.digest,
            num_bytes=_size(path),
            is_withdrawn=False,
        )
        self._kept_at = path, KeptCheckpoint(root=seal.value.root, body=body)
        return self._kept_at[1]

    def _dial(self, members: tuple[PeerId, ...]) -> None:
        """Tell the search where members are that are not linked: they say it themselves, signed."""
        assert self._links is not None
        if not self._parts.dials:
            return
        linked = frozenset(self._links.linked())
        missing = [peer for peer in members if peer in self.told and peer not in linked]
        self._dialled = {p: self._dialled[p] for p in members if p in self._dialled}
        for peer in missing:
            before = self._dialled.get(peer, frozenset())
            news = [a for a in self.told[peer].addresses if a not in before]
            for address in news[: TOLD_ADDRESSES_MAX - len(before)]:
                self._links.know(PeerAddress(peer, address), is_chosen=False)
                before |= {address}
            self._dialled[peer] = before


def _readings(board: StatusBoard | None) -> tuple[Reading, ...]:
    """How the last round went, by ascending names; nothing before the first."""
    if board is None or not board.rounds:
        return ()
    last = board.rounds[-1]
    readings = {"loss": last.train_loss, "round_s": last.wall_s, "rounds": float(board.num_sealed)}
    return tuple(
        Reading(name=name, value=value)
        for name, value in readings.items()
        if value is not None and math.isfinite(value)
    )


def _words(text: str) -> str:
    """As much as an entry takes; 64 ASCII characters are 64 bytes."""
    return text.strip().encode("ascii", "replace").decode()[:64]


def _size(folder: Path) -> int:
    """Bytes of its files; 0 for one that is gone meanwhile."""
    with suppress(OSError):
        return sum(path.stat().st_size for path in folder.iterdir())
    return 0
