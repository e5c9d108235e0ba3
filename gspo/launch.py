"""From a typed `Run` to a finished run directory: check, create or continue, train, say how it ended."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gspo import continuation, data, evaluate, plan, preflight, pretrained, shape
from gspo.binding import bind, target
from gspo.config import Run
from gspo.eval_config import EvalConfig
from gspo.formula import algebra
from gspo.tracking import run_dir, wandb_mirror
from gspo.tracking.run_dir import Interrupted, RunDir


def launch(run: Run, plain: dict[str, Any], overrides: list[str]) -> int:
    """Train as `run` says; returns the exit code: 0, or 1 for a failure at run time (said in one line on stderr).

    Raises ValueError for whatever is wrong before anything is created.
    """
    ready = check(run, plain, overrides)
    if ready.finished:
        print(f"{ready.directory}: finished earlier, skipped")
        return 0
    announce(plain, ready.findings)
    return _train(run, plain, overrides, ready)


@dataclass(frozen=True, slots=True)
class Ready:
    """What `check` found out about a run; nothing has been created yet."""

    directory: Path
    continued: bool
    """The directory exists and holds the same configuration."""
    finished: bool
    """... and all of `train.steps`."""
    findings: list[preflight.Finding]


def check(run: Run, plain: dict[str, Any], overrides: list[str]) -> Ready:
    """All that can be said against a run without torch.

    Raises ValueError for it; a rollout engine that is not installed is replaced in `run` and `plain`.
    """
    findings = preflight.check(plain)
    if (run.trainer.devices or 1) > 1:
        raise ValueError(f"trainer.devices={run.trainer.devices}: gspo-train runs on one device (accepted: 1, null)")
    pretrained.check(run.model.path)
    data.check(run.data)
    bind(run.reward, "reward")
    evaluate.settings_of(run.eval, run.reward)
    wandb_mirror.check(run.tracking.wandb)
    directory = continuation.run_directory(run, overrides)
    use_what_is_installed(run, plain)
    continued = directory.exists()
    finished = continued and continuation.is_finished(directory, run, plain)
    return Ready(directory, continued, finished, findings)


def announce(plain: dict[str, Any], findings: list[preflight.Finding]) -> None:
    """Print what `gspo-plan` prints; only the findings for a model whose shape is not known."""
    if shape.find(plain["model"]) is not None:
        print(plan.render(plan.plan(plain)))
        return
    for finding in findings:
        print(f"{finding.level}: {finding.text}")


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


@dataclass(slots=True)
class Material:
    """What a run reads before it creates anything."""

    objective: Any
    model_dir: Path
    stream: Any
    tokenizer: Any
    benchmark: Any
    held_out: Any


def material(run: Run) -> Material:
    """Functions, query set, tokenizer and held-out set of a run, tried out.

    Raises ValueError for a combination that a function, the reward or the engine refuses, and for prompts that do not
    fit.
    """
    from gspo import parts as made

    objective, _, _ = made.functions(run)
    model_dir = pretrained.resolve(run.model.path)
    stream, tokenizer = made.open_stream(run, model_dir)
    made.try_out(run, stream)
    made.check_engine(run)
    benchmark = evaluate.settings_of(run.eval, run.reward)
    held_out = benchmark and evaluate.open_benchmark(benchmark, tokenizer, run.model, run.sampling)
    return Material(objective, model_dir, stream, tokenizer, benchmark, held_out)


def _train(run: Run, plain: dict[str, Any], overrides: list[str], ready: Ready) -> int:
    from gspo import parts as made
    from gspo.tracking.summary import summarize
    from gspo.tracking.wandb_mirror import Mirror
    from gspo.train import train

    read, directory = material(run), ready.directory
    facts = {
        "objective": algebra(run.algo.objective, read.objective.keywords),
        "seed": run.seed,
        "overrides": overrides,
        "findings": [finding.text for finding in ready.findings],
        "reward": readiness(run.reward) | (readiness(read.benchmark.reward) if read.benchmark else {}),
        "device": made.device_name(),
        "data": read.stream.fingerprints(),
    }
    print(f"objective: {facts['objective']}")
    try:
        record = run_dir.open_existing(directory) if ready.continued else run_dir.create(directory, plain, facts)
    except OSError as error:
        raise ValueError(f"run.dir={directory}: {error}") from error
    try:
        with record, Mirror(record, run.tracking, name=run.run.name) as mirror:
            parts = made.assemble(run, read.model_dir, read.stream, read.tokenizer, mirror)
            parts.held_out = read.held_out
            try:
                first = resume(parts, record, plain, facts) if ready.continued else 0
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


def resume(parts: Any, record: RunDir, plain: dict[str, Any], facts: dict[str, Any]) -> int:
    """Load the newest sound checkpoint and cut what the run wrote after it; a run without one starts over.

    config.yaml and run.json say what the continuation is run with.
    """
    from gspo import checkpoint

    path = checkpoint.latest(record.path / "checkpoints")
    first = parts.restore(path) if path else 0
    record.truncate(first)
    record.configure(plain)
    record.record["sessions"][-1]["from_step"] = first
    record.update(from_step=first, **facts)
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
