"""Samples: which window of which block sample number i is, the same on all machines without a word.

B samples, W window (context + 1 tokens), T tokens of a block

A token store is cut into blocks of equal size: first those for training, then those that are held
out, so that no training sample ever touches a held-out token. Block is what nodes fetch from each
other, so samples that are leased together lie in few blocks: an epoch permutes the blocks, cuts
that order into runs of `shuffle_blocks`, and permutes the windows within each run. A lease of
consecutive samples touches the blocks of its own size and at most one run more.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from protocol.errors import ConfigError, CorpusError
from protocol.grid import merkle_root
from protocol.leases import Lease
from protocol.manifest import CorpusSpec
from training.numeric import Tokens

# A keyed bijection of 0..n-1 that needs no memory: a Feistel network with cycle walking ----------
#
# Integer arithmetic on 64 bits only, so that every machine computes the same order. It mixes well
# and keeps no secret.

_ROUNDS = 6


def permute(numbers_B: NDArray[np.int64], domain: int, key: str) -> NDArray[np.int64]:
    """Where the permutation of 0..domain-1 that `key` names takes each of the numbers.

    The network permutes the next power of four; a result beyond the domain goes through it again,
    which stays a bijection (Black and Rogaway 2002, cycle walking) and takes four passes at most
    on average.
    """
    assert 0 < domain < 2**62
    assert len(numbers_B) == 0 or (numbers_B.min() >= 0 and numbers_B.max() < domain)
    half_bits = np.uint64(max(1, ((domain - 1).bit_length() + 1) // 2))
    raw = blake3(key.encode()).digest(length=8 * _ROUNDS)
    keys = np.frombuffer(raw, dtype="<u8").astype(np.uint64)
    result_B = numbers_B.astype(np.uint64)
    outside = np.ones(len(result_B), dtype=np.bool_)
    while outside.any():
        result_B[outside] = _feistel(result_B[outside], half_bits, keys)
        outside = result_B >= np.uint64(domain)
    return result_B.astype(np.int64)


def _feistel(
    values_B: NDArray[np.uint64], half_bits: np.uint64, keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    mask = (np.uint64(1) << half_bits) - np.uint64(1)
    left_B, right_B = values_B >> half_bits, values_B & mask
    for key in keys:
        left_B, right_B = right_B, left_B ^ (_mix(right_B ^ key) & mask)
    return (left_B << half_bits) | right_B


def _mix(values_B: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64 (Steele, Lea and Flood 2014); products wrap at 2^64."""
    values_B = (values_B ^ (values_B >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values_B = (values_B ^ (values_B >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values_B ^ (values_B >> np.uint64(31))


# Samples ------------------------------------------------------------------------------------------


class Dataset(Protocol):
    """SEAM: called by the trainer for each batch, and for validation. Pure after opening."""

    def samples_per_epoch(self, context: int) -> int:
        """Number of samples in one pass over the training blocks."""
        ...

    def blocks_of(self, samples_B: NDArray[np.int64], context: int) -> NDArray[np.int64]:
        """The numbers of the blocks in which these samples lie, ascending, each once."""
        ...

    def windows(self, samples_B: NDArray[np.int64], context: int) -> Tokens:
        """The windows (B, context + 1) of these sample numbers, new memory."""
        ...

    def held_out_windows(self, num_windows: int, context: int) -> Tokens:
        """At most `num_windows` windows (B, context + 1) of held-out text, always the same ones."""
        ...


class TokenBlocks(Protocol):
    """Where the tokens of blocks come from: a store on the disk, or what was fetched of one."""

    def tokens_of_block(self, number: int) -> Tokens:
        """The tokens (T) of one block: training blocks first, then held-out ones.

        Raises CorpusError where the block is not here or is not what the run pins.
        """
        ...


class MemoryBlocks:
    """TokenBlocks in memory."""

    def __init__(self, spec: CorpusSpec, payloads: Sequence[bytes]) -> None:
        """`payloads` are all blocks; they may come from anywhere. Raises CorpusError unless they
        are those of `spec`."""
        if [len(payload) for payload in payloads] != [spec.block_bytes] * spec.num_blocks:
            raise CorpusError(f"{spec.name}: not {spec.num_blocks} blocks of {spec.block_bytes}")
        if merkle_root([blake3(payload).digest() for payload in payloads]) != spec.digest:
            raise CorpusError(f"{spec.name}: the blocks are not those that the run pins")
        self._spec, self._payloads = spec, payloads

    def tokens_of_block(self, number: int) -> Tokens:
        """See TokenBlocks."""
        return np.frombuffer(self._payloads[number], self._spec.token_dtype)


def lease_samples(lease: Lease) -> NDArray[np.int64]:
    """All sample numbers of a lease, ascending."""
    ranges = [np.arange(first, stop, dtype=np.int64) for first, stop in lease]
    return np.concatenate([np.empty(0, np.int64), *ranges])


class SampledBlocks:
    """Dataset over the blocks of a corpus."""

    def __init__(self, spec: CorpusSpec, blocks: TokenBlocks) -> None:
        self._spec, self._blocks = spec, blocks

    def samples_per_epoch(self, context: int) -> int:
        """See Dataset. Raises ConfigError for a context that no block holds."""
        return self._spec.training_blocks * self._windows_per_block(context)

    def blocks_of(self, samples_B: NDArray[np.int64], context: int) -> NDArray[np.int64]:
        """See Dataset."""
        return np.unique(self._places(samples_B, context)[0])

    def windows(self, samples_B: NDArray[np.int64], context: int) -> Tokens:
        """See Dataset."""
        return self._cut(*self._places(samples_B, context), context)

    def held_out_windows(self, num_windows: int, context: int) -> Tokens:
        """See Dataset. They are spread evenly over the held-out text, and none is of what fills up
        its last block, but where the text is shorter than a window."""
        per_block = self._windows_per_block(context)
        full, rest = divmod(self._spec.held_out_tokens, self._spec.block_tokens)
        available = full * per_block + min(per_block, max(0, rest - 1) // context)
        available = max(1, available)
        num_windows = min(num_windows, available)
        numbers_B = np.arange(num_windows, dtype=np.int64) * available // max(1, num_windows)
        blocks_B, columns_B = np.divmod(numbers_B, per_block)
        return self._cut(blocks_B + self._spec.training_blocks, columns_B * context, context)

    def _windows_per_block(self, context: int) -> int:
        # One window fewer than would fit leaves room for any shift below `context`.
        count = (self._spec.block_tokens - context) // context
        if count < 1:
            raise ConfigError(
                f"a context of {context} tokens does not fit the corpus's blocks of "
                f"{self._spec.block_tokens}: pack the text with larger blocks"
            )
        return count

    def _places(
        self, samples_B: NDArray[np.int64], context: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Per sample the block, and the first token in it."""
        epochs_B, numbers_B = np.divmod(samples_B, self.samples_per_epoch(context))
        blocks_B, starts_B = np.empty_like(numbers_B), np.empty_like(numbers_B)
        for epoch in np.unique(epochs_B):
            is_of_epoch_B = epochs_B == epoch
            blocks_B[is_of_epoch_B], starts_B[is_of_epoch_B] = self._places_in_epoch(
                int(epoch), numbers_B[is_of_epoch_B], context
            )
        return blocks_B, starts_B

    def _places_in_epoch(
        self, epoch: int, numbers_B: NDArray[np.int64], context: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        key = f"{self._spec.permutation_seed}/epoch/{epoch}"
        per_block, num_blocks = self._windows_per_block(context), self._spec.training_blocks
        run_blocks = self._spec.shuffle_blocks
        runs_B, within_B = np.divmod(numbers_B, run_blocks * per_block)
        for run in np.unique(runs_B):
            is_of_run_B = runs_B == run
            size = min(run_blocks, num_blocks - int(run) * run_blocks) * per_block
            within_B[is_of_run_B] = permute(within_B[is_of_run_B], size, f"{key}/run/{run}")
        ordinals_B, columns_B = np.divmod(within_B, per_block)
        blocks_B = permute(runs_B * run_blocks + ordinals_B, num_blocks, f"{key}/blocks")
        # Windows do not overlap within an epoch. The next one cuts them at another phase, so that
        # a token is not always predicted from the same tokens before it.
        phase = blake3(f"{key}/phase".encode()).digest(length=8)
        shift = int.from_bytes(phase, "little") % context
        return blocks_B, shift + columns_B * context

    def _cut(
        self, blocks_B: NDArray[np.int64], starts_B: NDArray[np.int64], context: int
    ) -> Tokens:
        offsets_W = np.arange(context + 1)
        windows_BW = np.empty((len(blocks_B), context + 1), self._spec.token_dtype)
        for block in np.unique(blocks_B):
            is_of_block_B = blocks_B == block
            tokens_T = self._blocks.tokens_of_block(int(block))
            windows_BW[is_of_block_B] = tokens_T[starts_B[is_of_block_B, None] + offsets_W]
        return windows_BW
