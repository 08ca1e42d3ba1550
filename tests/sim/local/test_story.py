"""What is known of a run from what its nodes say, and what is made of it."""

import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from node.state.evidence_files import read_evidence
from node.state.stored_manifest import ANY_SIGNER
from protocol.entry_kinds import Accusation
from protocol.identity import peer_id_text
from sim.attacks.alone import Lies
from sim.local.local_node import LocalNode
from sim.local.options import LocalOptions
from sim.local.report import Result, StoryProgress, drawn_plot, print_result, write_report
from sim.local.swarm import ProcessFault, Story
from sim.local.verdict import SwarmVerdict
from sim.processes import events
from tests.protocol.entry_vectors import EVIDENCE

GOOD = SwarmVerdict(
    broken="",
    num_records=10,
    num_signatures=5,
    checkpoints_equal=True,
    num_checkpoints=3,
    memory_max_bytes=2**27,
)


def story_of(folder, *names: str) -> tuple[Story, list[str]]:
    told: list[str] = []
    story = Story(len(names), lambda at_s, line: told.append(line))
    for name in names:
        story.nodes[name] = LocalNode(name, folder, ())
        story.nodes[name].status = "running"
    return story, told


def sealed(round_index: int, *, members: int = 3) -> events.RoundSealed:
    return events.RoundSealed(
        round=round_index,
        digest="00",
        listed=(),
        members=members,
        voters=members,
        attempt=0,
        was_listed=True,
        wall_s=1.0,
        bytes_up=0,
        bytes_down=0,
        train_loss=None,
    )


def test_fault_is_over_with_a_new_round_that_another_than_its_victim_sealed(tmp_path):
    story, told = story_of(tmp_path, "A", "B", "C")
    a, b, c = story.nodes.values()
    story.heard(a, sealed(4), 10.0)
    dealt = story.dealing(ProcessFault(kind="kill", victim="A", lasts_s=2.0), 11.0)
    story.heard(b, sealed(4), 12.0)  # An old round.
    story.heard(a, sealed(5), 13.0)  # The victim's own word.
    assert (dealt.next_seal_s, dealt.back_s) == (None, None)
    story.heard(c, sealed(5), 14.5)
    assert (dealt.next_seal_s, dealt.back_s) == (3.5, None)
    dealt.undone_s = 15.0
    story.heard(b, sealed(6), 16.0)
    story.heard(a, events.StateFetched(round=6), 17.0)
    story.heard(a, sealed(7), 18.0)
    assert (dealt.next_seal_s, dealt.back_s) == (3.5, 2.0)
    assert story.seals == [(10.0, 4), (13.0, 5), (16.0, 6), (18.0, 7)]
    assert told == ["kill A, back after 2.0 s"]


def test_only_running_members_of_the_round_under_way_are_well(tmp_path):
    story, _ = story_of(tmp_path, "A", "B", "C", "D", "E", "F")
    a, b, c, d, e, f = story.nodes.values()
    for node, seat in ((a, 10), (b, 9), (c, 8), (d, 10), (e, 10), (f, 0)):
        story.heard(node, events.Seated(round=seat), 1.0)
        story.heard(node, sealed(9, members=4), 1.0)
    d.status, e.status = "frozen", "left"
    now = story.situation()
    assert (now.well, now.gone) == (["A", "B"], ["E"])
    assert now.running == ["A", "B", "C", "F"]
    assert (now.num_here, now.members, now.num_begun) == (5, 4, 6)
    a.has_sealed_in_life = False  # Started again: its seat may be gone meanwhile.
    assert story.situation().well == ["B"]


def test_death_is_told_and_its_node_is_not_waited_for(tmp_path):
    story, told = story_of(tmp_path, "A")
    story.died(story.nodes["A"], "it ended with status 1\nmore", 5.0)
    assert (story.nodes["A"].status, len(story.deaths)) == ("dead", 1)
    assert told == ["A died by itself: it ended with status 1"]


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("error", "has_death", "broken", "is_good"),
    [
        ("", False, "", True),
        ("stuck", False, "", False),
        ("", True, "", False),
        ("", False, "I3", False),
    ],
)
def test_result_is_good_only_if_nothing_went_wrong(tmp_path, error, has_death, broken, is_good):
    story, _ = story_of(tmp_path, "A", "B")
    story.heard(story.nodes["A"], sealed(1), 1.0)
    story.heard(story.nodes["A"], sealed(31), 61.0)
    story.dealing(ProcessFault(kind="freeze", victim="B", lasts_s=3.0), 30.0).undone_s = 33.0
    if has_death:
        story.died(story.nodes["B"], "why", 3.0)
    verdict = SwarmVerdict(
        **{name: getattr(GOOD, name) for name in GOOD.__slots__} | {"broken": broken}
    )
    options = LocalOptions(peers=2, folder=tmp_path)
    result = Result(options=options, story=story, verdict=verdict, wall_s=9.0, error=error)
    assert result.is_good == is_good
    body = result.as_json()
    assert body["rounds_per_minute"] == pytest.approx(30.0)
    assert (body["invariants"], body["error"]) == (broken or "hold", error)
    write_report(result, tmp_path)
    assert json.loads((tmp_path / "result.json").read_text())["seals"] == [[1.0, 1], [61.0, 31]]
    assert (tmp_path / "rounds.png").read_bytes().startswith(b"\x89PNG")
    console = Console(record=True, width=100, force_terminal=False)
    print_result(console, result)
    text = console.export_text()
    assert "freeze B for 3.0 s" in text
    assert (error or "hold") in text or broken in text


def test_plot_of_one_round_has_a_line_and_whole_rounds(tmp_path):
    story, _ = story_of(tmp_path, "A", "B")
    story.heard(story.nodes["A"], sealed(1), 14.0)
    options = LocalOptions(peers=2, folder=tmp_path)
    result = Result(options=options, story=story, verdict=GOOD, wall_s=15.0, error="")
    (axes,) = drawn_plot(result).axes
    (line,) = axes.lines
    assert np.asarray(line.get_xydata()).tolist() == [[0.0, 0.0], [14.0, 1.0]]
    assert all(tick == int(tick) for tick in axes.get_yticks())
    assert axes.get_ylim()[0] == 0


def test_evidence_outlives_the_folders_of_the_nodes_and_the_report_says_how_to_check_it(tmp_path):
    found = EVIDENCE[Accusation.TWO_MESSAGES]
    story, _ = story_of(tmp_path, "A", "B")
    story.nodes["B"].peer = peer_id_text(found.subject)
    story.heard(story.nodes["A"], sealed(1), 1.0)
    options = LocalOptions(peers=2, folder=tmp_path, trust="open", attack=Lies("equivocation", 1))
    verdict = replace(GOOD, banned={found.subject: found.encoded.hex()})
    result = Result(options=options, story=story, verdict=verdict, wall_s=9.0, error="")
    write_report(result, tmp_path)
    assert read_evidence(tmp_path / "B.evidence", ANY_SIGNER) == found
    console = Console(record=True, width=400, force_terminal=False)
    print_result(console, result)
    assert f"barnraise evidence verify {tmp_path / 'B.evidence'}" in console.export_text()


def test_verdict_without_a_record_is_no_good_one():
    assert GOOD.is_good
    assert not SwarmVerdict(
        broken="",
        num_records=0,
        num_signatures=0,
        checkpoints_equal=True,
        num_checkpoints=0,
        memory_max_bytes=0,
    ).is_good


def test_progress_says_now_and_then_where_everybody_is(tmp_path):
    story, _ = story_of(tmp_path, "A", "B")
    now = [0.0]
    console = Console(record=True, width=100, force_terminal=False)
    progress = StoryProgress(console, lambda: now[0])
    story.heard(story.nodes["A"], sealed(3), 9.0)
    for now[0] in (1.0, 5.0, 11.0, 12.0, 22.0):
        progress.tick(story)
    lines = console.export_text().splitlines()
    assert len(lines) == 2
    assert "round 3, 2 s ago; A●3 B●0" in lines[0]


def test_rounds_of_the_next_seconds_follow_from_the_pace_of_the_last_seals(tmp_path):
    story, _ = story_of(tmp_path, "A")
    (a,) = story.nodes.values()
    assert story.rounds_within(10.0) == 0
    story.heard(a, sealed(1), 10.0)
    assert story.rounds_within(10.0) == 0
    for index in range(2, 12):
        story.heard(a, sealed(index), 20.0 + 0.5 * index)
    assert story.rounds_within(10.0) == 20
