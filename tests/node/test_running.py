"""Where a node listens: on the port of its last start, or where it was told."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from node.peers.listening import listening, transport_config
from node.state.config import NodeConfig
from node.state.folder import keep_port, read_port
from protocol.errors import ConfigError
from protocol.identity import Ed25519Signer, peer_id_text

pytestmark = pytest.mark.net

SEED = b"s" * 32


def config(state: Path, port: int = 0) -> NodeConfig:
    return NodeConfig(state=state, manifest=Path(), listen=f"/ip4/127.0.0.1/tcp/{port}")


async def listen(config: NodeConfig) -> int:
    """The port that a node with this config takes."""
    async with listening(config, SEED) as transport:
        return int(transport.addresses()[0].rpartition("/")[2])


@contextmanager
def taken_port() -> Iterator[int]:
    """A port on which another program listens, sharing it with whoever wants to."""
    with socket.socket() as other:
        if hasattr(socket, "SO_REUSEPORT"):
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


async def test_free_port_is_kept_over_restarts(tmp_path: Path) -> None:
    first = await listen(config(tmp_path))
    assert read_port(tmp_path) == first
    assert await listen(config(tmp_path)) == first


async def test_kept_port_that_is_taken_gives_way_to_another(tmp_path: Path) -> None:
    with taken_port() as taken:
        keep_port(tmp_path, taken)
        other = await listen(config(tmp_path))
        assert other != taken
    assert read_port(tmp_path) == other


async def test_port_that_was_asked_for_and_is_taken_is_refused_with_what_to_do(
    tmp_path: Path,
) -> None:
    with taken_port() as port, pytest.raises(ConfigError) as caught:
        await listen(config(tmp_path, port))
    assert f"port {port}: Address already in use: end the program" in str(caught.value)
    assert "--listen" in str(caught.value)
    assert await listen(config(tmp_path, port)) == port


async def test_port_that_was_asked_for_is_no_port_to_keep(tmp_path: Path) -> None:
    kept = await listen(config(tmp_path))
    with taken_port() as free:
        pass
    await listen(config(tmp_path, free))
    assert read_port(tmp_path) == kept
    assert os.listdir(tmp_path) == ["port"]


def test_addresses_that_the_user_named_are_dialled_wherever_they_lead(tmp_path: Path) -> None:
    """Also to another node of this machine, where others' words do not lead."""
    address = "/dns4/localhost/tcp/4001"
    peer = peer_id_text(Ed25519Signer(SEED).peer_id)
    named = replace(config(tmp_path), bootstrap=(f"{address}/p2p/{peer}",))
    assert transport_config(named).named == (address,)
