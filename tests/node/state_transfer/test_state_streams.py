"""A state comes over streams, from several peers at once; what is served takes little memory."""

import gc
import random
import weakref
from dataclasses import replace

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from node.holdings.shard_store import Item
from node.plane.bulk_streams import BULK_PROTOCOL, BulkStreams
from node.plane.hooks import NodeHooks
from node.plane.state_streams import READ_BYTES, Serving, StateParts
from protocol import events as ev
from protocol.errors import StreamClosedError
from protocol.frames import Bulk, Want
from protocol.identity import Ed25519Signer, PeerId
from protocol.messages import SealCertificate
from tests.memory_transport import MemoryNetwork
from tests.node.edge import NUMEL, Desk, toy_manifest

MANIFEST = toy_manifest()
JOINER = b"t" * 32
SOURCES = (b"f" * 32, b"g" * 32, b"h" * 32)
ROUND = 40


class Flip(NodeHooks):
    """A byte of every state cell or result that leaves is flipped."""

    def sent_item(self, bulk: Bulk, item: Item) -> Item:
        payload = bytearray(item.payload)
        payload[len(payload) // 2 + 1] ^= 0x10
        return Item(item.index, bytes(payload), item.proof)


def vector(name: str) -> np.ndarray:
    generator = np.random.default_rng(random.Random(name).getrandbits(64))
    return generator.standard_normal(NUMEL).astype(np.float32)


class Place(Desk):
    """A desk in a network: what its core asks of others reaches them."""

    def __init__(self, seed: bytes) -> None:
        super().__init__(seed, MANIFEST)
        self.linked = {Ed25519Signer(s).peer_id for s in (JOINER, *SOURCES)}
        self.bulk: BulkStreams | None = None
        self.nursery: trio.Nursery | None = None
        self.others: dict[PeerId, Place] = {}
        self.asked: list[tuple[PeerId, Want]] = []
        self.arrived = trio.Event()

    async def tell(self, event: ev.CoreEvent | ev.Fault) -> None:
        self.told.append(event)
        if isinstance(event, ev.Fault):
            return
        await self.act(self.core.handle(event, trio.current_time()))
        self._changed.set()
        self._changed = trio.Event()

    async def act(self, actions) -> None:
        nursery = self.nursery
        for action in actions if nursery is not None else ():
            match action:
                case ev.Send(peer=peer, frame=Want() as want) if want.bulk in (
                    Bulk.STATE,
                    Bulk.STEP,
                ):
                    self.asked.append((peer, want))
                    push = ev.Push(self.signer.peer_id, want.bulk, want.subject, want.cells)
                    source = self.others[peer].bulk
                    assert source is not None
                    assert nursery is not None
                    nursery.start_soon(source.push, push)
                case ev.FetchState() | ev.FetchSteps():
                    assert self.bulk is not None
                    self.bulk.fetching.order(action)
                    assert nursery is not None
                    nursery.start_soon(self.bulk.fetching.carry_out)
                case ev.Fault():
                    self.told.append(action)

    async def state_arrived(self, certificate, state) -> None:
        await super().state_arrived(certificate, state)
        self.arrived.set()


def sealed_state(place: Place, *, is_step: bool = False) -> SealCertificate:
    """A state that the place holds, and its seal; or what one step leads to."""
    start, commits = place.core.chain[0], (b"c" * 32,) if is_step else ()
    value = replace(start.value, round=1 if is_step else ROUND, commits=commits)
    if is_step:
        x_N = vector("result").astype("<f2")
        cells = [x_N[at : at + 1024].tobytes() for at in range(0, NUMEL, 1024)]
        place.journal.keep_result(1, value.list_digest, cells)
        state = place.store.stepped(place.store.state, cells, round_index=1)
    else:
        state = place.store.make_state(vector("anchor"), {"momentum": vector("momentum")})
        place.store._states[state.root] = state
    certificate = SealCertificate(value=replace(value, root=state.root), seals=())
    place.core.chain.append(certificate)
    return certificate


async def fetched(
    liars: tuple[bytes, ...] = (), *, is_step: bool = False
) -> tuple[Place, SealCertificate]:
    """A joiner fetches a state, or the step to it, of three peers, some of whom lie."""
    network = MemoryNetwork()
    joiner = Place(JOINER)
    async with trio.open_nursery() as nursery, network.open(signer_seed=JOINER) as far:
        places = {}
        async with (
            network.open(signer_seed=SOURCES[0]) as one,
            network.open(signer_seed=SOURCES[1]) as two,
            network.open(signer_seed=SOURCES[2]) as three,
        ):
            for seed, near in zip(SOURCES, (one, two, three), strict=True):
                place = Place(seed)
                place.nursery = nursery
                certificate = sealed_state(place, is_step=is_step)
                place.bulk = place.streams(near, Flip() if seed in liars else None)
                places[near.peer_id] = place
                await near.connect(far.peer_id, far.addresses())
            joiner.others, joiner.nursery = places, nursery
            joiner.bulk = joiner.streams(far)
            far.serve(BULK_PROTOCOL, joiner.bulk.accept)
            round_index = certificate.value.round
            for peer in places:
                joiner.core._rounds[peer] = round_index + 1
            catchup = joiner.core.catchup
            if is_step:
                catchup._base = joiner.core.chain[0].value
                await joiner.act(catchup._fetch_steps([certificate], trio.current_time()))
            else:
                await joiner.act(catchup.fetch_state(certificate, now_s=trio.current_time()))
            with trio.fail_after(20.0):
                await joiner.arrived.wait()
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    return joiner, certificate


async def test_state_comes_from_all_three_and_each_cell_is_asked_of_one() -> None:
    joiner, certificate = await fetched()
    ((_, state),) = joiner.states
    assert state.root == certificate.value.root
    assert state.anchor_N.tobytes() == vector("anchor").tobytes()
    assert {peer for peer, _ in joiner.asked} == {Ed25519Signer(s).peer_id for s in SOURCES}
    cells = sorted(cell for _, want in joiner.asked for cell in want.cells)
    assert cells == list(range(8))
    assert len({want.cells for _, want in joiner.asked}) >= 3
    assert joiner.faults() == []


async def test_liar_is_a_fault_and_the_state_comes_from_the_others() -> None:
    joiner, certificate = await fetched((SOURCES[1],))
    ((_, state),) = joiner.states
    assert state.root == certificate.value.root
    liar = Ed25519Signer(SOURCES[1]).peer_id
    assert {e.peer for e in joiner.told if isinstance(e, ev.Fault)} == {liar}
    assert ev.FetchedWrong(liar) in joiner.told


async def test_step_comes_of_the_kept_results_and_leads_to_the_seal() -> None:
    joiner, certificate = await fetched(is_step=True)
    ((_, state),) = joiner.states
    assert state.root == certificate.value.root
    assert {want.bulk for _, want in joiner.asked} == {Bulk.STEP}


async def test_liar_in_a_step_is_found_out_though_several_gave_cells() -> None:
    joiner, certificate = await fetched((SOURCES[1],), is_step=True)
    ((_, state),) = joiner.states
    assert state.root == certificate.value.root
    liar = Ed25519Signer(SOURCES[1]).peer_id
    assert {e.peer for e in joiner.told if isinstance(e, ev.Fault)} <= {liar}
    assert any(isinstance(event, ev.StepFailed) for event in joiner.told)


async def test_cells_of_a_step_that_nobody_was_asked_for_change_nothing() -> None:
    joiner, place = Place(JOINER), Place(SOURCES[0])
    certificate = sealed_state(place, is_step=True)
    gathered = joiner.state_parts.gathered
    gathered.expect_steps([certificate])
    network = MemoryNetwork()
    async with (
        network.open(signer_seed=SOURCES[0]) as near,
        network.open(signer_seed=JOINER) as far,
    ):
        far.serve(BULK_PROTOCOL, joiner.streams(far).accept)
        await near.connect(far.peer_id, far.addresses())
        push = ev.Push(far.peer_id, Bulk.STEP, certificate.value.digest, (0, 1, 2, 3))
        await place.streams(near).push(push)
        await wait_all_tasks_blocked()
    assert not any(isinstance(event, ev.CellsFetched) for event in joiner.told)
    gathered.advance()
    assert not gathered.is_whole
    assert joiner.faults() == []


class Huge:
    """A source of cells of one chunk."""

    def __init__(self) -> None:
        self.read = 0
        self.count = 12_288

    def item(self, index: int) -> Item:
        self.read += 1
        return Item(index, bytes(READ_BYTES), ())


async def test_whoever_asks_for_a_whole_state_has_a_chunk_of_it_read_at_a_time() -> None:
    place, source = Place(SOURCES[0]), Huge()
    certificate = sealed_state(place)
    served = place.state_parts.served
    served.find = lambda *_, **__: source  # type: ignore[method-assign]
    serving = Serving(place, place.state_parts)
    cells = tuple(range(12_288)) * 2
    push = ev.Push(Ed25519Signer(JOINER).peer_id, Bulk.STATE, certificate.value.digest, cells)
    outgoing = await serving.cells(push)
    assert outgoing is not None
    assert outgoing.count == 12_288, "each once"
    assert source.read == 0
    for number in range(1, 4):
        (item,) = await outgoing.more()
        assert item.index == number - 1
        assert source.read == number


async def test_transfers_hold_no_state_that_nobody_else_holds() -> None:
    """Peers that take a cell now and then, each of another state, keep two states here."""
    place, made, begun = Place(SOURCES[0]), [], []
    serving, peer = Serving(place, place.state_parts), Ed25519Signer(JOINER).peer_id
    start = place.core.chain[0].value
    for number in range(6):
        state = place.store.make_state(vector(f"anchor {number}"), {"momentum": vector("m")})
        place.store._states[state.root] = state
        value = replace(start, round=ROUND + number, commits=(), root=state.root)
        place.core.chain.append(SealCertificate(value=value, seals=()))
        push = ev.Push(peer, Bulk.STATE, value.digest, (0, 1))
        outgoing = await serving.cells(push)
        assert outgoing is not None
        begun.append(outgoing)
        made.append(weakref.ref(state))
        del place.store._states[state.root], state
    gc.collect()
    here = [number for number, state in enumerate(made) if state() is not None]
    assert here == [4, 5]
    for number, outgoing in enumerate(begun):
        if number in here:
            assert len(await outgoing.more()) == 2
        else:
            with pytest.raises(StreamClosedError, match="not here any more"):
                await outgoing.more()


async def test_rate_that_the_owner_allows_is_kept(autojump_clock: trio.abc.Clock) -> None:
    place = Place(SOURCES[0])
    parts = StateParts(
        gathered=place.state_parts.gathered, served=place.state_parts.served, bytes_per_s=1e5
    )
    serving = Serving(place, parts)
    began_s = trio.current_time()
    pause = serving.turns()
    with trio.fail_after(10.0) as scope:
        for _ in range(40):
            await pause(25_000, scope)
        assert scope.deadline > trio.current_time() + 5.0, "it waits with the pause"
    assert trio.current_time() - began_s == pytest.approx(9.0, abs=0.3)
