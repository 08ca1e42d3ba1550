"""What once broke a decoder under `make fuzz` is tried for ever after."""

from tests.fuzz.atheris_main import CRASHES
from tests.fuzz.test_decoders import TARGETS

KEPT = sorted(path for path in CRASHES.rglob("*") if path.is_file()) if CRASHES.exists() else []
BY_NAME = {target.name: target for target in TARGETS}


def test_every_kept_input_is_of_a_decoder_that_there_is():
    assert {path.parent.name for path in KEPT} <= set(BY_NAME)


def test_kept_inputs_raise_only_what_is_documented(tmp_path):
    for path in KEPT:
        target = BY_NAME[path.parent.name]
        target.attempt(target.wrap(path.read_bytes()), tmp_path)
