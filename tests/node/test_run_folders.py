"""A run's folder is named by the first digits of its digest: another run with these stays out."""

import itertools
from pathlib import Path

import pytest
import trio

from node.peers.joining import join_run, parse_target
from node.peers.listening import full_addresses
from node.peers.manifest_fetch import MANIFEST_PROTOCOL, ManifestServer
from node.state import folder as state_folder
from node.state.folder import CHECKPOINTS_FOLDER, MANIFEST_FILE, run_folder
from node.state.stored_manifest import make_run_folder, store_manifest, stored_manifest
from node.using.run_on_disk import find_run
from protocol.errors import ConfigError
from protocol.identity import Ed25519Signer
from protocol.manifest import SignedManifest
from protocol.wire import encode
from tests.dht.loopback import DEADLINE_S, open_loopback
from tests.node.edge import signed, toy_manifest

SIGNER = Ed25519Signer(b"j" * 32)
RUN = signed(toy_manifest())
TAKEN = r"belongs to another run, .*no accident.*--state"


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> SignedManifest:
    """A run whose digest begins as that of RUN: here by one digit, which takes no time to find."""
    monkeypatch.setattr(state_folder, "_DIGITS", 1)
    begin = RUN.manifest.digest[0] >> 4
    others = (signed(toy_manifest(title=f"other {number}")) for number in itertools.count())
    return next(one for one in others if one.manifest.digest[0] >> 4 == begin)


def test_manifest_is_not_overwritten_by_one_that_begins_alike(
    tmp_path: Path, other: SignedManifest
) -> None:
    path = store_manifest(tmp_path, RUN)
    assert run_folder(tmp_path, other.manifest.digest) == path.parent
    for store in (
        lambda: store_manifest(tmp_path, other),
        lambda: make_run_folder(tmp_path, other.manifest.digest),
    ):
        with pytest.raises(ConfigError, match=TAKEN):
            store()
    assert path.read_bytes() == encode(RUN)
    assert store_manifest(tmp_path, RUN) == path


def test_damaged_manifest_is_replaced_as_ever(tmp_path: Path) -> None:
    path = store_manifest(tmp_path, RUN)
    path.write_bytes(b"torn")
    store_manifest(tmp_path, RUN)
    assert path.read_bytes() == encode(RUN)


@pytest.mark.net
async def test_joining_one_leaves_the_other_as_it_is(tmp_path: Path, other: SignedManifest) -> None:
    store_manifest(tmp_path, RUN)
    async with open_loopback({MANIFEST_PROTOCOL: ManifestServer(other).serve}) as peer:
        (full,) = full_addresses(peer.peer_id, peer.addresses())
        with trio.fail_after(DEADLINE_S), pytest.raises(ConfigError, match=TAKEN):
            await join_run(parse_target(full), tmp_path, SIGNER)
    assert stored_manifest(tmp_path, RUN.manifest.digest, SIGNER) == RUN


def test_manifest_of_one_does_not_open_the_checkpoints_of_the_other(
    tmp_path: Path, other: SignedManifest
) -> None:
    (store_manifest(tmp_path, RUN).parent / CHECKPOINTS_FOLDER).mkdir()
    foreign = tmp_path / MANIFEST_FILE
    foreign.write_bytes(encode(other))
    with pytest.raises(ConfigError, match=TAKEN):
        find_run(tmp_path, manifest=foreign)
