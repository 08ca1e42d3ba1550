"""Payloads lie at once where they are sent from: of a contribution there is no second copy."""

import numpy as np
from numpy.typing import NDArray

from training.channel.exchange import HasDraft
from training.compression import Codec, Encodes


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
