import pytest

from protocol.errors import ConfigError
from training.loop.schedule import SCHEDULES, Due


def test_every_h_is_due_at_step_h_only() -> None:
    schedule = SCHEDULES["every_h"](3, 1)
    assert [schedule.due(step, 0) for step in (1, 2)] == [Due(), Due()]
    assert schedule.due(3, 0) == Due(begin=(0,), finish=(0,))


def test_every_h_takes_the_fragments_in_turn() -> None:
    schedule = SCHEDULES["every_h"](1, 3)
    assert [schedule.due(1, index).begin for index in range(5)] == [(0,), (1,), (2,), (0,), (1,)]


def test_unknown_schedule_is_refused() -> None:
    with pytest.raises(ConfigError, match="every_h"):
        SCHEDULES["never"]
