"""A latecomer's word on bans: out of its own trace, and only what proves itself."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from node.reporting.tracing import Adopted, Began, Convicted, Record, Synced, trace_line
from node.state.stored_manifest import ANY_SIGNER
from protocol.entry_kinds import Accusation
from protocol.identity import peer_id_text
from sim.attacks.alone import Lies
from sim.local.local_node import LocalNode
from sim.local.main import Director, _rechecked
from sim.local.options import LocalOptions
from sim.local.report import Result, print_result
from sim.local.swarm import LocalSwarm
from sim.local.verdict import Rechecked, rechecked
from sim.processes import events
from tests.node.builders import head_of, peers_named
from tests.protocol.entry_vectors import EVIDENCE
from tests.sim.local.test_story import GOOD, sealed, story_of

FOUND = EVIDENCE[Accusation.TWO_MESSAGES]
LIAR, ME = FOUND.subject, peers_named(1)[0]
HEAD = head_of(peers_named(3))
BANNING = replace(
    HEAD,
    value=replace(HEAD.value, roster=replace(HEAD.value.roster, banned=(LIAR,))),
)


def said_of(tmp_path, *records: Record) -> Rechecked:
    path = tmp_path / "I.jsonl"
    path.write_text("".join(trace_line(record) + "\n" for record in records))
    return rechecked("I", path, [LIAR], FOUND.run, ANY_SIGNER)


def synced(certificate=BANNING) -> Synced:
    return Synced(at_s=1.0, peer=ME, certificate=certificate, root=bytes(32))


CONVICTED = Convicted(at_s=2.0, peer=ME, evidence=FOUND)


def test_ban_is_checked_once_the_evidence_and_the_seal_are_in_the_own_trace(tmp_path):
    found = said_of(tmp_path, synced(), CONVICTED)
    assert (found.is_complete, found.joined, found.bans) == (True, 4, {LIAR: True})


@pytest.mark.parametrize(
    "records",
    [
        (),
        (synced(),),
        (synced(HEAD), CONVICTED),
        (Began(at_s=0.0, peer=ME, round=5, head=BANNING, is_lost=False),),
    ],
)
def test_ban_of_which_the_evidence_or_the_seal_is_missing_is_not(tmp_path, records):
    assert not said_of(tmp_path, *records).is_complete


def test_evidence_that_proves_nothing_or_is_of_another_run_counts_for_nothing(tmp_path):
    last = FOUND.second[:-1] + bytes([FOUND.second[-1] ^ 1])
    forged = replace(FOUND, second=last)
    assert not said_of(tmp_path, synced(), replace(CONVICTED, evidence=forged)).is_complete
    path = tmp_path / "I.jsonl"
    said_of(tmp_path, synced(), CONVICTED)
    assert not rechecked("I", path, [LIAR], bytes(32), ANY_SIGNER).is_complete


def test_node_that_never_came_checks_nothing(tmp_path):
    found = rechecked("I", tmp_path / "none", [LIAR], FOUND.run, ANY_SIGNER)
    assert (found.joined, found.is_complete) == (-1, False)
    assert rechecked("I", tmp_path / "none", [], FOUND.run, ANY_SIGNER).is_complete


def test_seal_that_bans_later_is_enough(tmp_path):
    adopted = Adopted(at_s=3.0, peer=ME, certificate=BANNING, root=bytes(32), was_listed=False)
    assert said_of(tmp_path, synced(HEAD), CONVICTED, adopted).is_complete


@pytest.mark.parametrize(
    ("one", "is_good", "text"),
    [
        (Rechecked(node="C", joined=4, bans={LIAR: True}), True, "joined in round 4, alone: all 1"),
        (Rechecked(node="C", joined=4, bans={LIAR: False}), False, "alone: NOT B"),
        (Rechecked(node="C", joined=-1, bans={LIAR: False}), False, "no latecomer came in time"),
        (None, False, "no latecomer came in time"),
    ],
)
def test_run_whose_bans_nobody_rechecked_fails_and_says_so(tmp_path, one, is_good, text):
    story, _ = story_of(tmp_path, "A", "B")
    story.nodes["B"].peer = peer_id_text(LIAR)
    story.heard(story.nodes["A"], sealed(1), 1.0)
    options = LocalOptions(peers=2, folder=tmp_path, trust="open", attack=Lies("equivocation", 1))
    verdict = replace(GOOD, banned={LIAR: FOUND.encoded.hex()})
    result = Result(
        options=options, story=story, verdict=verdict, wall_s=9.0, error="", rechecked=one
    )
    assert result.is_good is is_good
    assert replace(result, verdict=GOOD).is_good, "where nobody is banned there is nothing to check"
    console = Console(record=True, width=400, force_terminal=False)
    print_result(console, result)
    assert text in console.export_text()


def test_latecomer_is_told_one_address_and_follows_without_a_seat(tmp_path):
    options = LocalOptions(peers=4, folder=tmp_path, trust="open", attack=Lies("scale", 1))
    told = ("/ip4/127.0.0.1/tcp/1/p2p/x", "/ip4/127.0.0.1/tcp/2/p2p/y")
    words = LocalNode("E", tmp_path, told, is_checker=True).arguments(options, tmp_path / "m")
    assert "--observer" in words
    assert words[words.index("--join") + 1] == told[0]
    assert "--manifest" not in words


def test_story_knows_whom_seals_ban_and_deals_no_fault_to_the_latecomer(tmp_path):
    story, told = story_of(tmp_path, "A", "B", "C")
    b, c = story.nodes["B"], story.nodes["C"]
    b.peer, c.is_checker = peer_id_text(LIAR), True
    story.heard(c, events.PeerConvicted(peer=b.peer, accusation="wrong_work"), 1.0)
    assert (story.banned, c.convicted) == (set(), {b.peer})
    for name in ("A", "C"):
        story.heard(story.nodes[name], events.PeerBanned(peer=b.peer, round=7), 2.0)
    assert (story.banned, told) == ({b.peer}, ["B is banned by round 7"])
    now = story.situation()
    assert (now.running, now.num_here) == (["A", "B"], 2)


def test_only_the_latecomers_own_trace_counts(tmp_path):
    manifest_run = FOUND.run

    class Manifest:
        digest = manifest_run

    other, late = (LocalNode(name, tmp_path, ()) for name in ("A", "C"))
    late.is_checker = True
    (tmp_path / "traces").mkdir()
    for node, records in ((other, (synced(), CONVICTED)), (late, (synced(),))):
        node.trace.write_text("".join(trace_line(record) + "\n" for record in records))
    found = _rechecked(Manifest(), [other, late], [LIAR])  # type: ignore[arg-type]
    assert found is not None
    assert (found.node, found.is_complete) == ("C", False)
    assert _rechecked(Manifest(), [other], [LIAR]) is None  # type: ignore[arg-type]


class EndsAtOnce:
    """A node's process that says nothing and ends."""

    log = Path("no.log")

    said: tuple[events.Event, ...] = ()

    async def events(self) -> AsyncIterator[events.Event]:
        for event in self.said:
            yield event

    async def exit_status(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("sealed", "has_joined", "deaths"), [(1, False, 1), (2, False, 0), (2, True, 1)]
)
async def test_latecomer_that_finds_the_run_over_has_not_died(tmp_path, sealed, has_joined, deaths):
    story, told = story_of(tmp_path, "A", "B", "E")
    options = LocalOptions(
        peers=2,
        folder=tmp_path,
        rounds=2,
        duration_s=None,
        trust="open",
        attack=Lies("scale", 1),
    )
    swarm = LocalSwarm(options, story, lambda: 9.0)
    swarm._has_started = True
    story.seals.append((1.0, sealed))
    late = story.nodes["E"]
    late.is_checker, late.has_sealed_in_life = True, has_joined
    process: Any = EndsAtOnce()
    late.process = process
    await swarm._listen_to(late, process)
    assert (len(story.deaths), late.status) == (deaths, "dead")
    assert ("E came when the run was over" in told) == (deaths == 0)


async def test_no_latecomer_is_sent_into_a_run_that_is_over(tmp_path):
    story, _ = story_of(tmp_path, "A", "B")
    options = LocalOptions(
        peers=2,
        folder=tmp_path,
        rounds=1,
        duration_s=None,
        trust="open",
        attack=Lies("scale", 1),
    )
    director = Director(options, story, lambda: 9.0)
    story.seals.append((1.0, 1))
    await director._send_checker()
    assert list(story.nodes) == ["A", "B"]
