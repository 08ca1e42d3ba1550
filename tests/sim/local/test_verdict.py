"""The verdict over traces and checkpoints: it holds for a real run's, and can fail."""

from dataclasses import replace

import numpy as np
import pytest

from node.holdings.checkpoints import Checkpoints
from node.holdings.shard_store import ShardStore
from node.reporting.tracing import Accused, Adopted, Began, Diverged, Ended, Record, trace_line
from node.state.folder import CHECKPOINTS_FOLDER, run_folder
from node.state.keystore import load_or_create_identity
from protocol.identity import Ed25519Signer
from sim.local.options import LocalOptions, local_manifest
from sim.local.verdict import Evidence, compare_checkpoints, judge, sealed_roots
from tests.node.builders import head_of, peers_named
from training.models.genesis import genesis_weights

A, B = peers_named(2)
HEAD = head_of([A, B])


@pytest.fixture
def manifest(tmp_path):
    founder = Ed25519Signer(b"f" * 32).peer_id
    return local_manifest(LocalOptions(peers=3, folder=tmp_path, elements=4000), founder)


def trace_of(path, records: list[Record]):
    path.write_text("".join(trace_line(record) + "\n" for record in records))
    return path


def ended(at_s: float, peer=A, reason="x") -> Ended:
    return Ended(at_s=at_s, peer=peer, reason=reason)


def began(peer) -> Began:
    return Began(at_s=1.0, peer=peer, round=HEAD.value.round + 1, head=HEAD, is_lost=False)


async def saved(manifest, state, *, change: float):
    """A checkpoint in a node's folder, and the seal that it is of; `change` spoils it."""
    (anchor_N,) = genesis_weights(manifest)
    store = ShardStore(manifest, 0, anchor_N)
    value = replace(HEAD.value, round=3, root=store.state.root)
    certificate = replace(HEAD, value=value)
    folder = run_folder(state, manifest.digest) / CHECKPOINTS_FOLDER
    folder.mkdir(parents=True)
    bent_N = anchor_N.copy()
    bent_N[7] += np.float32(change)
    await Checkpoints(folder, manifest, 0).save(certificate, bent_N, store.state.slots)
    return Adopted(
        at_s=1.0, peer=A, certificate=certificate, root=store.state.root, was_listed=True
    )


@pytest.mark.parametrize("change", [0.0, 1e-3])
async def test_checkpoint_is_held_against_the_sealed_root(manifest, tmp_path, change):
    record = await saved(manifest, tmp_path / "A", change=change)
    states = [tmp_path / "A", tmp_path / "never-started"]
    differing, count = compare_checkpoints(manifest, states, sealed_roots([record]))
    assert (count, bool(differing)) == (1, change != 0.0)
    # Of a seal that no trace tells of, nothing can be said.
    assert compare_checkpoints(manifest, states, {}) == ([], 0)


async def test_state_that_was_not_sealed_is_a_broken_promise(manifest, tmp_path):
    record = await saved(manifest, tmp_path / "A", change=0.0)
    path = trace_of(tmp_path / "a.jsonl", [replace(record, root=b"r" * 32)])
    verdict = judge(manifest, Evidence(traces=[path], logs=[], stayed=[]))
    assert verdict.broken.startswith("I2")
    assert not verdict.is_good


@pytest.mark.parametrize("is_liar", [False, True])
def test_liar_that_believes_its_own_sum_breaks_no_promise(manifest, tmp_path, is_liar):
    diverged = Diverged(at_s=2.0, peer=B, reason="round 1 is sealed, but ours would be another")
    traces = [
        trace_of(tmp_path / "a.jsonl", [began(A)]),
        trace_of(tmp_path / "b.jsonl", [began(B), diverged]),
    ]
    liars = frozenset({B}) if is_liar else frozenset()
    evidence = Evidence(traces=traces, logs=[], stayed=[], bent=frozenset({B}), liars=liars)
    assert judge(manifest, evidence).broken.startswith("I2") != is_liar


def test_trace_that_is_damaged_is_told(manifest, tmp_path):
    path = trace_of(tmp_path / "a.jsonl", [ended(1.0), ended(2.0)])
    path.write_text("{}\n" + path.read_text())
    verdict = judge(
        manifest, Evidence(traces=[path, tmp_path / "missing.jsonl"], logs=[], stayed=[])
    )
    assert "a.jsonl, line 1" in verdict.broken


@pytest.mark.parametrize("holds_seed", [False, True])
def test_key_in_a_log_is_a_broken_promise(manifest, tmp_path, holds_seed):
    signer = load_or_create_identity(tmp_path / "A")
    log = tmp_path / "a.log"
    log.write_text(f"seed={signer.seed.hex()}" if holds_seed else "nothing")
    path = trace_of(tmp_path / "a.jsonl", [ended(1.0)])
    evidence = Evidence(
        traces=[path], logs=[log, tmp_path / "none"], stayed=[], states=[tmp_path / "A"]
    )
    assert judge(manifest, evidence).broken.startswith("I8") == holds_seed


@pytest.mark.parametrize("is_bent", [False, True])
def test_honest_peer_may_not_be_accused_and_a_bent_one_may(manifest, tmp_path, is_bent):
    accused = Accused(at_s=2.0, peer=A, of=B, reason="lies")
    traces = [
        trace_of(tmp_path / "a.jsonl", [began(A), accused]),
        trace_of(tmp_path / "b.jsonl", [began(B)]),
    ]
    bent = frozenset({B}) if is_bent else frozenset()
    verdict = judge(manifest, Evidence(traces=traces, logs=[], stayed=[], bent=bent))
    assert verdict.broken.startswith("I6") != is_bent
