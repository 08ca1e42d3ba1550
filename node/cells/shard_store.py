"""The state of one shard from round to round, final and provisional; bytes are in `cell_store`."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from node.cells.cell_store import ROUNDS_KEPT as ROUNDS_KEPT
from node.cells.cell_store import CellStore as CellStore
from node.cells.cell_store import Step as Step
from node.cells.outer_step import OuterStepping, step_over
from node.cells.result_cells import ResultCells
from node.cells.states import NO_STATE, finished, foreseen
from node.cells.states import CellSizes as CellSizes
from node.cells.states import Item as Item
from node.cells.states import State as State
from node.cells.states import StateRoots as StateRoots
from node.cells.states import Vector as Vector
from training.compression import admits

STEP_OVER_BYTES_MIN = 32 << 20
"""A state from this size on is stepped twice and held once; a smaller one the other way round."""


class ShardStore(CellStore):
    """See CellStore; this takes the outer steps."""

    step_over_bytes_min = STEP_OVER_BYTES_MIN

    def admits_part(self, num_bytes: int, cell: int, *, fragment: int = 0) -> bool:
        """Whether a part of `cell` may have so many bytes: some codecs send less than the most."""
        return admits(self._codec, num_bytes, self.layout.cell_numel(fragment, cell))

    def _is_stepped_over(self, step: Step) -> bool:
        """Whether of the next state only the roots are made before it is sealed."""
        with self._whole:
            is_alone = self.lag == 1 and self._final is self._state
            is_on_it = is_alone and step.base == self._state.root and not step.is_empty
        num_vectors = 1 + len(self.slot_names)
        return is_on_it and 4 * num_vectors * self.layout.numel >= self.step_over_bytes_min

    def apply(self, digest: bytes, *, is_empty: bool, round_index: int, base: bytes = b"") -> bytes:
        """The outer step on the results of a LIST, as a candidate; the root of its state.

        It is taken on the state of root `base`: the anchor, or on a branch the last final state.
        """
        step = Step(base or self.state.root, round_index, is_empty)
        self._stepped[digest] = step
        candidate: State | StateRoots
        candidate = self._foreseen(digest, step) or self._take(digest, step)
        self._candidates[digest] = candidate
        return candidate.root

    def step_ahead(
        self, digest: bytes, cells: Iterable[int], *, round_index: int, base: bytes
    ) -> None:
        """Take the outer step on cells of a result as they come; `apply` goes on from there.

        At most one step is under way: that of the LIST which was asked for last.
        """
        step = Step(base or self.state.root, round_index, is_empty=False)
        before, held = self._states.get(step.base), self._results.get(digest)
        if held is None or before is None or digest in self._stepped:
            return
        ahead = self._ahead
        if ahead is None or ahead[:2] != (digest, step):
            self._make_room()
            keeps = not self._is_stepped_over(step)
            if not keeps:
                for source in self._step_rules.sources():
                    source.trim()  # That of a state before a fetched one, for instance.
            index = step.round
            stepping = self.stepping(before, round_index=index, keeps=keeps, is_checked=True)
            ahead = self._ahead = digest, step, stepping
        for cell in cells:
            if (payload := held.get(cell)) is not None:
                ahead[2].take(cell, payload)

    def _make_room(self) -> None:
        """The step makes a state: of the round before, whose memory it takes, it is let go of here
        and not when this round is sealed. Who asks for that one now has it from a checkpoint."""
        if self.lag == 1 and self.final is self.state:
            self._states = {self.state.root: self.state}

    def result_of(self, digest: bytes) -> ResultCells | None:
        """The result of a LIST as far as it is here; None of one that nothing is known of."""
        return self._results.get(digest)

    def is_on_disk(self, digest: bytes) -> bool:
        """Whether the result of a LIST is read from a file when it is asked for."""
        held = self._results.get(digest)
        return held is not None and held.is_on_disk

    def results_to_keep(
        self, digest: bytes, cells: Iterable[int], *, round_index: int
    ) -> list[tuple[int, bytes]]:
        """Those of the cells of a round's result that are here, each with where it begins in the
        whole."""
        held = self._results.get(digest)
        if held is None:
            return []
        # All cells but the last have as many elements.
        each = self.result_bytes(0, fragment=self.layout.fragment_of(round_index))
        found = ((cell * each, held.get(cell)) for cell in cells)
        return [(start, payload) for start, payload in found if payload is not None]

    def _take(self, digest: bytes, step: Step) -> State:
        # Whose state is not the sealed one gets another root than the others, and sees that.
        before = self._states.get(step.base, self.final)
        if step.is_empty:
            return before
        cells = self.result_cells(digest)
        ahead = self._taken_ahead(digest, step)
        if ahead is not None and ahead.keeps:
            return finished(ahead, before, cells)
        return self.stepped(before, cells, round_index=step.round)

    def _taken_ahead(self, digest: bytes, step: Step) -> OuterStepping | None:
        ahead, self._ahead = self._ahead, None
        return ahead[2] if ahead is not None and ahead[:2] == (digest, step) else None

    def _foreseen(self, digest: bytes, step: Step) -> StateRoots | None:
        """The roots of what the step gives; None where its vectors are made at once."""
        if not self._is_stepped_over(step):
            return None
        before = self.state
        stepping = self._taken_ahead(digest, step)
        if stepping is None or stepping.keeps:
            index = step.round
            stepping = self.stepping(before, round_index=index, keeps=False, is_checked=True)
        return foreseen(stepping, before, self.result_cells(digest))

    def _candidate(self, digest: bytes) -> State:
        """What the step on a LIST gives; taken once more where the round was left meanwhile."""
        candidate = self._candidates.pop(digest, None)
        if isinstance(candidate, State):
            return candidate
        return self._take(digest, self._stepped[digest])

    def adopt(self, digest: bytes) -> None:
        """The candidate of the sealed LIST replaces the anchor; what is older than needed goes."""
        previous, candidate = self.final.root, self._candidates.get(digest)
        if isinstance(candidate, StateRoots) and self._is_stepped_over(self._stepped[digest]):
            self._step_over(digest, candidate)
        else:
            self.state = self._candidate(digest)
            self.final = self.state
        self._candidates.clear()
        self._ahead = None
        self._states[self.state.root] = self.state
        unsealed = {listed for listed in self._results if listed not in self._stepped}
        if self.lag > 1:
            unsealed, self._early = unsealed & self._early, unsealed
        self._forget(digest, previous, unsealed)
        self._pinned.clear()
        self._age_parts()
        self._leave_to_disk(digest)

    def _step_over(self, digest: bytes, roots: StateRoots) -> None:
        """Make the state of these roots of the one that there is, which is gone then, unless
        somebody holds it."""
        cells, step = self.result_cells(digest), self._stepped[digest]
        self._ahead = None
        with self._whole:
            names, vectors = self.slot_names, self._let_go()
            vectors = step_over(self._step_rules, vectors, cells, step.round)
            slots = dict(zip(names, vectors[1:], strict=True))
            self.state = self.final = State(vectors[0], slots, roots.cell_roots, roots.root)

    def _let_go(self) -> list[Vector]:
        """The vectors of the state, of which there is no other name in here any more."""
        state, self._state = self._state, NO_STATE
        self._final = NO_STATE
        self._states.clear()
        return [state.anchor_N, *(state.slots[name] for name in self.slot_names)]

    def _leave_to_disk(self, digest: bytes) -> None:
        """A final result is asked for by those alone who are a round behind."""
        step, held = self._stepped[digest], self._results.get(digest)
        read = self.find_file(step.round, digest)
        if held is None or read is None or step.is_empty:
            return
        sizes = self.result_sizes(self.layout.fragment_of(step.round))
        if len(held) == len(sizes):
            held.leave_to_disk(read, sizes)

    def advance(self, digest: bytes, kept: AbstractSet[bytes] = frozenset()) -> None:
        """R4: the anchor goes on by a LIST that is sealed provisionally; what is final stays.

        So do the contributions of these roots, whenever they come.
        """
        left, self.state = self.state, self._candidate(digest)
        self._candidates.clear()
        self._pinned |= kept
        self._age_parts()
        if left is not self.final:
            self._states.pop(left.root, None)
        self._states[self.final.root] = self.final
        self._states[self.state.root] = self.state

    def confirm(self, digest: bytes) -> bytes:
        """R4: what was sealed provisionally by this LIST is final; the root of the final state."""
        step = self._stepped[digest]
        previous = self.final
        self.final = self._take(digest, Step(previous.root, step.round, step.is_empty))
        if self.final.root == self.state.root:
            self.final = self.state
        self._states[self.final.root] = self.final
        self._forget(digest, previous.root, set())
        for kept in self._kept_parts[-1:]:
            kept |= self._pinned
        self._pinned.clear()
        return self.final.root

    def fall_back(self) -> None:
        """R4: the branch is given up: the last final state is the anchor again."""
        if self.state.root != self.final.root:
            self._states.pop(self.state.root, None)
        self.state = self.final
        self._candidates.clear()

    def _forget(self, digest: bytes, previous: bytes, unsealed: set[bytes]) -> None:
        """A LIST is final: what is older than needed goes. Results of later rounds stay (R4)."""
        sealed, stepped = self._stepped[digest].round, self._stepped
        over = {listed for listed, step in stepped.items() if step.round <= sealed}
        self._stepped = {
            d: step for d, step in stepped.items() if step.round >= sealed - ROUNDS_KEPT
        }
        self._kept.append((over | unsealed, {previous}))
        if len(self._kept) > ROUNDS_KEPT:
            results, states = self._kept.pop(0)
            for listed in results:
                self._results.pop(listed, None)
            for root in states - {self.state.root, self.final.root}:
                self._states.pop(root, None)

    def _age_parts(self) -> None:
        """Contributions to rounds that are over stay a little, for those who are a round behind."""
        self._kept_parts.append(set(self._parts) - self._pinned)
        if len(self._kept_parts) > ROUNDS_KEPT + self.lag - 1:
            for root in self._kept_parts.pop(0) - self._pinned:
                self._parts.pop(root, None)
