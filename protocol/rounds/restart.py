"""What a restarted node brings along (R12), and how it is filed in the views of its rounds. Pure.

`node.holdings.recovery` makes a Restart from the disk.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from protocol.identity import PeerId
from protocol.messages import Kind, Seal, SealCertificate, SealValue, SignedMessage, decode_body
from protocol.rounds.ballots import BallotEntry
from protocol.rounds.round_view import RoundView

_PROVISIONAL = (Kind.PVOTE, Kind.PSEAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Where a node goes on. Nothing of it stands for a node that never ran.

    `chain` begins with genesis; the state of its last seal is in the store, and that of the last
    one of `branch`, the provisional seals behind it (R4). `messages` are of the rounds before and
    behind the last final seal; `results` names the LISTs whose results are in the store.
    In no round up to `silent_through` may this node sign, because it cannot know what it signed
    there. `is_lost` says that signatures are missing: others must be asked. `begun` is the
    digest of a seal whose state was being fetched, and how many bytes of it are on the disk.
    """

    chain: tuple[SealCertificate, ...]
    branch: tuple[SealCertificate, ...] = ()
    messages: tuple[SignedMessage, ...] = ()
    results: frozenset[bytes] = field(default_factory=frozenset)
    silent_through: int = 0
    is_lost: bool = False
    begun: tuple[bytes, int] = (b"", 0)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing of what this node signed, or of the seals before it."""
        return not self.is_lost and not self.silent_through

    @property
    def has_run(self) -> bool:
        """Whether this node did anything before."""
        return self.is_lost or bool(self.messages or self.branch) or len(self.chain) > 1


def refill(view: RoundView, restart: Restart, *, now_s: float) -> None:
    """File in a round's view what this node said and heard of it before it went down.

    Of its results only those are here still which `resume` names.
    """
    for message in restart.messages:
        slot = message.slot
        if (slot.round, slot.basis) != (view.index, view.basis):
            continue
        is_own = message.sender == view.me
        view.ballots.add(BallotEntry(message, decode_body(message)), is_own=is_own)
        if not is_own:
            continue
        if slot.kind is Kind.COMMIT:
            view.own.commit = message.digest
        # It begins as an ordinary round: what it said provisionally is of an attempt before (R4).
        attempt = slot.attempt + (slot.kind in _PROVISIONAL)
        if attempt > view.attempt:
            view.attempt, view.times.entered_s, view.times.opened_s = attempt, now_s, now_s
    _relock(view)


def recall_results(view: RoundView, results: frozenset[bytes]) -> None:
    """Note which results are in the store, by LIST."""
    for digest in results:
        if view.ballots.list_of(digest) is not None:
            view.cells.results[digest] = set(range(view.cells.num_cells))


def _relock(view: RoundView) -> None:
    """R12: the lock is the latest own SEAL of the round."""
    for attempt in view.ballots.attempts(Kind.SEAL):
        entry = view.ballots.of(Kind.SEAL, attempt, view.seals.before).get(view.me)
        if entry is not None:
            assert isinstance(entry.body, Seal)
            view.own.lock = (attempt, entry.body.list_digest)
            return


def own_seal(restart: Restart, head: SealValue, me: PeerId) -> bytes:
    """The own SEAL or PSEAL of a head, of whatever attempt: the next COMMIT carries it (R1)."""
    for message in restart.messages:
        if message.sender == me and message.slot.kind in (Kind.SEAL, Kind.PSEAL):
            body = decode_body(message)
            if isinstance(body, Seal) and body.value == head.digest:
                return message.encoded
    return b""


def was_listed(restart: Restart, me: PeerId) -> bool:
    """Whether the own contribution is in the head's seal (R6)."""
    commits = (*restart.chain, *restart.branch)[-1].value.commits
    return any(
        message.sender == me and message.slot.kind is Kind.COMMIT and message.digest in commits
        for message in restart.messages
    )


# Silence ------------------------------------------------------------------------------------------
#
# When a node must fill no slot: it slept, or it cannot know what it signed (R3, R12).


class Silence:
    """What a node waits for before it signs again; one per RoundMachine."""

    def __init__(self) -> None:
        self._heard: set[PeerId] | None = None
        self._has_forgotten = False
        self._through = 0
        self._told: dict[PeerId, int] = {}
        """By peer the last round that may be open, as it said."""
        self._claimed = 0
        """The last of them that counts."""
        self._restart: Restart | None = None
        self._recalled = b""
        """The seal that opened a round of which all that this node signed is filed again."""

    @property
    def is_asking(self) -> bool:
        """Whether the STATUS of others is waited for."""
        return self._heard is not None

    @property
    def has_forgotten(self) -> bool:
        """Whether signatures are lost and nobody has said yet how far they went."""
        return self._has_forgotten

    def is_on(self, view: RoundView) -> bool:
        """Whether no slot of this round may be filled now."""
        return self.is_asking or self.has_lost(view)

    def has_lost(self, view: RoundView) -> bool:
        """Whether this node may have signed in this round what it does not remember."""
        through = max(self._through, self._claimed)
        return view.index <= through and view.basis != self._recalled

    def recall(self, view: RoundView, *, now_s: float) -> None:
        """R12: what this node signed in a round before it went down is filed there again.

        A node whose state is lost, but not its signatures, comes to that round by a state of
        others. The log has the last two rounds: of an older one it cannot know all.
        """
        restart, self._recalled = self._restart, b""
        if restart is None:
            return
        is_head = restart.chain[-1].value.digest == view.seals.before
        refill(view, restart, now_s=now_s)
        view.own.seal = own_seal(restart, view.seals.named, view.me)
        own = [m.slot for m in restart.messages if m.sender == view.me]
        is_here = any((slot.round, slot.basis) == (view.index, view.basis) for slot in own)
        is_whole = is_here and view.index >= max(slot.round for slot in own) - 1
        is_lock_known = view.own.lock is None or view.ballots.list_of(view.own.lock[1]) is not None
        if is_whole and is_lock_known and not (is_head or restart.is_lost):
            self._recalled = view.basis

    def woke(self) -> None:
        """R3: the others may have gone on without us."""
        self._heard = set()

    def restarted(self, restart: Restart, view: RoundView, *, now_s: float) -> None:
        """R12: the same after a restart; and what is lost for good keeps its rounds silent."""
        self._restart = restart
        self.recall(view, now_s=now_s)
        self._heard, self._has_forgotten = set(), restart.is_lost
        self._through = max(self._through, restart.silent_through)
        lock = view.own.lock
        if lock is not None and view.ballots.list_of(lock[1]) is None:
            self._through = max(self._through, view.index)

    def rolled_back(self, round_index: int) -> None:
        """A signature of ours came back from others, and it is not in our journal (R12)."""
        self._through, self._recalled = max(self._through, round_index), b""

    def status(self, peer: PeerId, round_index: int) -> None:
        """A peer told which round it works on."""
        if self._heard is not None:
            self._heard.add(peer)
            if self._has_forgotten:
                self._told[peer] = round_index

    def settle(self, view: RoundView, base: RoundView, doubted: Collection[PeerId] = ()) -> None:
        """Stop asking once enough is known; called after every event.

        `view` is of the round under way, `base` of the one that is final next. A quorum's STATUS,
        oneself included, is enough to go on with what one remembers; in a provisional round that
        of all whom it needs (R4). Without memory it takes so many others that no quorum is without
        one of them: whoever was a quorum alone hears of its own signatures from nobody, and says
        nothing for good.
        """
        if self._heard is None:
            return
        if self._has_forgotten:
            # Of the round that they know open: the voters of an older one may all lag behind. Who
            # has not shown the seals of later rounds that it says it has may have none of them.
            claims = (
                min(said, base.index) if peer in doubted else said
                for peer, said in self._told.items()
            )
            self._claimed = max(claims, default=0)
            is_there = base.index >= max(self._claimed, self._through)
            is_enough = is_there and len(self._heard & base.other_voters) >= base.num_to_ask
        else:
            is_enough = view.has_quorum(self._heard | {view.me})
        if is_enough:
            self._through = max(self._through, self._claimed)
            self._heard, self._has_forgotten, self._claimed = None, False, 0
            self._told.clear()
