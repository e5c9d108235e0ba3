"""A sound resolved configuration for the tests of plans and preflight: GSPO on qwen3_30b_a3b, 8 devices."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from gspo.config import Run

VALUES = {
    "seed": 0, "run.name": "r", "run.dir": "outputs/r", "sweep.name": "s",
    "train.steps": 100, "train.prompts_per_step": 64, "train.group_size": 8, "optim.lr": 1e-6,
    "sampling.max_tokens": 8192, "clip.low": 3e-4, "clip.high": 4e-4, "algo.name": "gspo",
    "algo.objective": {"_target_": "gspo.algorithms.objectives.gspo"},
    "algo.advantage": {"_target_": "gspo.algorithms.advantages.group_normalized"},
    "model.name": "qwen3_30b_a3b", "model.path": "Qwen/Qwen3-30B-A3B", "model.context": 10240,
    "rollout._target_": "gspo.rollout.vllm_local.VllmEngine",
    "trainer.devices": 8, "trainer.micro_batch_tokens": 16384,
}  # fmt: skip
TINY = {
    "model_type": "qwen3_moe", "vocab_size": 128, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "num_experts": 16, "num_experts_per_tok": 4,
    "moe_intermediate_size": 64, "max_position_embeddings": 1024, "tie_word_embeddings": False,
}  # fmt: skip


def config(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """The plain dict of a `Run` with VALUES and then `changes` at dotted keys."""
    tree = dataclasses.asdict(Run())
    for key, value in (VALUES | (changes or {})).items():
        *path, last = key.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[last] = copy.deepcopy(value)
    return tree


def tiny(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """The same for the tiny MoE on one CPU process."""
    small = {
        "model.name": "tiny", "model.path": "gspo:none-such", "model.init": TINY, "model.context": 256,
        "sampling.max_tokens": 64, "trainer.devices": None, "trainer.micro_batch_tokens": 4096,
    }  # fmt: skip
    return config(small | (changes or {}))
