"""The figures of the tree: how much there is, and how it hangs together.

python -m tests.structure.figures            what stands behind each figure as well
python -m tests.structure.figures --json     one JSON object
python -m tests.structure.figures --quick    without the trip, which trains two nodes for a minute
"""

import argparse
import io
import json
import sys
import tokenize
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.architecture.source import FACE, PACKAGES, Module, read_modules
from tests.structure.citations import (
    LAW,
    Citation,
    cited_lines,
    missing_pages,
    unresolved_rules,
)
from tests.structure.classes import DefinedClass, duplicate_class_names, single_subclass_bases
from tests.structure.rooms import (
    LAYERS,
    RoomImport,
    room_cycles,
    room_imports,
    rooms_of,
    undeclared_rooms,
    upward_imports,
)
from tests.structure.trip import is_excluded, trace_trip

ROOT = Path(__file__).parent.parent.parent
PRODUCT = (*PACKAGES, FACE)
NOT_OURS = (".venv", ".git", "build", "dist")
OF_THE_PAST = ("docs/attic", "CHANGELOG.md")
"""Folders and pages that tell what was; what they cite does not count."""
PLANTED = (
    "tests/structure/test_figures.py",
    "tests/test_citations.py",
    "tests/test_decisions.py",
)
"""Their citations are faults that they plant."""

TRIP_FILES_BEFORE = 114
"""The trip at commit 05e1f03, by `python -m tests.structure.trip --tree` of a work tree of that
commit, counted with the exclusions of `tests/structure/trip.py` as they stood then: the median of
three runs (114, 114, 115)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Everything that is counted."""

    lines: int
    files: int
    comments: int
    rooms: list[str]
    undeclared: list[str]
    cycles: list[list[str]]
    upward: list[RoomImport]
    bases: list[DefinedClass]
    duplicates: dict[str, list[DefinedClass]]
    rules: list[Citation]
    pages: list[Citation]
    trip: list[str] | None = field(default=None)

    @property
    def trip_files(self) -> int | None:
        """The files of the trip that count; None where it was not traced."""
        return None if self.trip is None else sum(not is_excluded(path) for path in self.trip)

    def as_json(self) -> dict[str, object]:
        """The figures alone."""
        return {
            "product_lines": self.lines,
            "product_files": self.files,
            "room_cycles": len(self.cycles),
            "upward_imports": len(self.upward),
            "single_subclass_bases": len(self.bases),
            "duplicate_class_names": len(self.duplicates),
            "unresolved_citations": len(self.rules),
            "trip_files": self.trip_files,
            "trip_files_before": TRIP_FILES_BEFORE,
            "rooms": len(self.rooms),
            "rooms_in_cycles": sum(map(len, self.cycles)),
            "undeclared_rooms": len(self.undeclared),
            "missing_pages": len(self.pages),
            "comments_per_100_lines": round(100 * self.comments / max(1, self.lines), 1),
        }


def count_comments(modules: Iterable[Module]) -> int:
    """Comments, each line of them; docstrings are none."""
    return sum(
        token.type == tokenize.COMMENT
        for module in modules
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline)
    )


def page_paths(root: Path) -> list[str]:
    """The Markdown files of the tree."""
    found = (file.relative_to(root).as_posix() for file in root.rglob("*.md"))
    return sorted(path for path in found if path.partition("/")[0] not in NOT_OURS)


def read_pages(root: Path) -> dict[str, str]:
    """The text of the Markdown files whose citations count."""
    return {
        path: (root / path).read_text("utf-8")
        for path in page_paths(root)
        if not any(path == out or path.startswith(f"{out}/") for out in OF_THE_PAST)
    }


def measure(
    root: Path, layers: Sequence[Sequence[str]] = LAYERS, *, trip: list[str] | None = None
) -> Figures:
    """The figures of the tree at `root`, whose trip was traced before."""
    product = read_modules(root, PRODUCT)
    tests = read_modules(root, ["tests"])
    pages = read_pages(root)
    cited = cited_lines([m for m in [*product, *tests] if m.path not in PLANTED], pages)
    imports = room_imports(product)
    rooms = rooms_of(product)
    return Figures(
        lines=sum(module.text.count("\n") for module in product),
        files=len(product),
        comments=count_comments(product),
        rooms=rooms,
        undeclared=undeclared_rooms(rooms, layers),
        cycles=room_cycles(imports),
        upward=upward_imports(imports, layers),
        bases=single_subclass_bases(product, tests),
        duplicates=duplicate_class_names(product),
        rules=unresolved_rules(cited, pages.get(LAW, "")),
        pages=missing_pages(cited, page_paths(root)),
        trip=trip,
    )


def sections(figures: Figures) -> list[tuple[str, Iterable[object]]]:
    """What stands behind each figure, for people."""
    return [
        ("Rooms that reach each other by imports", map(", ".join, figures.cycles)),
        ("Rooms that tests/structure/rooms.py does not declare", figures.undeclared),
        ("Imports of a higher layer", figures.upward),
        ("Bases with one subclass and no instance", figures.bases),
        (
            "Class names that several modules of a package define",
            (f"{name}: {', '.join(map(str, where))}" for name, where in figures.duplicates.items()),
        ),
        ("Citations of a rule that has no anchor", figures.rules),
        ("Mentions of a page that is not in the tree", figures.pages),
        (
            "Files that a pseudo-gradient enters (- is not counted)",
            (f"{'-' if is_excluded(path) else '+'} {path}" for path in figures.trip or ()),
        ),
    ]


def main() -> int:
    """Print the figures of this tree."""
    parser = argparse.ArgumentParser(description="Measure the shape of the tree.")
    parser.add_argument("--json", action="store_true", help="Print one JSON object only.")
    parser.add_argument(
        "--quick", action="store_true", help="Leave the trip out: it takes a minute."
    )
    given = parser.parse_args()
    figures = measure(ROOT, trip=None if given.quick else trace_trip(ROOT))
    write = sys.stdout.write
    if given.json:
        write(json.dumps(figures.as_json()) + "\n")
        return 0
    for title, lines in sections(figures):
        shown = [str(line) for line in lines]
        write(f"{title}: {len(shown)}\n")
        write("".join(f"    {line}\n" for line in shown) + "\n")
    for key, value in figures.as_json().items():
        write(f"{key:24} {value}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
