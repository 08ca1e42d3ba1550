"""The codec of a run: a name, and settings that the manifest carries.

A codec's settings are the keywords of its factory that have a number as their default. All are law
(a receiver knows a payload's size beforehand), so a founder writes every one into the manifest: a
default that changes with a release would change a run.
"""

import difflib
import inspect
from collections.abc import Mapping
from functools import cache

from protocol.errors import ConfigError
from protocol.manifest import OuterSpec
from training.compression.dense import DenseCodec, Float16Codec
from training.compression.seam import CODECS, Codec
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
