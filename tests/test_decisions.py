"""The records of `docs/decisions`: in the index, short, of one form, and about what is there."""

import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from node.commands import (  # noqa: F401 - they register
    credit,
    founding,
    looking,
    using,
)
from node.commands.app import app
from sim import commands  # noqa: F401 - it registers `sim`, `local` and `bench`
from tests.test_architecture import ROOT

FOLDER = ROOT / "docs" / "decisions"
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))
INDEX = (FOLDER / "README.md").read_text("utf-8")
SECTIONS = ["Context", "Decision", "Consequences", "Status", "Evidence"]
LINES_MAX = 60
STATUS = re.compile(r"(Accepted|Superseded by (?P<by>\d{4})), \d{4}-\d\d-\d\d\.")
PATH = re.compile(r"[\w.-]+(/[\w.-]+)+/?")


def form_faults(name: str, text: str) -> list[str]:
    """What is wrong with a record by itself: its name, length, headings, status, evidence."""
    number, faults = name[:4], []
    if not re.fullmatch(r"\d{4}(-[a-z0-9]+)+\.md", name):
        faults.append(f"{name} is no NNNN-title.md")
    if not text.startswith(f"# {number}: "):
        faults.append(f"{name} does not begin with '# {number}: '")
    if len(text.splitlines()) > LINES_MAX:
        faults.append(f"{name} has more than {LINES_MAX} lines")
    if re.findall(r"^## (.+)$", text, re.MULTILINE) != SECTIONS:
        return [*faults, f"{name} needs the headings {', '.join(SECTIONS)}, in this order"]
    bodies = [body.strip() for body in re.split(r"^## .+$", text, flags=re.MULTILINE)[1:]]
    faults += [
        f"{name} says nothing under {heading}"
        for heading, body in zip(SECTIONS, bodies, strict=True)
        if not body
    ]
    if not STATUS.match(bodies[SECTIONS.index("Status")]):
        faults.append(f"{name}: a status is 'Accepted, DATE.' or 'Superseded by NNNN, DATE.'")
    if not any(is_command(span) for span in spans(bodies[SECTIONS.index("Evidence")])):
        faults.append(f"{name} has no command as evidence")
    return faults


def spans(text: str) -> list[str]:
    """What stands between backticks."""
    return re.findall(r"`([^`\n]+)`", text)


def is_command(span: str) -> bool:
    return span.startswith(("python -m ", "barnraise ", "make "))


def missing(text: str, root: Path, folder: Path = FOLDER) -> list[str]:
    """What a text in `folder` cites and is not there: files of `root`, links, records, modules,
    commands, their options, make targets."""
    faults = [f"there is no record {number}" for number in cited_records(text) if not one(number)]
    links = re.findall(r"\]\(([^)#:\s]+)\)", text)
    faults += [f"the link {link} leads nowhere" for link in links if not (folder / link).exists()]
    for span in spans(text):
        words = shlex.split(span) if is_command(span) else span.split()
        if words[0] == "barnraise":
            faults += command_faults(tuple(words[1:]))
        elif words[0] == "make":
            targets = re.findall(
                r"^([\w-]+):", (root / "Makefile").read_text("utf-8"), re.MULTILINE
            )
            faults += [f"make has no {word}" for word in words[1:2] if word not in targets]
        elif words[:2] == ["python", "-m"] and words[2] != "pytest":
            module = root.joinpath(*words[2].split("."))
            if not (module.with_suffix(".py").exists() or (module / "__main__.py").exists()):
                faults.append(f"there is no module {words[2]} to run")
        for word in words:
            path, _, name = word.partition("::")
            if PATH.fullmatch(path) and not (root / path).exists():
                faults.append(f"there is no {path}")
            elif name and f"def {name}(" not in (root / path).read_text("utf-8"):
                faults.append(f"{path} has no {name}")
    return faults


def cited_records(text: str) -> list[str]:
    """Numbers of records, as texts name them: (0012), and what supersedes one."""
    superseding = [match["by"] for match in STATUS.finditer(text) if match["by"]]
    return [*re.findall(r"\((\d{4})\)", text), *superseding]


def one(number: str) -> bool:
    return sum(record.name.startswith(f"{number}-") for record in RECORDS) == 1


@cache
def command_faults(words: tuple[str, ...]) -> list[str]:
    """Why `barnraise` would refuse these words; values of options are not looked at."""
    result = CliRunner().invoke(app, [*words, "--help"])
    if result.exit_code:
        return [f"barnraise {shlex.join(words)}: {result.stderr}"]
    if words[:1] == ("sim",) and words[1:2] in (("run",), ("sweep",)):
        scenario = ROOT / "sim" / "scenarios" / f"{words[2]}.toml"
        if not scenario.exists() and words[2] != "robustness":
            return [f"there is no scenario {words[2]}"]
    return []


def index_faults(index: str, titles: Mapping[str, str]) -> list[str]:
    """Where the index and the records, titles by file, differ."""
    rows = re.findall(r"^\| \[(\d{4})\]\((\S+)\) \| (.+?) \|", index, re.MULTILINE)
    listed = [(file, f"{number}: {title}") for number, file, title in rows]
    expected = sorted(titles.items())
    faults = [f"the index has no row {entry}" for entry in expected if entry not in listed]
    faults += [
        f"the index has {entry} beyond the records" for entry in listed if entry not in expected
    ]
    faults += [f"the index has {entry} twice" for entry in set(listed) if listed.count(entry) > 1]
    return faults


def titles() -> Iterator[tuple[str, str]]:
    for record in RECORDS:
        yield record.name, record.read_text("utf-8").splitlines()[0].removeprefix("# ")


@pytest.mark.quick(8)
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name[:4])
def test_record_has_the_form_and_cites_what_is_there(record: Path) -> None:
    text = record.read_text("utf-8")
    assert form_faults(record.name, text) == []
    assert missing(text, ROOT) == []


def test_numbers_of_records_begin_at_one_and_have_no_gap() -> None:
    numbers = [int(record.name[:4]) for record in RECORDS]
    assert numbers == list(range(1, len(RECORDS) + 1))


def test_index_names_every_record_once_by_its_title() -> None:
    assert index_faults(INDEX, dict(titles())) == []
    assert missing(INDEX, ROOT) == []


def test_results_name_commands_that_there_are() -> None:
    page = ROOT / "tests" / "bench" / "RESULTS.md"
    assert missing(page.read_text("utf-8"), ROOT, page.parent) == []


GOOD = """# 0001: A thing

## Context

Why.

## Decision

What, see `protocol/core/node_core.py` and (0001).

## Consequences

Cost.

## Status

Accepted, 2026-11-28.

## Evidence

- `barnraise sim run mixed --seed 4`: holds.
"""


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("# 0001: A thing", "# 0002: A thing", "does not begin"),
        ("Why.", "Why.\n" * 60, "more than 60 lines"),
        ("## Status", "## State", "needs the headings"),
        ("Cost.", "", "says nothing under Consequences"),
        ("Accepted, 2026-11-28.", "We like it.", "a status is"),
        ("`barnraise sim run mixed --seed 4`", "believe us", "no command as evidence"),
        ("protocol/core/node_core.py", "node/no_core.py", "there is no node/no_core.py"),
        ("(0001)", "(9999)", "there is no record 9999"),
        ("(0001)", "[that](no.md)", "the link no.md leads nowhere"),
        ("Accepted, 2026", "Superseded by 9998, 2026", "there is no record 9998"),
        ("barnraise sim run mixed", "barnraise sim run mixd", "there is no scenario mixd"),
        ("barnraise sim run mixed", "barnraise sim runs mixed", "No such command"),
        ("--seed 4", "--seeed 4", "No such option"),
        ("barnraise sim run mixed --seed 4", "python -m sim.explore", "there is no module"),
        ("barnraise sim run mixed --seed 4", "make haste", "make has no haste"),
        (
            "barnraise sim run mixed --seed 4",
            "python -m pytest tests/test_decisions.py::test_nothing",
            "tests/test_decisions.py has no test_nothing",
        ),
    ],
)
def test_fault_of_a_record_is_seen(old: str, new: str, fault: str) -> None:
    name = "0001-a-thing.md"
    assert form_faults(name, GOOD) == missing(GOOD, ROOT) == []
    text = GOOD.replace(old, new)
    assert any(fault in found for found in form_faults(name, text) + missing(text, ROOT))


@pytest.mark.parametrize(
    ("index", "fault"),
    [
        ("", "has no row"),
        ("| [0001](0001-a.md) | B | x |\n", "has no row"),
        ("| [0001](0001-a.md) | A | x |\n" * 2, "twice"),
        ("| [0001](0001-a.md) | A | x |\n| [0002](0002-b.md) | B | x |\n", "beyond the records"),
    ],
)
def test_fault_of_the_index_is_seen(index: str, fault: str) -> None:
    assert any(fault in found for found in index_faults(index, {"0001-a.md": "0001: A"}))
