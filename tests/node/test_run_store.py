"""Which run.toml founded which run: found once, resume for ever, and say what has changed."""

import os
import sys
from pathlib import Path

import msgpack
import pytest

from node.settings.run_store import found_or_resume, read_founded
from node.state.folder import MANIFEST_FILE, RUN_FILE, run_folder
from node.state.stored_manifest import read_signed_manifest, store_manifest, stored_manifest
from protocol.errors import ConfigError
from protocol.identity import Ed25519Signer
from protocol.manifest import WIRE_VERSION, SignedManifest
from tests.node.edge import signed, toy_manifest

SIGNER = Ed25519Signer(b"r" * 32)
TEXT = '[run]\ntitle = "t"\n[model.settings]\nwidth = 8\n'


class Desk:
    """A folder with a run.toml and a state folder; each founding is a second later."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "run.toml"
        self.state = folder / "state"
        self.path.write_text(TEXT)
        self.now_s = 1_800_000_000.0

    def run(
        self, *, is_new: bool = False, signer: Ed25519Signer = SIGNER, path: Path | None = None
    ) -> tuple[SignedManifest, bool]:
        self.now_s += 1.0
        return found_or_resume(
            path or self.path, self.state, signer, lambda: self.now_s, is_new=is_new
        )


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_first_time_founds_and_keeps_manifest_and_source(desk: Desk) -> None:
    found, is_founded = desk.run()
    folder = run_folder(desk.state, found.manifest.digest)
    assert is_founded
    assert found.manifest.created_unix_s == 1_800_000_001
    assert read_signed_manifest(folder / MANIFEST_FILE, SIGNER) == found
    assert (folder / RUN_FILE).read_text() == TEXT


@pytest.mark.skipif(sys.platform == "win32", reason="no such files there")
def test_run_of_a_pipe_is_resumed_by_a_file_that_says_the_same(desk: Desk) -> None:
    read_fd, write_fd = os.pipe()
    os.write(write_fd, TEXT.encode())
    os.close(write_fd)
    found, _ = desk.run(path=Path(f"/dev/fd/{read_fd}"))
    os.close(read_fd)
    assert desk.run() == (found, False)


def test_file_that_is_edited_meanwhile_is_kept_as_it_founded_the_run(desk: Desk) -> None:
    def edited() -> float:
        desk.path.write_text(TEXT.replace("8", "16"))
        return desk.now_s

    found, _ = found_or_resume(desk.path, desk.state, SIGNER, edited, is_new=False)
    assert (run_folder(desk.state, found.manifest.digest) / RUN_FILE).read_text() == TEXT


def test_second_time_resumes_whatever_the_comments_say(desk: Desk) -> None:
    found, _ = desk.run()
    desk.path.write_text("# another word\n" + TEXT.replace("8", "0x8"))
    assert desk.run() == (found, False)


def test_same_content_at_another_place_is_the_same_run(desk: Desk, tmp_path: Path) -> None:
    found, _ = desk.run()
    copy = tmp_path / "copy.toml"
    copy.write_text(TEXT)
    assert desk.run(path=copy) == (found, False)


def test_changed_file_names_the_first_key_and_what_to_do(desk: Desk) -> None:
    found, _ = desk.run()
    desk.path.write_text(TEXT.replace("8", "16") + "[timing]\nsuspect_s = 9.0")
    with pytest.raises(ConfigError) as caught:
        desk.run()
    said = str(caught.value)
    assert "[model.settings] width was 8 and is 16" in said
    assert found.manifest.digest.hex()[:12] in said
    assert "undo" in said
    assert "--new" in said
    desk.path.write_text(TEXT)
    assert desk.run() == (found, False)


def test_changed_file_founds_another_run_if_told_so_and_both_can_be_resumed(desk: Desk) -> None:
    first, _ = desk.run()
    desk.path.write_text(TEXT.replace("8", "16"))
    second, is_founded = desk.run(is_new=True)
    assert is_founded
    assert desk.run() == (second, False)
    desk.path.write_text(TEXT)
    assert desk.run() == (first, False)


def test_same_file_founds_another_run_if_told_so_and_the_newest_is_resumed(desk: Desk) -> None:
    first, _ = desk.run()
    second, is_founded = desk.run(is_new=True)
    assert is_founded
    assert second.manifest.digest != first.manifest.digest
    assert desk.run() == (second, False)


def test_other_file_founds_a_run_of_its_own(desk: Desk, tmp_path: Path) -> None:
    desk.run()
    other = tmp_path / "other.toml"
    other.write_text(TEXT.replace("8", "16"))
    _, is_founded = desk.run(path=other)
    assert is_founded
    assert len(read_founded(desk.state, SIGNER)) == 2


def test_founding_that_was_interrupted_founded_nothing(desk: Desk) -> None:
    found, _ = desk.run()
    interrupted = run_folder(desk.state, found.manifest.digest)
    (interrupted / MANIFEST_FILE).unlink()
    other = interrupted.with_name("0" * 12)
    other.mkdir()
    (other / "founded.json").write_text('{"source": "/another.toml"}')
    again, is_founded = desk.run()
    assert is_founded
    # Nothing is left of it; what another file founded is not touched.
    left = {path.name for path in interrupted.parent.iterdir()}
    assert left == {run_folder(desk.state, again.manifest.digest).name, other.name}


def test_run_that_has_begun_and_lost_its_manifest_is_not_founded_once_more(desk: Desk) -> None:
    found, _ = desk.run()
    folder = run_folder(desk.state, found.manifest.digest)
    (folder / MANIFEST_FILE).unlink()
    (folder / "slots.log").write_bytes(b"some")
    with pytest.raises(ConfigError, match=f"{folder.name}.* cannot read the manifest .* --new"):
        desk.run()


@pytest.mark.parametrize("name", [MANIFEST_FILE, RUN_FILE, "founded.json"])
def test_damaged_run_is_told_apart_from_a_whole_one(desk: Desk, name: str) -> None:
    found, _ = desk.run()
    (run_folder(desk.state, found.manifest.digest) / name).write_bytes(b"\xff{")
    (damaged,) = read_founded(desk.state, SIGNER).values()
    assert isinstance(damaged, ConfigError)


def test_run_of_another_version_is_not_called_damaged(desk: Desk) -> None:
    found, _ = desk.run()
    folder = run_folder(desk.state, found.manifest.digest)
    (folder / MANIFEST_FILE).write_bytes(msgpack.packb([[WIRE_VERSION + 1, 1], bytes(64)]))
    with pytest.raises(
        ConfigError, match=rf"of wire version {WIRE_VERSION + 1}, .* with --new"
    ) as no:
        desk.run()
    assert "damaged" not in str(no.value)


def test_run_that_was_joined_is_not_one_that_was_founded(desk: Desk) -> None:
    store_manifest(desk.state, signed(toy_manifest()))
    assert read_founded(desk.state, SIGNER) == {}


def test_wrong_file_founds_nothing(desk: Desk) -> None:
    desk.path.write_text(TEXT + "heads = 3")
    with pytest.raises(ConfigError, match="heads does not divide width"):
        desk.run()
    assert not desk.state.exists()


def test_stored_manifest_is_the_one_of_its_run(tmp_path: Path) -> None:
    run = signed(toy_manifest())
    digest = run.manifest.digest
    assert stored_manifest(tmp_path, digest, SIGNER) is None
    path = store_manifest(tmp_path, run)
    assert stored_manifest(tmp_path, digest, SIGNER) == run
    # A run whose digest begins alike, as nobody will ever meet one, shares the folder.
    assert stored_manifest(tmp_path, digest[:6] + bytes(26), SIGNER) is None
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    assert stored_manifest(tmp_path, digest, SIGNER) is None
