"""Schema of conf/sft.yaml. Of the nodes that model files fill it has the keys that supervised training uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from gspo.config import ModelSettings, OptimSettings, SamplingSettings


@dataclass
class GroupShape:
    prompts_per_step: int = MISSING
    """Prompts of one measurement of the pass rate."""
    group_size: int = MISSING
    """Responses to a prompt: what *mixed* means depends on it."""


@dataclass
class MicroBatch:
    micro_batch_tokens: int = MISSING
    """Padded tokens of one forward pass; an update with more is accumulated."""


@dataclass
class SftSettings:
    first_terms: int = MISSING
    """Length of the chains of the first level; each level adds one, up to `data.max_terms`."""
    batch: int = MISSING
    """Chains of an update; half of them at the level's own length, half at any length up to it."""
    level_accuracy: float = MISSING
    """Share of the level's own chains predicted right (greedy, running mean) that opens the next level."""
    slip_rate: float = MISSING
    """Share of the totals that the solutions of the last level get wrong."""
    target_pass_rate: float = MISSING
    """The last level ends at this share of right answers or less, sampled at `sampling.temperature` on the data."""
    least_pass_rate: float = MISSING
    """And not at less than this."""
    least_mixed: float = MISSING
    """Nor before this share of the groups has right and wrong answers."""
    measure_every: int = MISSING
    """Updates of the last level between measurements of the pass rate."""
    record_prompts: int = MISSING
    """Prompts of the measurement that confirms the target, and of the one in the record."""
    max_updates: int = MISSING
    """Updates after which training gives up."""


@dataclass
class SftConfig:
    seed: int = MISSING
    debug: bool = False
    """True: errors show their traceback."""
    output: str = MISSING
    """Directory of the trained model; refused if it exists."""
    sft: SftSettings = field(default_factory=SftSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    data: dict[str, Any] = field(default_factory=dict)
    reward: dict[str, Any] = field(default_factory=dict)
    """The verifier that the model file names: what counts as right in the pass rate."""
    optim: OptimSettings = field(default_factory=OptimSettings)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    train: GroupShape = field(default_factory=GroupShape)
    trainer: MicroBatch = field(default_factory=MicroBatch)


def register() -> None:
    """Store the schema that conf/sft.yaml starts from."""
    ConfigStore.instance().store(name="sft_schema", node=SftConfig)
