"""The table of what holds against abuse names tests and modules that there are."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "sim" / "HARDENING.md").read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith(("| line", "| **"))
]
NAMES = {path.name for room in ("dht", "node", "protocol") for path in (ROOT / room).rglob("*.py")}


def test_every_line_says_whether_it_is_held():
    for line, status, *_ in ROWS:
        assert re.match(r"(held|part: .+|missing|held: .+)$", status), line


def test_whatever_is_held_names_a_test_and_every_test_is_there():
    for line, status, _, tests in ROWS:
        named = re.findall(r"`(tests/[^`]+)`", tests)
        assert named or status in ("missing", "held: there are none"), line
        for one in named:
            path, _, name = one.partition("::")
            source = (ROOT / path).read_text("utf-8")
            assert not name or re.search(rf"def {name}\(", source), one


def test_every_module_that_is_named_is_there():
    for line, _, modules, _ in ROWS:
        for name in re.findall(r"`([^`]+)`", modules):
            assert (ROOT / name).exists() or name in NAMES, f"{line}: {name}"
