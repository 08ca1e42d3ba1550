"""What a test of logs reads back."""

from pathlib import Path

from node.reporting.logs import LOG_FILE


def lines(folder: Path) -> list[str]:
    return (folder / LOG_FILE).read_text("utf-8").split("\n")[:-1]


def told(folder: Path) -> list[str]:
    """The lines without date and time."""
    return [line.split(" ", 2)[2] for line in lines(folder)]
