"""A worker of `barnraise sim sweep`: one line of JSON in per world to run, one out per outcome.

Run with `python -P -m sim.trials.sweep_worker`. The first line holds the scenarios as text, by
name; each further one a name and a seed. It ends with its input, so that it never outlives the
sweep.
"""

import json
import sys
import tomllib
from pathlib import Path

from node.processes.interrupts import end_at_once_from_now_on
from sim.trials.scenario import Scenario
from sim.trials.scenario_file import scenario_of
from sim.trials.trial import run_trial
from sim.world.quiet import hush
from sim.world.sharing import shares


def main() -> None:
    """Work until the input ends."""
    hush()
    # The sweep itself says what a Ctrl+C means; a traceback of each worker would say nothing.
    end_at_once_from_now_on()
    scenarios = _scenarios(json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        name, seed = json.loads(line)
        outcome = run_trial(scenarios[name], seed, is_sharing=shares(seed))
        sys.stdout.write(json.dumps(outcome.as_json(), separators=(",", ":")) + "\n")
        sys.stdout.flush()


def _scenarios(texts: dict[str, str]) -> dict[str, Scenario]:
    return {
        name: scenario_of(tomllib.loads(text), Path(f"{name}.toml")) for name, text in texts.items()
    }


if __name__ == "__main__":
    main()
