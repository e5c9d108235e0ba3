"""What is wrong, or odd, with a configuration, before anything is loaded. No torch.

Each check is one function (config, shape, where) that yields findings; `config` is the resolved plain configuration,
`shape` and `where` are None where they are not known. An error stops the run (exit code 2), a warning is printed and
stored in run.json. Types and unknown keys are the schema's business (config.py), combinations the functions' own.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator

from gspo import memory
from gspo.devices import GIB, Where, here
from gspo.formula import clipped_ratio, formula
from gspo.ranges import Config, Finding, error, get, name, numbers, warning, words
from gspo.shape import ModelShape, find

COLLAPSE_STEPS = 40
"""Fewer steps than this leave collapse undetermined (T - 20 steps are watched for 20 steps each)."""
LEVEL_BORDER = 0.01
"""Clip ranges of the field lie below it at sequence level (3e-4) and above it at token level (0.2)."""


def findings(config: Config, shape: ModelShape | None = None, where: Where | None = None) -> list[Finding]:
    """Everything to say about a configuration, errors first."""
    found = [finding for check_one in CHECKS for finding in check_one(config, shape, where)]
    return sorted(found, key=lambda finding: finding.level)


def check(config: Config) -> list[Finding]:
    """The warnings of a run that is about to start on this computer.

    Raises ValueError with every error, on one line.
    """
    device, count = here()
    where = None if device is None else Where(device, config["trainer"].get("devices") or count)
    found = findings(config, shape_of(config), where)
    errors = [finding.text for finding in found if finding.level == "error"]
    if errors:
        raise ValueError("; ".join(errors))
    return found


def shape_of(config: Config) -> ModelShape | None:
    """The model's shape; None where it is not known. Raises ValueError for a config.json that cannot be read."""
    try:
        return find(config["model"])
    except (OSError, ValueError) as wrong:
        raise ValueError(f"model.path={get(config, 'model.path')}: its config.json cannot be read: {wrong}") from wrong


def require(config: Config) -> None:
    """Raise ValueError for words, numbers and lengths that mean nothing, whatever is done with the configuration."""
    shape = shape_of(config)
    found = [one for check_one in (words, numbers, group, context, sampler) for one in check_one(config, shape, None)]
    if errors := [one.text for one in found if one.level == "error"]:
        raise ValueError("; ".join(errors))


def group(config: Config, shape: ModelShape | None, where: Where | None) -> Iterator[Finding]:
    """The advantage compares the responses of a group: one alone has nothing to be compared with."""
    if (size := get(config, "train.group_size")) is not None and size < 2:
        yield error(config, "train.group_size", "an advantage compares the responses of a group", "2 or more")


def minibatches(config: Config, shape: ModelShape | None, where: Where | None) -> Iterator[Finding]:
    """Whole groups are dealt out to the mini-batches, evenly."""
    prompts, parts = get(config, "train.prompts_per_step"), get(config, "train.minibatches")
    if prompts and parts and prompts > 0 and parts > 0 and prompts % parts:
        divisors = [str(n) for n in range(1, min(prompts, 1024) + 1) if prompts % n == 0]
        reason = f"does not divide train.prompts_per_step={prompts}, whose groups are dealt out evenly"
        yield error(config, "train.minibatches", reason, ", ".join(divisors))


def clip_can_bind(config: Config, shape: ModelShape | None, where: Where | None) -> Iterator[Finding]:
    """With one update per rollout the policy that is updated is the one that sampled, so every ratio is 1."""
    clipped = get(config, "clip.low") is not None or get(config, "clip.high") is not None
    if get(config, "train.minibatches") == 1 and clipped and get(config, "train.old_logp") != "sampler":
        reason = "the clip cannot bind: with one update per rollout every ratio is 1 (the paper uses 4)"
        yield warning(config, "train.minibatches", reason)


def context(config: Config, shape: ModelShape | None, where: Where | None) -> Iterator[Finding]:
    """Prompt and response share the context, which cannot exceed the positions the model was made for."""
    longest, length = get(config, "sampling.max_tokens"), get(config, "model.context")
    if longest is None or length is None:
        return
    if longest >= length:
        reason = f"context too short: model.context={length} leaves no room for a prompt"
        yield error(config, "sampling.max_tokens", reason, f"1 to {length - 1}")
    if (planned := get(config, "plan.response_tokens")) is not None and planned > longest:
        yield error(config, "plan.response_tokens", "longer than sampling.max_tokens", f"1 to {longest}, null")
    if shape is not None and 0 < shape.max_positions < length:
        yield error(config, "model.context", "longer than the model's positions", f"2 to {shape.max_positions}")


def sampler(config: Config, shape: ModelShape | None, where: Where | None) -> Iterator[Finding]:
    """A sampler that is not softmax(logits / temperature) is another policy than the one trained."""
    if (top_p := get(config, "sampling.top_p")) is not None and top_p != 1:
        yield error(config, "sampling.top_p", "a truncated sampler is another policy than the one trained", "1")
    if (top_k := get(config, "sampling.top_k")) is not None and top_k != -1:
        yield error(config, "sampling.top_k", "a truncated sampler is another policy than the one trained", "-1")
    temperature = get(config, "sampling.temperature")
    if temperature is not None and not temperature < math.inf:
        yield error(config, "sampling.temperature", "must be finite", "0.01 or more")
    elif temperature is not None and temperature < 0.01:
        yield error(config, "sampling.temperature", "greedy sampling gives equal responses", "0.01 or more")


def clip(config: Config, shape: ModelShape | None, where: Where | None) -> Iterator[Finding]:
    """1 - eps_L must stay between 0 and 1, and 1 + eps_R above 1."""
    low, high = get(config, "clip.low"), get(config, "clip.high")
    if low is not None and not 0 < low < 1:
        yield error(config, "clip.low", "1 - eps_L must lie between 0 and 1", "a number between 0 and 1, or null")
    if high is not None and not 0 < high < math.inf:
        yield error(config, "clip.high", "1 + eps_R must lie above 1", "a positive number, or null")


def clip_takes_effect(config: Config, shape: ModelShape | None, where: Where | None) -> Iterator[Finding]:
    """A clip that the objective's formula does not contain would be ignored."""
    line = formula(get(config, "algo.objective"))
    if line is None:
        return
    for key, symbol in (("clip.low", "eL"), ("clip.high", "eR")):
        if get(config, key) is not None and symbol not in line and not re.search(r"\b(clip|b)\(", line):
            yield error(config, key, f"would be ignored: the objective is {line}", "null")


def clip_level(config: Config, shape: ModelShape | None, where: Where | None) -> Iterator[Finding]:
    """A length-normalised ratio moves in the fourth decimal, a token's ratio in the first: the ranges do not swap."""
    ratio = clipped_ratio(formula(get(config, "algo.objective")) or "")
    for key in ("clip.low", "clip.high"):
        eps = get(config, key)
        if ratio is None or eps is None:
            continue
        if ratio.startswith("s") and eps >= LEVEL_BORDER:
            yield warning(config, key, "unusually wide for a sequence-level ratio (paper: 3e-4 and 4e-4)")
        if ratio.startswith("w") and eps < LEVEL_BORDER:
            yield warning(config, key, "unusually narrow for a token-level ratio (paper: 0.2 and 0.27)")


def sampler_precision(config: Config, shape: ModelShape | None, where: Where | None) -> Iterator[Finding]:
    """In bfloat16 engine and trainer differ by more over a response (4e-4 to 2e-3 a token) than GSPO's range."""
    asked = {get(config, "trainer.precision"), get(config, "rollout.dtype")}
    low = "bfloat16" in asked or ("auto" in asked and where is not None and where.device.cuda)
    if get(config, "train.old_logp") == "sampler" and low:
        reason = "with bfloat16 the mismatch of sampler and trainer is wider than the paper's clip range for s_i"
        yield warning(config, "train.old_logp", reason)


def replay(config: Config, shape: ModelShape | None, where: Where | None) -> Iterator[Finding]:
    """Only a router chooses experts whose choice could be replayed, or whose load evened out."""
    dense = shape is not None and not shape.experts
    if get(config, "train.routing_replay") == "old" and dense:
        yield error(config, "train.routing_replay", f"{get(config, 'model.name')} is dense, it has no routes", "off")
    if get(config, "model.experts_implementation") is not None and dense:
        reason = f"{get(config, 'model.name')} is dense, it has no experts"
        yield error(config, "model.experts_implementation", reason, "null")
    if get(config, "train.aux_loss_coef") and dense:
        yield error(config, "train.aux_loss_coef", f"{get(config, 'model.name')} is dense, it has no router", "0")


def no_effect(config: Config, shape: ModelShape | None, where: Where | None) -> Iterator[Finding]:
    """What another setting switches off."""
    if get(config, "model.thinking") is not None and get(config, "model.chat_template") is False:
        yield error(config, "model.thinking", "has no effect with model.chat_template=false", "null")
    for key in ("eval.benchmark", "eval.k", "eval.problems"):
        if get(config, key) is not None and not get(config, "eval.every"):
            yield warning(config, key, "has no effect with eval.every=0")


def schedule(config: Config, shape: ModelShape | None, where: Where | None) -> Iterator[Finding]:
    """What too short a run leaves undone: a collapse undetermined, optim.lr never reached, a stage never begun."""
    steps, parts, warmup = (get(config, k) for k in ("train.steps", "train.minibatches", "optim.warmup_steps"))
    if steps is not None and 0 < steps < COLLAPSE_STEPS:
        yield warning(config, "train.steps", f"collapse stays undetermined in runs under {COLLAPSE_STEPS} steps")
    if steps and parts and warmup and warmup >= steps * parts:
        yield warning(config, "optim.warmup_steps", f"optim.lr is never reached in {steps * parts} optimiser steps")
    stages = get(config, "data.stages")
    for stage in stages if isinstance(stages, list) else ():
        begins = stage.get("step") if isinstance(stage, dict) else None
        if steps and isinstance(begins, int) and begins >= steps:
            yield warning(config, "data.stages", f"the stage from step {begins} on begins after train.steps={steps}")


def devices(config: Config, shape: ModelShape | None, where: Where | None) -> Iterator[Finding]:
    """Engines of equal size share the ranks; settings of the other kind of device would be ignored."""
    if where is None:
        return
    parallel = get(config, "rollout.tensor_parallel") or 1
    if not where.device.cuda and where.devices > (most := max(os.cpu_count() or 1, 64)):
        yield error(config, "trainer.devices", "more ranks than CPUs", f"1 to {most}")
    if where.devices % max(parallel, 1) or (parallel > 1 and not where.device.cuda):
        fits = [str(n) for n in range(1, where.devices + 1) if where.devices % n == 0] if where.device.cuda else ["1"]
        yield error(config, "rollout.tensor_parallel", f"{where.devices} {where.device.name} devices", ", ".join(fits))
    key, default = ("rollout.kv_cache_gb", 1) if where.device.cuda else ("rollout.memory_fraction", 0.5)
    if get(config, key) not in (None, default):
        yield error(config, key, f"has no effect on {where.device.name}", f"{default} (leave it out)")
    if get(config, "trainer.offload") is True and not where.device.cuda:
        yield error(config, "trainer.offload", f"has no effect on {where.device.name}", "auto (leave it out)")


def device_memory(config: Config, shape: ModelShape | None, where: Where | None) -> Iterator[Finding]:
    """A run that cannot fit is refused before its weights are loaded. Needs sound numbers: see the other checks."""
    if shape is None or where is None:
        return
    if any(one.level == "error" for check_one in (words, numbers, devices) for one in check_one(config, shape, where)):
        return
    found = memory.parts(config, shape, where)
    moment, peak = max(memory.peaks(found).items(), key=lambda item: item[1])
    limit = memory.available(where)
    needs = f"{peak / GIB:.1f} GiB at {moment}, {where.device.name} has {limit / GIB:.1f} GiB a rank"
    remedy = "what fits; more trainer.devices, a smaller trainer.micro_batch_tokens or model.context help"
    if peak > limit:
        yield error(config, "model.name", f"needs {needs}", remedy)
    elif peak > 0.9 * limit:
        yield warning(config, "model.name", f"tight: needs {needs}")
    kv = next(part.bytes for part in found if part.name == "KV cache")
    one = memory.kv_per_token(shape, memory.engine_bytes_each(config, where.device)) * config["model"]["context"]
    share = config["rollout"]["tensor_parallel"] if where.device.cuda else 1
    if kv * share < one:
        key = "rollout.memory_fraction" if where.device.cuda else "rollout.kv_cache_gb"
        reason = f"the KV cache, {kv * share / GIB:.2f} GiB, does not hold one sequence of model.context"
        yield error(config, key, reason, f"room for {one / GIB:.2f} GiB; rollout.tensor_parallel divides the weights")


CHECKS: tuple[Callable[[Config, ModelShape | None, Where | None], Iterator[Finding]], ...] = (
    words, name, numbers, group, minibatches, context, sampler, clip, clip_takes_effect, replay, devices,
    no_effect, device_memory, clip_can_bind, clip_level, sampler_precision, schedule,
)  # fmt: skip
