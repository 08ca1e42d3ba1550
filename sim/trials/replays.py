"""Failures as files and as commands: what one needs to see the same again."""

import shlex
import subprocess
from pathlib import Path

from node.processes.version import version as package_version
from node.state.folder import write_atomically
from sim.trials.outcome import Outcome
from sim.trials.scenario import Scenario, settled
from sim.trials.scenario_text import scenario_text
from sim.trials.shrink import recorded


def version() -> str:
    """The commit that this code is checked out at, marked if it was changed; else the version."""
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],  # noqa: S607
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10.0,
            check=True,
        )
        return found.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        pass  # No git, or an installed package.
    return package_version()


def replay_command(named: str, outcome: Outcome, *, rounds: int | None, peers: int | None) -> str:
    """The one command that shows a failure again; `named` is what the scenario was called by."""
    options = f" --seed {outcome.seed}"
    options += f" --peers {peers}" if peers is not None else ""
    options += f" --rounds {rounds}" if rounds is not None else ""
    return f"barnraise sim replay {shlex.quote(named)}{options}"


def write_failure(folder: Path, scenario: Scenario, outcome: Outcome) -> Path:
    """Write a failure as a scenario file of its own, everything drawn; where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{outcome.scenario}-{outcome.seed}.toml"
    found = recorded(settled(scenario, outcome.seed), outcome, version())
    write_atomically(path, scenario_text(found).encode())
    return path
