"""Fragments of the changelog are such that a release takes all of them in."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "changelog.d"
NAME = re.compile(r"\+?[a-z0-9-]+\.(?P<kind>[a-z]+)\.md")


def faults_of(path: Path, kinds: set[str]) -> list[str]:
    """Return what keeps a fragment out of the changelog, or makes no line of it."""
    match = NAME.fullmatch(path.name)
    if match is None or match["kind"] not in kinds:
        return [f"{path.name}: call it +what-it-is-about.KIND.md, KIND one of {sorted(kinds)}"]
    text = path.read_text(encoding="utf-8")
    if not re.fullmatch(r"\S[^\n]*[.:]\n", text):
        return [f"{path.name}: one line of whole sentences"]
    return []


def kinds_of_fragments() -> set[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {kind["directory"] for kind in settings["tool"]["towncrier"]["type"]}


def test_each_fragment_becomes_a_line_of_the_next_release() -> None:
    fragments = [path for path in FOLDER.iterdir() if path.name != "README.md"]
    faults = [fault for path in fragments for fault in faults_of(path, kinds_of_fragments())]
    assert faults == []


def test_fragment_that_would_be_lost_is_seen(tmp_path: Path) -> None:
    for name, text in (("new-thing" + ".md", "It is new.\n"), ("+a.novel.md", "It is.\n")):
        (tmp_path / name).write_text(text)
        assert "KIND" in faults_of(tmp_path / name, {"added"})[0]
    (tmp_path / "+a.added.md").write_text("no sentence\n")
    assert faults_of(tmp_path / "+a.added.md", {"added"}) == [
        "+a.added.md: one line of whole sentences"
    ]
