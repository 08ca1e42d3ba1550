"""When a node must fill no slot: it slept, or it cannot know what it signed (R3, R12). Pure."""

from collections.abc import Collection

from protocol.identity import PeerId
from protocol.rounds.restart import Restart, own_seal, refill
from protocol.rounds.round_view import RoundView


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
        is_head = restart.chain[-1].value.digest == view.before
        refill(view, restart, now_s=now_s)
        view.own_seal = own_seal(restart, view.named, view.me)
        own = [m.slot for m in restart.messages if m.sender == view.me]
        is_here = any((slot.round, slot.basis) == (view.index, view.basis) for slot in own)
        is_whole = is_here and view.index >= max(slot.round for slot in own) - 1
        is_lock_known = view.lock is None or view.ballots.list_of(view.lock[1]) is not None
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
        lock = view.lock
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
