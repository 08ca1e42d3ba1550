"""A small corpus whose bytes say where they are from."""

from blake3 import blake3

from protocol.grid import merkle_root
from protocol.manifest import CorpusSpec
from training.data.sampling import MemoryBlocks


def random_corpus(training=16, held_out=4, *, seed=3, shuffle=4, block_bytes=1024):
    """Bytes of training blocks are below 128, those of blocks that are held out from 128 on."""
    payloads = []
    for index in range(training + held_out):
        low = 128 if index >= training else 0
        raw = blake3(f"block {index}".encode()).digest(length=block_bytes)
        payloads.append(bytes(low + byte % 128 for byte in raw))
    spec = CorpusSpec(
        name="random",
        digest=merkle_root([blake3(payload).digest() for payload in payloads]),
        training_blocks=training,
        held_out_blocks=held_out,
        document_blocks=0,
        block_bytes=block_bytes,
        token_bytes=1,
        vocab_size=256,
        held_out_tokens=held_out * block_bytes,
        held_out_text_bytes=held_out * block_bytes,
        shuffle_blocks=shuffle,
        permutation_seed=seed,
    )
    return spec, payloads


def random_blocks(*args, **options):
    spec, payloads = random_corpus(*args, **options)
    return spec, MemoryBlocks(spec, payloads)
