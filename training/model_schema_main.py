"""Says which tensors a founder's model file has: run as `python -P -m training.model_schema_main`.

Reads the settings of the model, a line of JSON, from standard input, and ends when that closes;
writes to standard output {"tensors": [[name, shape], ...], "given": [[name, value], ...], "idle":
[name, ...]}. What is wrong goes to standard error, status 2. The founder's network process never
loads torch, so it asks this one.

`given` are the tensors whose first values are no accident, `value` what all elements of one have in
common, or null. `idle` are those that no gradient reaches.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3

from protocol.errors import ConfigError
from protocol.manifest import ModelSpec, Setting
from training.channel.child_process import (
    exit_when_stdin_closes,
    leave_interrupts_to_parent,
    take_control_pipe,
)
from training.models.genesis import DIGEST_SETTING, MODEL_FILE, read_model_file, vocabulary_of

if TYPE_CHECKING:
    from torch import nn

EXIT_CONFIG = 2


def main() -> int:
    """Build the model and describe it; returns the exit status."""
    leave_interrupts_to_parent()
    parser = argparse.ArgumentParser(prog="training.model_schema_main", description=__doc__)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--digest", required=True, help="digest of the file, hexadecimal")
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
    import torch

    from training.models.building import (
        ModelCode,
        build_from_file,
        check_backward,
        check_forward,
        model_tensors,
    )

    file, vocab_size = read_model_file(path), vocabulary_of(model)
    torch.manual_seed(1)
    built = build_from_file(file, model)
    tensors = model_tensors(built)
    context = model.setting("context")
    assert isinstance(context, int), "checked when the model was built"
    with ModelCode(file, "a run's model is called with tokens (B, T), int64"):
        values = _first_values(built)
        check_forward(built.eval(), context, vocab_size)
        idle = check_backward(built, context, vocab_size)
    # Of two models at a time a home may not have the memory.
    del built
    torch.manual_seed(2)
    again = _first_values(build_from_file(file, model))
    # What comes out alike of two builds was not drawn: somebody put it there.
    given = [[name, values[name][1]] for name in values if again.get(name) == values[name]]
    return {
        "tensors": [[tensor.name, list(tensor.shape)] for tensor in tensors],
        "given": given,
        "idle": list(idle),
    }


def _first_values(model: "nn.Module") -> dict[str, tuple[bytes, float | None]]:
    """Of each parameter a digest of its values, and what all of them are if they are one."""
    found = {}
    for name, parameter in model.named_parameters():
        values_N = parameter.detach().numpy(force=True)
        first = float(values_N.flat[0])
        common = first if (values_N == values_N.flat[0]).all() else None
        found[name] = (blake3(values_N.tobytes()).digest(), common)
    return found


if __name__ == "__main__":
    sys.exit(main())
