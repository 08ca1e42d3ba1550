"""Stands in for a node of the demo: the same events, a swarm that exists in files only.

    python -P fake_node.py [--behave KIND] --state DIR --manifest FILE ...

It trains nothing. All fakes seal by one clock, the age of the manifest's file; a round lists those
whose pid file names a living process. A trainer is a child that waits for its pipe to close.
"""

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from protocol.identity import Ed25519Signer
from protocol.manifest import open_manifest

FIRST_SEAL_S = 2.5
BEAT_S = 0.15


def say(event: str, **fields) -> None:
    sys.stdout.write(json.dumps({"event": event, "time_s": 0.0, **fields}) + "\n")
    sys.stdout.flush()


def peer(name: str) -> str:
    return f"peer-of-{name}"


def is_alive(pid_file: Path) -> bool:
    try:
        os.kill(int(pid_file.read_text()), 0)
    except (OSError, ValueError):
        return False
    return True


class FakeNode:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.name = options.state.name
        self.manifest = open_manifest(options.manifest.read_bytes(), Ed25519Signer(bytes(32)))
        self.began_s = options.manifest.stat().st_mtime + FIRST_SEAL_S
        self.wants_end: queue.Queue[str] = queue.Queue()
        options.state.mkdir(exist_ok=True)
        (options.state / "pid").write_text(str(os.getpid()))

    def behaves(self, kind: str) -> bool:
        return self.options.behave in (kind, f"{kind}-{self.name}")

    def run(self) -> int:
        signal.signal(signal.SIGINT, lambda *_: self.wants_end.put("signal"))
        threading.Thread(target=self._listen, daemon=True).start()
        if self.behaves("mute"):
            return self._wait_for_end()
        say("listening", peer=peer(self.name), addresses=[f"/fake/{self.name}"], pid=os.getpid())
        trainer = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
        )
        say("trainer", pid=trainer.pid)
        if self.behaves("stuck"):
            return self._wait_for_end()
        for index in range(max(1, self._round_now()), self.manifest.rounds + 1):
            if not self._pause_until(self.began_s + index * BEAT_S - 0.05):
                return 0
            say("phase", round=index, phase="pushing", attempt=0)
            if not self._pause_until(self.began_s + index * BEAT_S):
                return 0
            if index == 3 and self.behaves("die"):
                sys.stderr.write("something broke in here\n")
                return 7
            self._seal(index)
        self._finish()
        return self._wait_for_end()

    def _seal(self, index: int) -> None:
        folders = sorted(self.options.state.parent.iterdir())
        alive = [peer(folder.name) for folder in folders if is_alive(folder / "pid")]
        for other in alive:
            if other != peer(self.name):
                say("parts", round=index, peer=other, cells=8, direction="in")
        say(
            "sealed",
            round=index,
            digest=f"{index:064x}",
            listed=alive,
            members=len(alive),
            voters=len(alive),
            attempt=0,
            was_listed=True,
            wall_s=BEAT_S,
            bytes_up=1000 * index,
            bytes_down=1000 * index,
            train_loss=2.0,
        )
        say("validation", round=index, loss=2.0 + 1.0 / index)

    def _finish(self) -> None:
        run = self.options.state / "runs" / self.manifest.digest.hex()[:12]
        folder = run / "checkpoints" / f"round-{self.manifest.rounds + 1:06d}"
        folder.mkdir(parents=True)
        value = 2.0 if self.behaves("differ") else 1.0
        save_file({"w": np.full(4, value, np.float32)}, folder / "anchor.safetensors")
        say("finished", round=self.manifest.rounds, checkpoint=str(folder))

    def _round_now(self) -> int:
        return int((time.time() - self.began_s) / BEAT_S) + 1

    def _pause_until(self, until_s: float) -> bool:
        """False when it is to end before."""
        try:
            self.wants_end.get(timeout=max(0.001, until_s - time.time()))
        except queue.Empty:
            return True
        return self.behaves("deaf")

    def _wait_for_end(self) -> int:
        while True:
            self.wants_end.get()
            if not self.behaves("deaf"):
                return 0

    def _listen(self) -> None:
        for line in sys.stdin:
            self.wants_end.put(line)
        # Nobody holds us any more: a deaf node is deaf to words, not to this.
        os._exit(0)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--behave", default="")
    parser.add_argument("--state", type=Path)
    parser.add_argument("--manifest", type=Path)
    parser.add_argument("--bootstrap")
    return FakeNode(parser.parse_known_args()[0]).run()


if __name__ == "__main__":
    sys.exit(main())
