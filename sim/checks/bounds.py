"""I7 in worlds: all that grows in a node has a bound, and what it keeps is still of use.

The bounds follow from the number of seats and from `protocol.limits`. They are far from what is
usual in one place only: strangers, of whom there may be a few at any time.
"""

from collections.abc import Iterator

from node.holdings.journal import ROTATE_BYTES
from node.holdings.shard_store import ROUNDS_KEPT
from protocol import limits
from protocol.core.node_core import CHAIN_KEPT
from protocol.rounds.round_view import RoundView
from sim.world.world import SimNode, World

EVERY = 200
"""One event in so many is looked behind: counting costs as much as the event."""

KINDS = 8
"""Kinds of messages in a round."""

STRANGERS_MAX = 256
ATTEMPTS_SPARE = 3

SEAL_BYTES_EACH = 600
SEAL_BYTES = 2 * limits.KIB
"""A seal with its certificate: a seat and a SEAL of each member, and what stands around them."""

ROUNDS_OF_RESULTS = 48
"""Results stay until checkpoints have them; those are written behind the rounds."""

HEAP_EACH = 4096
"""Events under way for each two nodes: frames, cells, timers."""


class Bounds:
    """I7 over the nodes of a world; looks behind one event in EVERY."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.next_look = EVERY
        """The number of the world's event behind which to look."""

    def look(self, node: SimNode) -> Iterator[str]:
        """What of this node has grown beyond its bound."""
        self.next_look = self._world.events + EVERY
        for what, size, most in self._sizes(node):
            if size > most:
                yield f"{what}: {size}, and {most} are the most"
        for view in node.core.views():
            yield from _stale(view, node.store.lag)

    def _sizes(self, node: SimNode) -> Iterator[tuple[str, int, int]]:
        core, store = node.core, node.store
        views = core.views()
        seats = max(len(view.members) for view in views)
        attempts = sum(_attempts(view) for view in views)
        copies = views[0].copies
        messages = _messages_max(seats, attempts, copies)
        linked = len(core.liveness.linked)
        yield "seals in memory", len(core.chain), CHAIN_KEPT + limits.CHAIN_PAGE_SEALS
        yield "links", linked, len(self._world.nodes)
        yield "rounds of linked peers", len(core.rounds), linked
        yield (
            "peers that are watched",
            len(core.liveness._heard_s),
            (seats + linked + STRANGERS_MAX),
        )
        yield "links of links", len(core._relay._links), linked
        # Nothing is forgotten before a round is final, also of branches that were left (R4).
        standing = core.machine.standing
        left = list(standing.given_up.values())
        messages += sum(_messages_max(seats, _attempts(view), copies) for view in left)
        yield "messages whose coming is noted", len(core._relay._heard_s), messages
        yield "peers that left", len(core.machine._left), seats + STRANGERS_MAX
        for view in views:
            yield (
                "messages of a round",
                len(view.ballots),
                _messages_max(seats, _attempts(view), copies),
            )
            yield "messages of the next round", len(view.early), store.lag * messages
            # What arrives late, of the round before, is filed in this one.
            yield "contributions", len(view.cells.parts), 2 * seats
            yield "results", len(view.cells.results), attempts + 1
            yield (
                "things asked for",
                len(view.cells.requested),
                (4 * (seats + 1) * (seats + _attempts(view)) * max(1, len(view.slices))),
            )
        rounds = ROUNDS_KEPT + 1 + store.lag + len(standing.under_way) + len(left)
        attempts += sum(_attempts(view) for view in left)
        yield "seals of a branch", len(standing.branch), limits.BRANCH_ROUNDS_MAX
        # The next roster may be smaller than the one whose contributions stay for a while.
        most = max(seats, len(self._world.nodes)) + STRANGERS_MAX // 64
        yield "contributions stored", len(store._parts), rounds * most
        yield "results stored", len(store._results), rounds * (attempts + 1)
        yield "states stored", len(store._states), rounds
        yield "next states", len(store._candidates), attempts + 1
        yield "bytes on the disk", node.disk.bytes_used, self._disk_max(node, seats)
        pairs = len(self._world.nodes) ** 2
        yield "events of the world", len(self._world.calendar), HEAP_EACH * max(4, pairs)

    def _disk_max(self, node: SimNode, seats: int) -> int:
        store = node.store
        state = 4 * store.layout.numel
        states = 4 * state * (1 + len(store.slot_names)) + 64 * limits.KIB
        results = ROUNDS_OF_RESULTS * (state + limits.KIB)
        seals = (node.core.machine.standing.head.value.round + 1) * (
            SEAL_BYTES + SEAL_BYTES_EACH * seats
        )
        slots = 4 * ROTATE_BYTES
        return states + results + seals + slots


def _attempts(view: RoundView) -> int:
    """Attempts that may have happened: others may be ahead of this node."""
    heard = max((place[1] for place in view.ballots._slots), default=0)
    return max(view.attempt, heard) + ATTEMPTS_SPARE


def _messages_max(seats: int, attempts: int, copies: int) -> int:
    """A message of each kind per seat and attempt, an AGG per seat and slice, of which two reducers
    make twice as many, and SEATs of newcomers."""
    return min(
        limits.MESSAGES_PER_ROUND_MAX + seats * KINDS,
        KINDS * seats * attempts + copies * seats * seats * attempts + STRANGERS_MAX // 4,
    )


def _stale(view: RoundView, lag: int) -> Iterator[str]:
    """What a round keeps is of this round, and what came early of the next, or of as many as may be
    in flight (R5)."""
    for entry in view.early.values():
        if not view.index < entry.message.slot.round <= view.index + lag:
            yield f"keeps a message of round {entry.message.slot.round} as early in {view.index}"
    for message in view.ballots.messages():
        if message.slot.round != view.index:
            yield f"keeps a message of round {message.slot.round} in round {view.index}"
