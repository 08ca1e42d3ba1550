"""A small run over the standard library's text, its manifest signed and on disk."""

import dataclasses
from pathlib import Path

from protocol.identity import Ed25519Signer
from protocol.manifest import InnerSpec, RunManifest, sign_manifest
from protocol.wire import encode
from tests.training.replicas import INNER, OUTER, small_manifest
from training.data.corpus import pin_corpus
from training.models.genesis import shard_spec

MANIFEST_FILE = "manifest.msgpack"


def write_run(folder: Path, *, inner: InnerSpec = INNER, overlap: int = 1) -> RunManifest:
    """Write the manifest into `folder` and return it; the same arguments give the same run."""
    signer = Ed25519Signer(bytes(range(32)))
    small = small_manifest(inner=inner, outer=dataclasses.replace(OUTER, overlap=overlap))
    manifest = dataclasses.replace(
        small,
        shards=(shard_spec(small.model, fragments=overlap),),
        founder=signer.peer_id,
        corpus=pin_corpus("stdlib"),
    )
    (folder / MANIFEST_FILE).write_bytes(encode(sign_manifest(manifest, signer)))
    return manifest
