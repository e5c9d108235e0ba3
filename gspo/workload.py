"""A rollout step in counts, FLOPs and seconds of decoding, and the devices it is planned for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gspo import compute, memory
from gspo.devices import GIB, Where, device, here
from gspo.shape import ModelShape

NODE = 8
"""Accelerators planned for when the configuration names none."""
PROMPT = 256
"""Tokens of a prompt where neither the plan nor the context says less; GSM8K and MATH questions are mostly shorter."""


@dataclass(frozen=True, slots=True)
class Work:
    """One rollout step in counts."""

    prompts: int
    group: int
    minibatches: int
    prompt: int
    response: int
    shared_prefix: bool
    where: Where
    engines: int

    @property
    def sequences(self) -> int:
        return self.prompts * self.group

    @property
    def inputs(self) -> int:
        """Tokens of a sequence that the trainer's forward sees: the last one is only ever a target."""
        return self.prompt + self.response - 1


def choose(config: dict[str, Any], shape: ModelShape) -> Where:
    """Which devices to plan for, and how many.

    `plan.device` by name; else this computer's accelerators; else its CPU, or h200 for what does not fit there.
    `trainer.devices`, else all of this computer's, else 8 accelerators or 1 CPU process.
    Raises ValueError for an unknown name.
    """
    name, count = (config.get("plan") or {}).get("device"), config["trainer"].get("devices")
    local, number = here()
    if name is not None:
        chosen = device(name)
        default = number if local == chosen else NODE if chosen.cuda else 1
        return Where(chosen, count or default, "plan.device" + ("" if count else f", {default} assumed"))
    if local is None:
        raise ValueError("plan.device=None: this computer's accelerator is not in the table; name one to plan for")
    where = Where(local, count or number, "this computer")
    if local.cuda or max(memory.peaks(memory.parts(config, shape, where)).values()) <= memory.available(where):
        return where
    return Where(device("h200"), count or NODE, "too large for this computer's CPU: planned for h200 (see plan.device)")


def workload(config: dict[str, Any], where: Where) -> Work:
    """The counts of a rollout step. Raises ValueError for lengths that do not fit the context."""
    train, asked = config["train"], config.get("plan") or {}
    longest, context = config["sampling"]["max_tokens"], config["model"]["context"]
    response = asked.get("response_tokens") or longest
    prompt = asked.get("prompt_tokens") or max(min(context - longest, PROMPT), 1)
    if not 1 <= response <= longest:
        raise ValueError(f"plan.response_tokens={response}: 1 to sampling.max_tokens={longest} are accepted")
    if prompt < 1:
        raise ValueError(f"plan.prompt_tokens={prompt}: 1 or more is accepted")
    parallel = config["rollout"]["tensor_parallel"] if where.device.cuda else 1
    return Work(
        prompts=train["prompts_per_step"],
        group=train["group_size"],
        minibatches=train["minibatches"],
        prompt=prompt,
        response=response,
        shared_prefix=True,
        where=where,
        engines=max(where.devices // max(parallel, 1), 1) if where.device.cuda else config["rollout"]["workers"],
    )


def flops_of_a_step(config: dict[str, Any], shape: ModelShape, w: Work) -> dict[str, int]:
    """Executed FLOPs of a rollout step: prefill, decode, old_logp, update (recompute included)."""
    cached = w.prompt if w.shared_prefix else 0
    forward = w.sequences * compute.forward_flops(shape, [w.inputs], w.response)
    blocks = w.sequences * compute.forward_flops(shape, [w.inputs], 0)
    again = (blocks if memory.recomputes_blocks(config, w.where) else 0) + (forward - blocks)
    old = forward * (w.minibatches - 1) // w.minibatches if config["train"]["old_logp"] == "trainer" else 0
    return {
        "prefill": w.prompts * compute.prefill_flops(shape, w.prompt, w.group, cached),
        "decode": w.sequences * compute.decode_flops(shape, w.prompt, w.response),
        "old_logp": old,
        "update": 3 * forward + again,
    }


def decode_seconds(config: dict[str, Any], shape: ModelShape, w: Work, flops: int) -> tuple[float, str]:
    """Seconds of decoding, and the sum.

    Where the bandwidth is known each engine reads its weights once a token for as many sequences as its KV cache
    holds (of an MoE layer the experts that so many tokens can reach), and each sequence its own keys and values.
    Else FLOPs / (engines * peak * decode_share).
    """
    d, each = w.where.device, memory.engine_bytes_each(config, w.where.device)
    if d.bandwidth is None:
        peak = d.peak("bfloat16" if each == 2 else "float32")
        return flops / (w.engines * peak * d.decode_share), (
            f"{flops:.3e} / ({w.engines} * {peak:.3g} FLOP/s * {d.decode_share} assumed)"
        )
    per_token = memory.kv_per_token(shape, each)
    cache = next(part.bytes for part in memory.parts(config, shape, w.where) if part.name == "KV cache")
    share = w.where.devices / w.engines
    mine = -(-w.sequences // w.engines)
    at_once = max(1, min(mine, int(cache * share / per_token) // (w.prompt + w.response)))
    reached = min(shape.experts, at_once * shape.experts_per_token)
    weights = each * (shape.blocks_matmul(reached) + shape.head_matmul)
    waves = -(-mine // at_once)
    context = mine * compute.causal(w.inputs) - mine * compute.causal(w.prompt)
    bandwidth = share * d.bandwidth * d.decode_share
    read = waves * w.response * weights + context * per_token
    how = (
        f"({waves} waves of {at_once} sequences * {w.response:,} tokens * {weights / GIB:.1f} GiB weights"
        f" + {context:,} * {per_token:,} B KV) / ({share:g} * {d.bandwidth:.3g} B/s * {d.decode_share} assumed)"
    )
    return read / bandwidth, how
