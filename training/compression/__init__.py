"""Codecs, and error feedback around them; a module per family, each registers its own.

What is aggregated is the *decoded wire bytes*, never the sender's sharper copy; the sender keeps
the difference and adds it to its next contribution (error feedback).
"""

from training.compression import blocks, lowrank, seeded, sparse
from training.compression import blocks as dense
from training.compression import blocks as graded
from training.compression import blocks as int8
from training.compression import sparse as cosine
from training.compression.dense import encode_to_read
from training.compression.feedback import (
    Encoded,
    Encodes,
    ErrorFeedback,
    HearsSums,
    codec_defaults,
    codec_named,
    make_codec,
    make_feedback,
    residual_root,
    result_codec,
)
from training.compression.seam import (
    CODECS,
    FEEDBACK_BITS,
    Codec,
    DrawsLots,
    Vector,
    adder_of,
    admits,
    bits_per_element,
    check_payload,
    coarsest_of,
    decode_into,
    decode_to_read,
    in_grade,
    join_cells,
    lattice_of,
    with_grades,
)
from training.compression.seeded import common_lots

__all__ = [
    "CODECS",
    "FEEDBACK_BITS",
    "Codec",
    "DrawsLots",
    "Encoded",
    "Encodes",
    "ErrorFeedback",
    "HearsSums",
    "Vector",
    "adder_of",
    "admits",
    "bits_per_element",
    "blocks",
    "check_payload",
    "coarsest_of",
    "codec_defaults",
    "codec_named",
    "common_lots",
    "cosine",
    "decode_into",
    "decode_to_read",
    "dense",
    "encode_to_read",
    "graded",
    "in_grade",
    "int8",
    "join_cells",
    "lattice_of",
    "lowrank",
    "make_codec",
    "make_feedback",
    "residual_root",
    "result_codec",
    "seeded",
    "sparse",
    "with_grades",
]
