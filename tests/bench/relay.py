"""What a relay carries between two homes, ours and a plain libp2p one, in one run.

    python -m tests.bench.relay [--mib 128]

Makes the laboratory of homes behind symmetric gateways (Linux, root); everything is processes of
their own. Median of three transfers each, in turn; the last line is one JSON object.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.e2e.demo_command import environment
from tests.e2e.nat_lab import PUBLIC, NatLab, nat_lab

MEASURED = 3
STOCK_PORT = 4002


@contextmanager
def process(lab: NatLab, host: str, line: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    one = subprocess.Popen(
        lab.command(host, [sys.executable, "-P", "-m", *line]),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield one
    finally:
        one.kill()
        one.wait()


def hear(one: subprocess.Popen[str]) -> dict[str, object]:
    assert one.stdout is not None
    said = json.loads(one.stdout.readline())
    assert isinstance(said, dict)
    return said


def ours(lab: NatLab, relay: str, target: str, mib: int) -> float:
    with process(lab, "homeB", ["tests.e2e.nat_peer", relay, target, str(mib)]) as near:
        hear(near)
        hear(near)
        found = hear(near)
    assert "direct_s" not in found, "the gateways are symmetric: no direct path"
    return float(str(found["relayed_mib_s"]))


def stock(lab: NatLab, relay: str, target: str, mib: int) -> float:
    line = ["tests.bench.libp2p_relay", "send", relay, target, str(mib)]
    with process(lab, "homeB", line) as near:
        return float(str(hear(near)["mib_s"]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=128)
    mib = parser.parse_args().mib
    with (
        tempfile.TemporaryDirectory() as folder,
        nat_lab(is_symmetric=True) as lab,
        ExitStack() as s,
    ):
        line = ["node.cli", "bootstrap", "--json", "--state", str(Path(folder) / "pub")]
        relay = str(hear(s.enter_context(process(lab, "pub", line)))["addresses"][0])  # type: ignore[index]
        far = hear(s.enter_context(process(lab, "homeA", ["tests.e2e.nat_peer", relay])))
        line = ["tests.bench.libp2p_relay", "relay"]
        name = hear(s.enter_context(process(lab, "pub2", line)))["peer"]
        plain = f"/ip4/{PUBLIC['pub2']}/tcp/{STOCK_PORT}/p2p/{name}"
        line = ["tests.bench.libp2p_relay", "sink", plain]
        far_plain = hear(s.enter_context(process(lab, "homeC", line)))
        found: dict[str, list[float]] = {"ours": [], "stock": []}
        for _ in range(MEASURED):
            found["ours"].append(ours(lab, relay, str(far["addresses"][0]), mib))  # type: ignore[index]
            found["stock"].append(stock(lab, plain, str(far_plain["peer"]), mib))
    rate, plain_rate = (statistics.median(found[name]) for name in ("ours", "stock"))
    said = {
        "relay_mib_s": round(rate, 1),
        "stock_relay_mib_s": round(plain_rate, 1),
        "share": round(rate / plain_rate, 2),
        "mib": mib,
    }
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
