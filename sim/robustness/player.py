"""A process that plays runs, one after the other: a line of JSON in, a line of JSON out."""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from node.processes.interrupts import end_at_once_from_now_on
from protocol.errors import ConfigError
from sim.robustness.game import Course, LyingStage
from sim.robustness.trial import Take


def line_of_take(take: Take) -> str:
    """What a player is told."""
    return json.dumps(asdict(take), sort_keys=True)


def take_of(found: Mapping[str, Any]) -> Take:
    """The other way round. Raises ConfigError for what is no take."""
    try:
        stage = LyingStage(**found["stage"])
        return Take(stage, str(found["case"]), str(found["rule"]), int(found["seed"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"no take: {error}") from error


def line_of_course(course: Course) -> str:
    """What a player answers; JSON has no infinity, null stands for it."""
    losses = [loss if math.isfinite(loss) else None for loss in course.losses]
    return json.dumps(asdict(course) | {"losses": losses})


def course_of(found: Mapping[str, Any]) -> Course:
    """The other way round. Raises ConfigError for what is no course."""
    try:
        losses = tuple(math.inf if loss is None else float(loss) for loss in found["losses"])
        return Course(losses, float(found["kept_direction"]), float(found["triggered"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"no course: {error}") from error


def main() -> None:
    """Play until there is nothing more to read."""
    # The command itself says what a Ctrl+C means.
    end_at_once_from_now_on()
    for line in sys.stdin:
        course = take_of(json.loads(line)).play()
        sys.stdout.write(line_of_course(course) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
