"""Encoders that work where the numbers are: torch operations on the tensor's own device.

N elements, B blocks of K elements or R rows of C, k of each row are sent

What leaves the device is the payload alone. Everybody's decoder takes it as it takes numpy's: same
form, same rules. int8, int4 and top-k give the very bytes of numpy's encoder, for all they do is
exact; where sums are taken (ternary, levels of 2 bits) the order of addition is the device's, and a
scale may differ in its last bits. Codecs that are not here encode in numpy.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.channel.exchange import HasDraft
from training.compression import Codec, Encodes, coarsest_of, in_grade
from training.compression.blocks import (
    BlockCodec,
    Dense2BitCodec,
    Int4Codec,
    Int8Codec,
    TernaryCodec,
    packed_bytes,
)
from training.compression.dense import Float16Codec
from training.compression.sparse import GapIndices, PlainIndices, TopKCodec, low_bits, plain_width

_CPU = torch.device("cpu")
_SCALE_LEAST = 2.0**-100
_FINITE_MOST = float(np.finfo(np.float32).max)
_HALF_MOST = 65504.0


def encoder_on(device: torch.device, codec: Codec) -> Encodes | None:
    """An encoder of host vectors that works on an accelerator; None where numpy's is the one.

    What it is called with is the codec, or of one with grades any of them.
    """
    if device.type == "cpu" or not encodes_on_device(codec, device):
        return None
    return lambda by, x_N: encode_on_device(by, torch.from_numpy(x_N).to(device))


def encodes_on_device(codec: Codec, device: torch.device = _CPU) -> bool:
    """Whether a codec has an encoder here that such a device can run."""
    codec = coarsest_of(codec)
    if isinstance(codec, TopKCodec) and not isinstance(codec.values, Float16Codec):
        return encodes_on_device(codec.values, device)
    if isinstance(codec, Dense2BitCodec):
        return device.type in ("cpu", "cuda")  # It wants float64.
    return isinstance(codec, TopKCodec) or type(codec) in _QUANTIZERS


def encode_on_device(codec: Codec, x_N: Tensor) -> bytes:
    """As `codec.encode`, of a flat tensor; by that itself where there is no encoder here.

    Raises ValueError if an element is not finite.
    """
    codec = in_grade(codec, 0, x_N.numel())
    if not encodes_on_device(codec, x_N.device):
        return codec.encode(x_N)
    flat_N = x_N.detach().to(torch.float32).reshape(-1)
    if not bool(torch.isfinite(flat_N).all()):
        raise ValueError("a vector to encode is not finite")
    if isinstance(codec, TopKCodec):
        return _sparse(codec, flat_N)
    assert isinstance(codec, BlockCodec)
    return _blocks(codec, flat_N)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().cpu().numpy().tobytes()


def _floats(tensor: Tensor) -> bytes:
    return tensor.contiguous().cpu().numpy().astype("<f4", copy=False).tobytes()


def _blocks(codec: BlockCodec, flat_N: Tensor) -> bytes:
    """All whole blocks at once, then the rest: heads of both, codes of both."""
    quantize = _QUANTIZERS[type(codec)]
    whole = len(flat_N) - len(flat_N) % codec.block
    heads, codes = [], []
    for part_N, width in ((flat_N[:whole], codec.block), (flat_N[whole:], len(flat_N) - whole)):
        if len(part_N):
            head_BF, codes_BK = quantize(part_N.reshape(-1, width))
            heads.append(head_BF.reshape(-1))
            codes.append(codes_BK.reshape(-1))
    if not heads:
        return b""
    # A whole block ends with a whole byte, so the rest begins with one.
    return _floats(torch.cat(heads)) + _bytes(_packed(torch.cat(codes), codec.bits))


def _packed(codes_N: Tensor, bits: int) -> Tensor:
    """Codes of 2, 4 or 8 bits, several to a byte, the first lowest, as numpy packs them."""
    if bits == 8:
        return codes_N.to(torch.uint8)
    per_byte = 8 // bits
    padded_N = torch.nn.functional.pad(codes_N, (0, -len(codes_N) % per_byte))
    packed_M = torch.zeros(
        packed_bytes(len(codes_N), bits), dtype=torch.uint8, device=codes_N.device
    )
    for place, code_M in enumerate(padded_N.to(torch.uint8).reshape(-1, per_byte).unbind(1)):
        packed_M |= code_M << (bits * place)
    return packed_M


def _rounded_up(scale_B1: Tensor, largest_level: int) -> Tensor:
    """Scales of 11 significant bits; 0 for blocks too small to have one (see `blocks`)."""
    bits_B1 = scale_B1.contiguous().view(torch.int32)
    up_B1 = ((bits_B1 + 0x1FFF) & -0x2000).view(torch.float32)
    up_B1 = torch.where(scale_B1 < _SCALE_LEAST, torch.zeros_like(up_B1), up_B1)
    most = np.float32(_FINITE_MOST / largest_level).view(np.uint32) & np.uint32(0xFFFFE000)
    return up_B1.clamp(max=float(most.view(np.float32)))


def _reciprocal(scale_B1: Tensor) -> Tensor:
    # Tensor by tensor: by a plain number CUDA multiplies with its reciprocal, which is another bit.
    inverse_B1 = torch.ones_like(scale_B1) / scale_B1
    return torch.where(scale_B1 > 0, inverse_B1, torch.zeros_like(scale_B1))


def _levels(x_BK: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Scale of each block, and the nearest of the levels -most..most of each element, as int8."""
    largest_B1 = x_BK.abs().amax(dim=1, keepdim=True)
    scale_B1 = _rounded_up(largest_B1 / torch.full_like(largest_B1, most), most)
    return scale_B1, torch.round(x_BK * _reciprocal(scale_B1)).to(torch.int8)


def _int8(x_BK: Tensor) -> tuple[Tensor, Tensor]:
    scale_B1, level_BK = _levels(x_BK, 127)
    return scale_B1, level_BK.view(torch.uint8)


def _int4(x_BK: Tensor) -> tuple[Tensor, Tensor]:
    scale_B1, level_BK = _levels(x_BK, 7)
    return scale_B1, level_BK.view(torch.uint8) & 15


def _ternary(x_BK: Tensor) -> tuple[Tensor, Tensor]:
    magnitude_BK = x_BK.abs()
    bound_B1 = magnitude_BK.mean(dim=1, keepdim=True) * 0.7
    is_sent_BK = magnitude_BK > bound_B1.clamp(min=_SCALE_LEAST)
    total_B1 = (magnitude_BK * is_sent_BK).sum(dim=1, keepdim=True)
    count_B1 = is_sent_BK.sum(dim=1, keepdim=True).clamp(min=1)
    codes_BK = (1 + 2 * torch.signbit(x_BK).to(torch.uint8)) * is_sent_BK.to(torch.uint8)
    return _rounded_up(total_B1 / count_B1, 1), codes_BK


def _dense2bit(x_BK: Tensor) -> tuple[Tensor, Tensor]:
    wide_BK = x_BK.double()
    mean_B1 = wide_BK.mean(dim=1, keepdim=True)
    edge_B1 = 1.5 * wide_BK.std(dim=1, keepdim=True, correction=0)
    codes_BK = torch.zeros_like(x_BK, dtype=torch.uint8)
    for bound_B1 in (mean_B1 - edge_B1, mean_B1, mean_B1 + edge_B1):
        codes_BK += x_BK >= bound_B1.float()
    levels = []
    for code in range(4):
        is_in_BK = codes_BK == code
        count_B = is_in_BK.sum(dim=1).clamp(min=1)
        levels.append((wide_BK * is_in_BK).sum(dim=1) / count_B)
    return torch.stack(levels, dim=1).float(), codes_BK


_QUANTIZERS: dict[type, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    Int8Codec: _int8,
    Int4Codec: _int4,
    TernaryCodec: _ternary,
    Dense2BitCodec: _dense2bit,
}


def _sparse(codec: TopKCodec, flat_N: Tensor) -> bytes:
    values, packed = [], []
    for start, stop, width, kept in codec.spans(len(flat_N)):
        x_RC = flat_N[start:stop].reshape(-1, width)
        index_Rk = largest_indices(x_RC, kept)
        values.append(x_RC.gather(1, index_Rk).reshape(-1))
        packed.append(_packed_indices(codec, index_Rk, width).reshape(-1))
    if not values:
        return b""
    sent_K = torch.cat(values)
    if isinstance(codec.values, Dense2BitCodec):
        encoded = _blocks(codec.values, sent_K)
    else:
        encoded = _bytes(sent_K.clamp(-_HALF_MOST, _HALF_MOST).to(torch.float16))
    return encoded + _bytes(torch.cat(packed))


def largest_indices(x_RC: Tensor, kept: int) -> Tensor:
    """Ascending, the places of the `kept` largest magnitudes of each row; the lower of equals."""
    magnitude_RC = x_RC.abs()
    least_R1 = magnitude_RC.topk(kept, dim=1, sorted=True).values[:, -1:]
    is_above_RC, is_equal_RC = magnitude_RC > least_R1, magnitude_RC == least_R1
    missing_R1 = kept - is_above_RC.sum(dim=1, keepdim=True)
    is_kept_RC = is_above_RC | (is_equal_RC & (is_equal_RC.cumsum(dim=1) <= missing_R1))
    return is_kept_RC.nonzero()[:, 1].reshape(len(x_RC), kept)


def _packed_indices(codec: TopKCodec, index_Rk: Tensor, bound: int) -> Tensor:
    """The rows of indices, as numpy packs them."""
    if isinstance(codec.indices, PlainIndices):
        return _packed_rows(_bit_planes(index_Rk, plain_width(bound)))
    assert isinstance(codec.indices, GapIndices)
    rows, count = index_Rk.shape
    low = low_bits(count, bound)
    high_RM = torch.zeros(
        (rows, count + ((bound - 1) >> low)), dtype=torch.uint8, device=index_Rk.device
    )
    place_Rk = (index_Rk >> low) + torch.arange(count, device=index_Rk.device)
    high_RM.scatter_(1, place_Rk, 1)
    low_Rk = index_Rk & ((1 << low) - 1)
    return torch.cat((_packed_rows(_bit_planes(low_Rk, low)), _packed_rows(high_RM)), dim=1)


def _bit_planes(number_Rk: Tensor, width: int) -> Tensor:
    planes = torch.arange(width, device=number_Rk.device)
    return ((number_Rk[:, :, None] >> planes) & 1).to(torch.uint8).reshape(len(number_Rk), -1)


def _packed_rows(bit_RM: Tensor) -> Tensor:
    """Eight bits to a byte, the first lowest; each row ends with a whole byte."""
    padded_RM = torch.nn.functional.pad(bit_RM, (0, -bit_RM.shape[1] % 8))
    weights = 1 << torch.arange(8, device=bit_RM.device)
    byte_RM = (padded_RM.reshape(len(bit_RM), -1, 8) * weights).sum(dim=2)
    return byte_RM.to(torch.uint8)


# Drafts -------------------------------------------------------------------------------------------
#
# Payloads lie at once where they are sent from: of a contribution there is no second copy.


class Drafting:
    """An encoder into the draft of an exchange; `begin` comes before each contribution."""

    def __init__(self, encode: Encodes | None, exchange: HasDraft) -> None:
        """`encode` stands in for the codec's own."""
        self._encode, self._exchange = encode, exchange
        self._left_B: NDArray[np.uint8] = np.empty(0, np.uint8)

    def begin(self) -> None:
        """The next cell is the first of a contribution."""
        self._left_B = self._exchange.draft()

    def __call__(self, codec: Codec, x_N: NDArray[np.float32]) -> bytes:
        """See Encodes; what looks like bytes may be a view of the draft."""
        payload = codec.encode(x_N) if self._encode is None else self._encode(codec, x_N)
        if len(payload) > len(self._left_B):
            return payload
        place_B, self._left_B = np.split(self._left_B, [len(payload)])
        place_B[:] = np.frombuffer(payload, np.uint8)
        return place_B.data.toreadonly()  # type: ignore[return-value]  # read like bytes
