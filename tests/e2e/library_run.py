"""A founder by `barnraise run`, and user programs that join it through the library."""

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "plain_loop.py"
TIMEOUT_S = 120.0
WIDTH = 16

RUN_TOML = """
[run]
title = "library"
rounds = {rounds}
[model]
file = "plain_loop.py"
[model.settings]
context = 64
width = 16
[inner]
inner_steps = 10
batch = 8
warmup_steps = 10
[timing]
deadline_floor_s = 2.0
heartbeat_s = 0.3
suspect_s = 3.0
"""

# One thread each: several torch processes on few cores slow each other down many times.
PROGRAM = """
import sys
import torch
from torch.nn import functional
torch.set_num_threads(1)
from node import DiLoCo, Swarm
from examples.plain_loop import ByteGru, text_loader
model = ByteGru(16)
inner = torch.optim.AdamW(model.parameters())
def say(*words):
    print(*words, flush=True)
def train(swarm, diloco):
    for x_BT, y_BT in swarm.batches(text_loader(64, 8)):
        inner.zero_grad()
        functional.cross_entropy(model(x_BT).flatten(0, 1), y_BT.flatten()).backward()
        if diloco.step() is not None:
            say("round", swarm.round)
"""


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


class Running:
    """A process whose lines of output can be waited for."""

    def __init__(self, command: list[str], folder: Path) -> None:
        with (folder / "stderr.txt").open("ab") as errors:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment(),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._folder = folder
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def line(self, words: str) -> str:
        """The next line with these words in it."""
        while True:
            line = self._lines.get(timeout=TIMEOUT_S)
            if not line:
                said = (self._folder / "stderr.txt").read_text("utf-8")
                raise AssertionError(f"it ended before it said {words!r}: {said[-4000:]}")
            if words in line:
                return line

    def rest(self) -> list[str]:
        """All lines to its end."""
        return list(iter(lambda: self._lines.get(timeout=TIMEOUT_S), ""))

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                self._lines.put(line)
        self._lines.put("")


@contextmanager
def running(command: list[str], folder: Path) -> Iterator[Running]:
    """A process, killed at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    process = Running(command, folder)
    try:
        yield process
    finally:
        process.process.kill()
        process.process.wait()


@dataclass(frozen=True, slots=True)
class Founder:
    running: Running
    link: str
    address: str

    def event(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.running.line(f'"event": "{name}"'))
        return found

    def rest(self) -> list[dict[str, Any]]:
        """All events to its end."""
        return [json.loads(line) for line in self.running.rest()]


@contextmanager
def founder(folder: Path, *, rounds: int, start_with: int = 2) -> Iterator[Founder]:
    """`barnraise run` of the example's model, in `folder`/state."""
    state = folder / "state"
    state.mkdir(parents=True)
    (state / "node.toml").write_text(
        f"start_with = {start_with}\nthreads = 1\nvalidation_share = 1.0\n"
    )
    (folder / "run.toml").write_text(RUN_TOML.format(rounds=rounds))
    shutil.copy(EXAMPLE, folder)
    command = [sys.executable, "-P", "-m", "node.cli", "run", "run.toml", "--json"]
    command += ["--state", str(state), "--listen", "/ip4/127.0.0.1/tcp/0"]
    with running(command, folder) as process:
        address = json.loads(process.line('"event": "listening"'))["addresses"][0]
        link = json.loads(process.line('"event": "invite"'))["link"]
        yield Founder(process, link, address)


def program(folder: Path, does: str, *arguments: str) -> Running:
    """A user's program over PROGRAM; its `sys.argv[1:]` are the arguments."""
    folder.mkdir(parents=True, exist_ok=True)
    return Running([sys.executable, "-c", PROGRAM + does, *arguments], folder)


def anchors(state: Path) -> dict[int, NDArray[np.float32]]:
    """The anchor of every checkpoint of the one run in a state folder, flat, by round."""
    found = {}
    for folder in state.glob("runs/*/checkpoints/round-*"):
        tensors = load_file(folder / "anchor.safetensors")
        found[int(folder.name.removeprefix("round-"))] = np.concatenate(
            [tensors[name].flatten() for name in sorted(tensors)]
        )
    return found


def network_processes(state: Path) -> list[int]:
    """Ids of the network processes that run in a state folder."""
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,stat=,args="], capture_output=True, text=True, check=True
    )
    rows = [line.split(None, 2) for line in listed.stdout.splitlines()]
    return [
        int(row[0])
        for row in rows
        if len(row) == 3 and "node.network_main" in row[2] and f"--state {state}" in row[2]
        if not row[1].startswith("Z")
    ]
