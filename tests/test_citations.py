"""What the tree cites is there: rules have a section, links a target, constants their value.

The law of the rounds is `docs/protocol/rounds.md`. Code and tests cite its rules as R1, R2 and so
on; pages cite files, tests and constants. Nothing may cite a page that is outside the tree. Each
check is a function of texts, so that it can be shown to fail on a small bad example.
"""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAW = "docs/protocol/rounds.md"

Texts = Mapping[str, str]
"""File contents by path, relative to the root of the tree."""

Check = Callable[[Texts, Texts], list[str]]
"""Complaints about the first texts; the second ones are the whole tree that they may cite."""

# The whole tree is read in one process of those that share the tests.
pytestmark = pytest.mark.xdist_group("tree")

RETIRED = ("docs/attic/",)
"""The notebook of the first version: kept as it was written, with the pages that it cites."""

BAD_EXAMPLES = ("tests/test_citations.py", "tests/structure/test_figures.py")
"""What they cite is wrong on purpose."""

OUTSIDE = re.compile(
    r"\b(?:design|algorithms|robustness|mechanisms|field|features|newcomer|absence|house|style"
    r"|shards|shards-notes|real-size|peers-bench|py-libp2p|protocol-check)\.md\b|\.\./shared\b"
    r"|/work/|\b(?:from|by|of) the design\b|\bthe design's\b|\bdesign,? (?:page|section|R\d)"
    r"|\bmethod sheet\b"
)
"""Pages of the planning that are in no tree, and what they used to be called."""

RULE = re.compile(r"\bR[1-9][0-9]?\b")
ANCHOR = re.compile(r'<a id="([^"]+)"></a>')
LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^()\s]+)\)|!\[[^\]\n]*\]\(([^()\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")
NAMED_FILE = re.compile(
    r"`((?:node|protocol|training|dht|sim|tests|docs|examples|barnraise)/[\w./-]+\.(?:py|md|toml|c))"
    r"(?:::(\w+))?`"
)
CONSTANT_ROW = re.compile(r"^\| `([A-Z][A-Z0-9_]*)` \| ([^|]+?) \| `([^`]+\.py)` \|", re.MULTILINE)
CONSTANT_SAID = re.compile(r"`([A-Z][A-Z0-9_]*)` = (-?[0-9]+(?:\.[0-9]+)?)")


# The tree ----------------------------------------------------------------------------------------


@cache
def tree() -> Texts:
    """All Python and Markdown files that belong to the tree; a file is read once per process."""
    command = ("git", "ls-files", "-co", "--exclude-standard", "--", "*.py", "*.md", "*.toml")
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    paths = listed.stdout.split("\n") if listed.returncode == 0 else _without_git()
    files = (path for path in paths if path and (ROOT / path).is_file())
    return {path: (ROOT / path).read_text("utf-8") for path in sorted(files)}


def _without_git() -> Iterator[str]:
    """The same where the tree was unpacked from an archive."""
    hidden = re.compile(r"(?:^|/)(?:\.|build/|dist/)")
    for path in ROOT.rglob("*"):
        name = path.relative_to(ROOT).as_posix()
        if path.suffix in (".py", ".md", ".toml") and not hidden.search(name):
            yield name


def pages(texts: Texts) -> Texts:
    """The Markdown files that are kept up to date."""
    return {path: text for path, text in texts.items() if path.endswith(".md") and is_kept(path)}


def is_kept(path: str) -> bool:
    """Whether a file is kept up to date."""
    return not path.startswith(RETIRED)


def line_of(text: str, start: int) -> int:
    return text.count("\n", 0, start) + 1


# What is said in prose ---------------------------------------------------------------------------


def prose(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Line number and text of all that a file says to people: of a Python file its comments and
    strings, since a variable may well be called R1."""
    if not path.endswith(".py"):
        yield from enumerate(text.splitlines(), start=1)
        return
    kinds = {tokenize.COMMENT, tokenize.STRING}
    kinds |= {getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds:
            yield from enumerate(token.string.splitlines(), start=token.start[0])


def anchors(text: str) -> set[str]:
    """What a link to this page may name: explicit anchors, and those that headings make."""
    found, times = set(ANCHOR.findall(text)), dict[str, int]()
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        count = times[words] = times.get(words, -1) + 1
        found.add(f"{words}-{count}" if count else words)
    return found


# The checks --------------------------------------------------------------------------------------


def rules_resolve(texts: Texts, whole: Texts) -> list[str]:
    """Every rule that is cited has a section with an anchor in the law."""
    sections = set(re.findall(r'^<a id="(r[0-9]+)"></a>\n## R', whole[LAW], re.MULTILINE))
    return [
        f"{path}:{number}: {rule} has no section in {LAW}"
        for path, text in texts.items()
        if is_kept(path) and path not in BAD_EXAMPLES and path.endswith((".py", ".md"))
        if RULE.search(text)
        for number, line in prose(path, text)
        for rule in RULE.findall(line)
        if rule.lower() not in sections
    ]


def links_lead_somewhere(texts: Texts, whole: Texts) -> list[str]:
    """Every relative link of a page names a file of the tree, and an anchor that it has."""
    found = []
    for path, text in pages(texts).items():
        blank = FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text)
        for match in LINK.finditer(CODE.sub(lambda code: " " * len(code[0]), blank)):
            link = match[1] or match[2]
            if re.match(r"[a-z]+:", link):
                continue
            target, _, anchor = link.partition("#")
            there = _joined(path, target) if target else path
            if there not in whole and not (ROOT / there).exists():
                found.append(f"{path}:{line_of(blank, match.start())}: {link}: no such file")
            elif anchor and anchor not in anchors(whole.get(there, "")):
                found.append(f"{path}:{line_of(blank, match.start())}: {link}: no such anchor")
    return found


def _joined(page: str, target: str) -> str:
    """The path that a link on a page leads to, relative to the root."""
    parts: list[str] = []
    for part in (*page.split("/")[:-1], *target.split("/")):
        if part == "..":
            parts = parts[:-1] if parts else [".."]
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def nothing_outside_is_cited(texts: Texts, whole: Texts) -> list[str]:
    """No file cites a page that is not in the tree."""
    del whole
    return [
        f"{path}:{number}: cites {match[0]}"
        for path, text in texts.items()
        if is_kept(path) and path not in BAD_EXAMPLES and OUTSIDE.search(text)
        for number, line in enumerate(text.splitlines(), start=1)
        for match in OUTSIDE.finditer(line)
    ]


def named_files_exist(texts: Texts, whole: Texts) -> list[str]:
    """Every file that a page of `docs/` names exists, and defines what is named in it."""
    found = []
    for path, text in pages(texts).items():
        for match in NAMED_FILE.finditer(text) if path.startswith("docs/") else ():
            file, name = match[1], match[2]
            if file not in whole and not (ROOT / file).exists():
                found.append(f"{path}:{line_of(text, match.start())}: {file}: no such file")
            elif name and name not in _defined(whole[file]):
                found.append(f"{path}:{line_of(text, match.start())}: {file} has no {name}")
    return found


@cache
def _defined(source: str) -> frozenset[str]:
    """The functions and classes at the top level of a module."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return frozenset(node.name for node in ast.parse(source).body if isinstance(node, kinds))


def constants_have_their_values(texts: Texts, whole: Texts) -> list[str]:
    """Every constant in a table of `docs/` has the value that the code gives it, and a page that
    repeats a value gives the one of its table."""
    found = []
    for path, text in pages(texts).items():
        tabled: dict[str, float] = {}
        for match in CONSTANT_ROW.finditer(text):
            name, said, file = match[1], float(match[2]), match[3]
            tabled[name] = said
            if (value := _constants(whole.get(file, "")).get(name)) != said:
                found.append(f"{path}: {name} is {value} in {file}, not {said:g}")
        for match in CONSTANT_SAID.finditer(text) if path.startswith("docs/") else ():
            name, said = match[1], float(match[2])
            if tabled.get(name) != said:
                where = f"{path}:{line_of(text, match.start())}"
                found.append(f"{where}: {name} is {tabled.get(name)} in the table, not {said:g}")
    return found


@cache
def _constants(source: str) -> Mapping[str, object]:
    """The values that a module gives to names at its top level, as far as they are literals."""
    found: dict[str, object] = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign):
            continue
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=True))
        else:
            pairs = [(target, value)]
        for name, given in pairs:
            if isinstance(name, ast.Name) and isinstance(given, ast.Constant):
                found[name.id] = given.value
    return found


CHECKS: list[Check] = [
    rules_resolve,
    links_lead_somewhere,
    nothing_outside_is_cited,
    named_files_exist,
    constants_have_their_values,
]

SECTION = '<a id="r1"></a>\n## R1: Roster\n'
TABLE = "| `WAIT_S` | {} | `node/a.py` | seconds |\n"
WAITS = {"node/a.py": "WAIT_S, _ = 4.0, 1"}
BROKEN: list[tuple[Check, Texts]] = [
    (rules_resolve, {"node/a.py": "# By R2 this is so.", LAW: SECTION}),
    (rules_resolve, {"node/a.py": '"""As R2 asks."""', LAW: SECTION}),
    (rules_resolve, {"tests/test_a.py": 'NAME = f"{1} breaks R14"', LAW: SECTION}),
    (rules_resolve, {"sim/README.md": "Held by R3.", LAW: SECTION}),
    (rules_resolve, {LAW: "## R1: Roster\n"}),
    (links_lead_somewhere, {"docs/a.md": "See [b](b.md)."}),
    (links_lead_somewhere, {"docs/a.md": "See [b](../b.md#c).", "b.md": "# d"}),
    (links_lead_somewhere, {"docs/a.md": "See [here](#nowhere).\n# Somewhere"}),
    (links_lead_somewhere, {"README.md": "![a picture](no/such.png)"}),
    (nothing_outside_is_cited, {"node/a.py": "# robustness.md, section 3"}),
    (nothing_outside_is_cited, {"README.md": "see ../shared for it"}),
    (nothing_outside_is_cited, {"sim/a.py": '"""Written from the design."""'}),
    (named_files_exist, {"docs/a.md": "See `node/no_such_file.py`."}),
    (named_files_exist, {"docs/a.md": "`tests/a.py::test_b`", "tests/a.py": "def test_c(): ..."}),
    (constants_have_their_values, {**WAITS, "docs/a.md": TABLE.format("5.0")}),
    (constants_have_their_values, {"docs/a.md": TABLE.format("4.0")}),
    (constants_have_their_values, {**WAITS, "docs/a.md": TABLE.format("4") + "`WAIT_S` = 5.0"}),
    (constants_have_their_values, {**WAITS, "docs/a.md": "`WAIT_S` = 4.0, in no table"}),
]

ALLOWED: list[tuple[Check, Texts]] = [
    (rules_resolve, {"node/a.py": "R7 = 1  # As R1 says.", LAW: SECTION}),
    (rules_resolve, {"docs/attic/notebook.md": "R99 was dropped.", LAW: SECTION}),
    (links_lead_somewhere, {"docs/a.md": "[b](b/c.md#d-e) [f](https://f)", "docs/b/c.md": "# D e"}),
    (links_lead_somewhere, {"docs/a.md": '[b](#r1)\n<a id="r1"></a>\n'}),
    (links_lead_somewhere, {"docs/a.md": "`[b](no.md)`\n```\n[b](no.md)\n```\n"}),
    (nothing_outside_is_cited, {"README.md": "the design of a round is a goal; redesign.md"}),
    (named_files_exist, {"docs/a.md": "`tests/a.py::test_b`", "tests/a.py": "def test_b(): ..."}),
    (constants_have_their_values, {**WAITS, "docs/a.md": TABLE.format("4.0") + "`WAIT_S` = 4.0"}),
]


@pytest.mark.parametrize("check", CHECKS)
def test_tree_keeps_the_check(check: Check) -> None:
    assert check(tree(), tree()) == []


@pytest.mark.parametrize(("check", "texts"), BROKEN)
def test_check_sees_what_is_wrong(check: Check, texts: Texts) -> None:
    assert len(check(texts, texts)) == 1


@pytest.mark.parametrize(("check", "texts"), ALLOWED)
def test_check_lets_pass_what_is_right(check: Check, texts: Texts) -> None:
    assert check(texts, texts) == []


def test_every_check_is_shown_to_fail() -> None:
    assert set(CHECKS) == {check for check, _ in BROKEN}


def test_law_has_every_rule_from_the_first_to_the_last_once() -> None:
    numbers = [int(number) for number in re.findall(r"^## R(\d+): ", tree()[LAW], re.MULTILINE)]
    assert numbers == list(range(1, 14))
    assert len(CONSTANT_ROW.findall(tree()[LAW])) > 30
