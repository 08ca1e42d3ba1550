"""What a recorder notes of the functions that a process enters."""

import os
import runpy
import sys
from pathlib import Path

from tests.structure.entered_functions import BACKWARD, Recorder


def test_torch_in_an_environment_that_lies_in_the_tree_is_torch(tmp_path: Path) -> None:
    library, ours = tmp_path / ".venv" / "torch" / "_tensor.py", tmp_path / "node" / "round.py"
    for path in (library, ours):
        path.parent.mkdir(parents=True)
        path.write_text("def backward(): pass\ndef forward(): pass\n")
    functions = [runpy.run_path(str(path)) for path in (library, ours)]
    recorder, before = Recorder(str(tmp_path), str(tmp_path)), sys.getprofile()
    sys.setprofile(recorder.profile)
    try:
        for found in functions:
            found["forward"]()
            found["backward"]()
    finally:
        sys.setprofile(before)
    recorder.write()
    lines = (tmp_path / f"{os.getpid()}.txt").read_text("utf-8").splitlines()
    names = [line.partition(" ")[2] for line in lines]
    assert names == [
        BACKWARD,
        "node/round.py forward",
        "node/round.py backward",
    ]
