"""What a command writes, on terminals of all kinds."""

import errno
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import pytest

from node.cli import why_ended
from node.processes.children import child_environment
from node.text.shown import Output
from protocol.identity import Ed25519Signer, peer_id_text
from tests.training.full_disk import files_of_at_most

FULL = Path("/dev/full")


def test_letters_that_the_terminal_lacks_are_replaced(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "node.cli", "init", str(tmp_path / "日.toml")]
    environment = child_environment() | {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"?.toml is written" in done.stdout


@pytest.mark.extended
def test_error_that_names_what_a_file_said_moves_no_cursor(tmp_path: Path) -> None:
    run = tmp_path / "run.toml"
    run.write_text('[run]\ntitle = "t"\nrounds = 0\n[model]\nfile = "\\u001b[2J.py"\n')
    command = [sys.executable, "-P", "-m", "node.cli", "check", str(run)]
    done = subprocess.run(command, env=child_environment(), capture_output=True, check=False)
    assert done.returncode == 2
    assert b"\x1b" not in done.stderr
    run.write_text('[run]\ntitle = "t"\n[model]\nfile = "\\u001b[2J.py"\n')
    done = subprocess.run(command, env=child_environment(), capture_output=True, check=False)
    assert b"\\x1b[2J.py: No such file" in done.stderr


@pytest.mark.extended
@pytest.mark.skipif(sys.platform == "win32", reason="closes the output as a POSIX shell does")
def test_json_that_nobody_takes_is_no_error(tmp_path: Path) -> None:
    script = '"$0" -P -m node.cli init "$1" --json >&-'
    command = ["sh", "-c", script, sys.executable, str(tmp_path / "run.toml")]
    done = subprocess.run(command, env=child_environment(), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("bench fault --peers 1", "--peers 1 is not in 2..32"),
        ("status --watch --state none", "no node runs in none"),
        ("check --peers two", "--peers"),  # Refused by typer: its words, without its frame.
        ("sim gossip --nodes two", "--nodes"),
    ],
)
def test_json_of_a_command_that_fails_says_why(words: str, why: str, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "node.cli", *words.split(), "--json"]
    done = subprocess.run(
        command, env=child_environment(), cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 2
    (name, told) = json.loads(done.stdout).popitem()
    assert name == "error"
    assert why in told
    assert "\n" not in told


@pytest.mark.extended
@pytest.mark.net
def test_json_of_a_bootstrap_node_that_fails_ends_with_its_event(tmp_path: Path) -> None:
    words = ["bootstrap", "--json", "--state", str(tmp_path), "--listen", "/ip4/203.0.113.9/tcp/1"]
    command = [sys.executable, "-P", "-m", "node.cli", *words]
    done = subprocess.run(command, env=child_environment(), capture_output=True, check=False)
    told = json.loads(done.stdout)
    assert (done.returncode, told["event"], told["kind"]) == (2, "error", "ConfigError")
    assert "cannot listen on 203.0.113.9" in told["message"]


@pytest.mark.skipif(sys.platform == "win32", reason="whose pipes end otherwise")
def test_json_whose_reader_is_gone_shows_no_traceback(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-P", "-m", "node.cli", "check", str(tmp_path / "none"), "--json"]
    with os.fdopen(writer) as gone:
        done = subprocess.run(
            command, env=child_environment(), stdout=gone, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("code", "why"), [(0, ""), (None, ""), (130, "ended by SIGINT"), (1, "see standard error")]
)
def test_end_of_a_command_that_told_people_itself_has_a_reason_if_it_failed(
    code: int | None, why: str
) -> None:
    assert why_ended(SystemExit(code)) == why


@pytest.mark.quick(2)
@pytest.mark.skipif(sys.platform == "win32", reason="closes streams as a POSIX shell does")
@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_streams_that_are_closed_take_bytes_and_leave_their_numbers_to_no_other_file(
    closed: str,
) -> None:
    words = (
        "import os, sys; from node.text.shown import take_standard_streams as take; take();"
        "sys.stdout.buffer.write(b'a'); print('', end='', file=sys.stderr); null = os.devnull;"
        f"closed = [int(one[0]) for one in {closed!r}.split()];"
        "sys.exit(not all(os.path.samestat(os.fstat(n), os.stat(null)) and os.get_inheritable(n)"
        " and [sys.stdin, sys.stdout, sys.stderr][n].fileno() == n for n in closed))"
    )
    command = ["sh", "-c", f'"$0" -P -c "$1" {closed}', sys.executable, words]
    done = subprocess.run(command, env=child_environment(), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.extended
@pytest.mark.skipif(sys.platform == "win32", reason="closes streams as a POSIX shell does")
def test_error_that_nobody_can_read_does_not_come_out_of_standard_output(tmp_path: Path) -> None:
    command = [
        *("sh", "-c", '"$0" -P -m node.cli check "$1" --json 2>&- <&-'),
        *(sys.executable, str(tmp_path / "none.toml")),
    ]
    done = subprocess.run(command, env=child_environment(), capture_output=True, check=False)
    assert done.returncode == 2
    assert list(json.loads(done.stdout)) == ["error"]


PRETEND = """
import sys
from node import cli
from node.commands.app import app

@app.command()
def fails():
    raise {error}

sys.argv = ["barnraise", "fails"]
cli.main()
"""


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (
            "OSError(28, 'No space left', 'x/y')",
            2,
            "barnraise: cannot use x/y: No space left; make room and start again",
        ),
        ("OSError(24, 'Too many open files')", 2, "barnraise: the system refuses: Too many open"),
        ("ExceptionGroup('', [PermissionError(13, 'No', 'z')])", 2, "barnraise: cannot use z: No"),
        ("ExceptionGroup('', [ValueError('a bug')])", 1, "Traceback"),
        ("ValueError('a bug')", 1, "Traceback"),
    ],
)
def test_every_command_tells_what_the_system_refused_and_shows_bugs(
    error: str, status: int, said: str
) -> None:
    command = [sys.executable, "-P", "-c", PRETEND.format(error=error)]
    done = subprocess.run(
        command, env=child_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == status
    assert said in done.stderr
    assert ("Traceback" in done.stderr) == (said == "Traceback")


@pytest.mark.extended
@pytest.mark.skipif(not FULL.exists(), reason="has no device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "words", [["init", "run.toml"], ["init", "run.toml", "--json"], ["--help"]]
)
def test_output_that_takes_nothing_is_said_in_a_line(
    words: list[str], unbuffered: str, tmp_path: Path
) -> None:
    environment = child_environment() | {"PYTHONUNBUFFERED": unbuffered}
    with FULL.open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "node.cli", *words],
            env=environment,
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            check=False,
        )
    said = b"barnraise: cannot write to standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.extended
@pytest.mark.skipif(not FULL.exists(), reason="has no device that is always full")
def test_standard_error_that_takes_nothing_leaves_the_exit_status(tmp_path: Path) -> None:
    with FULL.open("wb") as full:
        command = [sys.executable, "-P", "-m", "node.cli", "check", str(tmp_path / "none.toml")]
        done = subprocess.run(command, env=child_environment(), stderr=full, check=False)
    assert done.returncode == 2


@pytest.mark.extended
@pytest.mark.net
@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("bootstrap --state x --listen /ip4/127.0.0.1/tcp/0", "cannot use {}/x/identity.key: "),
        ("join /ip4/127.0.0.1/tcp/9/p2p/{peer} --state x", "cannot use {}/x/identity.key: "),
        ("psk", "cannot write swarm.key: "),
        ("init", "cannot write run.toml: "),
    ],
)
def test_full_disk_is_told_in_a_sentence_by_every_command(
    words: str, named: str, tmp_path: Path
) -> None:
    peer = peer_id_text(Ed25519Signer(bytes(32)).peer_id)
    command = [sys.executable, "-P", "-m", "node.cli", *words.format(peer=peer).split()]
    with files_of_at_most(16):
        done = subprocess.run(
            command,
            env=child_environment(),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("barnraise: " + named.format(tmp_path))
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "swarm.key").exists()


class Full(io.RawIOBase):
    """A file on a disk without room, until some is made."""

    has_room = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        if self.has_room:
            return len(data)
        raise OSError(errno.ENOSPC, "No space left on device")


def write_text(text: TextIO) -> None:
    print("a", file=text, flush=True)


def write_bytes(text: TextIO) -> None:
    text.buffer.write(b"a")
    text.buffer.flush()


@pytest.mark.parametrize("write", [write_text, write_bytes])
@pytest.mark.parametrize("is_buffered", [True, False])
def test_output_knows_its_own_failure(write: Callable[[TextIO], None], is_buffered: bool) -> None:
    file: Any = Full()
    output = Output(io.BufferedWriter(file) if is_buffered else file)
    text = io.TextIOWrapper(output, encoding="utf-8", write_through=True)
    with pytest.raises(OSError, match="No space") as raised:
        write(text)
    file.has_room = True  # Or the file's end would tell of the failure once more.
    assert output.is_to_blame(raised.value)
    assert output.is_to_blame(ExceptionGroup("tasks", [ExceptionGroup("task", [raised.value])]))
    assert output.why == "No space left on device"


def test_output_is_not_to_blame_for_errors_of_others() -> None:
    output = Output(io.BytesIO())
    assert not output.is_to_blame(OSError(errno.ENOSPC, "No space left on device"))
    assert not output.is_to_blame(ValueError("a bug"))
    assert not output.is_to_blame(ExceptionGroup("tasks", [ValueError("a bug")]))
