"""How the laboratory's pictures look. It loads matplotlib, which takes half a second."""

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

INK, MUTED, LINE = "#1c1b19", "#66625b", "#e4dfd6"
BLUE, BROWN, GREEN, RED = "#1f5fbf", "#a8620c", "#1b7a3d", "#b3261e"


def new_figure(inches: tuple[float, float], dots_per_inch: int, pad: float = 0.15) -> Figure:
    """An empty figure on white. No pyplot: it keeps global state and looks for a screen."""
    layout = ConstrainedLayoutEngine(w_pad=pad, h_pad=pad)
    figure = Figure(figsize=inches, dpi=dots_per_inch, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def style_axes(axes: Axes, x_label: str) -> None:
    """A bottom line, and a grid of values behind everything."""
    axes.set_xlabel(x_label, color=MUTED)
    axes.grid(axis="y", color=LINE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=MUTED, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(LINE)


def title_axes(axes: Axes, title: str) -> None:
    """What the picture shows, at its upper left."""
    axes.set_title(title, loc="left", color=INK, fontsize=12, fontweight="bold", pad=12)
