"""SPARTA: replicas with weights of their own, and one anchor all the same (Beton et al. 2025).

    theta_r <- theta_r but for the elements that all draw in a round, which are theta there

Of the other elements the anchor has what they were averaged to last. So what a replica drifted in
them is in its next drift again: there is no residual, and whoever was not listed takes what was
drawn all the same.

N elements of a fragment
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from protocol.errors import ConfigError
from protocol.manifest import RunManifest
from training.channel.exchange import Outcome, RunStart
from training.compression import DrawsLots, common_lots, make_codec
from training.methods.method import METHODS, Method, Vector

if TYPE_CHECKING:
    from torch import nn


class Sparta(Method):
    """What rounds are about, of one shard. Own weights go on behind the round that they were handed
    over in, whatever came of it."""

    @override
    def begin_run(
        self, model: "nn.Module", manifest: RunManifest, start: RunStart, shard: int
    ) -> None:
        """Raise ConfigError for a manifest whose codec chooses nothing by lot."""
        codec = make_codec(manifest.outer)
        if not isinstance(codec, DrawsLots):
            name = manifest.outer.codec
            raise ConfigError(f"replicas with own weights draw elements by lot, and {name!r} none")
        self._codec, self._numels = codec, manifest.layout(shard).cell_numels

    @override
    def continued(self, later: Method) -> Method:
        return self

    @override
    def lots(self, round_index: int) -> Callable[[int], bytes]:
        return partial(common_lots, round_index)

    @override
    def take_in(
        self, round_index: int, outcome: Outcome, local: Callable[[], Vector], sent_N: Vector | None
    ) -> Vector:
        fragment = round_index % self._num_fragments
        return self.weights_behind(round_index, fragment, local(), outcome.anchor_N)

    @override
    def keeps_weights(self, fragment: int, contributed: int) -> bool:
        return True

    @override
    def weights_behind(
        self, round_index: int, fragment: int, local_N: Vector, anchor_N: Vector
    ) -> Vector:
        """The weights of a replica behind a round that led to this anchor; new memory."""
        lots = self.lots(round_index)
        is_drawn_N = np.concatenate(
            [self._codec.drawn(lots(i), numel) for i, numel in enumerate(self._numels[fragment])]
        )
        taken_N: Vector = np.where(is_drawn_N, anchor_N, local_N)
        return taken_N


METHODS.register("sparta", Sparta)
