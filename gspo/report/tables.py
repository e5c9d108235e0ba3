"""One table as CSV (numbers by repr), LaTeX (booktabs) and plain text; an interval is one cell or four columns."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gspo.report.statistics import Interval

PARTS = ("", "_low", "_high", "_n")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows in the order they are shown. No path and no date belongs in a cell."""

    name: str
    """File name without its ending."""
    caption: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    """Cells: text, numbers, None or `Interval`."""
    long: bool = False
    """True: the data of a figure; written as CSV only."""


def make(folder: Path) -> None:
    """The directory of a report. Raises ValueError where none can be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out={folder}: {error.strerror} (accepted: a directory that can be made)") from error


def write(table: Table, folder: Path) -> list[Path]:
    """NAME.csv, and NAME.tex unless the table is long; returns what was written."""
    texts = {"csv": csv_text(table)} | ({} if table.long else {"tex": latex_text(table)})
    paths = []
    for ending, text in texts.items():
        path = folder / f"{table.name}.{ending}"
        path.write_text(text, encoding="utf-8", newline="\n")
        paths.append(path)
    return paths


def csv_text(table: Table) -> str:
    """CSV with a header; floats by repr, an empty cell for what is not known."""
    wide = [any(isinstance(row[i], Interval) for row in table.rows) for i in range(len(table.columns))]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = zip(table.columns, wide, strict=True)
    writer.writerow([name + part for name, w in names for part in (PARTS if w else ("",))])
    for row in table.rows:
        cells: list[str] = []
        for cell, w in zip(row, wide, strict=True):
            values = (cell.value, cell.low, cell.high, cell.n) if isinstance(cell, Interval) else (cell,)
            cells += [_exact(value) for value in values] + [""] * ((4 - len(values)) if w else 0)
        writer.writerow(cells)
    return out.getvalue()


def _exact(value: Any) -> str:
    """A CSV cell: repr of a float, nothing for None and NaN."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return repr(float(value)) if isinstance(value, float) else str(value)


def latex_text(table: Table) -> str:
    """A booktabs tabular to be \\input into a table environment."""
    numeric = [all(not isinstance(row[i], str) for row in table.rows) for i in range(len(table.columns))]
    lines = [f"% {table.caption}", r"\begin{tabular}{" + "".join("r" if right else "l" for right in numeric) + "}"]
    lines += [r"\toprule", _latex_row([_title(name) for name in table.columns]), r"\midrule"]
    lines += [_latex_row([shown(cell) for cell in row]) for row in table.rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(_escape(cell) for cell in cells) + r" \\"


def _title(name: str) -> str:
    """A column's heading."""
    return name.replace("_", " ")


def _escape(text: str) -> str:
    """Text with LaTeX's special characters made harmless."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(special.get(c, "\\" + c if c in "&%$#_{}" else c) for c in text)


def shown(cell: Any) -> str:
    """A cell for people: `0.512 [0.48, 0.544] (n=10)`, four significant digits, `-` for what is not known."""
    if isinstance(cell, Interval):
        if cell.n == 0 and math.isnan(cell.value):
            return "-"
        bounds = "" if math.isnan(cell.low) else f" [{number(cell.low)}, {number(cell.high)}]"
        return f"{number(cell.value)}{bounds} (n={cell.n})"
    if cell is None or cell == "" or (isinstance(cell, float) and math.isnan(cell)):
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return number(cell) if isinstance(cell, float) else str(cell)


def number(value: float) -> str:
    """Three significant digits; large and small ones in powers of ten, integers whole."""
    if not math.isfinite(value):
        return "-" if math.isnan(value) else str(value)
    return f"{value:.3g}"


def plain_text(table: Table) -> str:
    """The table in aligned columns for a terminal."""
    cells = [[_title(name) for name in table.columns], *([shown(cell) for cell in row] for row in table.rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells)
