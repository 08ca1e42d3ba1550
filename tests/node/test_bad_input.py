"""What users get wrong, and what their disks do: the words they are told, without any process.

The same with real commands and processes: tests/e2e/test_bad_input.py.
"""

import dataclasses
import errno
import io
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from node.holdings.checkpoints import stored_states
from node.peers.joining import parse_target
from node.peers.listening import listening
from node.processes.exit_codes import exit_status, user_error
from node.reporting.people import Occasion, PeopleLog
from node.settings.run_store import found_or_resume
from node.state.config import NodeConfig, PeerAddress, parse_dialable, parse_listen
from node.state.folder import MANIFEST_FILE, RUN_FILE, RUNS_FOLDER, run_folder
from node.text.terminal import PeopleConsole
from protocol.errors import (
    BarnraiseError,
    CheckpointError,
    ConfigError,
    CorpusError,
    DecodeError,
    ManifestError,
    ManifestMismatch,
    RefusedError,
    StreamClosedError,
    TrainerError,
    UnreachableError,
)
from protocol.identity import Ed25519Signer, peer_id_text
from protocol.manifest import first_difference
from tests.node.edge import toy_manifest
from tests.node.state_run import write_state
from tests.node.trainers.test_trainer import fake
from tests.training.full_disk import files_of_at_most
from training.files.state import CheckpointMeta, ShardState, save_checkpoint

SIGNER = Ed25519Signer(b"b" * 32)
PEER = peer_id_text(SIGNER.peer_id)
TEXT = '[run]\ntitle = "t"\n[model.settings]\nwidth = 8\n'


# Exit codes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("a key"), 2),
        (ManifestError("a key"), 2),
        (CorpusError("another Python"), 2),
        (UnreachableError("nobody"), 3),
        (StreamClosedError("gone"), 3),
        (RefusedError("no"), 4),
        (DecodeError("no message"), 4),
        (ManifestMismatch("rounds", 5, 6), 4),
        (CheckpointError("torn"), 1),
        (TrainerError("died"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_kind_of_error_has_its_exit_status(error: BarnraiseError, status: int) -> None:
    assert exit_status(error) == status


@pytest.mark.parametrize(
    ("number", "cure"),
    [
        (errno.ENOSPC, "make room and start again: what was sealed is safe"),
        (errno.EFBIG, "make room and start again: what was sealed is safe"),
        (errno.EACCES, "name a folder that you may write to with --state"),
        (errno.EROFS, "name a folder that you may write to with --state"),
        (
            errno.EIO,
            "the disk is failing: copy the state folder to another one and name that with --state. "
            "Logs that cannot be copied may be left out: peers have what was in them",
        ),
    ],
)
def test_error_of_the_disk_names_the_file_and_the_cure(number: int, cure: str) -> None:
    group = ExceptionGroup("", [OSError(number, "why", "/state/runs/x/slots.log")])
    error = user_error(group, Path("/state"))
    assert str(error) == f"cannot use /state/runs/x/slots.log: why; {cure}"
    assert exit_status(error) == 2


# Addresses --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "/ip4/203.0.113.1/tcp/4001",
        "/ip6/2001:db8::1/tcp/1",
        "/dns/example.org/tcp/65535",
        "/dns4/barn/tcp/4001",
        "/dns6/a-b_c.example.org./tcp/4001",
    ],
)
def test_address_that_can_be_dialled_is_taken(address: str) -> None:
    assert parse_dialable(f"{address}/p2p/{PEER}") == PeerAddress(SIGNER.peer_id, address)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("/ip4/300.0.0.1/tcp/4001", "300.0.0.1 is no address of IPv4"),
        ("/ip4/::1/tcp/4001", "::1 is no address of IPv4"),
        ("/ip6/203.0.113.1/tcp/4001", "203.0.113.1 is no address of IPv6"),
        ("/ip4/203.0.113.1/tcp/0", "port 0 is not within 1..65535"),
        ("/ip4/203.0.113.1/tcp/65536", "port 65536 is not within 1..65535"),
        ("/ip4/203.0.113.1/tcp/port", "with /tcp and nothing else"),
        ("/ip4/203.0.113.1/udp/4001/quic-v1", "with /tcp and nothing else"),
        ("/ip4/203.0.113.1/tcp/4001/ws", "with /tcp and nothing else"),
        ("/dns4/-..-/tcp/4001", "-..- is no name of a machine"),
        (f"/dns4/{'a' * 64}/tcp/4001", "is no name of a machine"),
        ("/memory/1", "with /tcp and nothing else"),
    ],
)
def test_address_that_cannot_be_dialled_says_why(address: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_target(f"{address}/p2p/{PEER}")
    assert why in str(caught.value)
    assert address in str(caught.value)
    assert "use an address like /ip4/" in str(caught.value)


@pytest.mark.parametrize(
    "address", ["/dns4/b\u00fccher.example/tcp/1", "/ip4/203.0.113.1/tcp/1\x1b"]
)
def test_bootstrap_address_of_other_than_printable_ascii_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="is no address like"):
        NodeConfig(state=Path(), manifest=Path(), bootstrap=(f"{address}/p2p/{PEER}",))


@pytest.mark.parametrize("text", ["/ip4/300.0.0.1/tcp/1", "/ip6/127.0.0.1/tcp/1", "/ip4/::/tcp/1"])
def test_place_to_listen_that_is_none_names_the_option(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--listen .*use an address like"):
        parse_listen(text)


@pytest.mark.net
async def test_address_of_another_machine_to_listen_on_is_not_a_port_in_use(tmp_path: Path) -> None:
    config = NodeConfig(state=tmp_path, manifest=Path(), listen="/ip4/203.0.113.9/tcp/4001")
    with trio.fail_after(10.0), pytest.raises(ConfigError) as caught:
        async with listening(config, SIGNER.seed):
            pass
    assert "cannot listen on 203.0.113.9 port 4001: " in str(caught.value)
    assert "name an address that this machine has with --listen" in str(caught.value)


def test_mismatch_says_what_differs_in_words_and_what_to_do() -> None:
    ours = toy_manifest()
    theirs = dataclasses.replace(ours, founder=SIGNER.peer_id)
    said = str(first_difference(ours, theirs))
    assert f"ours {ours.founder.hex()[:16]}, theirs {SIGNER.peer_id.hex()[:16]}; " in said
    assert "b'" not in said
    assert "name a peer of this one, or join that one by its invite link" in said


# State folders ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [MANIFEST_FILE, RUN_FILE, "founded.json"])
@pytest.mark.parametrize(
    "damage", [lambda data: data[:20], lambda _: b"\xff{"], ids=["truncated", "garbage"]
)
def test_run_with_a_damaged_file_is_not_founded_once_more_behind_the_users_back(
    tmp_path: Path, name: str, damage: Callable[[bytes], bytes]
) -> None:
    path, state = tmp_path / "run.toml", tmp_path / "state"
    path.write_text(TEXT)

    def run(*, is_new: bool = False):
        return found_or_resume(path, state, SIGNER, lambda: 1_800_000_000.0, is_new=is_new)

    found, _ = run()
    damaged = run_folder(state, found.manifest.digest) / name
    whole = damaged.read_bytes()
    damaged.write_bytes(damage(whole))
    with pytest.raises(ConfigError) as caught:
        run()
    said = str(caught.value)
    assert str(damaged) in said
    assert str(path) in said
    for cure in ("Put a copy of it back", "barnraise join", "--new"):
        assert cure in said
    assert len(list((state / RUNS_FOLDER).iterdir())) == 1
    damaged.write_bytes(whole)
    assert run() == (found, False)


def test_checkpoint_that_is_skipped_is_told_to_people(tmp_path: Path) -> None:
    run = write_state(tmp_path, 3, 4)
    torn = run.path(4) / "anchor.safetensors"
    torn.write_bytes(torn.read_bytes()[:-1])
    told: list[str] = []
    (found,) = stored_states(run.checkpoints, run.manifest, 0, (), tell=told.append)
    assert found.round == 3
    (line,) = told
    assert line.startswith("a checkpoint is no good, an older one is looked for: ")
    assert str(torn) in line
    out = io.StringIO()
    occasion = Occasion(state=tmp_path, manifest=run.manifest, how="resumed", is_usual_state=True)
    log = PeopleLog(PeopleConsole(file=out, width=1000, soft_wrap=True), occasion)
    log.emit("warning", key="checkpoint", text=line + "\x1b[2J")
    log.emit("warning", key="checkpoint", text="")
    assert out.getvalue() == f"warning: {line}\\x1b[2J\n"


def test_checkpoint_on_a_full_disk_is_the_systems_error_and_the_older_one_stays(
    tmp_path: Path,
) -> None:
    run = write_state(tmp_path, 3)
    before = {path.name: path.read_bytes() for path in run.path(3).iterdir()}
    clock = dataclasses.replace(
        next(stored_meta(run.checkpoints, run.manifest)).clock, round=5, step=50
    )
    meta = CheckpointMeta(run=run.manifest.digest, shard="model", seal=bytes(32), clock=clock)
    state = ShardState(anchors=(run.anchor(4),), slots=({},))
    with files_of_at_most(256), pytest.raises(OSError, match="too large") as caught:
        save_checkpoint(run.checkpoints, run.manifest.shards[0], state, meta)
    assert caught.value.errno == errno.EFBIG
    assert "anchor.safetensors" in str(caught.value.filename)
    (found,) = stored_states(run.checkpoints, run.manifest, 0, ())
    assert found.round == 3
    assert {path.name: path.read_bytes() for path in run.path(3).iterdir()} == before
    save_checkpoint(run.checkpoints, run.manifest.shards[0], state, meta)
    assert [found.round for found in stored_states(run.checkpoints, run.manifest, 0, ())] == [4, 3]
    assert not list(run.checkpoints.glob(".writing-*"))


def stored_meta(folder: Path, manifest):
    from training.files.state import checkpoint_folders, load_checkpoint

    for path in checkpoint_folders(folder):
        yield load_checkpoint(path, manifest.shards[0], run=manifest.digest, slots=()).meta


def test_folder_of_another_run_under_a_checkpoints_name_is_foreign(tmp_path: Path) -> None:
    ours, theirs = write_state(tmp_path / "a", 3), write_state(tmp_path / "b", 4, title="other")
    shutil.copytree(theirs.path(4), ours.path(4))
    (ours.checkpoints / "latest").write_text(ours.path(4).name + "\n")
    told: list[str] = []
    (found,) = stored_states(ours.checkpoints, ours.manifest, 0, (), tell=told.append)
    assert found.round == 3
    assert f"is of run {theirs.manifest.digest.hex()[:12]}" in told[0]
    assert f"this is run {ours.manifest.digest.hex()[:12]}" in told[0]


# The trainer ------------------------------------------------------------------------------------

FAILS = """
from training.channel.frames import failure_frame
from protocol.errors import *
say(failure_frame({error}))
sys.exit(2)
"""


@pytest.mark.parametrize("kind", [ConfigError, CorpusError])
async def test_what_a_trainer_tells_the_user_arrives_as_the_error_that_it_is(
    tmp_path: Path, kind: type[ConfigError]
) -> None:
    does = FAILS.format(error=f"{kind.__name__}('use --device auto\\nor cpu')")
    async with fake(tmp_path, does) as trainer:
        with pytest.raises(ConfigError) as caught:
            await trainer.next_event()
    assert type(caught.value) is kind
    assert str(caught.value) == "use --device auto\nor cpu"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (OSError(errno.EACCES, "Permission denied", "/x"), "/x: Permission denied"),
        (OSError("the disk: odd"), "the disk: odd"),
        (CorpusError("another Python"), "another Python"),
        (TrainerError("the channel broke"), None),
    ],
    ids=str,
)
def test_only_what_the_user_can_mend_is_told_as_such(
    error: BarnraiseError | OSError, told: str | None
) -> None:
    from training.trainer_main import _for_the_user

    found = _for_the_user(error)
    assert (None if found is None else str(found)) == told
