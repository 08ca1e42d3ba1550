"""What sums takes one thread: the machine's others are the trainer's."""

import os
import subprocess
import sys

import pytest

from node.processes.children import child_environment

_PRODUCT = """
import numpy as np
rows_PN = np.ones((64, 20_000))
assert (rows_PN @ rows_PN.T)[0, 0] == 20_000.0
print(len(os.listdir("/proc/self/task")))
"""
_COMMAND = """
from node.cli import main
sys.argv = ["barnraise", "--version"]
with contextlib.suppress(SystemExit):
    main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted under /proc")
@pytest.mark.parametrize("environment", ["of the command", "of children"])
def test_a_product_of_many_rows_starts_no_thread(environment: str) -> None:
    env = child_environment()
    before = "import contextlib, os, sys\n"
    if environment == "of the command":
        # As a user has it who wants all for a trainer.
        env["OPENBLAS_NUM_THREADS"] = str(os.cpu_count())
        before += _COMMAND
    told = subprocess.run(
        [sys.executable, "-P", "-c", before + _PRODUCT],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(told.stdout.splitlines()[-1]) == 1
