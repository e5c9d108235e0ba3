"""Run directories with known contents, written the way a run writes them, for the tests of the reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

EPS_GRID = (0.5, 0.3, 0.28, 0.27, 0.2, 0.1, 0.05, 0.02, 0.01, 3e-3, 1e-3, 4e-4, 3e-4, 1e-4)
CLIPS = {"grpo": (0.2, 0.27, "token"), "gspo": (3e-4, 4e-4, "sequence")}


def write_run(
    root: Path,
    algo: str,
    seed: int,
    correct: np.ndarray,
    *,
    clipped: float = 0.1,
    held_out: dict[int, float] | None = None,
    config: dict[str, Any] | None = None,
    record: dict[str, Any] | None = None,
    overrides: list[str] | None = None,
    degenerate: np.ndarray | None = None,
    name: str | None = None,
) -> Path:
    """One run directory with a row for each entry of `correct`; returns its path."""
    path = root / (name or f"algo={algo},seed={seed}")
    path.mkdir(parents=True)
    low, high, _ = CLIPS.get(algo, (0.2, 0.2, "token"))
    tree: dict[str, Any] = {
        "seed": seed,
        "run": {"dir": str(path), "name": path.name},
        "algo": {"name": algo, "objective": {"_target_": f"gspo.algorithms.objectives.{algo}"}},
        "clip": {"low": low, "high": high},
        "optim": {"lr": 1e-3},
        "train": {"steps": len(correct), "minibatches": 4},
    }
    for key, value in (config or {}).items():
        node = tree
        *parents, leaf = key.split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    (path / "config.yaml").write_text(yaml.safe_dump(tree))
    facts = {
        "status": "finished", "reason": "", "seed": seed, "objective": f"J = {algo}", "git": {"commit": "abc"},
        "overrides": [f"algo={algo}", f"seed={seed}"] if overrides is None else overrides,
        "started": "2025-07-18T10:00:00+00:00", "host": "here",
    }  # fmt: skip
    (path / "run.json").write_text(json.dumps(facts | (record or {})))
    rng = np.random.default_rng([seed, len(algo)])
    lines = []
    for step, value in enumerate(correct):
        tokens = 4000.0 + int(rng.integers(-200, 200))
        row = {"step": step, "reward/correct": float(value), "reward/mean": float(value), "reward/format": 1.0}
        for kind in ("token_binding", "token_outside", "seq_binding", "seq_outside"):
            for suffix, den in (("", tokens), ("_given_adv", 0.8 * tokens)):
                num = clipped * tokens * float(rng.uniform(0.9, 1.1))
                row |= {f"clip/{kind}{suffix}": num / den, f"clip/{kind}{suffix}_num": num}
                row[f"clip/{kind}{suffix}_den"] = den
        row |= {"response/truncated": 0.0 if degenerate is None else float(degenerate[step]), "response/empty": 0.0}
        row |= {"response/length_mean": 20.0, "moe/expert_change": 0.05 + 0.01 * float(rng.normal())}
        row |= {"compute/flops_total": 1e9 * (step + 1), "compute/tokens_sampled": tokens * (step + 1)}
        row |= {"compute/device_seconds": 1.5 * (step + 1), "time/step_s": 1.5, "perf/tokens_per_s": 900.0}
        lines.append(json.dumps(row))
    (path / "metrics.jsonl").write_text("".join(line + "\n" for line in lines))
    evals = [{"step": s, "benchmark": "chains", "k": 4, "avg_at_k": v} for s, v in (held_out or {}).items()]
    (path / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in evals))
    return path


def learning(rng: np.random.Generator, final: float, steps: int = 60, noise: float = 0.03) -> np.ndarray:
    """A training curve that rises from 0.2 to `final`."""
    t = np.arange(steps)
    return np.clip(0.2 + (final - 0.2) * (1 - np.exp(-t / (steps / 4))) + rng.normal(0, noise, steps), 0, 1)


def write_sweep(root: Path, finals: dict[str, float], seeds: int, *, steps: int = 60, sequences: bool = False) -> None:
    """Arms `finals` (algorithm -> level it reaches, give or take 0.02 a seed), `seeds` seeds each."""
    for algo, final in finals.items():
        for seed in range(seeds):
            rng = np.random.default_rng([seed, len(algo), ord(algo[1])])
            top = final + 0.02 * float(rng.normal())
            held = {s: 0.2 + (top - 0.2) * s / steps for s in range(0, steps + 1, steps // 4)}
            share = {"grpo": 0.0013, "gspo": 0.15}.get(algo, 0.02) * float(rng.lognormal(0, 0.2))
            path = write_run(root, algo, seed, learning(rng, top, steps), clipped=share, held_out=held)
            if sequences:
                for step in range(0, steps, max(1, steps // 6)):
                    write_sequences(path, algo, step, rng, sigma=0.02)


def write_sequences(
    run: Path, algo: str, step: int, rng: np.random.Generator, *, sigma: float, rows: int = 256, exponent: float = -0.5,
    by_step: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """sequences/step_NNNNNN.parquet: token log-ratios are normal with std `sigma` after the first of 4 mini-batches.

    log s_i has std sigma * |y|^exponent (-1/2: independent tokens). `by_step`: the advantage changes along a response.
    Returns the columns, the token ratios `w` and the token advantages `advs`.
    """
    low, high, level = CLIPS[algo]
    length = np.exp(rng.uniform(np.log(8), np.log(256), rows)).astype(int)
    minibatch = np.arange(rows) // (rows // 4)
    adv = rng.choice([-1.0, 0.0, 1.0], rows, p=[0.4, 0.2, 0.4])
    advs = [rng.choice([-1.0, 0.0, 1.0], n) if by_step else np.full(n, a) for n, a in zip(length, adv, strict=True)]
    adv = np.array([a.mean() for a in advs])
    ws = []
    for n, k in zip(length, minibatch, strict=True):
        noise = rng.normal(0, sigma, n)
        shift = rng.normal(0, sigma) * float(n) ** exponent
        ws.append(np.exp((noise - noise.mean() + shift) * (k > 0)))
    log_s = np.array([np.log(w).mean() for w in ws])
    above = np.array([[int((w > 1 + e).sum()) for e in EPS_GRID] for w in ws], dtype=np.int32)
    below = np.array([[int((w < 1 - e).sum()) for e in EPS_GRID] for w in ws], dtype=np.int32)
    up, down = (
        np.array(
            [[int((inside(w, e) & (sign * a > 0)).sum()) for e in EPS_GRID] for w, a in zip(ws, advs, strict=True)]
        )
        for sign, inside in ((1, lambda w, e: w > 1 + e), (-1, lambda w, e: w < 1 - e))
    )  # fmt: skip
    positive, negative = (np.array([int((sign * a > 0).sum()) for a in advs]) for sign in (1, -1))
    if level == "token":
        h, lo = EPS_GRID.index(high), EPS_GRID.index(low)
        binding, outside = up[:, h] + down[:, lo], above[:, h] + below[:, lo]
    else:
        hi, under = np.exp(log_s) > 1 + high, np.exp(log_s) < 1 - low
        binding, outside = positive * hi + negative * under, length * (hi | under)
    columns = {
        "step": np.full(rows, step), "minibatch": minibatch, "prompt_id": [f"p{i // 8}" for i in range(rows)],
        "sample": np.arange(rows) % 8, "length": length, "truncated": np.zeros(rows, bool), "adv": adv,
        "adv_tokens": positive + negative, "adv_positive": positive,
        "reward": (adv > 0).astype(float), "log_s": log_s,
        "max_abs_log_w": np.array([abs(np.log(w)).max() for w in ws]),
        "tokens_outside": outside, "tokens_binding": binding,
        "w_above": above, "w_below": below, "w_above_bound": up, "w_below_bound": down,
    }  # fmt: skip
    table = pa.table({k: pa.array(list(v) if getattr(v, "ndim", 1) > 1 else v) for k, v in columns.items()})
    meta = {"eps_grid": json.dumps(EPS_GRID), "clip": json.dumps({"low": low, "high": high, "level": level})}
    folder = run / "sequences"
    folder.mkdir(exist_ok=True)
    pq.write_table(table.replace_schema_metadata(meta), folder / f"step_{step:06d}.parquet")
    return columns | {"w": ws, "advs": advs}
