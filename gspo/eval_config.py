"""Schemas of conf/eval.yaml and conf/benchmark. Of the nodes that model files fill it has those, too, that evaluation
does not use."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gspo.config import EvalSettings, ModelSettings, RolloutSettings, RunSettings, SamplingSettings, conf_dir


@dataclass
class BenchmarkSettings:
    name: str = MISSING
    k: int = MISSING
    """Samples a problem."""
    problems: int | None = None
    """The first so many; null: all of a finite set."""
    data: dict[str, Any] = field(default_factory=dict)
    """`_target_` of a function that gives a Source, as in conf/data."""
    reward: dict[str, Any] = field(default_factory=dict)
    """`_target_` of a verifier, as in conf/reward."""
    columns: dict[str, Any] = field(default_factory=dict)
    """`_target_` of a function (prompts [P], correct [P][k]) that gives more columns of the row; empty: none."""


@dataclass
class EvalConfig:
    """Schema of conf/eval.yaml."""

    seed: int = MISSING
    """Of the sampling; sample g of a problem depends on it, the problem's id and g alone."""
    debug: bool = False
    """True: errors show their traceback."""
    run: RunSettings = field(default_factory=RunSettings)
    checkpoint: str | None = None
    """`RUN/checkpoints/step_NNNNNN`, or RUN for its newest; null: the model's own weights."""
    k: int | None = None
    """Samples a problem; null: the benchmark's."""
    problems: int | None = None
    """The first so many problems; null: the benchmark's."""
    max_batch: int = MISSING
    """Responses that the engine decodes at once."""
    threads: int = MISSING
    """CPU threads of torch in this process."""
    model: ModelSettings = field(default_factory=ModelSettings)
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    benchmark: BenchmarkSettings = field(default_factory=BenchmarkSettings)
    data: dict[str, Any] = field(default_factory=dict)
    """What the model trains on; not used."""
    reward: dict[str, Any] = field(default_factory=dict)
    """Not used: the benchmark names its verifier."""
    optim: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    eval: EvalSettings = field(default_factory=EvalSettings)
    """Evaluation during training; not used."""


UNUSED = ("data", "reward", "optim", "train", "trainer", "eval")
"""Keys that a model file may fill and an evaluation does not read."""


def benchmarks() -> list[str]:
    """Names of the files in conf/benchmark."""
    return sorted(path.stem for path in (conf_dir() / "benchmark").glob("*.yaml"))


def read_benchmark(name: str) -> BenchmarkSettings:
    """The benchmark of that name, for `eval.benchmark`. Raises ValueError for one that is not in conf/benchmark."""
    if name not in benchmarks():
        raise ValueError(f"eval.benchmark={name}: one of {', '.join(benchmarks())}")
    path: Path = conf_dir() / "benchmark" / f"{name}.yaml"
    node = yaml.safe_load(path.read_text(encoding="utf-8"))
    try:
        settings = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(BenchmarkSettings), node))
    except OmegaConfBaseException as error:
        raise ValueError(f"{path}: {str(error).splitlines()[0]}") from error
    assert isinstance(settings, BenchmarkSettings)
    return settings


def register() -> None:
    """Store the schemas that conf/eval.yaml starts from."""
    ConfigStore.instance().store(name="eval_schema", node=EvalConfig)
