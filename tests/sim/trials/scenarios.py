"""Small scenarios for tests, from text."""

import tomllib
from pathlib import Path

from sim.trials.scenario import Scenario
from sim.trials.scenario_file import scenario_of

SMALL = 'title = "small"\npeers = 3\nrounds = 4\ncells = 2\n'


def scenario(text: str = "", *, name: str = "small") -> Scenario:
    """A scenario of three peers, four rounds and two cells, and what `text` says besides.

    Keys of the file itself come first in it and replace those of SMALL.
    """
    top = f"\n{text}".split("\n[")[0]
    own = {line.partition(" = ")[0] for line in top.splitlines() if " = " in line}
    lines = [line for line in SMALL.splitlines() if line.partition(" = ")[0] not in own]
    return scenario_of(tomllib.loads("\n".join([*lines, text])), Path(f"{name}.toml"))


def with_faults(*faults: str, rounds: int = 12, peers: int = 5, rest: str = "") -> Scenario:
    """A scenario with these entries as its timetable."""
    rows = ",\n".join(f"    {{{fault}}}" for fault in faults)
    text = f"peers = {peers}\nrounds = {rounds}\ntimetable = [\n{rows}\n]\n{rest}"
    return scenario_of(tomllib.loads(f'title = "t"\ncells = 2\n{text}'), Path("listed.toml"))
