"""From a typed `Run` to a finished run directory: check, create or continue, train, say how it ended."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gspo import continuation, data, evaluate, plan, preflight, pretrained, ranks, shape
from gspo.binding import bind, target
from gspo.config import Run
from gspo.eval_config import EvalConfig
from gspo.messages import failure
from gspo.tracking import run_dir, wandb_mirror


def launch(run: Run, plain: dict[str, Any], overrides: list[str]) -> int:
    """Train as `run` says; returns the exit code: 0, or 1 for a failure at run time (said in one line on stderr).

    Raises ValueError for whatever is wrong before anything is created.
    """
    ready = check(run, plain, overrides)
    if ready.finished:
        print(f"{ready.directory}: finished earlier, skipped")
        return 0
    if ranks.first():
        announce(plain, ready.findings)
    size, session = ranks.to_start(run.trainer.devices), target({"_target_": "gspo.session.session"}, "session")
    try:
        if size == 1:
            return session(run, plain, overrides, ready)
        return ranks.run(size, session, run, plain, overrides, ready)
    except ranks.Stopped as error:
        return 128 + error.number
    except ranks.RankFailed as error:
        if error.kind == "ValueError":
            raise ValueError(str(error)) from error
        if ready.directory.exists():
            run_dir.bury(ready.directory, str(error))
        reason = error
    except RunFailed as error:
        reason = error
    print(f"gspo-train: {reason} (run directory {ready.directory})", file=sys.stderr)
    if ready.directory.is_dir():
        (ready.directory / "error.txt").write_text(failure(reason.__cause__ or reason), encoding="utf-8")
    return 1


class RunFailed(RuntimeError):
    """A run ended with an error after its directory was made; the message begins with the error's type."""


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
    ranks.to_start(run.trainer.devices)
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
            if error := sys.exception():
                print(failure(error), file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if not os.WIFSIGNALED(status) else 1
