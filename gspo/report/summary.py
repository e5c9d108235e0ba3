"""All that a report says, computed once: who is compared, final scores, clips, collapse, claims, length, compute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gspo.report import arms as grouping
from gspo.report import clip, collapse, lengths
from gspo.report.claims import Claim, final_scores, make_claims, pairs
from gspo.report.collect import Run, collect
from gspo.report.statistics import Interval, difference_interval, mean_interval

CLIPS = ("clip/token_binding", "clip/token_outside", "clip/seq_binding", "clip/seq_outside")
FILES = 1000
"""Files of sequences/ read for the length panels, over all runs; `gspo-report clip` reads all."""
TIMES = (("compute/device_seconds", "device_seconds"), ("time/step_s", "seconds_per_step"),
         ("perf/tokens_per_s", "tokens_per_second"), ("perf/mfu", "mfu"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stratum:
    """One arm's responses of one class of length; intervals over the arm's runs."""

    arm: str
    first: float
    last: float
    """|y| from first to last."""
    rows: int
    clipped: Interval
    """Share of trained tokens bound, at the run's own range."""
    spread: Interval
    """Std of log s after the first mini-batch."""
    reward: Interval


@dataclass(slots=True)
class Summary:
    """A report's content."""

    everything: list[Run]
    runs: list[Run]
    """The compared ones: finished, or stopped by collapse rule (a)."""
    swept: list[str]
    arms: list[str]
    differences: list[grouping.Difference]
    scores: dict[str, dict[str, dict[int, float]]]
    clips: dict[str, dict[str, dict[int, float]]]
    """Clip fraction -> arm -> seed -> share over the whole run."""
    collapse: list[collapse.ArmCollapse]
    claims: list[Claim]
    strata: list[Stratum] = field(default_factory=list)
    exponents: dict[str, Interval] = field(default_factory=dict)
    """Arm -> slope of log std(log s) on log length, over runs."""
    files: tuple[int, int] = (0, 0)
    """Files of sequences/ read, of those there are."""
    notes: list[str] = field(default_factory=list)

    groups: dict[str, list[Run]] = field(default_factory=dict)
    """Arm -> its compared runs, by seed."""

    def of(self, arm: str) -> list[Run]:
        """The compared runs of an arm."""
        return self.groups.get(arm, [])

    @property
    def excluded(self) -> list[Run]:
        compared = set(self.runs)
        return [run for run in self.everything if run not in compared]


def generator() -> np.random.Generator:
    """A fresh generator for each table and figure, so that none depends on what was drawn before it."""
    return np.random.default_rng(20250718)


def summarize(root: Path, *, by: Sequence[str] = (), paired: bool = False) -> Summary:
    """Read every run below `root` and compute the report. Raises ValueError when there is no run to compare."""
    everything = collect(root)
    readable = [run for run in everything if run.status != "unreadable"]
    if not readable:
        raise ValueError(f"no readable run below {root}: {everything[0].name}: {everything[0].reason}")
    swept = grouping.swept_keys(readable, by)
    arms = grouping.assign(readable, swept)
    runs = [run for run in readable if len(run.column("step")) and collapse.of_run(run).verdict != "excluded"]
    place = {arm: i for i, arm in enumerate(arms)}
    runs.sort(key=lambda run: (place[run.arm], run.seed if run.seed is not None else -1, run.name))
    groups, found = by_arm(runs, arms), by_arm(readable, arms)
    scores = final_scores(runs)
    outcomes = [collapse.of_arm(arm, found[arm]) for arm in arms]
    claims = make_claims(scores, outcomes, arms, generator(), paired=paired)
    differing, clips = grouping.differences(runs, swept), clip_fractions(runs)
    summary = Summary(everything, runs, swept, arms, differing, scores, clips, outcomes, claims, groups=groups)
    for arm, group in groups.items():
        seeds = [run.seed for run in group]
        if len(set(seeds)) < len(seeds):
            summary.notes.append(f"{arm}: {len(seeds)} runs but {len(set(seeds))} seeds; the last run of a seed counts")
    add_strata(summary)
    return summary


def clip_fractions(runs: Sequence[Run]) -> dict[str, dict[str, dict[int, float]]]:
    """Each run's clip fractions over all its updates: numerators summed, denominators summed, divided once."""
    out: dict[str, dict[str, dict[int, float]]] = {}
    for name in [kind + suffix for kind in CLIPS for suffix in ("", "_given_adv")]:
        for run in runs:
            top, bottom = np.nansum(run.column(f"{name}_num")), np.nansum(run.column(f"{name}_den"))
            if bottom > 0:
                seed = run.seed if run.seed is not None else -1
                out.setdefault(name, {}).setdefault(run.arm, {})[seed] = float(top / bottom)
    return out


def clip_ratio(summary: Summary, name: str, a: str, b: str) -> Interval:
    """Ratio a / b of the arms' geometric-mean clip fractions; NaN when a run clipped nothing."""
    x, y = (np.array(list(summary.clips[name].get(arm, {}).values())) for arm in (a, b))
    n = min(len(x), len(y))
    if n == 0 or min(x.min(), y.min()) <= 0:
        return Interval(math.nan, math.nan, math.nan, n, "undefined")
    log = difference_interval(np.log(x), np.log(y), generator())
    value, low, high = (math.exp(min(v, 700.0)) for v in (log.value, log.low, log.high))
    return Interval(value, low, high, n, f"log {log.method}")


def clip_pairs(summary: Summary, name: str) -> list[tuple[str, str, Interval]]:
    """The ratio of every compared pair, the larger fraction on top where it can be said."""
    out: list[tuple[str, str, Interval]] = []
    for a, b in pairs(summary.arms):
        means = [np.mean(list(summary.clips[name].get(arm, {0: math.nan}).values())) for arm in (a, b)]
        a, b = (b, a) if means[1] > means[0] else (a, b)
        out.append((a, b, clip_ratio(summary, name, a, b)))
    return out


def add_strata(summary: Summary) -> None:
    """Fill the length-stratified numbers from sequences/ (every run's steps spread evenly over the budget)."""
    limit = max(2, FILES // max(len(summary.runs), 1))
    loaded: list[tuple[Run, clip.Updates]] = []
    for run in summary.runs:
        try:
            rows = clip.load(run, counts=False, limit=limit)
        except ValueError as error:
            summary.notes.append(f"{run.arm}, seed {run.seed}: {error}")
            continue
        if rows is not None and rows.n:
            loaded.append((run, rows))
    if not loaded:
        return
    summary.files = (sum(rows.files for _, rows in loaded), sum(rows.steps for _, rows in loaded))
    edges = lengths.length_edges(np.concatenate([rows.columns["length"] for _, rows in loaded]))
    held = {run.name: rows for run, rows in loaded}
    for arm in summary.arms:
        group = [held[run.name] for run in summary.of(arm) if run.name in held]
        if not group:
            continue
        slopes = [lengths.exponent(lengths.spreads(rows, edges)).value for rows in group]
        summary.exponents[arm] = mean_interval(slopes, generator())
        parts = [lengths.strata(rows, edges) for rows in group]
        for k in range(len(parts[0])):
            summary.strata.append(_stratum(arm, edges, k, [part[k] for part in parts]))


def _stratum(arm: str, edges: npt.NDArray[np.float64], k: int, parts: Sequence[clip.Updates]) -> Stratum:
    """One class of length of one arm: a number a run, then the mean over runs."""
    rng = generator()
    held = [part for part in parts if part.n]
    late = [lengths.moved(part).columns["log_s"] for part in held]
    return Stratum(
        arm, float(edges[k]), float(edges[min(k + 1, len(edges) - 1)]), sum(part.n for part in held),
        mean_interval([clip.as_run(part).token_binding.value for part in held], rng),
        mean_interval([float(x.std(ddof=1)) for x in late if len(x) >= 10], rng),
        mean_interval([float(np.nanmean(part.columns["reward"])) for part in held
                       if np.isfinite(part.columns["reward"]).any()], rng),
    )  # fmt: skip


def last_values(runs: Sequence[Run], name: str, how: str = "last") -> list[float]:
    """A metric of each run: its `last` known value, or the `mean` over steps."""
    out: list[float] = []
    for run in runs:
        values = run.column(name)
        values = values[np.isfinite(values)]
        if len(values):
            out.append(float(values[-1] if how == "last" else values.mean()))
    return out


def clip_range_of(run: Run) -> tuple[Any, Any]:
    """(eps_L, eps_R) of a run's configuration."""
    return run.config.get("clip.low"), run.config.get("clip.high")


def moves_clip(summary: Summary) -> bool:
    """Does some algorithm appear with more than one range?"""
    ranges: dict[str, set[str]] = {}
    for run in summary.runs:
        ranges.setdefault(str(run.config.get("algo.name")), set()).add(str(clip_range_of(run)))
    return any(len(found) > 1 for found in ranges.values())


def by_arm(runs: Sequence[Run], arms: Sequence[str]) -> dict[str, list[Run]]:
    """Arm -> its runs, in the order given."""
    groups: dict[str, list[Run]] = {arm: [] for arm in arms}
    for run in runs:
        groups[run.arm].append(run)
    return groups
