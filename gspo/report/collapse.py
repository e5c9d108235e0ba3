"""Collapse, version 1: when a run has lost what it had learned.

r_t is the step's mean of the reward part `correct`; R_t its mean over steps t-9..t, from t = 9; P_t the running maximum
of R since the last change of the query set (a window across a change is undefined, and so proves nothing).
A run collapses at the first t with
  (a) a non-finite weight, or a stop after `train.max_skipped` skipped updates;
  (b) P_t >= 0.10 and R_u < 0.5 P_t for all u in t..t+19;
  (c) over 90 % of responses truncated or empty in all of t..t+19, after a step with under 50 %.
Without an event it is censored at T-20, the last t that could be judged; under 40 steps it is undetermined, unless it
was stopped by (a), which needs no window. Other runs that failed or were interrupted are excluded.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gspo.report.collect import Column, Run
from gspo.report.hypotheses import fisher_p
from gspo.report.statistics import Interval, Survival, clopper_pearson, kaplan_meier, wilson

VERSION = 1
WINDOW, HOLD, SHORTEST = 10, 20, 40
LEARNED, LOST, DEGENERATE, HEALTHY = 0.10, 0.5, 0.90, 0.50
DEFINITION = (
    "Collapse, version 1: (a) a non-finite weight or a stop after train.max_skipped skipped updates; or (b) the "
    "10-step mean R of `reward/correct` stays under half of its running maximum P (P >= 0.10, since the last change of "
    "the query set) for 20 steps; or (c) over 90 % of responses are truncated or empty for 20 steps, after a step with "
    "under 50 %. Runs without an event are censored at T-20; runs under 40 steps are undetermined; runs that failed or "
    "were interrupted are listed and excluded."
)
STOPPED = re.compile(r"TrainingStopped|updates in a row were skipped|non-?finite weight", re.IGNORECASE)
"""What run.json's `reason` says of a run that (a) ended."""

Verdict = Literal["collapsed", "stable", "undetermined", "excluded"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one run."""

    verdict: Verdict
    time: float
    """Step of the collapse, or of the censoring; NaN when neither is known."""
    rule: str = ""
    """`a`, `b` or `c`."""
    recovered: bool | None = None
    """Did R later exceed 0.5 P_t? None without a collapse or without P_t."""


@dataclass(frozen=True, slots=True)
class ArmCollapse:
    """Collapse of an arm's runs; rates over the determined ones."""

    arm: str
    outcomes: list[Outcome]
    collapsed: int
    determined: int
    recovered: int
    rate: Interval
    exact: Interval
    curve: Survival


def smoothed(correct: Column, changes: Sequence[int] = ()) -> Column:
    """R_t: the mean of the known r over t-9..t, NaN before t = 9 and where the window spans a change of queries."""
    r = np.asarray(correct, dtype=np.float64)
    out = np.full(len(r), math.nan)
    if len(r) < WINDOW:
        return out
    windows = np.lib.stride_tricks.sliding_window_view(r, WINDOW)
    known = np.isfinite(windows)
    total = np.where(known, windows, 0.0).sum(1)
    out[WINDOW - 1 :] = np.where(known.any(1), total / np.maximum(known.sum(1), 1), math.nan)
    for change in changes:
        out[max(change, 0) : change + WINDOW - 1] = math.nan
    return out


def peak(R: Column, changes: Sequence[int] = ()) -> Column:
    """P_t: the running maximum of R since the last change; NaN while there is no R."""
    out = np.full(len(R), math.nan)
    edges = [0, *sorted(c for c in changes if 0 < c < len(R)), len(R)]
    for start, end in itertools.pairwise(edges):
        out[start:end] = np.fmax.accumulate(R[start:end])
    return out


def judge(
    correct: Column, degenerate: Column, *, changes: Sequence[int] = (), stopped_at: int | None = None
) -> Outcome:
    """The outcome of a run from r_t and the share of responses truncated or empty, one value a step from step 0."""
    steps = len(correct)
    R = smoothed(correct, changes)
    P = peak(R, changes)
    found: list[tuple[int, str]] = [] if stopped_at is None else [(stopped_at, "a")]
    if steps >= SHORTEST:
        last = steps - HOLD + 1
        below = (np.lib.stride_tricks.sliding_window_view(R, HOLD) < LOST * P[:last, None]).all(axis=1)
        found += [(int(t), "b") for t in np.flatnonzero(below & (P[:last] >= LEARNED))[:1]]
        full = np.asarray((np.lib.stride_tricks.sliding_window_view(degenerate, HOLD) > DEGENERATE).all(axis=1))
        seen = np.maximum.accumulate(degenerate < HEALTHY)
        found += [(int(t) + 1, "c") for t in np.flatnonzero(full[1:] & seen[: last - 1])[:1]]
    if not found:
        return Outcome("undetermined", math.nan) if steps < SHORTEST else Outcome("stable", float(steps - HOLD))
    time, rule = min(found)
    bar = P[min(time, steps - 1)] if steps else math.nan
    recovered = bool((R[time + 1 :] > LOST * bar).any()) if math.isfinite(bar) else None
    return Outcome("collapsed", float(time), rule, recovered)


def of_run(run: Run) -> Outcome:
    """The outcome of a run directory."""
    stopped = run.status == "failed" and STOPPED.search(run.reason)
    if run.status != "finished" and not stopped:
        return Outcome("excluded", math.nan)
    step = run.metrics.get("step", np.zeros(0)).astype(int)
    steps = int(step[-1]) + 1 if len(step) else 0

    def whole(name: str) -> Column:
        """The column by step, NaN where a step has no row."""
        out = np.full(steps, math.nan)
        out[step] = run.column(name)
        return out

    queries = whole("data/query_set")
    changes = [int(t) + 1 for t in np.flatnonzero(np.diff(queries) != 0) if np.isfinite(queries[t : t + 2]).all()]
    degenerate = whole("response/truncated") + np.nan_to_num(whole("response/empty"))
    return judge(whole("reward/correct"), degenerate, changes=changes, stopped_at=steps if stopped else None)


def of_arm(arm: str, runs: Sequence[Run]) -> ArmCollapse:
    """Rates, their intervals and the time-to-collapse curve of one arm."""
    outcomes = [of_run(run) for run in runs]
    known = [o for o in outcomes if o.verdict in ("collapsed", "stable")]
    hits = [o for o in known if o.verdict == "collapsed"]
    curve = kaplan_meier([o.time for o in known], [o.verdict == "collapsed" for o in known])
    return ArmCollapse(arm, outcomes, len(hits), len(known), sum(o.recovered is True for o in hits),
                       wilson(len(hits), len(known)), clopper_pearson(len(hits), len(known)), curve)  # fmt: skip


def compare(a: ArmCollapse, b: ArmCollapse) -> float:
    """Fisher's exact two-sided p of the two arms' collapse rates."""
    return fisher_p(a.collapsed, a.determined, b.collapsed, b.determined)
