"""What a bench tells when something went wrong: nothing that looks better than it was."""

from pathlib import Path
from typing import Any

from rich.console import Console

from sim.bench.faults import FaultOptions, FaultResult, fault_json, not_started, print_faults


def good(seconds: float | None) -> FaultResult:
    return FaultResult(
        seed=1,
        moment="vote",
        role="closer",
        victim="B",
        round=5,
        recovered_s=seconds,
        next_round_s=seconds,
        calm_round_s=0.5,
        result_exact=True,
        digests_equal=True,
        false_exclusions=0,
        num_exact=6,
        broken="" if seconds is not None else "the survivors got stuck",
    )


def told(folder: Path, *seconds: float | None) -> dict[str, Any]:
    options = FaultOptions(peers=4, elements=5000, folder=folder)
    return fault_json(options, "abc", 5000, [good(one) for one in seconds])


def test_run_that_never_recovers_makes_the_median_longer_and_not_shorter(tmp_path: Path) -> None:
    assert told(tmp_path, 1.0, 2.0, 9.0)["recovered_s"] == 2.0
    assert told(tmp_path, 1.0, 2.0, None)["recovered_s"] == 2.0
    found = told(tmp_path, 1.0, None, None)
    assert (found["recovered_s"], found["next_round_s"]) == (None, None)
    assert found["broken"] == "the survivors got stuck"
    assert told(tmp_path, 1.0, None)["recovered_s"] is None
    assert told(tmp_path, 1.0)["broken"] == ""


def test_run_that_did_not_start_is_told_among_the_others_and_where_to_look(
    tmp_path: Path,
) -> None:
    options = FaultOptions(peers=4, elements=5000, folder=tmp_path)
    runs = [good(1.0), not_started(7, "node C did not start")]
    assert not runs[-1].is_good
    found = fault_json(options, "abc", 5000, runs)
    assert (found["result_exact"], found["broken"]) == (False, "node C did not start")
    console = Console(record=True, quiet=False, file=(tmp_path / "out").open("w"), width=200)
    print_faults(console, options, runs)
    console.file.close()
    assert f"seed 7: node C did not start; see {tmp_path}" in (tmp_path / "out").read_text()
