"""Every logged number: name, unit, formula, numerator and denominator.

A step is described by one table, a row for every (response, update); it is what `sequences/` stores. Each number of
`metrics.jsonl` that speaks of responses, ratios or clips is a sum over rows of that table, divided once: no mean of
means, whatever the micro-batches and ranks were. A response is trained in exactly one mini-batch of its step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Rows = dict[str, np.ndarray]
Of = Callable[[Rows], float]


@dataclass(frozen=True)
class Metric:
    """One logged number, or (with `by`) one and its break-down."""

    name: str
    unit: str
    formula: str
    """In words and the paper's symbols, for the glossary."""
    value: Of | None = None
    """Of the rows of a step; None when `numerator` and `denominator` say it."""
    numerator: Of | None = None
    denominator: Of | None = None
    by: tuple[str, ...] = ()
    """`mb`: also for each mini-batch (`/mb0` ...); `len`: also for each length quartile (`/len_q1` ... `/len_q4`)."""


def total(column: str) -> Of:
    return lambda rows: float(rows[column].sum())


def count(rows: Rows) -> float:
    return float(len(rows["length"]))


def share_of_tokens(column: str) -> Of:
    """sum over responses of the share of their own trained tokens (0 for a response without any)."""
    return lambda rows: float((rows[column] / np.maximum(rows["length"], 1)).sum())


def with_adv(of: Of) -> Of:
    """The same over the responses with A != 0."""
    return lambda rows: of({name: column[rows["adv_tokens"] > 0] for name, column in rows.items()})


def known(column: str, of: Callable[[np.ndarray], float]) -> Of:
    """`of` the values that are there; NaN (left out of the row) when none is."""

    def value(rows: Rows) -> float:
        values = rows[column][~np.isnan(rows[column])]
        return float(of(values)) if len(values) else float("nan")

    return value


def trained(column: str, of: Callable[[np.ndarray], float]) -> Of:
    """`of` the column over responses with trained tokens."""

    def value(rows: Rows) -> float:
        values = rows[column][rows["length"] > 0]
        return float(of(values)) if len(values) else float("nan")

    return value


def token_std(rows: Rows) -> float:
    """Population std of log w over trained tokens, from sums and sums of squares about 0."""
    n = rows["length"].sum()
    if not n:
        return float("nan")
    mean = rows["log_w_sum"].sum() / n
    return float(np.sqrt(max(rows["log_w_sq_sum"].sum() / n - mean**2, 0.0)))


def groups_without_spread(rows: Rows) -> float:
    """Groups whose rewards, those of steps where they come by step, have max = min (failed verifiers aside), or of
    fewer than two responses."""
    number = 0
    for group in np.unique(rows["group"]):
        judged = (rows["group"] == group) & ~np.isnan(rows["reward"])
        low, high = rows["reward_low"][judged], rows["reward_high"][judged]
        number += len(low) < 2 or low.min() == high.max()
    return float(number)


def _clip(name: str, formula: str, column: str) -> list[Metric]:
    both = ("mb", "len")
    tokens = f"tokens where {formula} / sum |y_i|; a response with one ratio counts with all its tokens"
    shares = f"sum_i (share of y_i's tokens where {formula}) / N"
    token = Metric(f"clip/token_{name}", "share of trained tokens", tokens, None, total(column), total("length"), both)
    seq = Metric(f"clip/seq_{name}", "share of responses", shares, None, share_of_tokens(column), count, both)
    given_adv = [
        Metric(f"{m.name}_given_adv", m.unit, f"{m.name} over responses with A != 0", None, with_adv(n), with_adv(d))
        for m, n, d in ((token, total(column), total("length")), (seq, share_of_tokens(column), count))
    ]
    return [token, seq, *given_adv]


FROM_ROWS: list[Metric] = [
    Metric("reward/mean", "reward", "mean of r_i, failed verifiers left out", known("reward", np.mean)),
    Metric("reward/std", "reward", "population std of r_i over the step", known("reward", np.std)),
    Metric("reward/zero_spread", "share of groups", "groups with max r = min r / P", None, groups_without_spread,
           lambda rows: float(len(np.unique(rows["group"])))),
    Metric("reward/verifier_failed", "share of responses", "responses without a verdict / N", None,
           lambda rows: float(np.isnan(rows["reward"]).sum()), count),
    Metric("response/length_mean", "tokens", "mean sampled tokens, EOS included", lambda r: float(r["sampled"].mean())),
    Metric("response/length_p10", "tokens", "10 % quantile", lambda r: float(np.quantile(r["sampled"], 0.1))),
    Metric("response/length_p50", "tokens", "median", lambda r: float(np.quantile(r["sampled"], 0.5))),
    Metric("response/length_p90", "tokens", "90 % quantile", lambda r: float(np.quantile(r["sampled"], 0.9))),
    Metric("response/length_max", "tokens", "maximum", lambda r: float(r["sampled"].max())),
    Metric("response/truncated", "share of responses", "responses cut at max_tokens / N", None,
           total("truncated"), count),
    Metric("response/empty", "share of responses", "responses of no token but EOS / N", None, total("empty"), count),
    *_clip("binding", "A > 0 and r > 1+eR, or A < 0 and r < 1-eL", "tokens_binding"),
    *_clip("outside", "r is not in [1-eL, 1+eR]", "tokens_outside"),
    Metric("ratio/log_s_std", "nats a token", "population std of log s_i", trained("log_s", np.std), by=("mb", "len")),
    Metric("ratio/log_s_max", "nats a token", "max |log s_i|", trained("log_s", lambda v: np.abs(v).max()), by=("mb",)),
    Metric("ratio/log_w_std", "nats", "population std of log w_it over trained tokens", token_std, by=("mb", "len")),
    Metric("ratio/log_w_max", "nats", "max |log w_it|", trained("max_abs_log_w", np.max), by=("mb",)),
    Metric("ratio/guarded", "share of trained tokens", "tokens whose |log w_it| or whose response's |log s_i| > 20",
           None, total("guarded"), total("length")),
    Metric("policy/entropy", "nats a token", "sum_it entropy of pi(. | x, y_i<t) / sum |y_i|", None,
           total("entropy_sum"), total("length")),
    Metric("policy/kl_old", "nats a token", "k3: sum_it (w_it - 1 - log w_it) / sum |y_i|", None, total("k3_sum"),
           total("length"), by=("mb",)),
    Metric("mismatch/token_abs_mean", "nats", "sum_it |sampler_logp - trainer's| / sum |y_i|", None,
           total("mismatch_abs_sum"), total("mismatch_tokens")),
    Metric("mismatch/token_abs_max", "nats", "max_it |sampler_logp - trainer's|", known("mismatch_abs_max", np.max)),
    Metric("mismatch/seq_log_std", "nats a token", "population std of sum_t (trainer's - sampler_logp) / |y_i|",
           known("mismatch_log_mean", np.std)),
    Metric("mismatch/seq_ratio_mean", "ratio", "mean_i exp( sum_t (trainer's - sampler_logp) / |y_i| )",
           known("mismatch_log_mean", lambda v: np.exp(v).mean())),
    Metric("mismatch/seq_ratio_sum", "ratio", "mean_i exp( sum_t (trainer's - sampler_logp) )",
           known("mismatch_log_sum", lambda v: np.exp(np.clip(v, -20, 20)).mean())),
    Metric("mismatch/k3_kl", "nats a token", "sum_it (e^d - 1 - d) / sum |y_i|, d = trainer's - sampler_logp", None,
           total("mismatch_k3_sum"), total("mismatch_tokens")),
]  # fmt: skip

FROM_UPDATES: list[Metric] = [
    Metric("optim/loss", "objective", "mean of -J over the step's updates; also /mb0 ..."),
    Metric("optim/grad_norm", "1", "mean over updates of the global gradient norm before clipping; also /mb0 ..."),
    Metric("optim/lr", "1", "learning rate of the step's last update"),
    Metric("optim/skipped", "updates", "updates skipped for a non-finite loss or gradient"),
]

FROM_ROUTING: list[Metric] = [
    Metric("moe/expert_change", "share of assignments", "(token, layer, expert) assignments of a micro-batch that the "
           "step's updates moved / all of them; at steps that check the engine; also by layer (/layer0 ...) and of "
           "each update (/mb0 ...)"),
    Metric("moe/expert_change_rollout", "share of assignments", "the same between the weights that sampled and those "
           "that the last mini-batch meets"),
    Metric("moe/aux_loss", "1", "E * sum_e f_e P_e, mean over layers and updates; with `train.aux_loss_coef` only"),
    Metric("moe/load_max_mean", "ratio", "busiest expert's load / mean load after the updates, mean over layers"),
]  # fmt: skip

FROM_THE_LOOP: list[Metric] = [
    Metric("step", "step", "rollout step, from 0"),
    Metric("reward/<part>", "reward", "mean of the reward's part (correct, format, ...)"),
    Metric(
        "compute/flops_<phase>", "FLOP", "executed so far in rollout, old_logp, update, probe, eval, and their total"
    ),
    Metric("compute/tokens_<kind>", "tokens", "so far: prompt (a response each), sampled, trained"),
    Metric("compute/device_seconds", "device s", "so far: wall seconds of all phases times devices"),
    Metric("perf/tokens_per_s", "tokens/s", "sampled tokens of the step / its seconds without evaluation"),
    Metric("perf/mfu", "share", "model FLOPs of old_logp and update, no recompute / (stated peak * device-seconds)"),
    Metric("time/<phase>_s", "s", "wall seconds of rollout, reward, old_logp, update, probe, sync, and the whole step"),
]


def from_rows(rows: Rows) -> dict[str, float]:
    """All numbers of `FROM_ROWS`, and the parts of the reward, of one step's table; a NaN is left out."""
    parts = [Metric(f"reward/{n[5:]}", "", "", known(n, np.mean)) for n in rows if n.startswith("part_")]
    row: dict[str, float] = {}
    for metric in [*FROM_ROWS, *parts]:
        _put(row, metric, rows, "")
        if "mb" in metric.by:
            for k in np.unique(rows["minibatch"]):
                _put(row, metric, _where(rows, rows["minibatch"] == k), f"/mb{k}")
        if "len" in metric.by:
            for q, inside in enumerate(length_quartiles(rows["length"]), 1):
                _put(row, metric, _where(rows, inside), f"/len_q{q}")
    return row


def length_quartiles(length: np.ndarray) -> list[np.ndarray]:
    """Four masks over the responses, by |y_i| against the step's quartiles; ties go to the shorter side."""
    edges = np.quantile(length, [0.25, 0.5, 0.75])
    quartile = np.searchsorted(edges, length, side="left")
    return [quartile == q for q in range(4)]


def glossary() -> str:
    """The table of every number, in Markdown; README's section is generated from it."""
    lines = ["| name | unit | formula |", "|---|---|---|"]
    for m in [*FROM_THE_LOOP, *FROM_ROWS, *FROM_UPDATES, *FROM_ROUTING]:
        by = {"mb": "mini-batch", "len": "length quartile"}
        also = "; also by " + " and ".join(by[b] for b in m.by) if m.by else ""
        stored = " (stored with `_num`, `_den`)" if m.numerator else ""
        formula = (m.formula + also + stored).replace("|", "\\|")
        lines.append(f"| `{m.name}` | {m.unit} | {formula} |")
    return "\n".join(lines)


def _where(rows: Rows, keep: np.ndarray) -> Rows:
    return {name: column[keep] for name, column in rows.items()}


def _put(row: dict[str, float], metric: Metric, rows: Rows, suffix: str) -> None:
    name = metric.name + suffix
    if metric.numerator and metric.denominator:
        numerator, denominator = metric.numerator(rows), metric.denominator(rows)
        row[f"{name}_num"], row[f"{name}_den"] = numerator, denominator
        if denominator:
            row[name] = numerator / denominator
    elif metric.value and len(rows["length"]):
        value = metric.value(rows)
        if not np.isnan(value):
            row[name] = value


if __name__ == "__main__":
    print(glossary())
