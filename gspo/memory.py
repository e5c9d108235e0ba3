"""Memory of one device by part, and when each part is there. Arithmetic only; no torch.

W is the number of devices that share the model (FSDP2), P its parameters. Left out: the CUDA context, NCCL's buffers,
fragmentation, and a few vectors a token. Activations are what autograd keeps of transformers' modules with fused
attention; a test compares them with the tensors that are really kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gspo.devices import GIB, Device, Where
from gspo.shape import ModelShape

LOGITS = {"cpu": 2**25, "cuda": 2**28}
"""Logits held at once: gspo.linear_logp.CHUNK."""
MOMENTS = ("backward", "optimizer step", "generation")
"""The three moments of a step at which the memory may be fullest."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a device's memory."""

    name: str
    bytes: int
    at: tuple[str, ...]
    """At which of MOMENTS it is there; none: a step of another part's sum."""
    arithmetic: str


def precision(config: dict[str, Any], device: Device) -> str:
    """`float32` or `bfloat16`: trainer.precision, where auto is bfloat16 on CUDA."""
    asked = config["trainer"]["precision"]
    return ("bfloat16" if device.cuda else "float32") if asked == "auto" else asked


def engine_bytes_each(config: dict[str, Any], device: Device) -> int:
    """Bytes of a weight (and of a KV entry) in the engine: rollout.dtype, where auto is the trainer's precision."""
    dtype = config["rollout"]["dtype"]
    return 2 if (precision(config, device) if dtype == "auto" else dtype) == "bfloat16" else 4


def recomputes_blocks(config: dict[str, Any], where: Where) -> bool:
    """Activation checkpointing: trainer.activation_checkpointing, or where that is not set, on several GPUs."""
    asked = config["trainer"].get("activation_checkpointing")
    return where.device.cuda and where.devices > 1 if asked is None else bool(asked)


def micro_batch_tokens(config: dict[str, Any]) -> int:
    """Tokens of the fullest micro-batch: its budget, or one sequence as long as the context allows."""
    return max(config["trainer"]["micro_batch_tokens"], config["model"]["context"])


def kv_per_token(shape: ModelShape, each: int) -> int:
    """Keys and values of a token: 2 * layers * kv_heads * head_dim * bytes."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * each


def layer_activations(shape: ModelShape, low: bool, sharded: bool, moe: bool) -> tuple[int, str]:
    """Bytes that autograd keeps of one layer for one token, and the sum.

    Two norms keep their input, its normalised copy and the product with the weight: 6 values of `hidden`, in float32
    24 B; in bfloat16 16 B under FSDP2 (the inputs upcast) and 26 B under autocast (a float32 residual, five casts).
    Attention keeps q and k after the rotary embedding, v, and the output: 2 b (heads + kv_heads) head_dim, and with
    q and k norms their input in float32 and its normalised copy: 4 + b more. An MLP keeps gate, up, silu and product:
    4 b intermediate; k experts also their inputs and outputs: k (4 b moe_intermediate + 2 b hidden).
    """
    b = 2 if low else 4
    hidden = (16 if sharded else 26) if low else 24
    norms = 4 + b if shape.family.startswith("qwen3") else 0
    mlp, how = 4 * b * shape.intermediate, f"{4 * b} B * {shape.intermediate}"
    if moe:
        mlp = shape.experts_per_token * (4 * b * shape.moe_intermediate + 2 * b * shape.hidden)
        how = f"{shape.experts_per_token} * ({4 * b} B * {shape.moe_intermediate} + {2 * b} B * {shape.hidden})"
    count = hidden * shape.hidden + (2 * b + norms) * (shape.heads + shape.kv_heads) * shape.head_dim + mlp
    heads = f"{2 * b + norms} B * ({shape.heads} + {shape.kv_heads}) * {shape.head_dim}"
    return count, f"{hidden} B * {shape.hidden} + {heads} + {how}"


def largest_block(shape: ModelShape) -> int:
    """Matmul parameters of the largest layer."""
    dense = shape.mlp_matmul if shape.layers > shape.moe_layers else 0
    moe = shape.experts * shape.expert_matmul + shape.router_matmul if shape.moe_layers else 0
    return shape.attention_matmul + max(dense, moe)


def parts(config: dict[str, Any], shape: ModelShape, where: Where) -> list[Part]:
    """Every part of one device's memory, in bytes.

    With `offloads`, AdamW's moments are on the host while the engine generates.
    """
    rest = [*_pass(config, shape, where), *_engine(config, shape, where)]
    return _weights(shape, where, offloads(config, shape, where)) + rest


def offloads(config: dict[str, Any], shape: ModelShape, where: Where) -> bool:
    """trainer.offload, where `auto` means: if AdamW's moments would not fit beside the engine."""
    asked = config["trainer"].get("offload")
    if asked != "auto":
        return bool(asked)
    found = [*_weights(shape, where, False), *_engine(config, shape, where)]
    return where.device.cuda and peaks(found)["generation"] > available(where)


def peaks(found: list[Part]) -> dict[str, int]:
    """Bytes at each of MOMENTS."""
    return {moment: sum(part.bytes for part in found if moment in part.at) for moment in MOMENTS}


def available(where: Where) -> int:
    """Bytes for one rank: the device's, or on the CPU an equal share of the computer's."""
    return where.device.bytes if where.device.cuda else where.device.bytes // where.devices


def _weights(shape: ModelShape, where: Where, offload: bool) -> list[Part]:
    p, w = shape.parameters, where.devices
    over = f"{p:,} / {w}" if w > 1 else f"{p:,}"
    held = MOMENTS[:2] if offload and where.device.cuda else MOMENTS
    # On a GPU gradients are freed before the engine wakes up.
    gradients = MOMENTS[:2] if where.device.cuda else MOMENTS
    found = [
        Part("master weights", 4 * p // w, MOMENTS, f"4 B * {over}"),
        Part("gradients", 4 * p // w, gradients, f"4 B * {over}"),
        Part("AdamW moments", 8 * p // w, held, f"2 * 4 B * {over}"),
    ]
    if where.device.cuda:
        found.append(Part("AdamW temporaries", 4 * p // w, ("optimizer step",), f"4 B * {over} (foreach)"))
    return found


def _pass(config: dict[str, Any], shape: ModelShape, where: Where) -> list[Part]:
    low, sharded = precision(config, where.device) == "bfloat16", where.devices > 1
    b, tokens, now = 2 if low else 4, micro_batch_tokens(config), ("backward",)
    found = []
    block, root = largest_block(shape), shape.embeddings
    if sharded:
        found += [
            Part("gathered weights", b * (2 * block + root), now, f"{b} B * (2 * {block:,} + {root:,})"),
            Part("gathered gradients", (b + 4) * block + b * root, now, f"{b + 4} B * {block:,} + {b} B * {root:,}"),
        ]
    elif low:
        found.append(Part("bf16 copies", 2 * shape.parameters, now, f"2 B * {shape.parameters:,} (autocast)"))
    dense, moe = (layer_activations(shape, low, sharded, kind)[0] for kind in (False, True))
    largest = shape.moe_layers > 0 and (moe > dense or shape.moe_layers == shape.layers)
    one, how = layer_activations(shape, low, sharded, largest)
    found.append(Part("  a layer's, a token", one, (), how))
    if recomputes_blocks(config, where):
        residual = b if sharded else 4
        kept = shape.layers * shape.hidden * residual + 2 * one
        how = f"{tokens:,} tokens * ({shape.layers} * {shape.hidden} * {residual} B + 2 * {one:,} B)"
    elif 0 < shape.moe_layers < shape.layers:
        kept = dense * (shape.layers - shape.moe_layers) + moe * shape.moe_layers + one
        layers = f"{shape.layers - shape.moe_layers} * {dense:,} B + {shape.moe_layers} * {moe:,} B"
        how = f"{tokens:,} tokens * ({layers} + {one:,} B)"
    else:
        kept, how = (shape.layers + 1) * one, f"{tokens:,} tokens * ({shape.layers} + 1) * {one:,} B"
    found.append(Part("activations", tokens * kept, now, how))
    rows = max(1, min(tokens, LOGITS["cuda" if where.device.cuda else "cpu"] // shape.vocab))
    head = (6 if low and where.device.cuda else 4) * shape.head_matmul
    how = f"2 * 4 B * {rows:,} positions * {shape.vocab:,} + {head // shape.head_matmul} B * {shape.head_matmul:,}"
    found.append(Part("logits chunk and head", 8 * rows * shape.vocab + head, now, how))
    return found


def _engine(config: dict[str, Any], shape: ModelShape, where: Where) -> list[Part]:
    rollout, each, cuda = config["rollout"], engine_bytes_each(config, where.device), where.device.cuda
    # On a GPU vLLM sleeps while the trainer works; every other engine keeps its memory.
    when = ("generation",) if cuda and not is_hf(config) else MOMENTS
    share = rollout["tensor_parallel"] if cuda else 1
    weights, per_token = each * shape.parameters // share, kv_per_token(shape, each)
    over = f"{shape.parameters:,} / {share}" if share > 1 else f"{shape.parameters:,}"
    if is_hf(config):
        n = config["train"]["prompts_per_step"] * config["train"]["group_size"]
        kv = n * config["model"]["context"] * per_token
        how = f"{n} sequences * {config['model']['context']:,} tokens * {per_token:,} B, at most"
    elif cuda:
        kv = max(int(rollout["memory_fraction"] * where.device.bytes) - weights, 0)
        how = f"{rollout['memory_fraction']} * {where.device.bytes / GIB:.1f} GiB - engine weights"
    else:
        kv, how = rollout["kv_cache_gb"] * GIB, f"rollout.kv_cache_gb={rollout['kv_cache_gb']}"
    if (workers := rollout.get("workers") or 1) > 1:
        weights, over, kv, how = weights * workers, f"{over} * {workers} workers", kv * workers, f"{how} * {workers}"
    return [
        Part("engine weights", weights, when, f"{each} B * {over}"),
        Part(
            "  keys and values, a token",
            per_token,
            (),
            f"2 * {shape.layers} * {shape.kv_heads} * {shape.head_dim} * {each} B",
        ),
        Part("KV cache", kv, when, how),
    ]


def is_hf(config: dict[str, Any]) -> bool:
    """Whether transformers generates: its cache grows with the batch instead of being reserved."""
    return str(config["rollout"].get("_target_")).startswith("gspo.rollout.hf.")
