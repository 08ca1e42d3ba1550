"""Rules and pages that the tree cites, and whether they are there."""

import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from tests.architecture.source import Module

LAW = "docs/protocol/rounds.md"
"""The page of the rules; `<a id="r4"></a>` is the anchor of rule R4."""

RULE = re.compile(r"(?<![\w.:/+-])R([1-9]\d?)(?![\w:])")
ANCHOR = re.compile(r'<a\s+(?:id|name)="r(\d+)"', re.IGNORECASE)
PAGE = re.compile(r"(?<![\w/.-])((?:[\w.-]+/)*[A-Za-z][\w-]*\.md)\b")

HOST = re.compile(r"[\w-]+\.[\w.-]+/")
"""The beginning of an address without its scheme."""

Line = tuple[str, int, str]
"""Path, number and text of a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
    """One mention of a rule or page."""

    path: str
    line: int
    cited: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} cites {self.cited}"


def words_of(module: Module) -> Iterator[tuple[int, str]]:
    """Comments and strings with their line numbers; names in code cite nothing."""
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type in kinds:
            for offset, text in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, text


def anchors_of(law: str) -> set[int]:
    """The numbers of the rules that the page has an anchor for."""
    return {int(number) for number in ANCHOR.findall(law)}


def cited_lines(modules: Sequence[Module], pages: Mapping[str, str]) -> list[Line]:
    """Every line that may cite something: comments and strings of code, and whole pages.

    `pages` are Markdown files by path.
    """
    found = [(module.path, line, text) for module in modules for line, text in words_of(module)]
    for path, page in pages.items():
        found += [(path, line, text) for line, text in enumerate(page.splitlines(), start=1)]
    return found


def unresolved_rules(lines: Iterable[Line], law: str) -> list[Citation]:
    """Citations of a rule for which the text of the law has no anchor."""
    anchors = anchors_of(law)
    return [
        Citation(path=path, line=line, cited=f"R{number}")
        for path, line, text in lines
        for number in RULE.findall(text)
        if int(number) not in anchors
    ]


def missing_pages(lines: Iterable[Line], existing: Iterable[str]) -> list[Citation]:
    """Mentions of a Markdown page that is not among the `existing` paths, or the end of one."""
    there = {
        "/".join(PurePosixPath(path).parts[start:])
        for path in existing
        for start in range(len(PurePosixPath(path).parts))
    }
    return [
        Citation(path=path, line=line, cited=cited)
        for path, line, text in lines
        for cited in PAGE.findall(text)
        if not HOST.match(cited)
        and "/".join(part for part in cited.split("/") if part not in (".", "..")) not in there
    ]
