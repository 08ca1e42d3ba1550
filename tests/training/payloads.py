"""What a codec says of bytes, by its check and by decoding them."""

import numpy as np

from protocol.errors import DecodeError
from training.compression import Codec, check_payload, decode_into, decode_to_read
from training.numeric.arithmetic import Vector


def passes(codec: Codec, payload: bytes, numel: int) -> bool:
    """Whether its check takes them for a payload of so many elements."""
    try:
        check_payload(codec, payload, numel)
    except DecodeError:
        return False
    return True


def assert_reads_alike(codec: Codec, payload: bytes, x_N: Vector) -> None:
    """Those who only read, of checked bytes or others, see the bits that decoding gave."""
    for is_checked in (False, True):
        read_N = decode_to_read(codec, payload, len(x_N), is_checked=is_checked)
        assert read_N.tobytes() == x_N.tobytes()
    # As a row of others, which stay as they are.
    rows_3N = np.full((3, len(x_N)), 7.0, dtype=np.float32)
    decode_into(codec, payload, rows_3N[1])
    assert rows_3N[1].tobytes() == x_N.tobytes()
    assert (rows_3N[[0, 2]] == 7.0).all()
