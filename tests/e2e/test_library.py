"""The library face with real processes: a user's own loop trains with a founder's node."""

import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.library_run import (
    EXAMPLE,
    TIMEOUT_S,
    WIDTH,
    Running,
    anchors,
    environment,
    founder,
    network_processes,
    program,
    running,
)

pytestmark = [pytest.mark.slow, pytest.mark.net]

JOIN = """
with Swarm.join(sys.argv[1], state=sys.argv[2], listen="/ip4/127.0.0.1/tcp/0") as swarm:
    train(swarm, DiLoCo(model, inner, exchange=swarm))
say("finished", swarm.round)
"""


JOIN_COMMAND = [sys.executable, "-P", "-m", "node.cli", "join"]


def wait_until_gone(state: Path, limit_s: float) -> None:
    began_s = time.monotonic()
    while left := network_processes(state):
        assert time.monotonic() - began_s < limit_s, f"these still run: {left}"
        threading.Event().wait(0.05)


def assert_nothing_left(state: Path) -> None:
    assert not list(state.rglob("*.channel"))
    # The nameless file of its words is nameless.
    assert not list(state.glob("tmp*"))


def ended(process: Running) -> int:
    return process.process.wait(TIMEOUT_S)


def test_example_and_founder_finish_with_equal_anchors_and_a_falling_loss(tmp_path):
    state = tmp_path / "example"
    with founder(tmp_path / "founder", rounds=50) as first:
        done = subprocess.run(
            [sys.executable, str(EXAMPLE), first.link, f"--state={state}", f"--width={WIDTH}"],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        events = first.rest()
        assert ended(first.running) == 0
    assert done.returncode == 0, done.stderr

    theirs, ours = anchors(tmp_path / "founder" / "state"), anchors(state)
    assert max(theirs) == max(ours) == 51
    for round_index in set(theirs) & set(ours):
        assert np.array_equal(
            theirs[round_index].view(np.uint32), ours[round_index].view(np.uint32)
        )
    # Both trained: the loop's own rounds are in seals that list two.
    sealed = [event for event in events if event["event"] == "sealed"]
    rounds = re.findall(r"round sealed round=(\d+)", done.stderr)
    assert len(rounds) >= 5
    assert sum(len(event["listed"]) == 2 for event in sealed) >= len(rounds) - 2
    losses = [event["loss"] for event in events if event["event"] == "validation"]
    assert losses[-1] < losses[0] - 1.0
    assert "run finished round=51" in done.stderr
    assert_nothing_left(state)


def test_interrupt_leaves_within_two_seconds_and_joining_again_resumes(tmp_path):
    does = """
import time
try:
    with Swarm.join(sys.argv[1], state=sys.argv[2], listen="/ip4/127.0.0.1/tcp/0") as swarm:
        try:
            train(swarm, DiLoCo(model, inner, exchange=swarm))
        finally:
            began_s = time.monotonic()
except KeyboardInterrupt:
    say("left", time.monotonic() - began_s)
"""
    state = tmp_path / "user"
    with founder(tmp_path / "founder", rounds=100_000) as first:
        user = program(tmp_path / "b", does, first.link, str(state))
        user.line("round 6")
        user.process.send_signal(signal.SIGINT)
        assert float(user.line("left").split()[1]) < 2.0
        assert network_processes(state) == []
        assert ended(user) == 0
        assert_nothing_left(state)
        first.event("unlinked")

        again = program(tmp_path / "b", JOIN, first.link, str(state))
        number = int(again.line("round ").split()[1])
        assert number > 6
        # Killed as a whole: the network process hears of it by the end of its input.
        again.process.kill()
        ended(again)
        wait_until_gone(state, 3.0)
        assert_nothing_left(state)


def test_death_of_the_network_process_is_raised_with_its_last_lines(tmp_path):
    does = """
from protocol.errors import TrainerError
import os, signal, subprocess
try:
    with Swarm.join(sys.argv[1], state=sys.argv[2], listen="/ip4/127.0.0.1/tcp/0") as swarm:
        diloco = DiLoCo(model, inner, exchange=swarm)
        os.kill(swarm._child.pid, signal.SIGKILL)
        train(swarm, diloco)
except TrainerError as error:
    say("told:", str(error).replace("\\n", " "))
"""
    state = tmp_path / "user"
    with founder(tmp_path / "founder", rounds=400) as first:
        user = program(tmp_path / "b", does, first.link, str(state))
        assert "ended with status -9" in user.line("told:")
        assert ended(user) == 0
    assert_nothing_left(state)


def test_what_cannot_be_joined_raises_a_typed_error_and_leaves_no_process(tmp_path):
    does = """
from protocol.errors import BarnraiseError
link, peer, state = sys.argv[1:]
def attempt(address, model):
    try:
        with Swarm.join(address, state=state, listen="/ip4/127.0.0.1/tcp/0") as swarm:
            DiLoCo(model, torch.optim.AdamW(model.parameters()), exchange=swarm)
    except BarnraiseError as error:
        say(type(error).__name__, str(error).replace("\\n", " "))
attempt("no link", model)
attempt(link[:-4], model)
attempt(f"/ip4/127.0.0.1/tcp/9/p2p/{peer}", model)
attempt(link, ByteGru(17))
attempt(link, model)
say("joined")
"""
    state = tmp_path / "user"
    with founder(tmp_path / "founder", rounds=100_000, start_with=1) as first:
        peer = first.address.rpartition("/")[2]
        user = program(tmp_path / "b", does, first.link, peer, str(state))
        told = user.rest()
        assert ended(user) == 0
        # What was refused has spoilt nothing: the same folder joins with the right model.
        assert [line.split()[0] for line in told] == [
            "ConfigError",
            "ConfigError",
            "UnreachableError",
            "ManifestMismatch",
            "joined",
        ], told
        assert "neither an invite link" in told[0]
        assert "/ip4/127.0.0.1/tcp/9/p2p/" in told[2]
        assert "embedding.weight" in told[3]
    assert network_processes(state) == []
    assert_nothing_left(state)


def test_command_joins_with_the_file_that_the_run_names_and_with_no_other(tmp_path):
    state, wrong = tmp_path / "joiner", tmp_path / "wrong.py"
    wrong.write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n{EXAMPLE.read_text('utf-8')}")
    listen = "--listen=/ip4/127.0.0.1/tcp/0"

    def refused(*options: str) -> str:
        command = [*JOIN_COMMAND, first.link, "--state", str(state), listen, *options]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 2, done.stderr
        return " ".join(done.stderr.split())

    with founder(tmp_path / "founder", rounds=100_000, start_with=1) as first:
        assert "ask the founder for it and give its path with --model-file" in refused()
        assert "a link never brings code" in refused("--model-file", str(wrong))
        assert not (tmp_path / "ran").exists()
        command = [*JOIN_COMMAND, first.link, "--state", str(state), listen, "--json"]
        with running([*command, "--model-file", str(EXAMPLE)], tmp_path / "c") as joiner:
            joiner.line('"was_listed": true')
        # The verified file is kept: the next start does without the option.
        with running(command, tmp_path / "c") as again:
            again.line('"was_listed": true')
