"""The one place that draws with matplotlib: style, colours, and files that repeat to the byte."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#000000")
"""Okabe and Ito's, distinguishable with any colour vision."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
PNG_DPI = 200
STYLE: Any = {
    "svg.hashsalt": "gspo",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """The settings under which a figure is made and saved."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def panels(
    rows: int, columns: int, *, width: float = 3.4, height: float = 2.6, left: float = 0.0
) -> tuple[Figure, list[Axes]]:
    """A figure of `rows x columns` panels of `width x height` inches, `left` more for labels; axes in reading order."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns + left, height * rows), layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).ravel())


def room_for(labels: Sequence[str]) -> float:
    """Inches that the longest label takes at the size of tick labels."""
    return 0.068 * max((len(line) for label in labels for line in label.splitlines()), default=0)


def save(figure: Figure, folder: Path, name: str) -> str:
    """Write NAME.svg and NAME.png, without date; returns the SVG's text. Laid out once, drawn once for each."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    text = io.StringIO()
    FigureCanvasSVG(figure).print_svg(text, metadata={"Date": None})
    svg = "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"
    (folder / f"{name}.svg").write_text(svg, encoding="utf-8", newline="\n")
    figure.set_layout_engine("none")
    figure.dpi = PNG_DPI
    FigureCanvasAgg(figure).print_png(folder / f"{name}.png", metadata={"Software": None})
    return svg


def log_axis(ax: Axes, which: str) -> None:
    """A logarithmic axis with plain numbers; 1, 2, 5 where it spans under two decades. Call after plotting."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    getattr(ax, f"set_{which}scale")("log")
    axis = getattr(ax, f"{which}axis")
    low, high = axis.get_view_interval()
    subs = (
        (1.0,) if high / low > 60 else (1.0, 2.0, 5.0) if high / low > 6 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
    )
    axis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def amount_axis(ax: Axes) -> None:
    """An x-axis of counts: a few ticks, large numbers as a common power of ten."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(6))
    ax.ticklabel_format(axis="x", style="sci", scilimits=(-3, 5), useMathText=False)


def share_axis(ax: Axes, smallest: float, top: float = 1.0) -> None:
    """A y-axis of shares: logarithmic down to about `smallest` (> 0), linear from there to 0, which it shows."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    foot = 10.0 ** math.floor(math.log10(min(max(smallest, 1e-9), 0.01)))
    ax.set_yscale("symlog", linthresh=foot, linscale=0.6)
    ax.set_ylim(-0.12 * foot, 1.6 * max(top, foot))
    decades = [10.0**k for k in range(round(math.log10(foot)), 1)]
    ax.yaxis.set_major_locator(FixedLocator([0.0, *decades]))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def smallest_positive(values: Any) -> float:
    """The least value above 0; 0.01 when there is none."""
    x = np.asarray(list(values), dtype=np.float64)
    return float(x[x > 0].min()) if (x > 0).any() else 0.01


def colours(names: Sequence[str]) -> dict[str, Any]:
    """A colour for each arm: the palette for a few, a scale for many."""
    if len(names) <= len(PALETTE):
        return dict(zip(names, PALETTE, strict=False))
    import matplotlib

    scale = matplotlib.colormaps["viridis"]
    return {name: scale(0.92 * i / (len(names) - 1)) for i, name in enumerate(names)}


def markers(names: Sequence[str]) -> dict[str, str]:
    """A marker for each arm, so that a figure reads without colour."""
    return {name: MARKERS[i % len(MARKERS)] for i, name in enumerate(names)}


def legend_below(figure: Figure, axes: Axes) -> None:
    """One legend for all panels, under them, from the entries of one; the figure grows with it."""
    handles, labels = axes.get_legend_handles_labels()
    if not handles:
        return
    width, height = figure.get_size_inches()
    columns = max(1, min(len(labels), int(width / (room_for(labels) + 0.65))))
    rows = math.ceil(len(labels) / columns)
    figure.set_size_inches(max(width, room_for(labels) + 0.8), height + 0.19 * (rows - 1))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def letters(axes: Sequence[Axes]) -> None:
    """(a), (b), ... before the titles."""
    if len(axes) > 1:
        for i, ax in enumerate(axes):
            ax.set_title(f"({chr(97 + i)}) {ax.get_title()}", loc="left")
            ax.set_title("")
