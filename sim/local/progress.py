"""Live progress of a local run: a few lines that change on a terminal, else a line now and then."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from sim.local.story import Story

_PLAIN_EVERY_S = 10.0
_MARKS = {
    "starting": "…",
    "running": "●",
    "frozen": "❄",
    "stalled": "‖",
    "apart": "◐",
    "down": "✕",
    "left": "○",
    "finished": "✓",
    "dead": "✝",
}


class StoryProgress:
    """Shows a story. `tick` it a few times a second; `tell` it what happened."""

    def __init__(self, console: Console, now_s: Callable[[], float]) -> None:
        self._console = console
        self._now_s = now_s
        self._live: Live | None = None
        self._told_s = 0.0

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Takes the lower lines of a terminal, while the context lasts."""
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as self._live:
            yield
        self._live = None

    def tell(self, at_s: float, line: str) -> None:
        """Something happened."""
        self._console.print(Text(f"{at_s:6.1f} s  {line}"), soft_wrap=True)

    def tick(self, story: Story) -> None:
        """Show how things stand now."""
        if self._live is not None:
            self._live.update(Text(self._status(story)), refresh=True)
        elif self._now_s() - self._told_s >= _PLAIN_EVERY_S:
            self._told_s = self._now_s()
            self.tell(self._told_s, self._status(story))

    def _status(self, story: Story) -> str:
        nodes = " ".join(f"{n.name}{_MARKS[n.status]}{n.sealed}" for n in story.nodes.values())
        since = f", {self._now_s() - story.seals[-1][0]:.0f} s ago" if story.seals else ""
        last = f"; last fault: {story.dealt[-1].fault}" if story.dealt else ""
        return f"round {story.newest}{since}; {nodes}{last}"
