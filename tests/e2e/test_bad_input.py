"""What users get wrong, and what machines do to them: the message, the exit status, and no loss.

Every test runs the command, reads what a person would read, looks that the state folder is as it
was, and mostly that a correct start goes on where the run was.

| case | tests |
|---|---|
| run.toml: unknown key, wrong type, changed | `test_run_file_...` |
| node.toml | `test_node_file_...` |
| stored manifest: truncated, garbage | `test_stored_manifest_...` |
| a peer with another manifest | `test_peer_with_another_manifest_...` |
| address: unreachable, unknown name, malformed | `test_address_...`, `test_link_...` |
| port in use | `test_port_in_use_...`, `test_status_port_in_use_...` |
| frames | `tests/node/test_hostile_frames.py` |
| a model file that the manifest does not name | `test_model_file_...` |
| missing GPU | `test_missing_gpu_...`, `test_unknown_device_...` |
| wrong Python, another Python's text | `test_wrong_python_...`, `test_text_of_another_python_...` |

In test_bad_disks.py:

| case | tests |
|---|---|
| newest checkpoint: corrupt, truncated, foreign | `test_newest_checkpoint_...` |
| full disk | `test_full_disk_...`, `test_file_size_limit_...` |
| two nodes on one identity | `test_second_node_on_one_identity_...` |
| state folder that cannot be used | `test_state_folder_...`, `test_damaged_identity_...` |
"""

import dataclasses
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from blake3 import blake3

from node.peers.invite import invite_link, invite_to, parse_invite
from node.peers.listening import full_addresses
from node.state.folder import run_folder
from node.state.keystore import load_or_create_identity
from node.state.stored_manifest import store_manifest
from protocol.identity import Ed25519Signer
from protocol.manifest import ModelSpec, RunManifest, Setting, sign_manifest
from protocol.wire import encode
from tests.e2e.bad_input import RUN_TOML, Lived, joined, refused
from tests.e2e.demo_command import environment
from tests.e2e.node_command import LOOPBACK, WAIT_S, node
from tests.e2e.swarm import NodeUnderTest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.net,
    pytest.mark.skipif(os.name != "posix", reason="sends signals to process groups"),
]

GONE = full_addresses(Ed25519Signer(b"g" * 32).peer_id, ["/ip4/127.0.0.1/tcp/1"])[0]
PEER = GONE.rpartition("/")[2]


# run.toml and node.toml -------------------------------------------------------------------------


def changed_file(folder: Path, before: str, after: str) -> Path:
    path = folder / "changed.toml"
    assert before in RUN_TOML
    path.write_text(RUN_TOML.replace(before, after))
    return path


def test_run_file_with_an_unknown_key_names_it_and_the_likely_one(
    lived: Lived, tmp_path: Path
) -> None:
    path = changed_file(tmp_path, "rounds = ", "roundz = ")
    said = lived.refused("run", str(path))
    assert said == f"barnraise: {path}: [run] roundz is no key; did you mean rounds?\n"


def test_run_file_with_a_wrong_type_names_the_key_and_what_it_must_be(
    lived: Lived, tmp_path: Path
) -> None:
    path = changed_file(tmp_path, "batch = 4", 'batch = "four"')
    said = lived.refused("run", str(path))
    assert said == f"barnraise: {path}: [inner] batch must be a whole number, not 'four'\n"


def test_run_file_that_has_changed_names_the_key_and_both_ways_out(lived: Lived) -> None:
    path = lived.folder / "run.toml"
    path.write_text(RUN_TOML.replace("batch = 4", "batch = 5"))
    try:
        said = lived.refused(*lived.again())
    finally:
        path.write_text(RUN_TOML)
    assert "[inner] batch was 4 and is 5" in said
    assert "undo the change" in said
    assert "--new" in said
    lived.must_go_on()


def test_node_file_with_an_unknown_key_names_file_key_and_the_likely_one(lived: Lived) -> None:
    path = lived.state / "node.toml"
    kept = path.read_text()
    path.write_text('lisen = "/ip4/127.0.0.1/tcp/0"\n')
    said = lived.refused(*lived.again())
    assert said == f"barnraise: {path}: lisen is no key; did you mean listen?\n"
    path.write_text(kept)


@pytest.mark.parametrize("damage", ["truncated", "garbage"])
def test_stored_manifest_that_is_damaged_is_named_and_no_other_run_is_founded(
    lived: Lived, damage: str
) -> None:
    path, whole = lived.manifest_file, lived.manifest_file.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if damage == "truncated" else os.urandom(500))
    said = lived.refused(*lived.again())
    assert f"{path} is no manifest of a run" in said
    assert "barnraise join" in said
    assert "--new" in said
    said = lived.refused("export", "--out", str(lived.state.parent / "model.safetensors"))
    assert f"{path} is no manifest of a run" in said
    path.write_bytes(whole)
    lived.must_go_on()


# Peers and addresses ----------------------------------------------------------------------------


def test_peer_with_another_manifest_is_named_by_the_first_field_and_the_other_node_lives(
    lived: Lived, tmp_path: Path
) -> None:
    signer = load_or_create_identity(lived.state)
    theirs = dataclasses.replace(lived.signed.manifest, rounds=7)
    path = tmp_path / "other.msgpack"
    path.write_bytes(encode(sign_manifest(theirs, signer)))
    with lived.going_on() as one:
        (entry,) = parse_invite(one.link()).addresses()
        (address,) = full_addresses(entry.peer, [entry.address])
        arguments = ["--state", str(tmp_path / "other"), "--manifest", str(path)]
        arguments += ["--listen", "/ip4/127.0.0.1/tcp/0", "--bootstrap", address]
        other = NodeUnderTest("other", tmp_path / "other", arguments)
        other.start()
        assert other.ended(timeout_s=WAIT_S) == 4, other.log()
        assert "error: manifest differs at rounds: ours 7, theirs 100000" in other.log()
        assert "that peer trains another run" in other.log()
        assert "Traceback" not in other.log()
        one.wait_for("sealed", one.said().count("sealed") + 2)


def waiting_for(tmp_path: Path, address: str) -> str:
    """What a joiner says that waits for whoever should be there, and does no harm meanwhile."""
    with node(tmp_path, "new", "join", address, *LOOPBACK) as one:
        one.wait_for("tries again in [0-9]+ s; Ctrl.C ends")
        said = one.said()
    assert "Traceback" not in said
    # Nothing was joined: the next try is a first one.
    assert not (tmp_path / "new" / "runs").exists()
    return said


def test_address_that_nobody_answers_at_is_named_with_its_reason_and_waited_for(
    tmp_path: Path,
) -> None:
    said = waiting_for(tmp_path, GONE)
    assert said.startswith("no peer answered:\n")
    assert GONE in said
    assert "refused" in said
    assert "are they running" in said


def test_address_with_a_name_that_is_not_known_says_which_name(tmp_path: Path) -> None:
    address = f"/dns4/nobody.invalid/tcp/4001/p2p/{PEER}"
    said = waiting_for(tmp_path, address)
    assert address in said
    assert "nobody.invalid does not resolve" in said or "no answer within" in said


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("/ip4/127.0.0.1/tcp/4001", "is no address like /ip4/"),
        (f"/ip4/300.0.0.1/tcp/4001/p2p/{PEER}", "300.0.0.1 is no address of IPv4"),
        (f"/ip4/127.0.0.1/tcp/99999/p2p/{PEER}", "port 99999 is not within 1..65535"),
        (f"/ip4/127.0.0.1/udp/4001/quic-v1/p2p/{PEER}", "with /tcp and nothing else"),
        ("/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWnobody", "names no peer"),
        ("friend.example.org", "neither an invite link like barnraise://join/"),
    ],
)
def test_address_that_is_malformed_says_what_is_wrong_with_it(
    tmp_path: Path, address: str, why: str
) -> None:
    said = refused(tmp_path, "join", address, "--state", "new")
    assert repr(address) in said
    assert why in said
    assert not (tmp_path / "new" / "runs").exists()


def test_address_to_ask_first_is_checked_before_a_run_is_founded(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(RUN_TOML)
    wrong = f"/ip4/300.0.0.1/tcp/1/p2p/{PEER}"
    said = refused(tmp_path, "run", "run.toml", "--bootstrap", wrong, "--state", "new")
    assert "300.0.0.1 is no address of IPv4" in said
    assert not (tmp_path / "new" / "runs").exists()


@pytest.mark.parametrize("spoil", ["cut", "bent"])
def test_link_that_is_cut_or_bent_says_to_copy_it_whole(
    lived: Lived, tmp_path: Path, spoil: str
) -> None:
    peer = Ed25519Signer(b"g" * 32).peer_id
    link = invite_link(invite_to(lived.signed.manifest, peer, ["/ip4/127.0.0.1/tcp/1"]))
    other = "A" if link[40] != "A" else "B"
    link = link[:-6] if spoil == "cut" else link[:40] + other + link[41:]
    said = refused(tmp_path, "join", link, "--state", "new")
    assert "the invite link is damaged: copy it whole" in said


# Ports ------------------------------------------------------------------------------------------


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_port_in_use_is_named_with_what_to_do(lived: Lived, taken: int) -> None:
    listen = ("--listen", f"/ip4/127.0.0.1/tcp/{taken}")
    said = lived.refused("run", str(lived.folder / "run.toml"), *listen)
    assert f"cannot listen on 127.0.0.1 port {taken}: Address already in use" in said
    assert "end the program that has it" in said
    assert "--listen" in said
    lived.must_go_on()


def test_status_port_in_use_is_named_with_what_to_do(lived: Lived, taken: int) -> None:
    said = lived.refused(*lived.again("--status-port", str(taken)))
    assert f"port {taken} is in use" in said
    assert "take another one, or 0 for any free one" in said


def test_port_of_the_last_start_in_use_is_no_error(lived: Lived, taken: int) -> None:
    (lived.state / "port").write_text(f"{taken}\n")
    with lived.going_on() as one:
        assert f"tcp/{taken}" not in one.link()
    assert f"port of the last start is taken port={taken}" in lived.log()


# Models, devices, Pythons -----------------------------------------------------------------------

TRAP = """\
from pathlib import Path
Path({marker!r}).write_text("it ran")
def build(**settings):
    Path({marker!r}).write_text("it ran")
"""


def known_run(tmp_path: Path, lived: Lived, **changes: object) -> tuple[RunManifest, str]:
    """A run in the state folder `joiner`, and a link to it; nobody is at its address."""
    signer = load_or_create_identity(lived.state)
    manifest = dataclasses.replace(lived.signed.manifest, **changes)  # type: ignore[arg-type]
    store_manifest(tmp_path / "joiner", sign_manifest(manifest, signer))
    peer = Ed25519Signer(b"g" * 32).peer_id
    return manifest, invite_link(invite_to(manifest, peer, ["/ip4/127.0.0.1/tcp/1"]))


def run_with_a_model_file(tmp_path: Path, lived: Lived, source: bytes) -> str:
    digest = blake3(source).hexdigest()
    settings = (Setting("context", 16), Setting("digest", digest))
    _, link = known_run(tmp_path, lived, model=ModelSpec(name="file", settings=settings, seed=0))
    return link


def test_model_file_that_the_manifest_does_not_name_is_refused_before_it_runs(
    lived: Lived, tmp_path: Path
) -> None:
    link = run_with_a_model_file(tmp_path, lived, b"the founder's file")
    marker = tmp_path / "marker"
    path = tmp_path / "trap.py"
    path.write_text(TRAP.format(marker=str(marker)))
    options = ("--state", "joiner", "--model-file", str(path), *LOOPBACK)
    said = refused(tmp_path, "join", link, *options)
    digest = blake3(path.read_bytes()).hexdigest()
    assert f"the model file {path} has digest {digest}, the run names" in said
    assert "ask the founder for the file; a link never brings code" in said
    assert not marker.exists()
    assert not list((tmp_path / "joiner").rglob("*.py"))


def test_model_file_that_is_missing_is_asked_for_by_its_option(
    lived: Lived, tmp_path: Path
) -> None:
    link = run_with_a_model_file(tmp_path, lived, b"the founder's file")
    said = refused(tmp_path, "join", link, "--state", "joiner", *LOOPBACK)
    assert "ask the founder for it and give its path with --model-file" in said
    assert "a link never brings code" in said


def test_missing_gpu_is_named_with_what_to_do_and_the_run_goes_on_without(lived: Lived) -> None:
    run = ("run", str(lived.folder / "run.toml"), *LOOPBACK)
    state = ("--state", str(lived.state))
    said = refused(lived.folder, *run, *state, "--device", "cuda:99")
    assert "--device cuda:99: " in joined(said)
    assert "use --device auto or cpu" in joined(said)
    assert "Error" not in said
    assert len(said.splitlines()) == 1
    lived.must_go_on()


def test_unknown_device_is_named_with_those_that_there_are(lived: Lived) -> None:
    run = ("run", str(lived.folder / "run.toml"), *LOOPBACK)
    said = refused(lived.folder, *run, "--state", str(lived.state), "--device", "tpu")
    assert "device: 'tpu' is none of auto, cpu, cuda, cuda:N, mps" in said
    assert len(said.splitlines()) == 1


def other_pythons() -> list[str]:
    """Interpreters of this machine that can read our first lines, and do not do."""
    names = [f"python3.{minor}" for minor in (7, 8, 9, 10, 14, 15)]
    found = [path for name in names if (path := shutil.which(name))]
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in (7, 8, 9, 10, 14, 15):
        found += [str(path) for path in root.glob(f"3.{minor}.*/bin/python")]
    # What a launcher finds may not be there.
    return [
        path
        for path in found
        if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0
    ]


def test_wrong_python_is_told_which_one_is_needed(tmp_path: Path) -> None:
    pythons = other_pythons()
    if not pythons:
        pytest.skip("no Python older or newer than ours is installed")
    for python in pythons:
        done = subprocess.run(
            [python, "-m", "node.cli", "status"],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        assert "Barnraise needs Python 3.11, 3.12 or 3.13, and this is 3." in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_text_of_another_python_is_named_with_the_python_to_take(
    lived: Lived, tmp_path: Path
) -> None:
    # The founder's Python was another one when it founded the run.
    corpus = dataclasses.replace(
        lived.signed.manifest.corpus, name="stdlib-3.11.99", digest=b"\x05" * 32
    )
    manifest, _ = known_run(tmp_path, lived, corpus=corpus)
    state = tmp_path / "joiner"
    for name in ("run.toml", "founded.json"):
        shutil.copy(lived.run / name, run_folder(state, manifest.digest) / name)
    shutil.copy(lived.state / "identity.key", state / "identity.key")
    said = refused(lived.folder, *lived.again(), "--state", str(state))
    assert "the run pins the text stdlib-3.11.99" in said
    assert "the run is of Python 3.11.99, this is 3." in said
    assert "start barnraise with 3.11.99" in said
    assert len(said.splitlines()) == 1
