"""How results travel: reducers have no error feedback, so nothing may be lost for good (R7)."""

from protocol.manifest import OuterSpec
from training.compression.dense import DenseCodec, Float16Codec
from training.compression.seam import Codec
from training.compression.seeded import RandomMaskCodec, RandomShiftCodec
from training.compression.settings import make_codec


def result_codec(spec: OuterSpec) -> Codec:
    """The run's own codec if it sends every element as a float, else random shifts of 8 bits; fp16
    for a mask, so that what nobody sent is zero and its anchor stays as it is.

    An 8-bit codec that rounds to the nearest would send what is small beside its block's largest as
    zero in every round, and one that chooses would leave it out, and nobody would make it good.
    These encoders are bit-exact: two reducers of one cell must give the same bytes.
    """
    codec = make_codec(spec)
    if isinstance(codec, RandomMaskCodec):
        return Float16Codec()
    return codec if isinstance(codec, DenseCodec) else RandomShiftCodec()
