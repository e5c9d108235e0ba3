"""`gspo-eval`: a model, or a checkpoint of a run, on a benchmark; and two evaluations compared problem by problem.

An evaluation's directory holds config.yaml, run.json, eval.jsonl (one row), eval_samples/step_NNNNNN.jsonl (a line a
sample) and log.txt, as a training run keeps its own evaluations.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gspo import evaluate, preflight, pretrained
from gspo.binding import target
from gspo.estimators import Estimate, by_problem, paired_difference
from gspo.eval_config import UNUSED, EvalConfig
from gspo.material import readiness, require_engine, use_what_is_installed
from gspo.tracking import files, run_dir

EVERY = 10.0
"""Seconds between progress lines."""


def run(config: EvalConfig, plain: dict[str, Any], overrides: list[str]) -> int:
    """Evaluate as `config` says; returns the exit code: 0, or 1 for a failure at run time (one line on stderr).

    Raises ValueError for whatever is wrong before anything is created.
    """
    for key in ("k", "problems"):
        if getattr(config, key) is not None:
            setattr(config.benchmark, key, getattr(config, key))
            plain["benchmark"][key] = getattr(config, key)
    evaluate.check(config.benchmark)
    pretrained.check(config.model.path)
    for key, most in (("max_batch", 2**20), ("threads", 1024)):
        if not 1 <= getattr(config, key) <= most:
            raise ValueError(f"{key}={getattr(config, key)}: out of range (accepted: 1 to {most})")
    preflight.require({key: value for key, value in plain.items() if key not in UNUSED})
    if config.rollout.workers != 1:
        raise ValueError(f"rollout.workers={config.rollout.workers}: an evaluation has one engine (accepted: 1)")
    checkpoint = None if config.checkpoint is None else find_checkpoint(Path(config.checkpoint), config.model.path)
    directory = Path(config.run.dir)
    if directory.exists():
        raise ValueError(f"run.dir={directory}: exists; choose another run.dir")
    run_dir.require_room(directory)
    use_what_is_installed(config, plain)
    model_dir = pretrained.resolve(config.model.path)
    require_engine(config)
    tokenizer = pretrained.load_tokenizer(model_dir)
    benchmark = evaluate.open_benchmark(config.benchmark, tokenizer, config.model, config.sampling)
    facts = {"command": "gspo-eval", "benchmark": benchmark.name, "model": config.model.path, "seed": config.seed}
    facts |= {"checkpoint": checkpoint and str(checkpoint), "overrides": overrides, **benchmark.facts}
    facts |= {"reward": readiness(config.benchmark.reward)}
    kept = {key: value for key, value in plain.items() if key not in UNUSED}
    try:
        with run_dir.create(directory, kept, facts) as record:
            row, samples = _evaluate(config, model_dir, tokenizer, benchmark, checkpoint)
            record.eval(row, samples)
            print(f"{table(row)}\n{directory}")
            evaluate.require_judged(row)
    except (RuntimeError, ValueError, OSError) as error:
        if config.debug:
            traceback.print_exc()
        print(f"gspo-eval: {type(error).__name__}: {error} (directory {directory})", file=sys.stderr)
        return 1
    return 0


def _evaluate(
    config: EvalConfig, model_dir: Path, tokenizer: Any, benchmark: evaluate.Benchmark, checkpoint: Path | None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Start the engine, give it the checkpoint's weights if there is one, and evaluate."""
    import torch

    torch.set_num_threads(config.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    engine = target({"_target_": config.rollout._target_}, "rollout")(
        model_dir,
        tokenizer,
        config.rollout,
        config.sampling,
        precision="bfloat16" if device == "cuda" else "float32",
        context=config.model.context,
        seed=config.seed,
        max_batch=config.max_batch,
        device=device,
    )
    try:
        step = 0
        if checkpoint is not None:
            from gspo import checkpoint as stored
            from gspo import shards

            step = int(checkpoint.name.removeprefix("step_"))
            several = shards.are_in(checkpoint)
            weights = shards.weights(checkpoint) if several else stored.load(checkpoint)[0]["model"]
            engine.update_weights(weights.items(), version=step)
        return evaluate.evaluate(engine, benchmark, seed=config.seed, step=step, progress=_progress(benchmark.name))
    finally:
        engine.close()


def find_checkpoint(path: Path, model: str) -> Path:
    """The sound checkpoint that `path` names: itself, or the newest of a run directory.

    Raises ValueError when there is none, when it is damaged, or when its run trained another model than `model`.
    """
    from gspo import checkpoint as stored

    known = f"checkpoint={path}"
    found = stored.latest(path / "checkpoints") if (path / "checkpoints").is_dir() else path
    if found is None or not found.name.startswith("step_") or not found.is_dir():
        raise ValueError(f"{known}: no checkpoint there (accepted: RUN/checkpoints/step_NNNNNN, or RUN)")
    if wrong := stored.damage(found):
        raise ValueError(f"{known}: damaged: {wrong}")
    run = found.resolve().parent.parent
    if (run / "config.yaml").is_file():
        trained = run_dir.read_config(run).get("model") or {}
        if trained.get("path") != model:
            named = f"model={trained.get('name')} ({trained.get('path')})"
            raise ValueError(f"{known}: its run trained {named}, not {model}")
    return found


def _progress(name: str) -> Callable[[int, int], None]:
    """Prints a line on stderr at most every `EVERY` seconds, and the last one."""
    said = 0.0

    def tell(done: int, total: int) -> None:
        nonlocal said
        if done == total or time.monotonic() - said >= EVERY:
            said = time.monotonic()
            print(f"{name}: {done} of {total} samples", file=sys.stderr, flush=True)

    return tell


def table(row: dict[str, Any]) -> str:
    """A row of eval.jsonl as a table; shares in percent."""
    k, n = row["k"], row["problems"]
    lines = [f"{row['benchmark']}: {n} problems, {k} samples each, seed {row['seed']}, T {row['temperature']}, weights "
             f"after step {row['step']}"]  # fmt: skip
    error = "" if row["avg_at_k_se"] is None else f"  +- {100 * row['avg_at_k_se']:.2f}"
    if row["avg_at_k_low"] is not None:
        error += f"  [{100 * row['avg_at_k_low']:.2f}, {100 * row['avg_at_k_high']:.2f}] {row['interval']}, 95 %"
    lines.append(f"{f'avg@{k}':<22}{100 * row['avg_at_k']:8.2f} %{error}")
    lines += [
        f"{'pass@' + key.removeprefix('pass_at_'):<22}{100 * value:8.2f} %"
        for key, value in row.items()
        if key.startswith("pass_at_") and value is not None
    ]
    if "maj_at_k" in row:
        lines.append(f"{f'maj@{k}':<22}{100 * row['maj_at_k']:8.2f} %")
    lines += [f"{name:<22}{100 * row[name]:8.2f} %" for name in ("truncated", "aborted", "verifier_failed")]
    lines.append(f"{'tokens a response':<22}{row['length_mean']:8.1f}  (longest {row['length_max']})")
    more = [name for name in row if name.startswith(("codeforces_", "problem_rating", "rated_"))]
    lines += [f"{name:<22}{row[name]:8.1f}" for name in more]
    return "\n".join(lines)


def read(path: Path) -> tuple[dict[str, Any], dict[str, float]]:
    """An evaluation's row, and the mean of `correct` by problem.

    `path`: the directory of a gspo-eval, or a file of samples in it or in a training run. Raises ValueError when there
    is no finished evaluation.
    """
    root, found = (path, sorted(path.glob("eval_samples/*"))) if path.is_dir() else (path.parent.parent, [path])
    if len(found) > 1:
        raise ValueError(f"{path}: holds {len(found)} evaluations; name one: {found[-1]}")
    rows = {f"step_{row['step']:06d}": row for row in files.rows(root / "eval.jsonl")}
    samples: dict[str, list[float]] = {}
    for sample in files.rows(found[0]) if found else ():
        samples.setdefault(sample["problem"], []).append(sample["correct"])
    if not samples or found[0].stem not in rows:
        raise ValueError(f"{path}: no finished evaluation (accepted: a gspo-eval's directory, RUN/eval_samples/FILE)")
    means = by_problem(list(samples.values())).tolist()
    return rows[found[0].stem], dict(zip(samples, means, strict=True))


def paired(a: Path, b: Path) -> tuple[Estimate, str]:
    """b - a in avg@k over the same problems, with an interval; and a table of it.

    Raises ValueError for directories without an evaluation, and for two on other problems.
    """
    (row_a, scores_a), (row_b, scores_b) = read(a), read(b)
    for key in ("benchmark", "dataset_sha256"):
        if row_a[key] != row_b[key]:
            raise ValueError(f"{a} and {b} cannot be paired: {key} is {row_a[key]} and {row_b[key]}")
    found = paired_difference(scores_a, scores_b, np.random.default_rng(row_a["seed"]))
    lines = [f"{row_a['benchmark']}: {found.n} problems, paired"]
    for name, path, row in (("A", a, row_a), ("B", b, row_b)):
        asked = f"avg@{row['k']}, step {row['step']}, T {row['temperature']}, at most {row['max_tokens']} tokens"
        lines.append(f"{name:<7}{100 * row['avg_at_k']:8.2f} %  {asked}  {path}")
    interval = "" if found.se is None else f"  +- {100 * found.se:.2f}"
    if found.low is not None and found.high is not None:
        interval += f"  [{100 * found.low:.2f}, {100 * found.high:.2f}] {found.method}, 95 %"
    lines.append(f"{'B - A':<7}{100 * found.value:8.2f} %{interval}")
    better = sum(scores_b[name] > score for name, score in scores_a.items())
    worse = sum(scores_b[name] < score for name, score in scores_a.items())
    lines.append(f"{'':<7}B is better on {better} problems, worse on {worse}, equal on {found.n - better - worse}")
    return found, "\n".join(lines)
