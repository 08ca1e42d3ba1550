"""The network process as a child: its words become errors, and it never stays behind."""

import os
import select
import signal
import subprocess
import sys
import time

import pytest

from node.daemon.network_child import NetworkChild
from node.processes.children import child_environment
from protocol.errors import BarnraiseError, ConfigError, ManifestMismatch, TrainerError
from training.channel.frames import Leaving, Ready, failure_frame, pack_frame

READY = Ready(threads=1, parameters=1, device="", precision="", micro_batch=1)
MISMATCH = ManifestMismatch("inner.batch", 4, 8)

PRELUDE = f"""
import os, signal, sys, threading
LEAVING = {pack_frame(Leaving())!r}
MISMATCH = {pack_frame(failure_frame(MISMATCH))!r}
def wait():
    threading.Event().wait()
def read_to_leaving():
    heard = b""
    while not heard.endswith(LEAVING):
        data = os.read(0, 4096)
        if not data:
            sys.exit("its parent is gone")
        heard += data
"""


@pytest.fixture
def start(tmp_path):
    """Starts a child that does something; it is closed, and nothing of it left, in the end."""
    children = []

    def starter(does: str) -> NetworkChild:
        # -S: these children need no library, and start twice as fast without.
        child = NetworkChild([sys.executable, "-S", "-c", PRELUDE + does], tmp_path)
        children.append(child)
        return child

    yield starter
    for child in children:
        child.close()
        assert is_gone(child)
    assert [path.name for path in tmp_path.iterdir() if path.name != "left"] == []


def is_gone(child: NetworkChild) -> bool:
    try:
        os.kill(child.pid, 0)
    except ProcessLookupError:
        return True
    return False


def failure_of(child: NetworkChild) -> BarnraiseError:
    with pytest.raises(BarnraiseError) as raised, child.explained():
        child.pipe.receive()
    return raised.value


def test_what_it_tells_is_raised_as_the_error_that_it_is(start):
    error = failure_of(start("os.write(1, MISMATCH); sys.exit(2)"))

    assert isinstance(error, ManifestMismatch)
    assert (error.field, str(error)) == ("inner.batch", str(MISMATCH))


def test_what_it_tells_outweighs_the_broken_pipe_that_a_write_meets(start):
    child = start("os.close(0); os.write(1, MISMATCH)")

    def send_until_it_breaks():
        with child.explained():
            while True:
                child.pipe.send(READY)

    with pytest.raises(ManifestMismatch):
        send_until_it_breaks()


def test_a_word_that_came_while_the_user_computed_is_raised_at_the_next_look(start):
    child = start("os.read(0, 1); os.write(1, MISMATCH); read_to_leaving()")
    child.check()
    child.pipe.send(READY)
    assert child.pipe.wait_closed(60)

    with pytest.raises(ManifestMismatch):
        child.check()


def test_a_death_without_a_word_is_told_with_status_and_last_lines(start):
    lines = "\n".join(f"line {number}" for number in range(100))
    error = failure_of(start(f"sys.exit({lines!r} + 'no such \\x1b[31mthing')"))

    assert isinstance(error, TrainerError)
    assert "ended with status 1" in str(error)
    assert str(error).endswith("line 98\n  line 99no such ?[31mthing")
    assert "line 50" not in str(error)


def test_a_silent_death_says_so(start):
    assert "(it said nothing)" in str(failure_of(start("sys.exit(0)")))


def test_bytes_that_are_no_frame_are_told_as_such(start):
    assert "claims" in str(failure_of(start("os.write(1, b'hello world')")))


def test_closing_lets_it_leave_by_itself(start, tmp_path):
    child = start(f"read_to_leaving(); open({str(tmp_path / 'left')!r}, 'w').close()")
    child.close()

    assert (tmp_path / "left").exists()


@pytest.mark.skipif(os.name == "nt", reason="no fork there whose child could hold the pipe")
def test_it_leaves_though_a_forked_process_holds_a_copy_of_the_pipe(start, tmp_path):
    child = start(f"read_to_leaving(); open({str(tmp_path / 'left')!r}, 'w').close()")
    assert child._process.stdin is not None
    copy = os.dup(child._process.stdin.fileno())
    try:
        child.close()
    finally:
        os.close(copy)

    assert (tmp_path / "left").exists()


def test_closing_a_second_time_does_nothing(start):
    child = start("read_to_leaving()")
    child.close()
    child.close()


@pytest.mark.slow
def test_one_that_will_not_leave_is_killed_within_two_seconds(start):
    child = start("signal.signal(signal.SIGTERM, signal.SIG_IGN); os.write(2, b'!'); wait()")
    began_s = time.monotonic()
    child.close()

    assert time.monotonic() - began_s < 2.0
    assert is_gone(child)


@pytest.mark.slow
def test_in_a_run_that_is_over_it_stays_as_long_as_it_wants(start, tmp_path):
    does = f"threading.Event().wait(2.5); open({str(tmp_path / 'left')!r}, 'w').close()"
    start(does).close(linger_s=60.0)

    assert (tmp_path / "left").exists()


@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT as POSIX does")
def test_an_interrupt_ends_a_wait_for_it(start):
    child = start("os.kill(os.getppid(), signal.SIGINT); read_to_leaving()")

    with pytest.raises(KeyboardInterrupt):
        child.pipe.receive()


@pytest.mark.skipif(os.name == "nt", reason="there are no process groups on Windows")
def test_an_interrupt_of_the_terminal_does_not_reach_it(start):
    child = start("read_to_leaving()")

    assert os.getpgid(child.pid) != os.getpgid(0)


def test_a_folder_that_cannot_be_used_is_told(tmp_path):
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(ConfigError, match="cannot use the folder"):
        NetworkChild([sys.executable], tmp_path / "file" / "state")


def test_a_command_that_is_not_there_leaves_nothing(tmp_path):
    with pytest.raises(FileNotFoundError):
        NetworkChild([str(tmp_path / "absent")], tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux has pidfd, to watch a process not our child"
)
def test_it_hears_of_the_death_of_the_users_process(tmp_path):
    user = """
import os, signal, sys
from pathlib import Path
from node.daemon.network_child import NetworkChild
child = NetworkChild([sys.executable, "-S", "-c", "import os; os.read(0, 1)"], Path(sys.argv[1]))
print(child.pid, flush=True)
os.read(0, 1)
os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [sys.executable, "-c", user, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=child_environment()
    ) as process:
        assert process.stdout is not None
        descriptor = os.pidfd_open(int(process.stdout.readline()))
        try:
            process.communicate(b"x")
            assert process.returncode == -signal.SIGKILL
            assert select.select([descriptor], [], [], 10) == ([descriptor], [], [])
        finally:
            os.close(descriptor)
    assert list(tmp_path.iterdir()) == []


FORKS = """
import os, signal, sys
from pathlib import Path
from node.daemon.network_child import NetworkChild
from protocol.errors import TrainerError
does = "import os, sys; alive = open(sys.argv[1], 'wb'); alive.write(os.read(0, 1))"
child = NetworkChild([sys.executable, "-S", "-c", does, sys.argv[1]], Path(sys.argv[2]))
fork = os.fork()
if fork == 0:
    child.close()
    child.say_leaving()
    said = "is silent"
    try:
        child.check()
    except TrainerError as error:
        said = str(error)
    print(os.getpid(), said, flush=True)
    signal.pause()
os.read(0, 1)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(os.name == "nt", reason="no fork there")
def test_a_fork_neither_ends_it_nor_keeps_it_from_ending_with_the_users_process(tmp_path):
    pipe, state = tmp_path / "alive", tmp_path / "state"
    os.mkfifo(pipe)
    command = [sys.executable, "-W", "ignore", "-c", FORKS, str(pipe), str(state)]
    end, environment = subprocess.PIPE, child_environment()
    with (
        subprocess.Popen(command, stdin=end, stdout=end, env=environment, bufsize=0) as process,
        pipe.open("rb", buffering=0) as alive,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        fork, said = process.stdout.readline().split(maxsplit=1)
        try:
            assert b"forked from" in said
            assert select.select([alive], [], [], 0) == ([], [], [])
            process.stdin.write(b"x")
            assert process.wait() == -signal.SIGKILL
            assert select.select([alive], [], [], 10) == ([alive], [], [])
            assert alive.read() == b""
        finally:
            os.kill(int(fork), signal.SIGKILL)
