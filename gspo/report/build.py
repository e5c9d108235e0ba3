"""Write a report: every table and figure as files, and the page that holds them all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from gspo.report import contents, figures, figures_clip, html, tables
from gspo.report.canvas import save, style
from gspo.report.curves import AXES
from gspo.report.summary import Summary, summarize

SINGLE: dict[str, Callable[[Summary], tuple | None]] = {
    "clip_fractions": figures.clip_fractions,
    "clip_map": figures_clip.clip_map,
    "final_scores": figures.final,
    "comparisons": figures.comparisons,
    "collapse": figures.collapse,
    "lengths": figures_clip.lengths,
    "experts": figures.experts,
}

MOST_ARMS = 40


def build(root: Path, out: Path, *, axis: str = "step", by: Sequence[str] = (), paired: bool = False) -> Summary:
    """Read the runs below `root`, write the report into `out`. Raises ValueError when there is nothing to report."""
    summary = summarize(root, by=by, paired=paired)
    tables.make(out)
    written = contents.all_tables(summary)
    for table in written:
        tables.write(table, out)
    tables.write(contents.survival(summary), out)
    drawn: dict[str, str] = {}
    if len(summary.arms) > MOST_ARMS:
        summary.notes.append(
            f"{len(summary.arms)} arms: more than {MOST_ARMS} cannot be told apart in a figure; tables only"
        )
    else:
        _figures(summary, out, drawn)
    title = f"Report: {root.resolve().name}"
    (out / "report.html").write_text(html.page(title, summary, written, drawn, axis), encoding="utf-8")
    return summary


def _figures(summary: Summary, out: Path, drawn: dict[str, str]) -> None:
    """Every figure that the runs have numbers for."""
    with style():
        for name in AXES:
            _draw(drawn, out, f"curves_{name}", figures.curves(summary, name))
        for name, draw in SINGLE.items():
            _draw(drawn, out, name, draw(summary))


def _draw(drawn: dict[str, str], out: Path, name: str, figure: tuple | None) -> None:
    """Save a figure and the numbers of its curves."""
    if figure is None:
        return
    drawn[name] = save(figure[0], out, name)
    if figure[1]:
        tables.write(contents.curve_table(f"{name}_data", figure[1]), out)
