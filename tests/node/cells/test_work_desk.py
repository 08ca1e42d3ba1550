"""Work over bulk streams: who may see it, how much of it, and what is made of garbage (R10)."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from node.holdings.shard_store import Item
from node.plane.bulk_streams import BULK_PROTOCOL, BulkStreams
from node.plane.hooks import NodeHooks
from node.plane.work_desk import EARLY_S, ERA_ROUNDS, WAITING_MAX, WorkDesk, WorkQuota
from protocol import events as ev
from protocol import limits
from protocol.errors import PeerError
from protocol.frames import Bulk, BulkHeader, BulkItem, BulkItems
from protocol.grid import EMPTY_ROOT, cell_root, merkle_proof
from protocol.identity import Ed25519Signer, PeerId
from protocol.manifest import AuditSpec
from protocol.messages import Commit, Work, decode_body
from protocol.segments import (
    MOMENTS,
    STATE,
    SegmentPlace,
    SegmentState,
    WorkKind,
    cells_of,
    num_state_cells,
    root_of,
)
from tests.memory_transport import MemoryNetwork
from tests.node.cells.test_bulk_streams import frame, received
from tests.node.edge import FOUNDER_SEED, Desk, toy_manifest
from tests.protocol.entry_vectors import WORK
from training.audits.traces import TraceFolder

THIRD = PeerId(bytes([3]) * 32)
AUDITOR_SEED = b"t" * 32
AUDITOR = Ed25519Signer(AUDITOR_SEED).peer_id
OWNER = Ed25519Signer(FOUNDER_SEED).peer_id
_TOY = toy_manifest()
MANIFEST = replace(
    _TOY,
    trust="open",
    survive="quorum",
    inner=replace(_TOY.inner, inner_steps=2),
    audits=AuditSpec(rate=0.5, segments=2),
)
LAYOUT = MANIFEST.layout(0)
COUNT = num_state_cells(LAYOUT)
OF_FRAGMENT = WorkKind("residual")


def state(seed: int) -> SegmentState:
    luck = np.random.default_rng(seed)
    vectors = luck.normal(size=(1 + MOMENTS, LAYOUT.numel)).astype(np.float32)
    return SegmentState(vectors[0], (vectors[1], vectors[2]), seed)


STATES = [state(seed) for seed in range(3)]
ROOTS = [root_of(one.cells(LAYOUT)) for one in STATES]
ROOT = ROOTS[1]


@dataclass
class Told:
    """Stands for the machine that knows what is audited."""

    opened: set[tuple[PeerId, bytes]] = field(default_factory=set)
    needed: dict[bytes, WorkKind] = field(default_factory=dict)
    made_up: dict[bytes, WorkKind] = field(default_factory=dict)
    """Of somebody who gives another's root as its own."""
    shunned: frozenset[PeerId] = frozenset()
    shown_segments: dict[int, frozenset[int]] = field(default_factory=dict)

    def may_open(self, peer: PeerId, subject: bytes) -> bool:
        return (peer, subject) in self.opened

    def kinds(self, subject: bytes) -> frozenset[WorkKind]:
        told = (self.needed, self.made_up)
        return frozenset(needed[subject] for needed in told if subject in needed)

    @property
    def subjects(self) -> frozenset[bytes]:
        return frozenset(self.needed)

    def cells_came(self, subject: bytes, cells: tuple[int, ...]) -> tuple[()]:
        return ()


class End:
    """One node's desk and streams."""

    def __init__(self, seed: bytes, folder: Path, hooks: NodeHooks | None = None) -> None:
        self.desk, self.hooks = Desk(seed, MANIFEST), hooks or NodeHooks()
        self.audits = Told()
        core: Any = self.desk.core
        core.audits = self.audits
        traces = TraceFolder(folder, MANIFEST)
        if seed == FOUNDER_SEED:
            place = SegmentPlace(round=1, step=0, segment=0, lease=((0, 1),))
            writer = traces.writer(place, STATES[0].weights_N)
            for one in STATES:
                writer.add(one)
            writer.close(STATES[0].weights_N)
        self.work = WorkDesk(self.desk.core, LAYOUT, traces, folder / "audits", self.hooks)
        self.desk.state_parts = replace(self.desk.state_parts, work=self.work)

    def streams(self, transport) -> BulkStreams:
        return self.desk.streams(transport, self.hooks)

    def arrived(self) -> list[int]:
        events = [e for e in self.desk.told if isinstance(e, ev.CellsArrived)]
        assert all(e.bulk is Bulk.WORK for e in events)
        return sorted(cell for e in events for cell in e.cells)


class Pair:
    """An owner of work, and somebody who may have been drawn for it."""

    def __init__(self, folder: Path, hooks: NodeHooks | None = None) -> None:
        self.owner = End(FOUNDER_SEED, folder / "owner", hooks)
        self.auditor = End(AUDITOR_SEED, folder / "auditor")
        self.owner.audits.opened.add((AUDITOR, ROOT))
        self.auditor.audits.needed[ROOT] = STATE

    async def ask(self, *wants: tuple[bytes, tuple[int, ...]], meanwhile=None) -> None:
        network = MemoryNetwork()
        async with (
            network.open(signer_seed=FOUNDER_SEED) as near,
            network.open(signer_seed=AUDITOR_SEED) as far,
        ):
            far.serve(BULK_PROTOCOL, self.auditor.streams(far).accept)
            await near.connect(far.peer_id, far.addresses())
            streams = self.owner.streams(near)
            async with trio.open_nursery() as nursery:
                for subject, cells in wants:
                    push = ev.Push(AUDITOR, Bulk.WORK, subject, cells)
                    nursery.start_soon(streams.push, push)
                if meanwhile is not None:
                    await wait_all_tasks_blocked()
                    await meanwhile()
            await wait_all_tasks_blocked()


async def test_who_is_drawn_is_shown_the_state_and_the_trainer_gets_it_whole(tmp_path):
    pair = Pair(tmp_path)
    await pair.ask((ROOT, tuple(range(COUNT))))
    assert pair.auditor.arrived() == list(range(COUNT))
    assert pair.auditor.desk.faults() == []
    task = rerun_of(segment=1)
    path = pair.auditor.work.write(task, 7)
    assert path is not None
    assert path.read_bytes() == b"".join(STATES[1].cells(LAYOUT))
    # What no segment begins with any more is forgotten.
    pair.auditor.audits.needed.clear()
    pair.auditor.work.forget()
    assert pair.auditor.work.write(task, 8) is None


def rerun_of(segment: int) -> ev.Rerun:
    example = decode_body(WORK)
    assert isinstance(example, Commit)
    work = Work(
        onion=bytes(32), device="cpu", trace=tuple(ROOTS), before=EMPTY_ROOT, after=EMPTY_ROOT
    )
    commit = replace(example, work=(work,), residual_before=EMPTY_ROOT)
    return ev.Rerun(
        commit_digest=bytes(32), sender=OWNER, commit=commit, round=1, segment=segment, lease=()
    )


def test_own_work_and_its_residual_need_nobody(tmp_path):
    owner = End(FOUNDER_SEED, tmp_path)
    task = rerun_of(segment=2)
    residual = b"".join(STATES[0].cells(LAYOUT)[: LAYOUT.num_cells(0)])
    root = root_of(STATES[0].cells(LAYOUT)[: LAYOUT.num_cells(0)])
    task = replace(task, commit=replace(task.commit, residual_before=root))
    path = owner.work.write(task, 1)
    assert path is not None
    weights = b"".join(STATES[2].cells(LAYOUT)[: LAYOUT.num_cells(0)])
    assert path.read_bytes() == weights + residual


async def test_owner_of_a_residual_is_not_to_blame_for_who_says_it_were_its_own_state(tmp_path):
    pair = Pair(tmp_path)
    own = STATES[0].cells(LAYOUT)[: LAYOUT.num_cells(0)]
    residual, cells = root_of(own), tuple(range(len(own)))
    pair.owner.audits.opened.add((AUDITOR, residual))
    pair.auditor.audits.needed[residual] = OF_FRAGMENT
    pair.auditor.audits.made_up[residual] = STATE
    await pair.ask((residual, cells))
    assert pair.auditor.desk.faults() == []
    assert pair.auditor.arrived() == list(cells)


async def test_whom_nothing_drew_is_shown_nothing(tmp_path, autojump_clock):
    pair = Pair(tmp_path)
    pair.auditor.audits.needed[ROOTS[2]] = STATE
    await pair.ask((ROOTS[2], (0, 1)))
    assert pair.auditor.arrived() == []
    pair.owner.audits.opened = {(THIRD, ROOT)}
    await pair.ask((ROOT, (0, 1)))
    assert pair.auditor.arrived() == []


async def test_question_that_came_before_the_seal_is_answered_behind_it(tmp_path):
    pair = Pair(tmp_path)
    pair.owner.audits.opened.clear()

    async def seal() -> None:
        assert pair.auditor.arrived() == []
        pair.owner.audits.opened.add((AUDITOR, ROOT))
        await pair.owner.desk.tell(ev.Tick())

    await pair.ask((ROOT, (0,)), meanwhile=seal)
    assert pair.auditor.arrived() == [0]


async def test_questions_wait_for_a_while_and_not_many_of_one_peer(tmp_path, autojump_clock):
    pair = Pair(tmp_path)
    pair.owner.audits.opened.clear()
    began_s, over = trio.current_time(), []

    async def ask() -> None:
        push = ev.Push(AUDITOR, Bulk.WORK, ROOT, (0,))
        assert not await pair.owner.work.may_open(push, pair.owner.desk.changed)
        over.append(trio.current_time() - began_s)

    async with trio.open_nursery() as nursery:
        for _ in range(WAITING_MAX + 3):
            nursery.start_soon(ask)
    assert [at_s for at_s in over if at_s < EARLY_S] == [0.0] * 3
    assert len(over) == WAITING_MAX + 3


def test_quota_is_of_each_peer_and_of_an_era():
    quota = WorkQuota(10)
    assert quota.take(AUDITOR, 7, round_index=5)
    assert not quota.take(AUDITOR, 4, round_index=6)
    assert quota.take(THIRD, 10, round_index=6)
    assert quota.take(AUDITOR, 3, round_index=ERA_ROUNDS - 1)
    assert not quota.take(AUDITOR, 1, round_index=ERA_ROUNDS - 1)
    assert quota.take(AUDITOR, 10, round_index=ERA_ROUNDS)
    assert not quota.take(AUDITOR, 11, round_index=2 * ERA_ROUNDS)


async def test_who_asks_over_and_over_is_shown_no_more_than_its_quota(tmp_path, monkeypatch):
    monkeypatch.setattr("node.plane.work_desk.AUDITS_PER_ERA", 0)
    pair = Pair(tmp_path)
    await pair.ask((ROOT, (0,)))
    assert pair.auditor.arrived() == []


class Closed(NodeHooks):
    def opens_to(self, peer: PeerId) -> bool:
        return False


class Bent(NodeHooks):
    def sent_item(self, bulk: Bulk, item: Item) -> Item:
        return replace(item, payload=item.payload[:-1] + bytes([item.payload[-1] ^ 1]))


def lost(folder: Path, number: int) -> list[Path]:
    """The files of a state, gone from the disk."""
    cells = STATES[number].cells(LAYOUT)
    cut = LAYOUT.num_cells(0)
    paths = [folder / f"{root_of(part).hex()}.cells" for part in (cells[:cut], cells[cut:])]
    for path in paths:
        path.unlink()
    return paths


async def test_state_that_was_not_kept_is_made_again_before_it_is_shown(tmp_path):
    pair = Pair(tmp_path)
    folder = tmp_path / "owner"
    lost(folder, 1)
    traces = TraceFolder(folder, MANIFEST)
    asked: list[bytes] = []

    async def reopen(subject: bytes) -> None:
        asked.append(subject)
        traces.put(STATES[1])

    pair.owner.work.reopen = reopen
    await pair.ask((ROOT, (0, 1)))
    assert (asked, pair.auditor.arrived()) == ([ROOT], [0, 1])
    await pair.ask((ROOT, (2,)))
    assert (asked, pair.auditor.arrived()) == ([ROOT], [0, 1, 2])


async def test_state_that_cannot_be_made_again_at_once_is_nobodys_fault(tmp_path, autojump_clock):
    pair = Pair(tmp_path)
    lost(tmp_path / "owner", 1)

    async def never(subject: bytes) -> None:
        del subject
        await trio.sleep_forever()

    pair.owner.work.reopen = never
    await pair.ask((ROOT, (0,)))
    assert (pair.auditor.arrived(), pair.auditor.desk.faults()) == ([], [])


def test_rounds_that_nobody_may_ask_for_are_closed_on_the_disk(tmp_path):
    pair = Pair(tmp_path)
    traces = TraceFolder(tmp_path / "owner", MANIFEST)
    pair.owner.work.close_rounds()
    assert traces.still_open(1) is None
    for segments in (frozenset({1, 2}), frozenset[int]()):
        pair.owner.audits.shown_segments = {0: frozenset(), 1: segments}
        pair.owner.work.close_rounds()
        assert traces.still_open(1) == segments


async def test_owner_that_is_silent_is_only_that(tmp_path):
    pair = Pair(tmp_path, Closed())
    await pair.ask((ROOT, tuple(range(COUNT))))
    assert (pair.auditor.arrived(), pair.auditor.desk.faults()) == ([], [])


async def test_cell_that_is_not_of_the_state_is_its_senders_fault(tmp_path):
    pair = Pair(tmp_path, Bent())
    await pair.ask((ROOT, (0,)))
    assert pair.auditor.arrived() == []
    assert "Merkle proof" in pair.auditor.desk.faults()[0]


async def test_damaged_disk_ends_the_transfer_and_blames_nobody(tmp_path):
    pair = Pair(tmp_path)
    weights = cells_of(LAYOUT, (STATES[1].weights_N,))
    path = tmp_path / "owner" / f"{root_of(weights).hex()}.cells"
    data = bytearray(path.read_bytes())
    data[1] ^= 1
    path.write_bytes(data)
    await pair.ask((ROOT, (0,)))
    assert pair.auditor.arrived() == []


async def refused(pair: Pair, why: str, *data: bytes) -> None:
    with pytest.raises((PeerError, ExceptionGroup)):
        await received(pair.auditor.desk, *data)
    assert [why in reason for reason in pair.auditor.desk.faults()] == [True]


def head_of(index: int, length: int) -> BulkItems:
    roots = pair_roots()
    proof = merkle_proof(roots, index) if index < len(roots) else ()
    item = BulkItem(index=index, length=length, proof=b"".join(proof))
    return BulkItems(items=(item,), piece=limits.PIECE_BYTES_MIN)


def pair_roots() -> list[bytes]:
    return [cell_root(cell) for cell in STATES[1].cells(LAYOUT)]


@pytest.mark.parametrize(
    ("index", "length", "why"),
    [
        (0, 4097, "instead of 4096"),
        (COUNT - 1, 4096, "instead of 8"),
        (COUNT, 8, f"cell {COUNT}"),
        (0, 0, "instead of 4096"),
    ],
)
async def test_cell_of_another_size_is_refused_before_it_is_read(tmp_path, index, length, why):
    pair = Pair(tmp_path)
    header = BulkHeader(bulk=Bulk.WORK, subject=ROOT, round=1, items=1)
    await refused(pair, why, frame(header), frame(head_of(index, length)))
    assert pair.auditor.arrived() == []
    assert pair.auditor.desk.faults()


async def test_work_that_nobody_asked_for_is_not_kept(tmp_path):
    pair = Pair(tmp_path)
    pair.auditor.audits.needed.clear()
    header = BulkHeader(bulk=Bulk.WORK, subject=ROOT, round=1, items=1)
    payload = STATES[1].cells(LAYOUT)[0]
    await received(pair.auditor.desk, frame(header), frame(head_of(0, len(payload))), payload)
    assert (pair.auditor.arrived(), pair.auditor.desk.faults()) == ([], [])
    pair.auditor.audits.needed[ROOT] = STATE
    assert pair.auditor.work.write(rerun_of(segment=1), 1) is None


async def test_run_without_audits_takes_no_work(tmp_path):
    pair = Pair(tmp_path)
    pair.auditor.desk.state_parts = replace(pair.auditor.desk.state_parts, work=None)
    header = BulkHeader(bulk=Bulk.WORK, subject=ROOT, round=1, items=1)
    await refused(pair, "without audits", frame(header), frame(head_of(0, 4096)))
