"""What is read and found out about a run before anything of it is created."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gspo import evaluate, pretrained
from gspo.binding import target
from gspo.config import Run
from gspo.eval_config import EvalConfig
from gspo.preflight import Finding


class RunFailed(RuntimeError):
    """A run ended with an error after its directory was made; the message begins with the error's type."""


@dataclass(frozen=True, slots=True)
class Ready:
    """What is known of a run without torch; nothing has been created yet."""

    directory: Path
    continued: bool
    """The directory exists and holds the same configuration."""
    finished: bool
    """... and all of `train.steps`."""
    findings: list[Finding]


@dataclass(slots=True)
class Material:
    """What a run reads before it creates anything."""

    objective: Any
    model_dir: Path
    stream: Any
    tokenizer: Any
    benchmark: Any
    held_out: Any

    def fingerprints(self) -> dict[str, str]:
        """SHA-256 of the query set, a stage at a time, and of the held-out problems."""
        held_out = self.held_out and {f"{self.held_out.name}, held out": self.held_out.facts["dataset_sha256"]}
        return self.stream.fingerprints() | (held_out or {})


def material(run: Run) -> Material:
    """Functions, query set, tokenizer and held-out set of a run, tried out.

    Raises ValueError for a combination that a function, the reward or the engine refuses, for a function that raises,
    and for prompts that do not fit.
    """
    from gspo import parts as made
    from gspo import trial

    objective, _, _ = trial.functions(run)
    model_dir = pretrained.resolve(run.model.path)
    stream, tokenizer = made.open_stream(run, model_dir)
    trial.try_out(run, stream)
    require_engine(run)
    benchmark = evaluate.settings_of(run.eval, run.reward)
    held_out = benchmark and evaluate.open_benchmark(benchmark, tokenizer, run.model, run.sampling)
    return Material(objective, model_dir, stream, tokenizer, benchmark, held_out)


def require_engine(run: Run | EvalConfig) -> None:
    """Raise ValueError for an engine that is not there, and for settings that it would refuse once it is started."""
    import torch

    from gspo.rollout.contract import check_settings

    device = "cuda" if torch.cuda.is_available() else "cpu"
    check_settings(run.rollout, run.sampling, context=run.model.context, device=device)
    target({"_target_": run.rollout._target_}, "rollout")
    module = run.rollout._target_.rpartition(".")[0]
    target({"_target_": f"{module}.check"}, "rollout")(run.rollout, device)


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
