"""What a group of tasks died of is told as one error."""

import pytest
import trio

from node.processes.children import first_error_nursery
from protocol.errors import ConfigError, StateError, first_of


async def fail(error: Exception) -> None:
    raise error


async def tasks_in_tasks(error: Exception) -> None:
    async with first_error_nursery() as outer, trio.open_nursery() as inner:
        inner.start_soon(fail, error)
        outer.start_soon(trio.sleep_forever)


async def test_first_error_of_tasks_in_tasks_is_raised_as_itself():
    with pytest.raises(StateError, match="the story"):
        await tasks_in_tasks(StateError("the story"))


async def test_what_is_no_state_error_stays_as_it_is():
    with pytest.raises(ExceptionGroup) as caught:
        await tasks_in_tasks(ConfigError("another"))
    assert str(first_of(caught.value)) == "another"


async def test_tasks_that_end_well_raise_nothing():
    async with first_error_nursery() as nursery:
        nursery.start_soon(trio.sleep, 0)
