"""The tables of a report. Times stand in tables of their own, so that all others repeat to the byte."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gspo.report.claims import reachable
from gspo.report.collapse import DEFINITION, VERSION, of_run
from gspo.report.curves import Curve
from gspo.report.statistics import Interval, iqm_interval, mean_interval
from gspo.report.summary import CLIPS, TIMES, Summary, clip_pairs, generator, last_values
from gspo.report.tables import Table


def all_tables(summary: Summary) -> list[Table]:
    """Every table but the curves', in the order of the page."""
    found = [arms(summary), differences(summary), final(summary), comparisons(summary), clips(summary),
             clip_ratios(summary), collapses(summary), survival(summary), lengths(summary), exponents(summary),
             experts(summary), compute(summary), times(summary), runs(summary)]  # fmt: skip
    return [table for table in found if table.rows]


def arms(summary: Summary) -> Table:
    rows = []
    for arm in summary.arms:
        group = summary.of(arm)
        objective = group[0].record.get("objective", "") if group else ""
        steps = sorted({len(run.column("step")) for run in group})
        span = f"{steps[0]}-{steps[-1]}" if len(steps) > 1 else str(steps[0]) if steps else "0"
        rows.append((arm, len(group), span, " ".join(str(objective).split())))
    swept = ", ".join(summary.swept) or "nothing"
    return Table("arms", f"Arms; swept: {swept}.", ("arm", "runs", "steps", "objective"), rows)


def differences(summary: Summary) -> Table:
    rows = [
        (d.key, "within an arm" if d.inside else "between arms", "; ".join(f"{v} ({n})" for v, n in d.values.items()))
        for d in summary.differences
    ]
    caption = "What compared runs differ in besides the seed and the swept keys: value (runs)."
    return Table("differences", caption, ("key", "where", "values"), rows)


def final(summary: Summary) -> Table:
    rows = []
    for score, by_arm in summary.scores.items():
        for arm in summary.arms:
            values = list(by_arm.get(arm, {}).values())
            if values:
                mean, middle = mean_interval(values, generator()), iqm_interval(values, generator())
                rows.append((score, arm, mean, middle, mean.method, min(values), max(values)))
    caption = (
        "Final scores: mean and interquartile mean over seeds with 95 % intervals; `train` over the last 10 steps, a "
        "benchmark at its last evaluation. Under 4 seeds: points only."
    )
    return Table("final_scores", caption, ("score", "arm", "mean", "iqm", "interval", "min", "max"), rows)


def comparisons(summary: Summary) -> Table:
    rows = [
        (c.score, c.a, c.b, c.n_a, c.n_b, c.difference, c.paired, c.improvement, c.test, c.p, c.adjusted, c.verdict)
        for c in summary.claims
    ]
    best = reachable(summary.claims)
    tests = sum(not math.isnan(c.p) for c in summary.claims)
    reach = (
        ""
        if math.isnan(best)
        else f"; the smallest p that a permutation or sign-flip test can reach here is {best:.2g}"
    )
    caption = (
        f"Comparisons a - b: difference of means, paired by seed, probability of improvement; Holm over all {tests} "
        f"tests of this report{reach}. A claim needs an adjusted p of at most 0.05."
    )
    columns = ("score", "a", "b", "n_a", "n_b", "difference", "paired", "improvement", "test", "p", "p_holm", "verdict")
    return Table("comparisons", caption, columns, rows)


def clips(summary: Summary) -> Table:
    rows = [
        (name, arm, mean_interval(list(by_arm[arm].values()), generator()))
        for name, by_arm in summary.clips.items()
        for arm in summary.arms
        if arm in by_arm
    ]
    caption = "Clip fractions over all updates of a run (sum of numerators / sum of denominators), mean over seeds."
    return Table("clip_fractions", caption, ("metric", "arm", "share"), rows)


def clip_ratios(summary: Summary) -> Table:
    rows = [(name, a, b, r) for name in CLIPS if name in summary.clips for a, b, r in clip_pairs(summary, name)]
    caption = "Ratio a / b of clip fractions (geometric means over seeds; - where a run clipped nothing)."
    return Table("clip_ratios", caption, ("metric", "a", "b", "ratio"), rows)


def collapses(summary: Summary) -> Table:
    rows = []
    for arm in summary.collapse:
        count = {v: sum(o.verdict == v for o in arm.outcomes) for v in ("undetermined", "excluded")}
        rules = "".join(sorted({o.rule for o in arm.outcomes if o.rule}))
        rows.append((arm.arm, arm.determined, arm.collapsed, arm.rate, arm.exact, rules, arm.recovered,
                     count["undetermined"], count["excluded"]))  # fmt: skip
    columns = ("arm", "determined", "collapsed", "rate_wilson", "rate_exact", "rules", "recovered", "undetermined",
               "excluded")  # fmt: skip
    return Table("collapse", f"Collapse (definition version {VERSION}). {DEFINITION}", columns, rows)


def survival(summary: Summary) -> Table:
    rows = []
    for arm in summary.collapse:
        c = arm.curve
        for k in range(len(c.time) if arm.determined else 0):
            share = Interval(float(c.survival[k]), float(c.low[k]), float(c.high[k]), int(c.at_risk[k]), "greenwood")
            rows.append((arm.arm, float(c.time[k]), share))
    caption = "Share of runs not collapsed after a step (Kaplan-Meier; n: runs at risk)."
    return Table("survival", caption, ("arm", "step", "not_collapsed"), rows, long=True)


def lengths(summary: Summary) -> Table:
    rows = [(s.arm, s.first, s.last, s.rows, s.clipped, s.spread, s.reward) for s in summary.strata]
    read, there = summary.files
    caption = (
        f"By response length (tokens), from {read} of {there} files of sequences/: share of tokens bound at the run's "
        "own range, std of log s after the first mini-batch, reward; mean over runs."
    )
    columns = ("arm", "length_from", "length_to", "rows", "clipped", "log_s_std", "reward")
    return Table("lengths", caption, columns, rows)


def exponents(summary: Summary) -> Table:
    rows = [(arm, interval) for arm, interval in summary.exponents.items()]
    caption = "Exponent of std(log s) in the response length, one fit a run; independent tokens would give -0.5."
    return Table("length_exponents", caption, ("arm", "exponent"), rows)


def experts(summary: Summary) -> Table:
    rows = []
    for arm in summary.arms:
        values = last_values(summary.of(arm), "moe/expert_change", "mean")
        if values:
            rows.append((arm, mean_interval(values, generator())))
    caption = "Expert change per update (share of token-layer choices that differ), mean over steps and seeds."
    return Table("expert_change", caption, ("arm", "expert_change"), rows)


def compute(summary: Summary) -> Table:
    rows = []
    for arm in summary.arms:
        group = summary.of(arm)
        names = ("compute/flops_total", "compute/tokens_sampled")
        cells = [mean_interval(last_values(group, name), generator()) for name in names]
        if any(cell.n for cell in cells):
            rows.append((arm, *cells, mean_interval(last_values(group, "response/length_mean", "mean"), generator())))
    caption = "Compute of a run: executed FLOPs, tokens sampled, mean response length; mean over seeds."
    return Table("compute", caption, ("arm", "flops", "tokens_sampled", "response_length"), rows)


def times(summary: Summary) -> Table:
    rows = []
    for arm in summary.arms:
        group = summary.of(arm)
        cells = [mean_interval(last_values(group, name, "last" if "device" in name else "mean"), generator())
                 for name, _ in TIMES]  # fmt: skip
        if any(cell.n for cell in cells):
            rows.append((arm, *cells))
    caption = "Time of a run, mean over seeds; depends on the machine and on what else it ran."
    return Table("time", caption, ("arm", *(title for _, title in TIMES)), rows)


def runs(summary: Summary) -> Table:
    """Every run; final scores in columns."""
    scores, together = list(summary.scores), set(summary.runs)
    rows = []
    for run in sorted(summary.everything, key=lambda r: (r.arm, r.seed if r.seed is not None else -1, r.status)):
        outcome = of_run(run)
        seed = run.seed if run.seed is not None else -1
        compared = run in together
        values = [summary.scores[name].get(run.arm, {}).get(seed) if compared else None for name in scores]
        clipped = summary.clips.get("clip/token_binding", {}).get(run.arm, {}).get(seed) if compared else None
        rows.append((run.arm, run.seed, run.status, len(run.column("step")), outcome.verdict, outcome.rule,
                     outcome.time, outcome.recovered, *values, clipped))  # fmt: skip
    columns = ("arm", "seed", "status", "steps", "collapse", "rule", "collapse_or_censored_at", "recovered", *scores,
               "clip/token_binding")  # fmt: skip
    return Table("runs", "Every run found; only finished ones (or stopped by rule a) are compared.", columns, rows)


def curve_table(name: str, curves: Sequence[tuple[str, Curve]]) -> Table:
    """The numbers behind a figure of curves."""
    rows = []
    for metric, c in curves:
        for k in range(len(c.x)):
            value = Interval(float(c.mean[k]), float(c.low[k]), float(c.high[k]), c.n, c.method)
            rows.append((metric, c.arm, float(np.round(c.x[k], 9)), value))
    return Table(name, "Mean over seeds and its pointwise 95 % interval.", ("metric", "arm", "x", "value"), rows, True)
