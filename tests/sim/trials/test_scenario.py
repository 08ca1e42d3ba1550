"""Scenario files: what they may say, what is wrong with one, and that text and object are equal."""

from dataclasses import replace

import pytest

from protocol.errors import ConfigError
from sim.attacks.alone import NEEDS_AUDITS
from sim.trials.scenario import NOT_YET, overridden, settled
from sim.trials.scenario_file import (
    read_scenario,
    scenario_digest,
    scenario_text,
    shipped_scenarios,
)
from tests.sim.trials.scenarios import scenario

SHIPPED = shipped_scenarios()

# Rows of the table of fault tests that the present code runs.
WANTED = {
    *("churn", "mass-silence", "kill-each-phase", "double-sign", "majority-lost", "slow-peer"),
    *("partition-half", "partition-minority", "partition-three", "partition-one-way"),
    *("partition-flapping", "clock-skew", "disk-full", "torn-checkpoint", "power-off", "freeze"),
    *("restart-old-disk", "all-but-one-die", "duplicate-reorder-delay", "late-joiner", "mixed"),
}


def test_every_row_that_can_be_run_is_shipped():
    names = {one.name for one in SHIPPED}
    assert names >= WANTED
    assert names.isdisjoint(NOT_YET)


@pytest.mark.parametrize("shipped", SHIPPED, ids=lambda one: one.name)
def test_shipped_scenario_says_what_it_shows_and_its_text_reads_back_equal(shipped, tmp_path):
    assert shipped.title
    assert shipped.shows
    path = tmp_path / f"{shipped.name}.toml"
    path.write_text(scenario_text(shipped))
    assert read_scenario(str(path)) == shipped


@pytest.mark.quick(3)
@pytest.mark.parametrize("shipped", SHIPPED, ids=lambda one: one.name)
def test_what_a_seed_draws_can_be_written_down(shipped, tmp_path):
    for seed in range(20):
        drawn = settled(shipped, seed)
        path = tmp_path / f"{shipped.name}.toml"
        path.write_text(scenario_text(drawn))
        assert read_scenario(str(path)) == drawn
        assert settled(drawn, seed) == drawn
        least, most = shipped.peers
        assert least <= drawn.peers[0] <= most


def test_sizes_are_drawn_log_uniformly():
    sizes = [settled(scenario("peers = [8, 32]"), seed).peers[0] for seed in range(400)]
    assert (min(sizes), max(sizes)) == (8, 32)
    # Half of the draws are below the geometric mean, 16; of a uniform draw a third would be.
    assert 160 <= sum(size < 16 for size in sizes) <= 240


def test_digest_names_what_is_run_and_not_what_came_of_it():
    small = scenario()
    assert scenario_digest(small) == scenario_digest(replace(small, name="other"))
    assert scenario_digest(small) != scenario_digest(replace(small, rounds=5))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rounds = 0", "rounds must be greater than or equal to 1"),
        ("rounds = true", "rounds must be a whole number"),
        ("peers = [9, 3]", "peers must be a whole number or [least, most]"),
        ("peers = 2000", "peers must be a whole number or [least, most] from 1 to 1024"),
        ("rare = nan", "rare must be"),
        ("fault = []", "fault is no key; did you mean faults?"),
        ("[[faults]]\nkind = 'bouncy'", "[faults[0]] kind is unknown; did you mean bounce?"),
        ("[[faults]]\nkind = 'crash'\ncout = 1", "[faults[0]] cout is no key; did you mean count?"),
        ("[[faults]]\nkind = 'crash'\nphases = ['VOTES']", "[faults[0]] phases is unknown"),
        ("[[faults]]\nkind = 'crash'\nwho = ['any']", "a role needs phases"),
        ("[[faults]]\nkind = 'crash'\nwho = ['x1']", 'must be a node such as "n03"'),
        ("[[faults]]\nkind = 'churn'\namount = 0", "a mean stay in rounds must be above 0"),
        ("timetable = [{kind = 'churn', victims = ['n00']}]", "kind is unknown"),
        ("timetable = [{kind = 'crash', victims = []}]", "victims"),
        ("timetable = [{kind = 'crash', victims = ['any']}]", "a role needs a phase"),
        ("timetable = [{kind = 'crash', round = 5, victims = ['n00']}]", "a fault in round 5 of 4"),
        ("[[faults]]\nkind = 'cut'\nagainst = ['closer']", 'against must be a node such as "n03"'),
        (
            "timetable = [{kind = 'cut', victims = ['n00'], against = ['any']}]",
            'against must be a node such as "n03"',
        ),
        ("timetable = []\n[[faults]]\nkind = 'crash'", "not both"),
        ("[expect]\ninvariants = ['I10']", "[expect] invariants is unknown"),
        ("[timing]\nsuspect_s = 0.5", "suspect_s must be at least two heartbeats"),
        ("[[links]]\nlatency_s = 0\nspread = 'lognormal'", "must be above 0"),
        ("links = []", "links"),
        ("[[devices]]\nclock_rate = 100", "clock_rate must be a number or [least, most] from 0.1"),
        ("[recorded]\nseed = 1\ntrace_hash = 'x'", "must be 64 digits"),
        ("attack = 'sclae:0.2'", "attack 'sclae' is none that nodes can carry out"),
        ("attack = 'scale:0.6'", "write it like scale:0.25, below a half"),
        ("attack = 'lazy:0.2'", "lazy needs audits above 0"),
        ("peers = [2, 9]\nattack = 'scale:0.2'", "1 of 2 peers would lie"),
    ],
)
def test_error_names_file_and_key_and_what_is_expected(text, says):
    with pytest.raises(ConfigError) as caught:
        scenario(text)
    assert str(caught.value).startswith("small.toml: ")
    assert says in str(caught.value)


def test_unknown_name_and_one_that_is_to_come_are_told_apart():
    with pytest.raises(ConfigError, match="did you mean mixed"):
        read_scenario("mixd")
    with pytest.raises(ConfigError, match="relay-dies cannot be run yet: the world has no relays"):
        read_scenario("relay-dies")
    with pytest.raises(ConfigError, match=r"cannot read nowhere\.toml"):
        read_scenario("nowhere.toml")


def test_fewer_rounds_than_the_timetable_has_are_refused():
    listed = scenario("timetable = [{kind = 'crash', round = 3, victims = ['n00']}]")
    assert overridden(listed, rounds=3).rounds == 3
    with pytest.raises(ConfigError, match="--rounds 2: small has a fault in round 3"):
        overridden(listed, rounds=2)


def test_options_replace_the_scenarios_own_and_are_bounded():
    small = scenario()
    assert overridden(small, peers=9, rounds=7).peers == (9, 9)
    assert overridden(small, peers=9, rounds=7).rounds == 7
    for peers, rounds in ((0, None), (5000, None), (None, 0)):
        with pytest.raises(ConfigError, match="must be from 1 to"):
            overridden(small, peers=peers, rounds=rounds)


@pytest.mark.parametrize("attack", sorted(NEEDS_AUDITS))
def test_attack_on_what_audits_look_at_is_refused_in_a_run_without(attack):
    calm = read_scenario("open-liars")
    with pytest.raises(ConfigError, match=f"--attack: {attack} needs --audits"):
        overridden(calm, attack=f"{attack}:0.25")
    assert overridden(calm, attack=f"{attack}:0.25", audits=0.2).attack


def test_audits_are_refused_where_there_are_several_rounds_in_flight():
    with pytest.raises(ConfigError, match=r"--audits: .* of lag 1, which small"):
        overridden(scenario("trust = 'open'\nfragments = 2\nlag = 2"), audits=0.2)
    assert overridden(scenario("trust = 'open'\nfragments = 2"), audits=0.2).audits == 0.2


def test_liars_are_refused_where_they_would_be_half():
    calm = read_scenario("open-liars")
    with pytest.raises(ConfigError, match=r"--attack scale:0\.1: 1 of 2 peers would lie"):
        overridden(calm, peers=2, attack="scale:0.1")
    assert overridden(calm, peers=3, attack="scale:0.1").attack
