import logging
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from node.daemon.driver import Driver
from node.plane.hooks import NodeHooks, OwnUpdate
from node.reporting.trace_file import NodeTrace, TraceFile, read_trace, tracing, untraced
from node.reporting.tracing import Accused, Adopted, Began, Diverged, Ended, Record, Signed, Used
from protocol import events as ev
from protocol.errors import DecodeError
from protocol.identity import KeyedHashSigner
from protocol.messages import Kind, Vote, sign_message
from protocol.rounds.restart import Restart
from tests.node.builders import head_of, peers_named, view_of
from tests.node.test_exchange import FRIEND, NoLinks, NoWork, no_evidence, working

A, B = peers_named(2)
HEAD = head_of([A, B])
END = Ended(at_s=5.0, peer=A, reason="finished")
BEGIN = Began(at_s=1.0, peer=A, round=1, head=HEAD, is_lost=False)


class Clocks:
    """A wall clock that is set back now and then, and a monotonic one."""

    def __init__(self, wall_s: float) -> None:
        self.wall_s = wall_s
        self.monotonic_s = 7.0

    def open(self, path: Path) -> TraceFile:
        return TraceFile(path, wall_clock=lambda: self.wall_s, monotonic=lambda: self.monotonic_s)


def write(file: TraceFile, *records: Record) -> None:
    for record in records:
        file.write(record)
    file.close()


def vote(round_index: int, sender=A):
    slot = replace(view_of(sender, HEAD).slot(Kind.VOTE), round=round_index)
    return sign_message(KeyedHashSigner(sender), slot, Vote(list_digest=bytes(32)))


def test_restarted_node_continues_its_file_and_its_time_never_goes_back(tmp_path):
    clocks, path = Clocks(1000.0), tmp_path / "new" / "a.jsonl"
    times = []
    for wall_s in (1000.0, 1500.0, 20.0):
        clocks.wall_s = wall_s
        file = clocks.open(path)
        clocks.monotonic_s += 2.5
        clocks.wall_s -= 10_000.0  # Set while it runs: of no account.
        times.append(file.now_s())
        file.write(replace(END, at_s=file.now_s()))
        file.close()
    assert times == [1002.5, 1502.5, 1505.0]
    assert [record.at_s for record in read_trace(path)] == times


def test_clocks_are_compared_when_nothing_comes_between(tmp_path):
    now_s, pauses = [5.0], iter([1.0, 0.5, 0.0, 0.2] + [3.0] * 20)

    def wall_clock() -> float:
        now_s[0] += next(pauses)  # The machine is busy with something else.
        return 100.0 + now_s[0]

    file = TraceFile(tmp_path / "a", wall_clock=wall_clock, monotonic=lambda: now_s[0])
    file.close()
    assert file.now_s() - now_s[0] == 100.0


def test_every_record_is_in_the_file_as_soon_as_it_is_written(tmp_path):
    file = TraceFile(tmp_path / "a")
    for count in range(1, 4):
        file.write(END)
        assert len(read_trace(tmp_path / "a")) == count
    file.close()


@pytest.mark.parametrize("cut", [1, 20, -2])
def test_line_that_a_killed_node_left_unfinished_is_left_out(tmp_path, cut):
    path = tmp_path / "a"
    clocks = Clocks(3.0)
    write(clocks.open(path), BEGIN)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:cut])
    assert read_trace(path) == [BEGIN]
    write(clocks.open(path), BEGIN, END)
    assert read_trace(path) == [BEGIN, BEGIN, END]


def test_damage_in_the_midst_of_a_life_is_told_with_its_line(tmp_path):
    path = tmp_path / "a"
    write(TraceFile(path), BEGIN, END, END)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], lines[1][:-4], lines[2], b""]))
    with pytest.raises(DecodeError, match="line 2"):
        read_trace(path)


def test_file_that_cannot_be_opened_ends_the_tracing_and_nothing_else(tmp_path, caplog):
    (tmp_path / "a").mkdir()
    with tracing(tmp_path / "a", A) as trace:
        assert trace is not None
        trace.ended("finished")
        trace.ended("finished")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_disk_that_is_full_ends_the_tracing_with_one_warning(caplog):
    with tracing(Path("/dev/full"), A) as trace:
        assert trace is not None
        for _ in range(3):
            trace.ended("finished")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "No space left" in caplog.text


def test_start_tells_the_own_signatures_of_the_round_under_way_alone():
    told: list[Record] = []
    head = HEAD.value.round
    messages = (vote(head), vote(head + 1), vote(head + 1, sender=B))
    restart = Restart(chain=(HEAD,), messages=messages, is_lost=True)
    NodeTrace(A, told.append, lambda: 4.0).began(restart)
    assert told == [
        Began(at_s=4.0, peer=A, round=head + 1, head=HEAD, is_lost=True),
        Signed(at_s=4.0, peer=A, message=messages[1]),
    ]


class Watched:
    """Stands for journal, trace and links, and keeps the order in which they were used."""

    def __init__(self, driver: Driver) -> None:
        self.steps: list[str] = []
        self.records: list[Record] = []
        self._journal = driver._parts.journal.record
        driver._parts.journal.record = self._record  # type: ignore[method-assign]
        driver._trace = NodeTrace(A, self._told, trio.current_time)
        links = NoLinks()
        links.send = lambda peer, frame: self.steps.append("sent")  # type: ignore[method-assign]
        driver.connect(links, NoWork(), no_evidence)  # type: ignore[arg-type]  # all that is used of them

    def _record(self, messages) -> None:
        self._journal(messages)
        self.steps.append("durable")

    def _told(self, record: Record) -> None:
        self.records.append(record)
        self.steps.append(type(record).__name__)


async def test_signature_is_told_when_it_is_durable_and_before_it_leaves(tmp_path):
    async with working(tmp_path) as (driver, _):
        watched = Watched(driver)
        message = vote(1)
        frame = ev.Send(FRIEND, None)  # type: ignore[arg-type]  # nobody looks at it
        await driver._carry_out([ev.RecordSlot(message), frame])
        assert watched.steps == ["durable", "Signed", "sent"]
        assert [r.message for r in watched.records if isinstance(r, Signed)] == [message]


@pytest.mark.parametrize("hooks", [NodeHooks(), OwnUpdate()])
async def test_adopted_tells_the_root_of_what_the_node_goes_on_from(tmp_path, hooks):
    async with working(tmp_path) as (driver, _):
        watched = Watched(driver)
        driver._parts = replace(driver._parts, hooks=hooks)
        before_N = driver.store.state.anchor_N
        hooks.own_contribution(lambda: before_N + 1.0)
        store, certificate = driver.store, driver.core.machine.certificate
        digest = certificate.value.list_digest
        root = store.apply(digest, is_empty=True, round_index=1)
        driver.core.machine.previous = driver.core.machine.view
        await driver._adopt(ev.Adopt(certificate, was_listed=True))
        (record,) = watched.records
        assert isinstance(record, Adopted)
        assert (record.root == root) == (hooks.name == "")
        assert (record.certificate, record.was_listed) == (certificate, True)


async def test_faults_of_peers_and_own_divergence_are_told(tmp_path):
    async with working(tmp_path) as (driver, _):
        watched = Watched(driver)
        driver._fault(ev.Fault(B, "lies"))
        await driver._act(ev.Resync("other bits"))
        accused, diverged = watched.records
        assert isinstance(accused, Accused)
        assert (accused.of, accused.reason) == (B, "lies")
        assert isinstance(diverged, Diverged)


async def test_use_is_told_again_and_again(tmp_path, autojump_clock):
    told: list[Record] = []
    async with working(tmp_path) as (driver, nursery):
        trace = NodeTrace(A, told.append, trio.current_time)
        nursery.start_soon(trace.keep_telling_use, driver.core)
        await trio.sleep(11.0)
    assert len(told) == 6
    for record in told:
        assert isinstance(record, Used)
        assert record.tasks >= 2
        assert record.messages == 0
        assert record.memory_bytes > 1 << 20 or sys.platform != "linux"


def test_without_a_file_nothing_is_kept(tmp_path):
    with tracing(None, A) as trace:
        assert trace is None
    untraced(A).ended("finished")
    assert list(tmp_path.iterdir()) == []
