"""What is wrong with the settings of a cold start, before torch is imported."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from gspo import preflight
from gspo.sft_config import SftConfig
from gspo.tracking import run_dir

MANY = 10**6


def check(config: SftConfig) -> None:
    """Raise ValueError when the output exists, and for settings that are not fit to train a model from scratch."""
    preflight.require(dataclasses.asdict(config))
    if Path(config.output).exists():
        raise ValueError(f"output={config.output}: exists; it is left as it is, choose another")
    run_dir.require_room(Path(config.output), "output")
    if "model_type" not in (config.model.init or {}):
        raise ValueError(
            f"model.init={config.model.init}: model_type and its keywords are needed to start from scratch"
        )
    if config.model.chat_template:
        raise ValueError("model.chat_template=true: the character tokenizer has no template; false is accepted")
    sft = config.sft
    for key, value, low, high in (
        ("sft.target_pass_rate", sft.target_pass_rate, 0, 1),
        ("sft.least_pass_rate", sft.least_pass_rate, 0, sft.target_pass_rate),
        ("sft.least_mixed", sft.least_mixed, 0, 1),
        ("sft.level_accuracy", sft.level_accuracy, 0, 1),
        ("sft.slip_rate", sft.slip_rate, 0, 1),
        ("sft.batch", sft.batch, 2, MANY),
        ("sft.measure_every", sft.measure_every, 1, MANY),
        ("sft.record_prompts", sft.record_prompts, 1, MANY),
        ("sft.max_updates", sft.max_updates, 1, MANY),
        ("train.group_size", config.train.group_size, 2, MANY),
    ):
        if not low <= value <= high:
            raise ValueError(f"{key}={value}: out of range (accepted: {low} to {high})")
