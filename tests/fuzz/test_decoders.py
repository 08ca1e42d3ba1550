"""Every decoder of the project under hostile input: its own errors only, bounded memory."""

import logging
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from node.holdings.journal import RESULTS_FOLDER, FileJournal
from tests.fuzz import (
    channel_targets,
    dht_targets,
    file_targets,
    folder_targets,
    peer_targets,
    protocol_targets,
    state_targets,
    user_targets,
)
from tests.fuzz.folder_targets import RESULT_FILE
from tests.fuzz.mutations import inputs
from tests.fuzz.target import Target

TARGETS: list[Target] = [
    *protocol_targets.TARGETS,
    *dht_targets.TARGETS,
    *state_targets.TARGETS,
    *channel_targets.TARGETS,
    *file_targets.TARGETS,
    *folder_targets.TARGETS,
    *peer_targets.TARGETS,
    *user_targets.TARGETS,
]

FEW_EXAMPLES = 3
SOME_EXAMPLES = 25
MANY_EXAMPLES = 1000

# A failure shows its input, however long.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

every_target = pytest.mark.parametrize("target", TARGETS, ids=[one.name for one in TARGETS])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    """One for all inputs: a decoder that minds what another left there has a bug as well."""
    yield tmp_path_factory.mktemp("fuzz")
    file_targets.remove_disk()


@pytest.fixture(autouse=True)
def no_logging() -> Iterator[None]:
    """What pytest keeps of logs would be counted as the decoder's memory."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def allocated(target: Target, data: bytes, folder: Path) -> tuple[bool, int]:
    """Whether the decoder took `data`, and the most memory that it held, in bytes."""
    tracemalloc.start()
    try:
        taken = target.attempt(data, folder)
        return taken, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def check(target: Target, data: bytes, folder: Path) -> None:
    _, peak = allocated(target, data, folder)
    allowed = target.memory_base + target.memory_factor * len(data)
    assert peak <= allowed, f"{peak} bytes for an input of {len(data)}, {allowed} allowed"


def fuzz(target: Target, folder: Path, examples: int) -> None:
    # What is made once, such as forms of types and caches of libraries, is made here.
    for data in target.valid():
        target.attempt(data, folder)
    target.attempt(b"", folder)

    @settings(
        max_examples=max(2, examples // target.weight),
        deadline=None,
        print_blob=True,
        # Not `explain`: it traces every line, and what that allocates would be counted as ours.
        phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(data=inputs(target))
    def run(data: bytes) -> None:
        check(target, data, folder)

    run()


@every_target
def test_valid_examples_are_taken(target, folder):
    """Else the mutants of them would test nothing but the first check."""
    refused = [data for data in target.valid() if not target.attempt(data, folder)]
    assert refused == []
    assert list(target.valid())


def test_examples_of_a_result_s_file_are_whole(tmp_path):
    """A journal takes any file: of one that is not whole it makes nothing, and nothing is tried."""
    (target,) = [one for one in TARGETS if RESULTS_FOLDER in one.name]
    for data in target.valid():
        path = tmp_path / "journal" / RESULT_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        journal = FileJournal(tmp_path / "journal")
        (body,) = journal.results(1).values()
        assert len(data) > len(body) > 0
        journal.close()


@pytest.mark.parametrize(
    "examples", [FEW_EXAMPLES, pytest.param(SOME_EXAMPLES, marks=pytest.mark.extended)]
)
@every_target
def test_hostile_bytes_raise_only_what_is_documented_and_allocate_little(target, examples, folder):
    fuzz(target, folder, examples)


@pytest.mark.slow
@every_target
def test_many_hostile_bytes_raise_only_what_is_documented_and_allocate_little(target, folder):
    fuzz(target, folder, MANY_EXAMPLES)
