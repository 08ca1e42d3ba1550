"""How results travel: reducers have no error feedback, so nothing may be lost for good (R7)."""

from protocol.manifest import OuterSpec
from training.compression.seam import CODECS, Codec, bits_per_element
from training.compression.seeded import RandomShiftCodec

FLOAT_BITS = 16.0


def result_codec(spec: OuterSpec) -> Codec:
    """The run's own codec if it spends the bits of a float, else random shifts of 8 bits.

    An 8-bit codec that rounds to the nearest would send what is small beside its block's largest as
    zero in every round, and nobody would make it good. These encoders are bit-exact: two reducers
    of one cell must give the same bytes.
    """
    codec = CODECS[spec.codec]()
    return codec if bits_per_element(codec) >= FLOAT_BITS else RandomShiftCodec()
