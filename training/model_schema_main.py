"""Says which tensors a founder's model file has: run as `python -P -m training.model_schema_main`.

Reads the settings of the model, a line of JSON, from standard input, and ends when that closes;
writes {"tensors": [[name, shape], ...]} to standard output. What is wrong goes to standard error,
status 2. The founder's network process never loads torch, so it asks this one.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from protocol.errors import ConfigError
from protocol.manifest import ModelSpec, Setting
from training.child_process import (
    exit_when_stdin_closes,
    leave_interrupts_to_parent,
    take_control_pipe,
)
from training.genesis import DIGEST_SETTING, MODEL_FILE
from training.model_file import read_model_file

EXIT_CONFIG = 2


def main() -> int:
    """Build the model and describe it; returns the exit status."""
    leave_interrupts_to_parent()
    parser = argparse.ArgumentParser(prog="training.model_schema_main", description=__doc__)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--digest", required=True, help="of the file, hexadecimal")
    options = parser.parse_args()
    # The model may print what it likes: our word alone goes to standard output.
    read_fd, write_fd = take_control_pipe()
    with os.fdopen(read_fd, "rb", closefd=False) as stream:
        given = json.loads(stream.readline())
    # The file's code may run for ever, and signals are the parent's.
    exit_when_stdin_closes(read_fd)
    settings = given | {DIGEST_SETTING: options.digest}
    model = ModelSpec(
        name=MODEL_FILE,
        settings=tuple(Setting(name, settings[name]) for name in sorted(settings)),
        seed=0,
    )
    try:
        description = _describe(options.file, model)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_CONFIG
    with os.fdopen(write_fd, "wb") as out:
        out.write(json.dumps(description).encode())
    return 0


def _describe(path: Path, model: ModelSpec) -> dict[str, object]:
    from training.model_from_file import build_from_file, check_forward
    from training.model_tensors import model_tensors

    built = build_from_file(read_model_file(path), model)
    tensors = model_tensors(built)
    context = model.setting("context")
    assert isinstance(context, int), "checked when the model was built"
    check_forward(built.eval(), context)
    return {"tensors": [[tensor.name, list(tensor.shape)] for tensor in tensors]}


if __name__ == "__main__":
    sys.exit(main())
