"""Between the decisions and the bytes: which stored cells a Push names, and whether arrivals fit.

Synchronous and without I/O; `node.daemon.driver` and the simulator's world both use it.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import trio

from node.holdings.shard_store import Item, ShardStore
from node.plane.hooks import NodeHooks
from protocol.core.node_core import NodeCore
from protocol.errors import BarnraiseError, LimitError, ProofError
from protocol.events import CheckSeat, ListEntry, Measure, Push, Reduce, SeatChecked, SeatProven
from protocol.frames import Bulk, BulkHeader
from protocol.identity import PeerId
from protocol.join_puzzle import solve
from protocol.manifest import RunManifest
from protocol.rounds.agreed import ResultPlace, result_place
from protocol.rounds.round_view import RoundView
from protocol.segments import work_cell_sizes

IS_SERVED = frozenset((Bulk.STATE, Bulk.STEP))
"""What joiners ask for; see `node.plane.served`."""


def _views(core: NodeCore, round_index: int) -> Iterator[RoundView]:
    """Those of that round; on branches there may be some."""
    return (view for view in core.views() if view.index == round_index)


def round_of(core: NodeCore, push: Push) -> int | None:
    """The round that a Push is about; None if it is not known here any more."""
    if push.bulk is Bulk.WORK:
        return core.machine.view.index
    if push.bulk in IS_SERVED:
        certificate = core.sealed(push.subject)
        return None if certificate is None else certificate.value.round
    return next((view.index for view in core.views() if view.is_about(push.subject)), None)


def round_to_serve(core: NodeCore, push: Push) -> int:
    """The round by which what is sent is put in order; the one under way if that is not known."""
    about = round_of(core, push)
    return core.machine.view.index if about is None else about


def part_root(core: NodeCore, commit_digest: bytes, round_index: int) -> bytes | None:
    """The root of a contribution to that round, under way or the one before, if its COMMIT is
    known."""
    for view in _views(core, round_index):
        commit = view.ballots.commit_of(commit_digest)
        if commit is not None:
            return commit[1].root
    return None


def _place(core: NodeCore, header: BulkHeader, cell: int) -> ResultPlace | None:
    """Where a result cell of a LIST belongs, once an AGG of its slice is believed."""
    views = _views(core, header.round)
    places = (result_place(view, header.subject, cell) for view in views)
    return next((place for place in places if place is not None), None)


def parts_over(core: NodeCore) -> set[bytes]:
    """Roots of the contributions to the round before, which is final: whoever missed it takes its
    result. In open runs they stay a little, for those who check sums, and where everybody sums.

    To be asked for in the loop, and forgotten at once: the next part may have the same root.
    """
    previous = core.machine.previous
    if previous is None or previous.copies > 1 or previous.config.everybody_sums:
        return set()
    live = {
        commit.root for view in core.machine.standing.under_way for *_, commit in view.commits()
    }
    return {commit.root for *_, commit in previous.commits()} - live


def outgoing(core: NodeCore, store: ShardStore, push: Push) -> list[Item]:
    """The parts or results to send; empty if they are not here (the asker asks elsewhere)."""
    # Each once: a Want of 60 KiB that names one cell over and over would ask for gigabytes.
    cells = tuple(dict.fromkeys(push.cells))
    match push.bulk:
        case Bulk.PART:
            index = round_of(core, push)
            root = None if index is None else part_root(core, push.subject, index)
            return store.parts(root, cells) if root else []
        case Bulk.RESULT:
            return results_of(store, push, result_spans(core, push))
        case _:
            raise AssertionError("states, steps and work are read cell by cell")


def is_of_use(core: NodeCore, push: Push) -> bool:
    """Whether the taker can still need it: not if it said meanwhile that it is past that round."""
    at_round = core.rounds.get(push.to, 0)
    if push.bulk in IS_SERVED or push.bulk is Bulk.WORK or not at_round:
        return True
    return any(view.is_about(push.subject) and at_round <= view.index for view in core.views())


def is_early(core: NodeCore, push: Push) -> bool:
    """Whether these are own parts of a round to which their taker has said that it has not come.
    Those of others are only sent to who asks, and may ask again."""
    at_round = core.rounds.get(push.to)
    return (at_round is not None and push.bulk is Bulk.PART) and any(
        view.own.commit == push.subject and at_round < view.index for view in core.views()
    )


def result_spans(core: NodeCore, push: Push) -> list[list[tuple[int, int]]]:
    """The slices that a Push of results wants cells of, for each round that it may be about."""
    wanted, spans = set(push.cells), []
    for view in core.views():
        # The slices of another round cut the cells otherwise, and other proofs come out.
        here = (piece for piece in view.slices if view.agg_of(push.subject, piece))
        cuts = [(piece.first, piece.stop) for piece in here]
        spans.append([cut for cut in cuts if wanted.intersection(range(*cut))])
    return spans


def results_of(
    store: ShardStore, push: Push, spans: Sequence[Sequence[tuple[int, int]]]
) -> list[Item]:
    """The cells that it wants and that are here; of a final round the disk may be asked."""
    wanted = set(push.cells)
    for cuts in spans:
        items = [
            item
            for first, stop in cuts
            for item in store.results(push.subject, first=first, stop=stop)
            if item.index in wanted
        ]
        if items:
            return items
    return []


class StoredResults:
    """Source: the wanted cells of a result that lies on the disk, each read when it is sent.

    All at once they would be as large as the model, for each of those who are a round behind.
    """

    def __init__(
        self, store: ShardStore, push: Push, spans: Sequence[Sequence[tuple[int, int]]]
    ) -> None:
        self._store, self._digest = store, push.subject
        cuts = next((cuts for cuts in spans if cuts), ())
        # Each once: a Want that names one cell over and over would have it read as often.
        wanted = sorted(set(push.cells))
        self._slices = {cell: cut for cell in wanted for cut in cuts if cut[0] <= cell < cut[1]}
        self.cells = tuple(self._slices)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.cells)

    def item(self, index: int) -> Item:
        """One of `cells`. Raises StateError if the disk has other bytes by now."""
        first, stop = self._slices[index]
        return self._store.result(self._digest, index, first=first, stop=stop)


def check_size(store: ShardStore, header: BulkHeader, index: int, num_bytes: int) -> None:
    """Raise ProofError for a cell of a size that it cannot have, before a byte of it is read, and
    LimitError where there is no such cell."""
    if header.bulk is Bulk.WORK:
        _check_work_size(store, index, num_bytes)
        return
    expected = expected_bytes(store, header, index)
    if num_bytes == expected:
        return
    fragment = store.layout.fragment_of(header.round)
    is_part = header.bulk is Bulk.PART
    if not (is_part and store.admits_part(num_bytes, index, fragment=fragment)):
        raise ProofError(f"cell {index} has {num_bytes} bytes instead of {expected}")


def _check_work_size(store: ShardStore, index: int, num_bytes: int) -> None:
    """Of whose work it is the store of work knows, which looks again."""
    try:
        sizes = work_cell_sizes(store.layout, index)
    except ValueError as error:
        raise LimitError(str(error)) from error
    if num_bytes not in sizes:
        told = " or ".join(map(str, sorted(sizes)))
        raise ProofError(f"cell {index} has {num_bytes} bytes instead of {told}")


def expected_bytes(store: ShardStore, header: BulkHeader, index: int) -> int:
    """The size of a cell that is about to arrive; of a part the most, where the codec may send
    less. Not of work. Raises LimitError for no such cell."""
    is_state, fragment = header.bulk is Bulk.STATE, store.layout.fragment_of(header.round)
    count = store.num_state_cells if is_state else store.layout.num_cells(fragment)
    if index >= count:
        raise LimitError(f"cell {index} of {count}")
    if is_state:
        return store.state_bytes(index)
    find = store.part_bytes if header.bulk is Bulk.PART else store.result_bytes
    return find(index, fragment=fragment)


def admission(
    core: NodeCore, store: ShardStore, header: BulkHeader, items: Sequence[Item]
) -> Callable[[], None] | None:
    """The check of parts or results, to be run anywhere; it keeps the cells. None while a message
    that commits to one of them is not here: the COMMIT or an AGG.

    Running it raises ProofError or DecodeError, which is the sender's fault.
    """
    fragment = store.layout.fragment_of(header.round)
    if header.bulk is Bulk.PART:
        root = part_root(core, header.subject, header.round)
        return None if root is None else partial(_put_parts, store, root, items, fragment)
    places = []
    for item in items:
        if (place := _place(core, header, item.index)) is None:
            return None
        places.append(place)
    ahead = stepping_ahead(core, store, header.subject, [item.index for item in items])

    def put_and_step() -> None:
        for item, place in zip(items, places, strict=True):
            span = {"first": place.first, "stop": place.stop, "fragment": fragment}
            store.put_result(header.subject, place.root, item, **span)
        ahead()

    return put_and_step


def _put_parts(store: ShardStore, root: bytes, items: Iterable[Item], fragment: int) -> None:
    for item in items:
        store.put_part(root, item, fragment=fragment)


def stepping_ahead(
    core: NodeCore, store: ShardStore, digest: bytes, cells: Iterable[int]
) -> Callable[[], None]:
    """The outer step on result cells that are here while others are on their way, to be run
    anywhere."""
    view = core.machine.standing.about(digest)
    if view is None or view.seals.is_beside:
        return lambda: None  # That round is over, or the state that it steps on is not there (R5).
    return partial(
        store.step_ahead, digest, cells, round_index=view.index, base=view.seals.head.root
    )


@dataclass(frozen=True, slots=True)
class Rows:
    """What a slice is summed of: contributions to one fragment, each with its root."""

    entries: tuple[tuple[ListEntry, bytes], ...]
    fragment: int


def rows_of(core: NodeCore, store: ShardStore, action: Reduce | Measure) -> Rows:
    """The entries of a Reduce or Measure, which may be of the round before by now."""
    views = (view for view in core.views() if view.is_about(action.list_digest))
    view = next(views, None)
    assert view is not None, "a certified LIST of no round that is known"
    found = []
    for entry in action.entries:
        commit = view.ballots.commit_of(entry.commit_digest)
        assert commit is not None, "a certified LIST names a COMMIT that is not here"
        found.append((entry, commit[1].root))
    return Rows(tuple(found), store.layout.fragment_of(view.index))


def summing(
    core: NodeCore, store: ShardStore, hooks: NodeHooks, action: Reduce | Measure
) -> Callable[[], bytes]:
    """The work of a Reduce or Measure, for a thread."""
    rows = rows_of(core, store, action)
    span = {"first": action.first, "stop": action.stop, "fragment": rows.fragment}
    if isinstance(action, Measure):
        return partial(hooks.measuring(store), rows.entries, **span)
    reducing = hooks.reducing(store)
    return partial(reducing, action.list_digest, rows.entries, **span, grams=action.grams)


# Bulk checks --------------------------------------------------------------------------------------
#
# Checks of cells, several in one trip to a worker thread.
#
# A trip costs the loop three steps, two wake-ups and the interpreter's lock twice, about as much as
# it takes to hash a cell. While one is under way cells of other streams come, and go together next.

TOGETHER_MAX = 8
"""In one trip, each of a cell or of some that came together. Sums and steps wait that long for the
worker: some milliseconds."""


# Seat checks --------------------------------------------------------------------------------------
#
# Whether joiners have the state that they say they have.


class Compute(Protocol):
    """Runs work in a worker thread; not to be left before it is through once it began."""

    def __call__(self, work: Callable[[], None], /) -> Awaitable[None]:
        """Until it is through."""
        ...


@dataclass(slots=True, eq=False)
class _Due:
    work: Callable[[], None]
    is_done: bool = False
    error: BarnraiseError | None = None


class Checks:
    """Those of one node, first come, first served."""

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._due: deque[_Due] = deque()
        self._turn = trio.Lock()

    async def run(self, check: Callable[[], None]) -> None:
        """Until this check is done; raises its BarnraiseError. Cancelled before, it is not done.

        Any other error is a bug, and comes out of whichever of the checks took it along.
        """
        due = _Due(check)
        self._due.append(due)
        try:
            # Whoever has the turn goes for all that are due by the time when the worker is free.
            await self._take_turn()
            try:
                if not due.is_done:
                    await self._compute(self._work_off)
            finally:
                self._turn.release()
        finally:
            if not due.is_done:
                with suppress(ValueError):  # It is being done.
                    self._due.remove(due)
        if due.error is not None:
            raise due.error

    async def _take_turn(self) -> None:
        """As a rule it is nobody's, and then it takes no step of the loop."""
        try:
            self._turn.acquire_nowait()
        except trio.WouldBlock:
            await self._turn.acquire()

    def _work_off(self) -> None:
        for _ in range(TOGETHER_MAX):
            try:
                due = self._due.popleft()
            except IndexError:  # Cancelled meanwhile, in the loop.
                return
            try:
                due.work()
            except BarnraiseError as error:
                due.error = error  # Whoever waits for it raises it.
            due.is_done = True


SeatCompute = Callable[[Callable[[], bytes]], Awaitable[bytes]]


async def check_seat(
    core: NodeCore, store: ShardStore, compute: SeatCompute, action: CheckSeat
) -> SeatChecked:
    """What came of a proof; the core asks for one after the other."""
    peer, basis, expected = action.peer, action.basis, b""
    on = core.machine.standing.on(basis)
    if on is not None:
        root = on.seals.head.root
        expected = await compute(lambda: store.seat_proof(peer, basis, root))
    return SeatChecked(peer, basis, expected == action.proof if expected else None)


# Seat proof ---------------------------------------------------------------------------------------
#
# What a joiner shows for its seat: the state of the newest seal, and the run's join puzzle.


def seat_proven(manifest: RunManifest, store: ShardStore, me: PeerId, basis: bytes) -> SeatProven:
    """The proof of the state of `basis`; the first time the puzzle takes its seconds of one core.

    Called in a worker thread.
    """
    work = solve(manifest.digest, me, manifest.admission.puzzle_bits)
    return SeatProven(basis, store.seat_proof(me, basis), work)
