"""Whether a node that finds no journal is new to its run, or has lost its disk (R12)."""

import shutil
from functools import partial
from pathlib import Path

from node.daemon.assembly import Node, _open_journal
from node.holdings.journal import FileJournal
from node.plane.hooks import NodeHooks
from node.settings.run_store import found_or_resume
from node.state.config import NodeConfig
from node.state.folder import UNSIGNED_FILE, run_folder
from node.state.keystore import load_or_create_identity
from node.state.stored_manifest import read_signed_manifest, store_manifest
from node.status.board import EventLog
from protocol.identity import Ed25519Signer
from protocol.manifest import SignedManifest
from sim.local.options import LocalOptions, found_run
from sim.processes.recipe import sign_run, small_manifest

SIGNER = Ed25519Signer(b"r" * 32)
TEXT = '[run]\ntitle = "t"\n[model.settings]\nwidth = 8\n'


def is_lost(state: Path, signed: SignedManifest, signer=SIGNER, *, is_new_peer=False) -> bool:
    """Whether a start takes its signatures for lost; the node is killed before it signs."""
    node = Node(
        config=NodeConfig(state=state, manifest=Path()),
        signed=signed,
        signer=signer,
        hooks=NodeHooks(),
        log=EventLog(None, 0.0),
        is_new_peer=is_new_peer,
    )
    journal = _open_journal(node, run_folder(state, signed.manifest.digest))
    assert isinstance(journal, FileJournal)
    lost = journal.is_lost
    journal.close()
    return lost


def founded(folder: Path) -> tuple[Path, SignedManifest]:
    (folder / "run.toml").write_text(TEXT)
    state = folder / "state"
    signed, is_founded = found_or_resume(
        folder / "run.toml", state, SIGNER, lambda: 1.8e9, is_new=False
    )
    assert is_founded
    return state, signed


def test_founder_is_new_to_the_run_that_it_founds_also_if_it_is_killed_at_once(tmp_path):
    state, signed = founded(tmp_path)
    assert [is_lost(state, signed) for _ in range(3)] == [False, False, False]


def test_founder_whose_run_folder_was_deleted_has_lost_its_disk(tmp_path):
    state, signed = founded(tmp_path)
    assert not is_lost(state, signed)
    shutil.rmtree(run_folder(state, signed.manifest.digest))
    store_manifest(state, signed)  # As `barnraise join` does with its own link.
    assert is_lost(state, signed)
    assert is_lost(state, signed), "and a second start knows no more"


def test_founder_whose_run_folder_was_deleted_before_it_began_has_lost_it_as_well(tmp_path):
    state, signed = founded(tmp_path)
    shutil.rmtree(run_folder(state, signed.manifest.digest))
    assert is_lost(state, signed)


def test_journal_that_was_deleted_alone_is_lost(tmp_path):
    state, signed = founded(tmp_path)
    assert not is_lost(state, signed)
    for path in run_folder(state, signed.manifest.digest).glob("*.log"):
        path.unlink()
    assert is_lost(state, signed)


def test_mark_outlives_a_crash_before_the_journal_was_begun(tmp_path):
    state, signed = founded(tmp_path)
    folder = run_folder(state, signed.manifest.digest)
    assert (folder / UNSIGNED_FILE).exists()
    assert not is_lost(state, signed)
    assert not (folder / UNSIGNED_FILE).exists()


def test_joiner_with_a_key_of_this_start_is_new_and_with_an_older_one_is_not(tmp_path):
    _, signed = founded(tmp_path)
    joiner = Ed25519Signer(b"j" * 32)
    assert not is_lost(tmp_path / "one", signed, joiner, is_new_peer=True)
    assert is_lost(tmp_path / "other", signed, joiner)


def test_founders_of_demo_and_local_runs_are_new_to_them(tmp_path):
    demo = partial(small_manifest, "barnraise demo", rounds=1, seed=1)
    local_options = LocalOptions(peers=2, folder=tmp_path, elements=4000)
    for name, founds in (
        ("demo", lambda **places: sign_run(demo, **places)),
        ("local", lambda **places: found_run(local_options, **places)),
    ):
        state, path = tmp_path / name, tmp_path / f"{name}.manifest"
        founds(state=state, manifest_path=path)
        signer = load_or_create_identity(state)
        signed = read_signed_manifest(path, signer)
        assert signed.manifest.founder == signer.peer_id
        assert not is_lost(state, signed, signer)
        shutil.rmtree(run_folder(state, signed.manifest.digest))
        assert is_lost(state, signed, signer)
