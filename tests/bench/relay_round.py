"""What the relay carries in whole rounds of two homes, beside what a plain libp2p relay forwards.

    python -m tests.bench.relay_round [--rounds 12] [--mib 64]

Makes the laboratory of homes behind symmetric gateways (Linux, root). Two homes found and join a
run by its link, through a bootstrap node alone; steps are few and short, so that a round is its
exchange. A round's rate is all that the relay's host sends in it, over all its time, of which
encoding, sums and votes are parts. The plain relay is measured before and after it, with nobody
else at work.
The last line is one JSON object.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.bench.relay import STOCK_PORT, hear, process, stock
from tests.e2e.nat_lab import PUBLIC, NatLab, nat_lab
from tests.e2e.node_command import command, node, write_run_file

SKIPPED = 3
"""Rounds behind the joiner's first, which may find connections and windows small."""

LARGE = {
    "rounds": "100000",
    "inner_steps": "1",
    "batch": "1",
    "context": "16",
    "layers": "6",
    "width": "256",
    "warmup_steps": "4",
}


@contextmanager
def plain_relay(lab: NatLab) -> Iterator[tuple[str, str]]:
    """A plain relay on the second public host, and who listens behind it in home C."""
    with ExitStack() as s:
        line = ["tests.bench.libp2p_relay", "relay"]
        name = hear(s.enter_context(process(lab, "pub2", line)))["peer"]
        relay = f"/ip4/{PUBLIC['pub2']}/tcp/{STOCK_PORT}/p2p/{name}"
        line = ["tests.bench.libp2p_relay", "sink", relay]
        yield relay, str(hear(s.enter_context(process(lab, "homeC", line)))["peer"])


def forwarded(lab: NatLab) -> int:
    """Bytes that the bootstrap node's host has sent so far, headers of all layers included."""
    return int(lab.run("pub", "cat", "/sys/class/net/wan/statistics/tx_bytes"))


def rounds_of_two(lab: NatLab, folder: Path, count: int) -> dict[str, Any]:
    """The last `count` rounds that listed both homes, as home A saw them."""
    write_run_file(folder, **LARGE)
    (folder / "a").mkdir()
    (folder / "a" / "node.toml").write_text("start_with = 2\n")
    with ExitStack() as s:
        line = ["node.cli", "bootstrap", "--json", "--state", str(folder / "pub")]
        said: dict[str, Any] = hear(s.enter_context(process(lab, "pub", line)))
        address = said["addresses"][0]
        line = ["run", "run.toml", "--bootstrap", address]
        a = s.enter_context(node(folder, "a", *line, inside=lab.command("homeA", [])))
        b = s.enter_context(node(folder, "b", "join", a.link(), inside=lab.command("homeB", [])))
        b.wait_for("2 of 2 listed", SKIPPED)
        before = forwarded(lab)
        b.wait_for("2 of 2 listed", SKIPPED + count)
        sent = forwarded(lab) - before
        told = {what: asked(lab, folder, what) for what in ("rounds", "peers")}
    kept = told["rounds"]["rounds"][-count:]
    return {"rounds": kept, "peers": told["peers"]["peers"], "relay_tx_bytes": sent}


def asked(lab: NatLab, folder: Path, what: str) -> dict[str, Any]:
    """What home A's node answers to a command of its owner."""
    line = [sys.executable, "-P", "-m", "node.cli", what, "--json", "--state", str(folder / "a")]
    found = json.loads(lab.run("homeA", *line))
    assert isinstance(found, dict)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--mib", type=int, default=64)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, nat_lab(is_symmetric=True) as lab:
        folder, plain = Path(name), []
        assert command(folder, "--help").returncode == 0
        with plain_relay(lab) as (relay, sink):
            plain.append(stock(lab, relay, sink, arguments.mib))
        found = rounds_of_two(lab, folder, arguments.rounds)
        with plain_relay(lab) as (relay, sink):
            plain.append(stock(lab, relay, sink, arguments.mib))
    paths = {one["path"] for one in found["peers"] if one["is_linked"]}
    assert paths == {"relayed"}, paths
    rounds = found["rounds"]
    assert all(len(one["listed"]) == 2 for one in rounds)
    # What the relay's host sent, and not what the nodes say that they did.
    rate = found["relay_tx_bytes"] / sum(one["wall_s"] for one in rounds) / 2**20
    said = {
        "round_mib_s": round(rate, 2),
        "round_mib": round(found["relay_tx_bytes"] / len(rounds) / 2**20, 2),
        "round_s": round(statistics.median(one["wall_s"] for one in rounds), 3),
        "told_mib": round((rounds[-1]["bytes_up"] + rounds[-1]["bytes_down"]) / 2**20, 2),
        "stock_relay_mib_s": [round(one, 2) for one in plain],
        "share": round(rate / max(plain), 2),
        "rounds": len(rounds),
    }
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
