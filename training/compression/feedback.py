"""The codec of a run, that of its results, and error feedback around it, as a transaction.

A codec's settings are the keywords of its factory that have a number as their default. All are law
(a receiver knows a payload's size beforehand), so a founder writes every one into the manifest: a
default that changes with a release would change a run.
"""

import difflib
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigError
from protocol.grid import EMPTY_ROOT, cell_root, merkle_root
from protocol.manifest import OuterSpec, RunManifest
from training.compression.dense import DenseCodec, Float16Codec, encode_to_read
from training.compression.seam import CODECS, Codec, DrawsLots, in_grade
from training.compression.seeded import RandomMaskCodec, RandomShiftCodec


@cache
def codec_defaults(name: str) -> Mapping[str, int | float]:
    """The settings of a codec and their defaults, sorted by name. Raises ConfigError for an unknown
    codec.

    A `seed` is none: one that a manifest fixed would draw the same lots in every round.
    """
    keywords = inspect.signature(CODECS[name]).parameters.values()
    found = {one.name: one.default for one in keywords if type(one.default) in (int, float)}
    return dict(sorted(found.items()))


def codec_named(name: str, settings: Mapping[str, object]) -> Codec:
    """A codec with some of its settings given, the others at their defaults.

    Raises ConfigError for an unknown codec or setting, a value of another type (a whole number is
    no fraction: equal runs have equal bytes) or one that the codec refuses, with the nearest valid
    choice.
    """
    defaults, numbers = codec_defaults(name), {}
    for key, value in settings.items():
        if key not in defaults:
            raise ConfigError(
                f"{key!r} is no setting of the codec {name}; {_nearest(key, defaults)}"
            )
        if not isinstance(value, int | float) or type(value) is not type(defaults[key]):
            kind = "a whole number" if type(defaults[key]) is int else "a number with a point"
            raise ConfigError(f"{key} must be {kind}, not {value!r:.40}; take {defaults[key]}")
        numbers[key] = value
    return CODECS[name](**numbers)


def make_codec(spec: OuterSpec) -> Codec:
    """The manifest's codec. Raises what `codec_named` does."""
    return codec_named(spec.codec, {one.name: one.value for one in spec.codec_settings})


def _nearest(key: str, known: Mapping[str, object]) -> str:
    if not known:
        return "it has none: leave it out"
    close = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"


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


Encodes = Callable[[Codec, NDArray[np.float32]], bytes]
"""`Codec.encode` of that codec, wherever it is done."""


HearsSums = Callable[[NDArray[np.float32]], None]
"""Hears what the cells of a contribution are encoded from, one after the other, before they are;
each is good until it returns."""


class Encoded(NamedTuple):
    """A contribution's payloads, cell by cell, and the roots of the residual around it (R6)."""

    payloads: tuple[bytes, ...]
    residual_before: bytes
    residual_after: bytes


class ErrorFeedback:
    """Keeps what the codec lost and adds `beta` of it to the next contribution (1-bit SGD; EF-SGD).

        s = x + beta e;   payload = encode(s);   e' = s - decode(payload)

    A transaction (R6): `encode` leaves the residual as it was until `commit` (sealed with me: take
    e') or `abort` (sealed without me: e stays). One object serves one fragment; without
    `cell_elements` the fragment is one cell. beta = 0 switches feedback off: then there is no
    residual, and its root is EMPTY_ROOT, as of a fresh one. `encode` stands in for a codec's own,
    such as one on an accelerator: what counts is the bytes, and the residual is what is decoded.
    """

    def __init__(
        self,
        codec: Codec,
        beta: float,
        *,
        cell_elements: int | None = None,
        encode: Encodes | None = None,
    ) -> None:
        self._codec = codec
        self._encode = encode or _plainly
        self._beta = np.float32(beta)
        self._cell_elements = cell_elements
        self._residual_N: NDArray[np.float32] | None = None
        self._is_open = False
        self._after_N: NDArray[np.float32] | None = None
        self._root: bytes | None = None
        """Of the residual, once it was asked for; the next one's is known from its contribution."""
        self._root_after: bytes | None = None

    @property
    def residual_N(self) -> NDArray[np.float32] | None:
        """The residual of the last commit, for a checkpoint; None stands for zero. Not a copy."""
        return self._residual_N

    @property
    def residual_after_N(self) -> NDArray[np.float32] | None:
        """What `commit` would make the residual; asked only between `encode` and the outcome."""
        assert self._is_open, "nothing is under way"
        return self._after_N

    @property
    def root(self) -> bytes:
        """Merkle root over the residual's cells as little-endian float32."""
        if self._root is None:
            self._root = residual_root(self._residual_N, self._cell_elements)
        return self._root

    def encode(
        self,
        x_N: NDArray[np.float32],
        *,
        in_place: bool = False,
        lots: Callable[[int], bytes] | None = None,
        grade: int = 0,
        hear: HearsSums | None = None,
        overwrites: bool = False,
    ) -> Encoded:
        """Encode a whole fragment, cell by cell, and keep the outcome open; `x_N` is only read,
        unless it `overwrites` that: then what is left over takes its memory.

        Payloads that are `in_place` may lie in the memory of `x_N`, which then stays as it is for
        as long as they are read. With `lots` a codec that draws draws those of each cell; one with
        grades encodes in `grade` bits, the usual ones if it is 0. Each sum is told to `hear` before
        it is encoded. Raises ValueError if a sum with the residual is not finite, and what `hear`
        raises. Nothing is then open.
        """
        assert not self._is_open, "the contribution before is neither committed nor aborted"
        assert not (overwrites and in_place), "the payloads would be overwritten"
        after_N: NDArray[np.float32] | None = None
        if self._beta:
            after_N = x_N if overwrites else np.empty_like(x_N)
        encode = encode_to_read if in_place else self._encode
        payloads, roots = [], []
        for number, cell in enumerate(_cells(len(x_N), self._cell_elements)):
            cell_N = x_N[cell]
            if self._residual_N is not None:
                cell_N = cell_N + self._beta * self._residual_N[cell]
            if hear is not None:
                hear(cell_N)
            if lots is not None:
                payloads.append(cast("DrawsLots", self._codec).encode_drawn(cell_N, lots(number)))
            else:
                payloads.append(encode(in_grade(self._codec, grade, len(cell_N)), cell_N))
            if after_N is not None:
                decoded_N = self._codec.decode(payloads[-1], len(cell_N))
                np.subtract(cell_N, decoded_N, out=after_N[cell])
                roots.append(_root_of_cell(after_N[cell]))
        root_after = EMPTY_ROOT if after_N is None else merkle_root(roots)
        encoded = Encoded(tuple(payloads), self.root, root_after)
        self._is_open, self._after_N, self._root_after = True, after_N, root_after
        return encoded

    def commit(self) -> None:
        """The contribution was sealed: the residual is what it left over."""
        assert self._is_open, "nothing to commit"
        self._residual_N, self._root = self._after_N, self._root_after
        self._close()

    def abort(self) -> None:
        """The contribution was not sealed: the residual stays what it was before."""
        assert self._is_open, "nothing to abort"
        self._close()

    def restore(self, residual_N: NDArray[np.float32] | None) -> None:
        """Take a checkpoint's residual; None (zero) after a resync. Drops what is open."""
        self._close()
        self._residual_N = None if residual_N is None else residual_N.astype(np.float32)
        self._root = None

    def reopen(
        self, before_N: NDArray[np.float32] | None, after_N: NDArray[np.float32] | None
    ) -> None:
        """Open the transaction of a process before us again: its contribution is under way still.

        `commit` or `abort` ends it, as if this object had encoded it.
        """
        self.restore(before_N)
        self._is_open = True
        self._after_N = None if after_N is None else after_N.astype(np.float32)

    def _close(self) -> None:
        self._is_open, self._after_N, self._root_after = False, None, None


def make_feedback(manifest: RunManifest, encode: Encodes | None = None) -> ErrorFeedback:
    """That of one fragment of a run. Raises what `make_codec` does."""
    outer, width = manifest.outer, manifest.cell_elements
    return ErrorFeedback(make_codec(outer), outer.feedback, cell_elements=width, encode=encode)


def residual_root(
    residual_N: NDArray[np.float32] | None, cell_elements: int | None = None
) -> bytes:
    """Merkle root of a residual over the fragment's grid; EMPTY_ROOT of None."""
    if residual_N is None:
        return EMPTY_ROOT
    cells = _cells(len(residual_N), cell_elements)
    return merkle_root([_root_of_cell(residual_N[cell]) for cell in cells])


def _root_of_cell(cell_N: NDArray[np.float32]) -> bytes:
    return cell_root(cell_N.astype("<f4", copy=False).data)


def _plainly(codec: Codec, x_N: NDArray[np.float32]) -> bytes:
    return codec.encode(x_N)


def _cells(numel: int, cell_elements: int | None) -> list[slice]:
    width = cell_elements or max(1, numel)
    return [slice(start, start + width) for start in range(0, numel, width)]
