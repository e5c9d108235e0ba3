"""`gspo-report clip`: the counterfactual clip fractions of runs as a figure, CSV and a short table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gspo.report import arms as grouping
from gspo.report import clip, lengths, tables
from gspo.report.canvas import save, style
from gspo.report.clip import CAVEAT, PAPER, Updates
from gspo.report.collect import Run, find_runs, read_run
from gspo.report.figures_counterfactual import draw
from gspo.report.statistics import Interval, mean_interval
from gspo.report.summary import CLIPS, generator
from gspo.report.tables import Table

SEQUENCE_EPS = tuple(float(f"{m}e{e}") for e in range(-6, -1) for m in (1, 1.5, 2, 3, 4, 5, 7))
"""Symmetric sequence-level ranges of the curve."""
Range = tuple[float | None, float | None, str, str]
"""eps_L, eps_R, level, what it is."""


def build(paths: Sequence[Path], out: Path, more: Sequence[tuple[float, float]]) -> str:
    """Write clip_*.csv, .tex, .svg, .png of the runs at `paths` into `out`; returns the short table.

    Raises ValueError when no run kept sequences/, or a range cannot be counted.
    """
    runs = [read_run(run, path) for path in paths for run in find_runs(path)]
    order = grouping.assign(runs, grouping.swept_keys(runs) if runs else ())
    place = {arm: i for i, arm in enumerate(order)}
    runs.sort(key=lambda run: (place[run.arm], run.seed if run.seed is not None else -1, run.name))
    loaded = [(run, rows) for run in runs if (rows := clip.load(run)) is not None and rows.n]
    if not loaded:
        raise ValueError(f"no run with sequences/*.parquet in {', '.join(str(path) for path in paths)}")
    all_rows = [rows for _, rows in loaded]
    edges = lengths.length_edges(np.concatenate([rows.columns["length"] for rows in all_rows]))
    written = [
        counterfactual(all_rows, more),
        by_minibatch(all_rows),
        by_length(all_rows, edges),
        spread_table(all_rows, edges),
        exponent_table(all_rows, edges),
        agreement(loaded),
        curve(all_rows),
    ]
    tables.make(out)
    for table in written:
        tables.write(table, out)
    with style():
        save(draw(all_rows, edges, SEQUENCE_EPS), out, "clip_counterfactual")
    return _short(written, all_rows, out)


def ranges_of(rows: Updates, more: Sequence[tuple[float, float]]) -> list[Range]:
    """The run's own range, the paper's two, and those asked for (at token level where they are on the grid)."""
    found: list[Range] = [(rows.low, rows.high, rows.level, "the run's own")]
    found += [paper for paper in PAPER if paper[:3] != found[0][:3]]
    for low, high in more:
        found.append((low, high, "sequence", "asked for"))
        if all(any(math.isclose(eps, g, rel_tol=1e-9) for g in rows.grid) for eps in (low, high)):
            found.append((low, high, "token", "asked for"))
    return found


def by_arm(all_rows: Sequence[Updates]) -> dict[str, list[Updates]]:
    """Arm -> its runs, in the order given."""
    groups: dict[str, list[Updates]] = {}
    for rows in all_rows:
        groups.setdefault(rows.arm, []).append(rows)
    return groups


def over_runs(fractions: Sequence[clip.Fraction]) -> Interval:
    """One run: its interval over steps; several: the mean over runs with theirs."""
    if len(fractions) == 1:
        return fractions[0].interval()
    return mean_interval([fraction.value for fraction in fractions], generator())


def _cells(all_clipped: Sequence[clip.Clipped]) -> list[Interval]:
    names = ("token_binding", "token_outside", "seq_binding", "seq_outside", "token_given_adv", "seq_given_adv")
    return [over_runs([getattr(clipped, name) for clipped in all_clipped]) for name in names]


FRACTIONS = ("token_binding", "token_outside", "seq_binding", "seq_outside", "token_binding_given_adv",
             "seq_binding_given_adv")  # fmt: skip


def counterfactual(all_rows: Sequence[Updates], more: Sequence[tuple[float, float]]) -> Table:
    """The same updates under each range."""
    rows: list[tuple[Any, ...]] = []
    for arm, group in by_arm(all_rows).items():
        for low, high, level, what in ranges_of(group[0], more):
            cells = _cells([clip.at(run, low, high, level) for run in group])
            rows.append((arm, what, level, low, high, len(group), sum(run.n for run in group), *cells))
    columns = ("arm", "range", "level", "low", "high", "runs", "rows", *FRACTIONS)
    caption = f"Clip fractions at other ranges; n counts runs, or the steps of a single run. {CAVEAT}"
    return Table("clip_counterfactual", caption, columns, rows)


def by_minibatch(all_rows: Sequence[Updates]) -> Table:
    """The run's own range by mini-batch index: the first is 0 by construction."""
    rows: list[tuple[Any, ...]] = []
    for arm, group in by_arm(all_rows).items():
        for k in np.unique(np.concatenate([run.columns["minibatch"] for run in group])):
            parts = [run.where(run.columns["minibatch"] == k) for run in group]
            rows.append((arm, int(k), sum(p.n for p in parts), *_cells([clip.as_run(part) for part in parts])))
    return Table(
        "clip_minibatch", "At the run's own range, by mini-batch.", ("arm", "minibatch", "rows", *FRACTIONS), rows
    )


def by_length(all_rows: Sequence[Updates], edges: Any) -> Table:
    """The run's own range and the paper's two by class of length."""
    rows: list[tuple[Any, ...]] = []
    for arm, group in by_arm(all_rows).items():
        parts = [lengths.strata(run, edges) for run in group]
        for low, high, level, what in ranges_of(group[0], []):
            for k in range(len(parts[0])):
                held = [part[k] for part in parts if part[k].n]
                cells = _cells([clip.at(run, low, high, level) for run in held])
                span = (float(edges[k]), float(edges[min(k + 1, len(edges) - 1)]))
                rows.append((arm, what, level, low, high, *span, sum(run.n for run in held), *cells))
    columns = ("arm", "range", "level", "low", "high", "length_from", "length_to", "rows", *FRACTIONS)
    return Table("clip_length", f"By response length (trained tokens). {CAVEAT}", columns, rows, long=True)


def spread_table(all_rows: Sequence[Updates], edges: Any) -> Table:
    """Std of log s by class of length, each run."""
    rows = [
        (run.arm, run.seed, p.length, Interval(p.std, p.low, p.high, p.n, "delta"))
        for run in all_rows
        for p in lengths.spreads(run, edges)
    ]
    caption = "Std of log s after the first mini-batch by mean length of the class; n counts responses."
    return Table("clip_log_s_std", caption, ("arm", "seed", "length", "log_s_std"), rows, long=True)


def exponent_table(all_rows: Sequence[Updates], edges: Any) -> Table:
    """The fitted exponent: of each run over its classes of length, and over runs."""
    rows: list[tuple[Any, ...]] = []
    for arm, group in by_arm(all_rows).items():
        fits = [lengths.exponent(lengths.spreads(run, edges)) for run in group]
        rows += [(arm, run.seed, fit, _holds(fit)) for run, fit in zip(group, fits, strict=True)]
        if len(group) > 1:
            mean = mean_interval([fit.value for fit in fits], generator())
            rows.append((arm, "all", mean, _holds(mean)))
    caption = "Exponent of std(log s) in the length; n: classes of length, or runs (all). Independent tokens: -0.5."
    return Table("clip_exponent", caption, ("arm", "seed", "exponent", "minus_half_inside"), rows)


def _holds(fit: Interval) -> bool | None:
    """Does the interval hold -1/2?"""
    return None if math.isnan(fit.low) else bool(fit.low <= -0.5 <= fit.high)


def agreement(loaded: Sequence[tuple[Run, Updates]]) -> Table:
    """The run's own clip fractions three times: metrics.jsonl, counts in sequences/, recomputed from log s or w."""
    rows: list[tuple[Any, ...]] = []
    for run, updates in loaded:
        counted, again = clip.as_run(updates), _recomputed(updates)
        for name in CLIPS:
            field = name.removeprefix("clip/")
            top, bottom = np.nansum(run.column(f"{name}_num")), np.nansum(run.column(f"{name}_den"))
            logged = float(top / bottom) if bottom else math.nan
            rows.append((run.arm, run.seed, name, logged, getattr(counted, field).value,
                         getattr(again, field).value if again else None))  # fmt: skip
    caption = "The run's own clip fractions: as logged, as counted in sequences/, recomputed from the stored ratios."
    return Table(
        "clip_agreement", caption, ("arm", "seed", "metric", "logged", "counted", "recomputed"), rows, long=True
    )


def _recomputed(updates: Updates) -> clip.Clipped | None:
    """At the run's own range from log s or the grid; None where the range is not on the grid."""
    try:
        return clip.at(updates, updates.low, updates.high, updates.level)
    except ValueError:
        return None


def curve(all_rows: Sequence[Updates]) -> Table:
    """Clip fraction against eps at both levels, symmetric ranges, each arm."""
    rows: list[tuple[Any, ...]] = []
    for arm, group in by_arm(all_rows).items():
        for level, grid in (("sequence", SEQUENCE_EPS), ("token", sorted(group[0].grid))):
            for eps in grid:
                rows.append((arm, level, float(eps), *_cells([clip.at(run, eps, eps, level) for run in group])))
    caption = f"Clip fraction of the same updates at symmetric ranges. {CAVEAT}"
    return Table("clip_curve", caption, ("arm", "level", "eps", *FRACTIONS), rows, long=True)


def _short(written: Sequence[Table], all_rows: Sequence[Updates], out: Path) -> str:
    """What the command prints."""
    table, exponents, agreed = written[0], written[4], written[5]
    keep = [
        table.columns.index(name) for name in ("arm", "range", "level", "low", "high", "token_binding", "seq_binding")
    ]
    short = Table("", "", tuple(table.columns[i] for i in keep), [tuple(row[i] for i in keep) for row in table.rows])
    gaps = [abs(a - b) for *_, a, b, _ in agreed.rows if not math.isnan(a) and not math.isnan(b)]
    lines = [tables.plain_text(short), "", "std(log s) ~ length^exponent", tables.plain_text(exponents), ""]
    lines += [f"largest gap between metrics.jsonl and sequences/: {max(gaps):.2g}"] if gaps else []
    lines += [f"{sum(rows.n for rows in all_rows)} rows of {len(all_rows)} runs. {CAVEAT}", f"written to {out}"]
    return "\n".join(lines)
