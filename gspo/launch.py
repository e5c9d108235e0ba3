"""From a typed `Run` to a finished run directory: check, create or continue, train, say how it ended."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gspo import data, evaluate, plan, preflight, pretrained, shape
from gspo.binding import bind, target
from gspo.config import Run
from gspo.eval_config import EvalConfig
from gspo.formula import algebra
from gspo.tracking import run_dir, wandb_mirror
from gspo.tracking.record import redact
from gspo.tracking.run_dir import Interrupted, RunDir

MAY_CHANGE = ("resume", "debug", "run", "tracking", "checkpoint", "sweep", "train.steps", "rollout.check_every")
"""Keys (or groups) that may differ between a run and its continuation."""


def launch(run: Run, plain: dict[str, Any], overrides: list[str]) -> int:
    """Train as `run` says; returns the exit code: 0, or 1 for a failure at run time (said in one line on stderr).

    Raises ValueError for whatever is wrong before anything is created.
    """
    findings = preflight.check(plain)
    if (run.trainer.devices or 1) > 1:
        raise ValueError(f"trainer.devices={run.trainer.devices}: gspo-train runs on one device (accepted: 1, null)")
    pretrained.check(run.model.path)
    data.check(run.data)
    bind(run.reward, "reward")
    evaluate.settings_of(run.eval, run.reward)
    wandb_mirror.check(run.tracking.wandb)
    directory = run_directory(run)
    continued = directory.exists()
    if continued and may_continue(directory, run, plain) == "finished":
        print(f"{directory}: finished earlier, skipped")
        return 0
    announce(plain, findings)
    use_what_is_installed(run, plain)
    return _train(run, plain, overrides, directory, findings, continued)


def announce(plain: dict[str, Any], findings: list[preflight.Finding]) -> None:
    """Print what `gspo-plan` prints; only the findings for a model whose shape is not known."""
    if shape.find(plain["model"]) is not None:
        print(plan.render(plan.plan(plain)))
        return
    for finding in findings:
        print(f"{finding.level}: {finding.text}")


def run_directory(run: Run) -> Path:
    """`run.dir`, or the run directory that `resume` names. Raises ValueError when that one does not exist."""
    if run.resume in ("never", "auto"):
        return Path(run.run.dir)
    if not Path(run.resume).is_dir():
        raise ValueError(f"resume={run.resume}: no such run directory (accepted: never, auto, or an existing one)")
    return Path(run.resume)


def may_continue(directory: Path, run: Run, plain: dict[str, Any]) -> str:
    """`finished` when the run in `directory` has done all of `train.steps`, else `unfinished`.

    Raises ValueError when it may not: `resume=never`, no run there, or another configuration.
    """
    if run.resume == "never":
        raise ValueError(f"run.dir={directory}: exists; choose another run.dir, or resume=auto to continue it")
    status = run_dir.status(directory)
    changed = differences(run_dir.read_config(directory), redact(plain))
    if changed:
        raise ValueError(f"{directory}: has another configuration ({'; '.join(changed)}); it is left as it is")
    done = status == "finished" and run_dir.read_config(directory)["train"]["steps"] >= run.train.steps
    return "finished" if done else "unfinished"


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """`key: old -> new` for every key that differs and may not change between a run and its continuation."""
    found = []
    for key in sorted(old.keys() | new.keys()):
        name = f"{prefix}{key}"
        a, b = old.get(key), new.get(key)
        if name in MAY_CHANGE or a == b:
            continue
        if isinstance(a, dict) and isinstance(b, dict):
            found += differences(a, b, f"{name}.")
        else:
            found.append(f"{name}: {a} -> {b}")
    return found


def readiness(node: Any) -> dict[str, Any]:
    """What the modules of a reward node, and of the nodes inside it, say of themselves before a run (`ready`)."""
    if not isinstance(node, dict):
        return {}
    found: dict[str, Any] = {}
    home = str(node.get("_target_", "")).rpartition(".")[0]
    if home and hasattr(importlib.import_module(home), "ready"):
        found |= importlib.import_module(home).ready(node)
    for inner in node.values():
        found |= readiness(inner)
    return found


def use_what_is_installed(run: Run | EvalConfig, plain: dict[str, Any]) -> None:
    """Fall back to transformers' generate, in one line, where vLLM cannot be imported."""
    if run.rollout._target_ == "gspo.rollout.vllm_local.VllmEngine":
        reason = target({"_target_": "gspo.rollout.vllm_local.available"}, "rollout")()
        if reason:
            print(f"rollout: vLLM is not available ({reason}); transformers generates instead", file=sys.stderr)
            run.rollout._target_ = plain["rollout"]["_target_"] = "gspo.rollout.hf.HfEngine"


def _train(
    run: Run, plain: dict[str, Any], overrides: list[str], directory: Path, findings: list[Any], continued: bool
) -> int:
    from gspo import parts as made
    from gspo.tracking.summary import summarize
    from gspo.tracking.wandb_mirror import Mirror
    from gspo.train import train

    objective, _, _ = made.functions(run)  # a combination that a function refuses is refused here
    model_dir = pretrained.resolve(run.model.path)
    stream, tokenizer = made.open_stream(run, model_dir)
    made.try_out(run, stream)
    benchmark = evaluate.settings_of(run.eval, run.reward)
    held_out = benchmark and evaluate.open_benchmark(benchmark, tokenizer, run.model, run.sampling)
    facts = {
        "objective": algebra(run.algo.objective, objective.keywords),  # type: ignore[attr-defined]
        "seed": run.seed,
        "overrides": overrides,
        "findings": [finding.text for finding in findings],
        "reward": readiness(run.reward) | (readiness(benchmark.reward) if benchmark else {}),
    }
    print(f"objective: {facts['objective']}")
    record = run_dir.open_existing(directory) if continued else run_dir.create(directory, plain, facts)
    try:
        with record, Mirror(record, run.tracking, name=run.run.name) as mirror:
            parts = made.assemble(run, model_dir, stream, tokenizer, mirror)
            parts.held_out = held_out
            try:
                first = resume(parts, record) if continued else 0
                train(run, parts, record, first_step=first)
            finally:
                parts.engine.close()
    except Interrupted as error:
        print(f"gspo-train: interrupted: {error}; resume={directory} continues", file=sys.stderr)
        return 130 if "SIGINT" in str(error) else 143
    except KeyboardInterrupt:
        return 130
    except (RuntimeError, ValueError, OSError) as error:
        if run.debug:
            traceback.print_exc()
        print(f"gspo-train: {type(error).__name__}: {error} (run directory {directory})", file=sys.stderr)
        return 1
    summarize(directory)
    return 0


def resume(parts: Any, record: RunDir) -> int:
    """Load the newest sound checkpoint and cut what the run wrote after it; a run without one starts over."""
    from gspo import checkpoint

    path = checkpoint.latest(record.path / "checkpoints")
    first = parts.restore(path) if path else 0
    record.truncate(first)
    return first


def in_child(work: Callable[[], int]) -> int:
    """Run `work` in a forked child, so that nothing of a job outlives it; returns its exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = work()
        except ValueError as error:
            print(f"{os.path.basename(sys.argv[0])}: {error}", file=sys.stderr)
            code = 2
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if not os.WIFSIGNALED(status) else 1
