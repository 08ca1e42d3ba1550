"""Addresses, keys and hooks: what users type and what lies in the state folder."""

import os
import stat
from pathlib import Path

import pytest

from dht.transport import libp2p_host
from node.plane.hooks import hooks_named
from node.state.config import SECURITIES, NodeConfig, parse_listen, parse_peer_address
from node.state.folder import KEY_FILE
from node.state.keystore import load_or_create_identity
from protocol.errors import ConfigError
from protocol.identity import Ed25519Signer, peer_id_text

PEER = Ed25519Signer(b"p" * 32).peer_id


@pytest.mark.parametrize("device", ["foo", "cuda:", "cuda:x", "CPU", "", "auto "])
def test_device_of_no_known_kind_is_refused(device: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is none of auto, cpu, cuda, cuda:N, mps"):
        NodeConfig(state=tmp_path, manifest=Path(), device=device)


def test_trace_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder; name a file"):
        NodeConfig(state=tmp_path, manifest=Path(), trace=tmp_path)


@pytest.mark.parametrize("device", ["auto", "cpu", "mps", "cuda", "cuda:0", "cuda:12"])
def test_device_of_a_known_kind_is_the_trainers_to_find(device: str, tmp_path: Path) -> None:
    assert NodeConfig(state=tmp_path, manifest=Path(), device=device).device == device


def test_peer_address_is_taken_apart() -> None:
    parsed = parse_peer_address(f"/ip4/203.0.113.1/tcp/4001/p2p/{peer_id_text(PEER)}")
    assert (parsed.peer, parsed.address) == (PEER, "/ip4/203.0.113.1/tcp/4001")


@pytest.mark.parametrize("text", ["", "203.0.113.1:4001", "/ip4/203.0.113.1/tcp/4001", "/p2p/x"])
def test_peer_address_without_an_id_says_what_one_looks_like(text: str) -> None:
    with pytest.raises(ConfigError, match="/p2p/12D3Koo"):
        parse_peer_address(text)


def test_peer_address_with_a_foreign_id_is_refused() -> None:
    with pytest.raises(ConfigError, match="names no peer"):
        parse_peer_address(
            "/ip4/203.0.113.1/tcp/4001/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"
        )


def test_listen_address_is_taken_apart() -> None:
    assert parse_listen("/ip4/127.0.0.1/tcp/0") == ("127.0.0.1", 0)
    config = NodeConfig(state=Path(), manifest=Path(), listen="/ip6/::1/tcp/4001")
    assert (config.listen_host, config.listen_port) == ("::1", 4001)
    with pytest.raises(ConfigError, match="--listen"):
        parse_listen("localhost:1")


def test_identity_is_made_once_and_kept(tmp_path: Path) -> None:
    first = load_or_create_identity(tmp_path / "new" / "state")
    again = load_or_create_identity(tmp_path / "new" / "state")
    assert first.peer_id == again.peer_id
    key = tmp_path / "new" / "state" / KEY_FILE
    if os.name == "posix":
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert first.seed.hex() not in repr(first)
    assert str(first.seed) not in repr(first)


def test_identity_file_of_a_wrong_size_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).write_bytes(b"short")
    with pytest.raises(ConfigError, match="is no key"):
        load_or_create_identity(tmp_path)


def test_unknown_test_switch_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="nonsense"):
        hooks_named("nonsense")


def test_securities_of_a_node_are_those_of_the_transport() -> None:
    """Written twice, for the transport takes a second to load."""
    assert SECURITIES == libp2p_host.SECURITIES
