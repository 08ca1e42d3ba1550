"""The console of all lines for people: whatever is printed on it, a terminal obeys none of it.

Text of strangers is escaped and cut where it is put into a line (`shown`). This is the second
fence: a line that forgot to do so is escaped here, as it leaves.
"""

import sys
from collections.abc import Iterable
from typing import IO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from node.text.shown import escaped


class PeopleConsole(Console):
    """rich's console in plain manners: no markup, no emoji, no guessed colours in texts.

    It goes silent where its reader is gone; rich would end the process.
    """

    def __init__(
        self,
        *,
        stderr: bool = False,
        file: IO[str] | None = None,
        width: int | None = None,
        soft_wrap: bool = False,
        force_terminal: bool | None = None,
    ) -> None:
        super().__init__(
            force_terminal=force_terminal,
            stderr=stderr,
            file=file,
            width=width,
            soft_wrap=soft_wrap,
            highlight=False,
            markup=False,
            emoji=False,
        )

    def overwrite(self, line: str) -> None:
        """Show a line whose place the next one takes."""
        if not self.quiet:
            self.file.write(escaped(line) + "\r")
            self.file.flush()

    def on_broken_pipe(self) -> None:
        """See the class: a node trains on."""
        self.quiet = True

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """As rich renders it, with what no line may hold escaped; styles are added later."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(escaped(segment.text, kept="\n"), segment.style)


def people_console(*, is_json: bool) -> PeopleConsole:
    """The console for lines to people; standard output belongs to the JSON where there is some."""
    stream = sys.stderr if is_json else sys.stdout
    if hasattr(stream, "reconfigure"):
        # A title that the terminal cannot show is no reason to fail.
        stream.reconfigure(errors="replace")
    return PeopleConsole(stderr=is_json, soft_wrap=True)
