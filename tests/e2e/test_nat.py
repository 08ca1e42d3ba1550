"""Homes behind routers: found, met and trained together without an open port."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.nat_lab import PUBLIC, NatLab, nat_lab
from tests.e2e.node_command import SMALL, NodeCommand, node, write_run_file

pytestmark = [
    pytest.mark.slow,
    pytest.mark.net,
    pytest.mark.skipif(os.name != "posix", reason="makes network namespaces"),
]

ALL = r"3 of 3 listed"


@contextmanager
def bootstrap(
    lab: NatLab, folder: Path, host: str, *arguments: str
) -> Iterator[tuple[NodeCommand, str]]:
    """A bootstrap node on a public host, and its address."""
    line = ("bootstrap", "--json", *arguments)
    with node(folder, host, *line, inside=lab.command(host, [])) as one:
        said = one.wait_for(r'\{[^\n]*"event": ?"listening"[^\n]*\}')
        (address,) = json.loads(said)["addresses"]
        assert PUBLIC[host] in address
        yield one, address


def founded(folder: Path, **changes: str) -> None:
    """A run whose founder waits for two joiners with its first round."""
    write_run_file(folder, **(SMALL | {"rounds": "100000"} | changes))
    (folder / "a").mkdir()
    (folder / "a" / "node.toml").write_text("wait_seats = 2\n")


@pytest.mark.parametrize("is_symmetric", [False, True], ids=["kept-ports", "symmetric"])
def test_three_homes_meet_by_the_link_alone_and_train_together(
    tmp_path: Path, is_symmetric: bool
) -> None:
    founded(tmp_path)
    with (
        nat_lab(is_symmetric=is_symmetric) as lab,
        bootstrap(lab, tmp_path, "pub") as (_, address),
        node(
            tmp_path,
            *("a", "run", "run.toml", "--bootstrap", address),
            inside=lab.command("homeA", []),
        ) as a,
        node(tmp_path, "b", "join", a.link(), inside=lab.command("homeB", [])) as b,
        node(tmp_path, "c", "join", a.link(), inside=lab.command("homeC", [])) as c,
    ):
        for one in (a, b, c):
            one.wait_for(ALL, 3)
        for one in (a, b, c):
            assert "Traceback" not in one.said()
