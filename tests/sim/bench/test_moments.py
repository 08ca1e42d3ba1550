"""When and whom: from the seed alone, and by what the records say."""

from collections import Counter
from dataclasses import replace

import pytest

from node.reporting.tracing import Adopted, Ended, Signed
from protocol.messages import Kind
from protocol.rounds import roster as rosters
from protocol.rounds.reducers import slices
from sim.bench.faults import MOMENTS, ROLES, FaultPlan, Stages, plan, stage, victim_of
from tests.node.builders import head_of, peers_named
from tests.sim.bench.scene import Scene, manifest_at
from tests.sim.recorded import clean_records

PEERS = peers_named(4)
HEAD = head_of(PEERS).value
PLAN = FaultPlan(moment="parts", role="member", delay=0.5, whom=0.0)


def test_chance_comes_from_the_seed_and_reaches_everything():
    plans = [plan("random", "random", seed=seed) for seed in range(300)]
    assert plans == [plan("random", "random", seed=seed) for seed in range(300)]
    assert {one.moment for one in plans} == set(MOMENTS)
    assert {one.role for one in plans} == set(ROLES)
    assert plan("vote", "closer", seed=3).moment == "vote"
    assert plan("vote", "closer", seed=3).role == "closer"
    assert plan("vote", "closer", seed=3).delay == plan("random", "random", seed=3).delay


def test_role_names_who_has_it():
    assert victim_of(replace(PLAN, role="founder"), PEERS, HEAD, 8) == PEERS[0]
    assert victim_of(replace(PLAN, role="bootstrap"), PEERS, HEAD, 8) == PEERS[1]
    closer = rosters.closer(HEAD.roster, HEAD.digest, HEAD.shard, 0)
    assert victim_of(replace(PLAN, role="closer"), PEERS, HEAD, 8) == closer
    reducers = {p.reducers[0] for p in slices(HEAD.roster, HEAD.digest, 2, trust="friends")}
    found = {
        victim_of(replace(PLAN, role="reducer", whom=w / 10), PEERS, HEAD, 2) for w in range(10)
    }
    assert found == reducers
    assert len(reducers) == 2
    members = Counter(victim_of(replace(PLAN, whom=w / 9), PEERS, HEAD, 8) for w in range(9))
    assert members == dict.fromkeys(PEERS[1:], 3)


def test_every_moment_of_a_round_is_told_by_a_record():
    records = [r for r in clean_records() if isinstance(r, Adopted | Signed)]
    found = {stage(record) for record in records}
    assert {(4, moment) for moment in MOMENTS} <= found
    assert stage(Ended(at_s=1.0, peer=PEERS[0], reason="x")) is None
    votes = [r for r in records if isinstance(r, Signed) and r.message.slot.kind is Kind.VOTE]
    assert {stage(record) for record in votes} == {None}


def test_usual_length_is_the_median_up_to_what_comes_next(tmp_path):
    scene, stages = Scene(manifest_at(tmp_path)), Stages()
    assert stages.usual_s("training") == 0.0
    for _ in range(3):
        scene.play()
    for record in scene.records:
        stages.saw(record)
    # In a scene a COMMIT comes half a second behind a seal, and the next seal as long behind it.
    assert stages.usual_s("training") == pytest.approx(0.5)
    assert stages.usual_s("parts") == pytest.approx(0.5)
    assert stages.usual_s("seal") == 0.0
