"""The learner on one GPU, unattended, in minutes: log-probs and updates of models with random weights.

`python scripts/bench_gpu.py` needs torch and transformers only. A row a model and way of running it: padded or packed
rows, whole or as FSDP2 with a world of one. `--smoke` runs the same code on small shapes, on the CPU as well.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from gspo import parallel, policy
from gspo.algorithms.objectives import gspo
from gspo.compute import backward_flops, forward_flops
from gspo.config import ClipSettings, OptimSettings
from gspo.devices import GIB, recognise
from gspo.learner import Learner
from gspo.parallel import World
from gspo.shape import ASSETS, ModelShape
from gspo.types import Batch

CLIP = {"clip_low": 3e-4, "clip_high": 4e-4}
SMALL = {
    "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 128,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    shape: str
    """A file of gspo/assets/shapes."""
    layers: int | None = None
    """Layers kept; None: all. A 30B-A3B with its optimiser does not fit on one device."""
    packed: bool = True
    fsdp: bool = False
    checkpointing: bool = False


CASES = [
    Case("dense 0.6B, padded", "qwen3_0_6b", packed=False),
    Case("dense 0.6B, packed", "qwen3_0_6b"),
    Case("dense 0.6B, packed, FSDP2 of one", "qwen3_0_6b", fsdp=True),
    Case("dense 4B, packed", "qwen3_4b", checkpointing=True),
    Case("dense 4B, packed, FSDP2 of one", "qwen3_4b", fsdp=True, checkpointing=True),
    Case("MoE 128 experts, 6 layers, padded", "qwen3_30b_a3b", layers=6, packed=False),
    Case("MoE 128 experts, 6 layers, packed", "qwen3_30b_a3b", layers=6),
    Case("MoE 128 experts, 6 layers, packed, FSDP2 of one", "qwen3_30b_a3b", layers=6, fsdp=True),
]


def configuration(case: Case, small: bool) -> dict[str, Any]:
    """transformers' configuration of a case."""
    config = json.loads((ASSETS / "shapes" / f"{case.shape}.json").read_text(encoding="utf-8"))
    config |= {"num_hidden_layers": case.layers} if case.layers else {}
    if small:
        config |= SMALL
        if config["model_type"] == "qwen3_moe":
            config |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    return {key: value for key, value in config.items() if not key.startswith("_")}


def random_batch(sequences: int, longest: int, vocab: int) -> Batch:
    """Prompts of an eighth of `longest` and responses up to the rest of it, half of it on average."""
    draw = torch.Generator().manual_seed(0)
    prompt = max(longest // 8, 1)
    lengths = prompt + torch.randint(1, longest - prompt + 1, (sequences,), generator=draw)
    width = int(lengths.max())
    place = torch.arange(width - 1)[None]
    mask = (place >= prompt - 1) & (place < lengths[:, None] - 1)
    return Batch(
        tokens=torch.randint(0, vocab, (sequences, width), generator=draw),
        lengths=lengths,
        mask=mask,
        sampler_logp=torch.zeros(mask.shape),
        adv=torch.randn(sequences, generator=draw),
        group=torch.arange(sequences) // 8,
        row=torch.arange(sequences),
        num_sequences=sequences,
        num_tokens=int(mask.sum()),
    )


def build(case: Case, config: dict[str, Any], device: str, micro_batch_tokens: int) -> Learner:
    """A learner on random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    low = device == "cuda"
    kind = config.pop("model_type")
    kernel = {"experts_implementation": "grouped_mm"} if kind == "qwen3_moe" else {}
    with torch.device(device):
        model: Any = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(kind, **config), dtype=torch.float32, **kernel
        )
    model.config.use_cache = False
    model.train()
    if case.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    packed = case.packed and low
    if packed:
        policy.use_varlen(model)
    world = World(device=device)
    if case.fsdp:
        model = parallel.shard(model, world, precision="bfloat16" if low else "float32", even_one=True)
    return Learner(
        model,
        OptimSettings(lr=1e-6),
        ClipSettings(low=3e-4, high=4e-4),
        precision="bfloat16" if low else "float32",
        temperature=1.0,
        old_logp="trainer",
        micro_batch_tokens=micro_batch_tokens,
        total_updates=100,
        packed=packed or case.packed,
        world=world,
    )


def measure(case: Case, device: str, small: bool) -> dict[str, Any]:
    """Seconds and rates of the second log-prob pass and of the second and third update; the peak of memory."""
    config = configuration(case, small)
    shape = ModelShape.from_config(config)
    batch = random_batch(8, 64, shape.vocab) if small else random_batch(64, 2048, shape.vocab)
    learner = build(case, config, device, 128 if small else 16_384)
    objective = functools.partial(gspo, **CLIP)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    learner.logp(batch)
    passes = [seconds(lambda: learner.logp(batch), device) for _ in range(2)]
    updates = [seconds(lambda: learner.update(batch, objective, on_policy=True), device) for _ in range(3)][1:]
    tokens, lengths = int((batch.lengths - 1).sum()), (batch.lengths - 1).tolist()
    forward = forward_flops(shape, lengths, batch.num_tokens)
    both = forward + backward_flops(shape, lengths, batch.num_tokens)
    found = recognise(torch.cuda.get_device_name()) if device == "cuda" else None
    peak = found.bf16 if found else None
    return {
        "case": case.name,
        "parameters": f"{sum(p.numel() for p in learner.model.parameters()) / 1e9:.2f}e9",
        "log-probs tokens/s": round(tokens / min(passes)),
        "log-probs MFU": f"{forward / min(passes) / peak:.1%}" if peak else "",
        "update tokens/s": round(tokens / min(updates)),
        "update MFU": f"{both / min(updates) / peak:.1%}" if peak else "",
        "peak GiB": round(torch.cuda.max_memory_allocated() / GIB, 1) if device == "cuda" else "",
    }


def seconds(run: Any, device: str) -> float:
    """Wall seconds of a call, the device's work included."""
    if device == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def rows(device: str, small: bool, limit: float) -> Iterator[dict[str, Any]]:
    """A row a case until `limit` seconds are over; a case that does not fit says so and the others go on."""
    begun = time.perf_counter()
    for case in CASES:
        if time.perf_counter() - begun > limit:
            yield {"case": case.name, "left out": f"{limit:.0f} s were over"}
            continue
        try:
            yield measure(case, device, small)
        except torch.OutOfMemoryError as error:
            yield {"case": case.name, "left out": str(error).splitlines()[0]}
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="small shapes, on the CPU where there is no GPU")
    parser.add_argument("--limit", type=float, default=420, help="seconds after which no case is begun")
    options = parser.parse_args()
    if not torch.cuda.is_available() and not options.smoke:
        parser.error("no CUDA device is here (accepted: --smoke runs small shapes on the CPU)")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "RANK": "0", "WORLD_SIZE": "1"}
    parallel.join()
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(
        f"{time.strftime('%Y-%m-%d')} {name}, torch {torch.__version__}, 64 sequences of up to 2,048 tokens", flush=True
    )
    for row in rows(device, options.smoke, options.limit):
        print(json.dumps(row), flush=True)
    parallel.leave()


if __name__ == "__main__":
    main()
