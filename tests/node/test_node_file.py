"""node.toml: local taste, outranked by the command's options."""

import tomllib
from pathlib import Path

import pytest

from node.settings.sections import NodeFile, node_config, read_node_file
from node.state.config import NodeConfig
from protocol.errors import ConfigError
from protocol.identity import Ed25519Signer, peer_id_text

PEER = peer_id_text(Ed25519Signer(b"p" * 32).peer_id)
ADDRESS = f"/ip4/203.0.113.1/tcp/4001/p2p/{PEER}"
OTHER = f"/ip4/203.0.113.2/tcp/4001/p2p/{PEER}"


def config(folder: Path, text: str, **options: object) -> NodeConfig:
    (folder / "node.toml").write_text(text)
    return node_config(read_node_file(folder), options, state=folder, manifest=folder / "m")


def test_first_start_writes_a_file_in_which_every_key_is_explained(tmp_path: Path) -> None:
    assert read_node_file(tmp_path) == NodeFile()
    text = (tmp_path / "node.toml").read_text()
    keys = [line for line in text.splitlines() if line.startswith("# ") and " = " in line]
    uncommented = tomllib.loads("\n".join(line.removeprefix("# ") for line in keys))
    assert uncommented.keys() == NodeFile.model_fields.keys()
    defaults = NodeFile().model_dump() | {"threads": 1, "bootstrap": uncommented["bootstrap"]}
    assert uncommented == defaults


def test_file_of_the_user_is_left_as_it_is(tmp_path: Path) -> None:
    config(tmp_path, "threads = 3\n")
    assert (tmp_path / "node.toml").read_text() == "threads = 3\n"


def test_file_may_begin_with_the_mark_of_some_editors(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_bytes(b"\xef\xbb\xbfthreads = 3\n")
    assert read_node_file(tmp_path).threads == 3


def test_file_sets_what_the_command_does_not(tmp_path: Path) -> None:
    text = 'listen = "/ip4/127.0.0.1/tcp/4001"\nthreads = 3\nlinger_s = 2\nlog_level = "debug"\n'
    found = config(
        tmp_path,
        text + "status_port = 4242\nstart_within_s = 90\nis_observer = true\nsecurity = 'noise'",
        threads=5,
    )
    assert (found.listen_port, found.threads, found.linger_s) == (4001, 5, 2.0)
    assert found.start_within_s == 90.0
    assert found.security == "noise"
    assert (found.log_level, found.status_port, found.is_observer) == ("debug", 4242, True)
    assert (found.state, found.manifest) == (tmp_path, tmp_path / "m")


def test_left_out_threads_leave_a_core_to_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cores, threads in ((None, 1), (1, 1), (2, 1), (8, 7)):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        assert config(tmp_path, "").threads == threads


def test_status_server_may_be_left_out(tmp_path: Path) -> None:
    assert config(tmp_path, "").status_port == 0
    assert config(tmp_path, "has_status = false").status_port is None


def test_peers_of_the_command_are_asked_besides_those_of_the_file(tmp_path: Path) -> None:
    text = f'bootstrap = ["{ADDRESS}"]'
    assert config(tmp_path, text, bootstrap=(OTHER, ADDRESS)).bootstrap == (OTHER, ADDRESS)
    assert config(tmp_path, text).bootstrap == (ADDRESS,)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("thread = 3", "node.toml: thread is no key; did you mean threads?"),
        ("threads = 'x'", "node.toml: threads must be a whole number, not 'x'"),
        ("bootstrap = 'x'", "node.toml: bootstrap must be a list in brackets, not 'x'"),
        ("bootstrap = [1]", "node.toml: bootstrap[0] must be a text in quotes"),
        ("threads = 0", "threads: 0 is not within 1..4096"),
        ("log_level = 'loud'", "log_level: 'loud' is none of debug, info, warning, error"),
        ("listen = 'here'", "use an address like /ip4/0.0.0.0/tcp/4001"),
        ("bootstrap = ['x']", "'x' is no address like"),
        ("status_port = 70000", "status_port: 70000 is not within 0..65535"),
        ("linger_s = -1", "linger_s: -1.0 is not within"),
        ("security = 'ssl'", "security: 'ssl' is none of tls, noise"),
        ("start_within_s = nan", "start_within_s: nan is not within 0..2678400"),
        ("start_with = 0", "start_with: 0 is not within 1..64"),
        ("relay_gib = -1", "relay_gib: -1.0 is not within 0..1048576"),
        ("relay_mbit = 1e7", "relay_mbit: 10000000.0 is not within 0..1e6"),
        ("threads = [", "node.toml: no TOML"),
    ],
)
def test_what_is_wrong_is_named_with_the_file(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(tmp_path, text)
    assert words in str(caught.value)
    assert "node.toml" in str(caught.value)
