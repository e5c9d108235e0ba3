"""What single settings may be, each for itself; and how a check says what is wrong. No torch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from gspo.devices import DEVICES, Where
from gspo.shape import ModelShape

Config = dict[str, Any]
PROJECT = re.compile(r"[^/\\#?%:]{1,128}")
"""Names of projects that W&B takes."""
WORDS = {
    "train.old_logp": ("trainer", "sampler"),
    "train.routing_replay": ("off", "old"),
    "optim.schedule": ("constant", "linear", "cosine"),
    "trainer.precision": ("auto", "float32", "bfloat16"),
    "rollout.dtype": ("auto", "float32", "bfloat16"),
    "trainer.offload": ("auto", True, False),
    "tracking.wandb": ("disabled", "offline", "online"),
    "model.experts_implementation": ("eager", "grouped_mm", "batched_mm", "deepgemm", "sonicmoe"),
    "plan.device": tuple(DEVICES),
}
AT_LEAST = {
    "seed": 0, "train.steps": 1, "train.prompts_per_step": 1, "train.minibatches": 1, "train.max_skipped": 1,
    "optim.warmup_steps": 0, "optim.weight_decay": 0, "train.aux_loss_coef": 0, "sampling.max_tokens": 1,
    "model.context": 2,
    "rollout.check_every": 1, "rollout.workers": 1, "rollout.tensor_parallel": 1, "rollout.kv_cache_gb": 1,
    "trainer.devices": 1, "trainer.micro_batch_tokens": 1, "trainer.threads": 1, "tracking.samples": 0,
    "checkpoint.every": 0, "checkpoint.keep_last": 0, "sweep.workers": 1, "plan.prompt_tokens": 1,
    "plan.response_tokens": 1,
}  # fmt: skip
AT_MOST = {"seed": 2**63 - 1, "train.group_size": 2**16, "trainer.threads": 1024}
"""A group's samples count on from a seed whose low 16 bits are free; a system starts no more threads than some."""
ABOVE_ZERO = ("optim.lr", "optim.eps", "optim.grad_clip")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to say about a configuration."""

    level: Literal["error", "warning"]
    key: str
    value: Any
    text: str
    """One line: key, value, the reason, and for an error what is accepted."""


def get(config: Config, key: str) -> Any:
    """`config` at a dotted key; None where it is absent."""
    node: Any = config
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


def error(config: Config, key: str, reason: str, accepted: str) -> Finding:
    value = get(config, key)
    return Finding("error", key, value, f"{key}={value}: {reason} (accepted: {accepted})")


def warning(config: Config, key: str, reason: str) -> Finding:
    value = get(config, key)
    return Finding("warning", key, value, f"{key}={value}: {reason}")


def name(config: Config, shape: ModelShape | None, where: Where | None) -> Iterator[Finding]:
    """A run without a name cannot be told from others in a table."""
    if (given := get(config, "run.name")) is not None and not given.strip():
        yield Finding("error", "run.name", given, f"run.name='{given}': a name is needed (accepted: any text)")
    project = get(config, "tracking.project")
    if project is not None and get(config, "tracking.wandb") != "disabled" and not PROJECT.fullmatch(project):
        yield error(config, "tracking.project", "W&B takes no such name", "1 to 128 characters without / \\ # ? % :")


def words(config: Config, shape: ModelShape | None, where: Where | None) -> Iterator[Finding]:
    """A misspelt word would fall through to some default branch."""
    for key, accepted in WORDS.items():
        if (value := get(config, key)) is not None and value not in accepted:
            yield error(config, key, "unknown", ", ".join(str(word) for word in accepted))


def numbers(config: Config, shape: ModelShape | None, where: Where | None) -> Iterator[Finding]:
    """Counts that cannot be so small, and rates that must be positive and finite."""
    for key, least in AT_LEAST.items():
        if (value := get(config, key)) is not None and not value >= least:
            yield error(config, key, "too small", f"{least} or more")
    for key, most in AT_MOST.items():
        if (value := get(config, key)) is not None and value > most:
            yield error(config, key, "too large", f"{AT_LEAST.get(key, 2)} to {most}")
    for key in ABOVE_ZERO:
        if (value := get(config, key)) is not None and not 0 < value < math.inf:
            yield error(config, key, "out of range", "a positive number" + (", null" if key.endswith("clip") else ""))
    betas = get(config, "optim.betas")
    if betas is not None and not (len(betas) == 2 and all(0 <= beta < 1 for beta in betas)):
        yield error(config, "optim.betas", "out of range", "two numbers from 0 to below 1")
    if (share := get(config, "rollout.memory_fraction")) is not None and not 0 < share < 1:
        yield error(config, "rollout.memory_fraction", "a share of the device", "a number between 0 and 1")
