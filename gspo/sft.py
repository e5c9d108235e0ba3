"""The cold start: supervised training of a tiny model on reference solutions, to a target pass rate.

Problems grow by level until the model can do the longest. Then the solutions have slips, which a model that imitates
them learns to make, until no more than the target share of its samples is right and most groups are mixed:
reinforcement learning starts from a policy that is right sometimes and wrong sometimes at every length.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gspo import sft_check
from gspo.binding import bind
from gspo.data import Row, Source
from gspo.devices import keep_memory
from gspo.pass_rate import PassRate, measure
from gspo.pretrained import character_tokenizer
from gspo.sft_config import SftConfig
from gspo.sft_data import chains, level_sources, micro_batches
from gspo.sft_display import Display
from gspo.trial import judged_kinds

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

RECORD = "cold_start.json"
RUNNING_MEAN = 0.9
"""Weight of the past in the running accuracy of a level."""


class PassRateNotReached(RuntimeError):
    """Training gave up after `sft.max_updates`."""


def run(config: SftConfig, *, command: str = "gspo-sft") -> Path:
    """Train from scratch as `config` says and save a transformers directory in bfloat16; returns it.

    One thread, seeded: the same settings, machine and versions give the same weights. `command` goes into the record.
    Raises ValueError for wrong settings before anything is trained, PassRateNotReached when the target is out of reach.
    """
    from transformers.utils.logging import disable_progress_bar

    check(config)
    disable_progress_bar()
    torch.set_num_threads(1)
    keep_memory()
    torch.manual_seed(config.seed)
    started = time.perf_counter()
    tokenizer = character_tokenizer()
    model = from_scratch(config, tokenizer)
    with Display(config.sft.max_updates, config.sft.target_pass_rate) as display:
        updates = train(model, tokenizer, config, display)
    model.to(torch.bfloat16).to(torch.float32)  # pyright: ignore  (what is measured is what is saved)
    rate = measured(model, tokenizer, config, chains(config, seed=config.seed), 0, config.sft.record_prompts)
    record = {
        "command": command,
        "seed": config.seed,
        "pass_rate": rate.mean,
        "mixed_groups": rate.mixed,
        "by_terms": rate.by_terms,
        "prompts": config.sft.record_prompts,
        "group_size": config.train.group_size,
        "temperature": config.sampling.temperature,
        "data": config.data,
        "updates": updates,
        "seconds": round(time.perf_counter() - started, 1),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    return save(model, tokenizer, Path(config.output), record)


def check(config: SftConfig) -> None:
    """Raise ValueError when the output exists, or settings, model and data are not fit to be trained from scratch."""
    sft_check.check(config)
    if not {"min_terms", "max_terms"} <= config.data.keys() or "solution" not in chains(config, seed=0).row(0).meta:
        raise ValueError(f"data._target_={config.data.get('_target_')}: min_terms, max_terms and solutions are needed")
    kinds = judged_kinds(config.reward)
    if kinds is not None and "math" not in kinds:
        named = f"reward._target_={config.reward.get('_target_')}"
        raise ValueError(f"{named}: chains have an answer, not tests (accepted: reward=math)")
    longest = config.data["max_terms"]
    if not 2 <= config.sft.first_terms <= longest:
        raise ValueError(f"sft.first_terms={config.sft.first_terms}: out of range (accepted: 2 to {longest})")


def from_scratch(config: SftConfig, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """A model of transformers' keywords `model.init`, float32, its weights drawn from torch's generator.

    Raises ValueError for keywords that make none.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    experts = config.model.experts_implementation
    more = {} if experts is None else {"experts_implementation": experts}
    try:
        shape = AutoConfig.for_model(**(config.model.init or {}), **ids)
        model = AutoModelForCausalLM.from_config(shape, dtype=torch.float32, trust_remote_code=False, **more)
    except Exception as error:  # whatever transformers and torch say of a size that makes no sense
        raise ValueError(f"model.init={config.model.init}: {type(error).__name__}: {error}") from error
    for name, value in ids.items():
        setattr(model.generation_config, name, value)
    return model


def train(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: SftConfig, display: Display) -> int:
    """Cross-entropy on solutions: right ones, level by level, then such with slips; returns the updates made.

    The slips make the skilled model unsure; training ends when its pass rate is down to the target, its groups mixed.
    """
    sft, optim = config.sft, config.optim
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=optim.lr,
        betas=(optim.betas[0], optim.betas[1]),
        eps=optim.eps,
        weight_decay=optim.weight_decay,
    )
    seed = -1 - config.seed  # not the chains that a run with the same seed is shown
    longest, level, accuracy = config.data["max_terms"], sft.first_terms, 0.0
    own, any_length = level_sources(config, level, seed)
    for update in range(1, sft.max_updates + 1):
        first = update * sft.batch
        rows = [(own if i % 2 else any_length).row(first + i) for i in range(sft.batch)]
        for group in optimizer.param_groups:
            group["lr"] = optim.lr * min(1.0, update / max(optim.warmup_steps, 1))
        loss, right = step(model, tokenizer, rows, optimizer, config)
        accuracy = RUNNING_MEAN * accuracy + (1 - RUNNING_MEAN) * right[1::2].float().mean().item()
        display.update(update, level, loss, accuracy)
        if (
            level > longest
            and update % sft.measure_every == 0
            and fit_to_start(model, tokenizer, config, first, display)
        ):
            return update
        if level <= longest and accuracy > sft.level_accuracy:
            level, accuracy = level + 1, 0.0
            own, any_length = level_sources(config, level, seed)
    raise PassRateNotReached(
        f"sft.max_updates={sft.max_updates}: the pass rate did not settle between sft.least_pass_rate="
        f"{sft.least_pass_rate} and sft.target_pass_rate={sft.target_pass_rate} with sft.least_mixed={sft.least_mixed} "
        f"of the groups mixed"
    )


def fit_to_start(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: SftConfig, first: int, display: Display
) -> bool:
    """The pass rate lies from the least to the target and enough groups are mixed: on a few prompts, then on those of a
    record."""
    probe = chains(config, seed=-1 - config.seed)
    for prompts in (config.train.prompts_per_step, config.sft.record_prompts):
        rate = measured(model, tokenizer, config, probe, first, prompts)
        display.measured(rate)
        settled = config.sft.least_pass_rate <= rate.mean <= config.sft.target_pass_rate
        if not settled or rate.mixed < config.sft.least_mixed:
            return False
    return True


def step(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
    optimizer: torch.optim.Optimizer,
    config: SftConfig,
) -> tuple[float, Tensor]:
    """One optimiser step on the mean cross-entropy of all solution tokens; returns it (nats), and which rows are right.

    Right `[rows]` bool: every token of the solution is the likeliest after those before it.
    """
    model.train()
    optimizer.zero_grad(set_to_none=True)
    batches = list(micro_batches(tokenizer, rows, config.trainer.micro_batch_tokens))
    tokens = sum(int((targets >= 0).sum()) for _, _, targets in batches)
    loss, right = 0.0, torch.zeros(len(rows), dtype=torch.bool)
    for where, inputs, targets in batches:
        logits = model(input_ids=inputs, use_cache=False).logits
        part = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / tokens
        part.backward()
        loss += part.item()
        right[where] = ((logits.argmax(-1) == targets) | (targets < 0)).all(-1)
    limit = float("inf") if config.optim.grad_clip is None else config.optim.grad_clip
    torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
    optimizer.step()
    return loss, right


def measured(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    config: SftConfig,
    source: Source,
    first: int,
    prompts: int,
) -> PassRate:
    """The pass rate on `prompts` rows from row `first` on, sampled as the settings say."""
    model.eval()
    return measure(
        model,
        tokenizer,
        [source.row(first + i) for i in range(prompts)],
        reward=bind(config.reward, "reward"),
        group_size=config.train.group_size,
        max_tokens=config.sampling.max_tokens,
        temperature=config.sampling.temperature,
        seed=config.seed + first,
    )


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, target: Path, record: dict[str, Any]) -> Path:
    """Model, tokenizer and record (with the hash of the weights) in `target`, which appears whole or not at all."""
    scratch = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(scratch)  # pyright: ignore
    tokenizer.save_pretrained(scratch)
    digest = hashlib.sha256((scratch / "model.safetensors").read_bytes()).hexdigest()
    (scratch / RECORD).write_text(json.dumps(record | {"sha256": digest}, indent=2) + "\n", encoding="utf-8")
    return scratch.rename(target)
