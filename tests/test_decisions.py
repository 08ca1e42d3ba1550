"""`DECISIONS.md` can be searched by subject: its list names every section, where that is."""

import re

from tests.test_architecture import ROOT


def anchors(headings: list[str]) -> list[str]:
    """What a reader of Markdown calls them: the same words for the second time get a number."""
    found: list[str] = []
    for heading in headings:
        words = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        times = sum(re.fullmatch(rf"{re.escape(words)}(-\d+)?", one) is not None for one in found)
        found.append(f"{words}-{times}" if times else words)
    return found


def test_list_of_decisions_names_every_section_once_by_its_title() -> None:
    text = (ROOT / "DECISIONS.md").read_text("utf-8")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    listed = re.findall(r"^(?:\*\*.+\*\*: )?\[(.+)\]\(#(.+)\),?$", text, re.MULTILINE)
    titles = (heading.removeprefix("2026-").replace(": ", " ", 1) for heading in headings)
    expected = zip(titles, anchors(headings), strict=True)
    assert sorted(listed) == sorted(expected)
