"""Rare branches: the code asks for what the table names, and a real node takes none."""

import re
from dataclasses import replace
from pathlib import Path

from node.holdings.states import round_config
from protocol.rounds.round_config import NAMES, never
from tests.node.builders import CONFIG, head_of, peers_named, toy_manifest, view_of

QUESTION = re.compile(r'\b_?(?:rare|draw)\(\s*"([^"]*)"')


def test_every_name_is_asked_for_and_every_question_has_a_name():
    folder = Path(__file__).parents[3] / "protocol"
    asked = [name for path in folder.rglob("*.py") for name in QUESTION.findall(path.read_text())]
    # The module's own docstring shows how to ask.
    assert sorted(set(asked) - {"name"}) == sorted(NAMES)


def test_real_node_takes_no_rare_branch():
    config = round_config(toy_manifest(peers_named(1)[0]))
    assert config.rare is never
    assert not any(never(name) for name in NAMES)


def test_taste_for_rare_branches_is_no_part_of_what_a_config_says():
    assert replace(CONFIG, rare=lambda name: True) == CONFIG


def test_rare_branch_of_a_rule_is_drawn_once_per_attempt():
    (me,) = peers_named(1)
    draws = iter((True, False, True))
    view = view_of(me, head_of([me]), rare=lambda name: next(draws))
    assert [view.rare("have-early") for _ in range(3)] == [True] * 3
    assert not view.rare("closer-early")
    view.attempt = 1
    assert view.rare("have-early")
