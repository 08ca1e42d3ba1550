"""The hash onion: one secret of a node for all its rounds, a layer less with each COMMIT (R10).

    layer(r) = H(layer(r + 1)): a COMMIT of round r shows layer r, and binds the sender to r + 1

So what the layers of all voters of a round hash to is nothing that anybody knows before the last
COMMIT of that round, and nothing that anybody can choose: it can only stay away. `beacon` is made
of them. The first layer that a peer shows binds it and is bound by nothing, so it must not count.
"""

from collections.abc import Sequence

from blake3 import blake3

from protocol.identity import PeerId, Signer

_ONION_DOMAIN = b"barnraise/onion/1"
_BEACON_DOMAIN = b"barnraise/beacon/1"

LAYERS = 4096
"""Of one secret; the next one begins where they end, with nothing that binds it: in one round of so
many a voter may choose its layer."""

GAP_MAX = 64
"""So many rounds may lie between two layers of a peer; whoever was away for longer begins anew."""


def _under(layer: bytes) -> bytes:
    return blake3(_ONION_DOMAIN + layer).digest()


class Onion:
    """The own one. The secret follows from the key, so that a restart goes on with it."""

    def __init__(self, signer: Signer, run: bytes) -> None:
        self._secret = blake3(_ONION_DOMAIN + signer.sign(_ONION_DOMAIN + run)).digest()
        self._turn = -1
        self._layers: list[bytes] = []

    def layer(self, round_index: int) -> bytes:
        """What the COMMIT of that round shows."""
        turn, place = divmod(round_index, LAYERS)
        if turn != self._turn:
            layers = [blake3(self._secret + turn.to_bytes(8, "big")).digest()]
            while len(layers) < LAYERS:
                layers.append(_under(layers[-1]))
            self._turn, self._layers = turn, layers[::-1]
        return self._layers[place]


def follows(layer: bytes, round_index: int, known: tuple[int, bytes] | None) -> bool:
    """Whether a layer is what its sender was bound to by an earlier one, of that round."""
    if known is None or known[0] // LAYERS != round_index // LAYERS:
        return True
    gap = round_index - known[0]
    if not 0 < gap <= GAP_MAX:
        return gap > GAP_MAX
    for _ in range(gap):
        layer = _under(layer)
    return layer == known[1]


def beacon(run: bytes, round_index: int, layers: Sequence[tuple[PeerId, bytes]]) -> bytes:
    """What the layers of a round's voters hash to, ascending by sender."""
    head = _BEACON_DOMAIN + run + round_index.to_bytes(8, "big")
    return blake3(head + b"".join(peer + layer for peer, layer in sorted(layers))).digest()


def share(beacon_of_round: bytes, *parts: bytes) -> float:
    """A number from 0 to below 1 that the beacon draws for these parts."""
    drawn = blake3(beacon_of_round + b"".join(parts)).digest()[:7]
    return int.from_bytes(drawn, "big") / (1 << 56)
