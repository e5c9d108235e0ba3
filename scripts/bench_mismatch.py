"""How far the sampler's log-probs are from the trainer's, by precision, beside GSPO's clip range (paper 5.4)."""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

Row = dict[str, Any]
ARMS = (("float32", "float32"), ("float32", "bfloat16"), ("bfloat16", "bfloat16"))
"""Precision of the trainer and of the engine."""
EPS = 3e-4
"""GSPO's clip_low: how far s_i may fall below 1."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--overrides", default="", help="for gspo-train, say 'model=qwen3_tiny'")


def mismatch(options: argparse.Namespace) -> list[Row]:
    """A row a pair of precisions: d = trainer's - sampler's log-prob of the sampled tokens, before any update on them.

    `seq` is the mean of d over a response, log s_i of a policy that has not moved; `seq std / eps` sets its spread
    against the range in which GSPO leaves s_i alone, and `sum` is the product of a response's token ratios.
    """
    with tempfile.TemporaryDirectory(prefix="gspo-bench-") as folder:
        return [_row(Path(folder), *arm, options) for arm in ARMS]


def _row(work: Path, trainer: str, engine: str, options: argparse.Namespace) -> Row:
    run = work / f"{trainer}-{engine}"
    command = [
        Path(sys.executable).parent / "gspo-train", f"trainer.precision={trainer}", f"rollout.dtype={engine}",
        f"train.steps={options.steps}", "tracking=jsonl", f"run.dir={run}", *shlex.split(options.overrides),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(map(str, command))}: exit code {done.returncode}: {done.stderr.strip()}")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    tokens = sum(row["mismatch/token_abs_mean_den"] for row in rows)
    seq = statistics.fmean(row["mismatch/seq_log_std"] for row in rows)
    return {
        "trainer": trainer,
        "engine": engine,
        "tokens": int(tokens),
        "mean abs d": f"{sum(row['mismatch/token_abs_mean_num'] for row in rows) / tokens:.1e}",
        "max abs d": f"{max(row['mismatch/token_abs_max'] for row in rows):.1e}",
        "seq std": f"{seq:.1e}",
        "seq std / eps": f"{seq / EPS:.2g}",
        "mean exp(seq)": f"{statistics.fmean(row['mismatch/seq_ratio_mean'] for row in rows):.6f}",
        "mean exp(sum)": f"{statistics.fmean(row['mismatch/seq_ratio_sum'] for row in rows):.6f}",
    }
