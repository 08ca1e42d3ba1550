"""Invite links that hold keys: read from where no list of processes shows them."""

import io
import json
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from node import network_main, swarm
from node.commands import founding
from node.commands.app import app
from node.daemon.foreground import Start
from node.daemon.network_child import JOIN_VARIABLE
from node.peers.invite import CHARACTERS_MAX, invite_link, invite_to, read_target
from node.peers.joining import Target, parse_target
from node.processes.exit_codes import EXIT_USAGE
from protocol.errors import ConfigError, TrainerError
from protocol.identity import Ed25519Signer
from tests.node.edge import toy_manifest
from tests.protocol.entry_vectors import OFFER

PEER = Ed25519Signer(b"p" * 32).peer_id
LINK = "barnraise://join/AZ3f"
EMPTY = io.BytesIO(b"")


def test_link_is_an_argument_a_line_of_standard_input_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "link"
    path.write_text(f"\n  {LINK}\n\n")
    path.chmod(0o600)
    assert read_target(LINK, None, EMPTY) == LINK
    assert read_target("-", None, io.BytesIO(f" {LINK} \r\nrest\n".encode())) == LINK
    assert read_target("-", None, io.BytesIO(LINK.encode())) == LINK
    assert read_target(None, path, EMPTY) == LINK


@pytest.mark.parametrize(("target", "has_file"), [(None, False), (LINK, True), ("-", True)])
def test_none_or_two_of_them_say_what_there_is(
    tmp_path: Path, target: str | None, has_file: bool
) -> None:
    with pytest.raises(ConfigError, match=r"takes one of: .* --link-file FILE"):
        read_target(target, tmp_path / "link" if has_file else None, EMPTY)


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"", "holds no invite link"), (b" \n", "holds no"), (b"x" * 10**6, "is too long")],
)
def test_what_holds_no_link_says_so_and_is_bounded(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "link"
    path.write_bytes(data)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=f"standard input.*{words}|{words}"):
        read_target("-", None, io.BytesIO(data))
    with pytest.raises(ConfigError, match=words):
        read_target(None, path, EMPTY)
    assert CHARACTERS_MAX < 10**6


def test_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*absent"):
        read_target(None, tmp_path / "absent", EMPTY)


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_link_file_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "link"
    path.write_text(LINK)
    path.chmod(0o666)
    with pytest.raises(ConfigError, match="others may write to the invite link"):
        read_target(None, path, EMPTY)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[Target]:
    """What `barnraise join` would join."""
    targets: list[Target] = []

    def join(_start: Start, target: Target) -> int:
        targets.append(target)
        return 0

    monkeypatch.setattr("node.daemon.foreground.join_in_foreground", join)
    monkeypatch.setattr(founding, "end_now", lambda _: None)
    return targets


SECRET = invite_link(invite_to(toy_manifest(), PEER, ["/ip4/203.0.113.1/tcp/4001"], OFFER))
OPEN = invite_link(invite_to(toy_manifest(), PEER, ["/ip4/203.0.113.1/tcp/4001"]))


@pytest.mark.parametrize("link", [OPEN, SECRET])
def test_command_takes_the_link_from_either_place(
    tmp_path: Path, joined: list[Target], link: str
) -> None:
    path = tmp_path / "link"
    path.write_text(link + "\n")
    path.chmod(0o600)
    for words, typed in ((["-"], link + "\n"), (["--link-file", str(path)], "")):
        done = CliRunner().invoke(app, ["join", *words], input=typed)
        assert done.exit_code == 0, done.output
        assert "warning" not in done.output
    assert joined == [parse_target(link)] * 2


def test_key_on_a_command_line_is_said_and_an_open_link_is_none(joined: list[Target]) -> None:
    assert "warning: the link holds a key" in CliRunner().invoke(app, ["join", SECRET]).output
    assert "warning" not in CliRunner().invoke(app, ["join", OPEN]).output
    assert len(joined) == 2


TELLS = (
    "import json, os, sys; "
    "json.dump([sys.argv, os.environ.get('BARNRAISE_JOIN')], open(sys.argv[1], 'w'))"
)


def test_library_hands_the_link_on_where_no_list_of_processes_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    monkeypatch.setattr(swarm, "NETWORK_COMMAND", (sys.executable, "-c", TELLS, str(told)))
    with pytest.raises(TrainerError):
        swarm.Swarm.join(SECRET, state=tmp_path / "state")
    words, said = json.loads(told.read_text())
    assert said == SECRET
    assert SECRET not in " ".join(words)


def test_network_process_takes_the_link_from_its_environment_and_hands_it_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(JOIN_VARIABLE, "barnraise://join/cut")
    assert network_main.main(["--state", str(tmp_path / "s")]) == EXIT_USAGE
    assert "invite link" in capsys.readouterr().err
    assert JOIN_VARIABLE not in os.environ
    with pytest.raises(SystemExit):
        network_main.main(["--state", str(tmp_path / "s")])
    assert "one of --manifest and --join is needed" in capsys.readouterr().err
