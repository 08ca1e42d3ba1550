"""A state folder with a run in it, as a node leaves it, without a node."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from node.state.folder import MANIFEST_FILE, run_folder
from protocol.identity import Ed25519Signer
from protocol.manifest import RunManifest, sign_manifest
from protocol.wire import encode
from tests.training.replicas import small_manifest
from training.channel.exchange import RunClock
from training.files.state import CheckpointMeta, ShardState, checkpoint_name, save_checkpoint
from training.models.genesis import genesis_weights

FOUNDER = Ed25519Signer(bytes(range(32)))


def founded(**changes) -> RunManifest:
    """A small manifest that FOUNDER can sign; its corpus is nowhere."""
    return dataclasses.replace(small_manifest(), **({"founder": FOUNDER.peer_id} | changes))


@dataclass
class StateRun:
    """One run of a state folder."""

    state: Path
    manifest: RunManifest

    @property
    def folder(self) -> Path:
        return run_folder(self.state, self.manifest.digest)

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def signed(self) -> bytes:
        return encode(sign_manifest(self.manifest, FOUNDER))

    def write_manifest(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / MANIFEST_FILE).write_bytes(self.signed)

    def anchor(self, sealed_round: int) -> np.ndarray:
        """The genesis weights, and a first element that tells rounds apart."""
        (anchor_N,) = genesis_weights(self.manifest)
        anchor_N[0] = sealed_round
        return anchor_N

    def save(self, sealed_round: int) -> Path:
        """What round `sealed_round` made."""
        clock = RunClock(round=sealed_round + 1, step=10 * sealed_round, tokens=100 * sealed_round)
        meta = CheckpointMeta(
            run=self.manifest.digest, shard="model", seal=bytes([sealed_round]) * 32, clock=clock
        )
        state = ShardState(anchors=(self.anchor(sealed_round),), slots=({},))
        return save_checkpoint(self.checkpoints, self.manifest.shards[0], state, meta)

    def path(self, sealed_round: int) -> Path:
        """The folder of what round `sealed_round` made."""
        return self.checkpoints / checkpoint_name(sealed_round + 1)


def write_state(state: Path, *sealed_rounds: int, **changes) -> StateRun:
    """A state folder with a run and the checkpoints that these rounds made."""
    run = StateRun(state, founded(**changes))
    run.write_manifest()
    for sealed_round in sealed_rounds:
        run.save(sealed_round)
    return run
