"""Memory by part against the tensors that torch and transformers really hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import planned
import pytest
import tiny
import torch

from gspo import linear_logp, memory
from gspo.devices import Where, device
from gspo.shape import ModelShape

WIDE = {"hidden_size": 96, "intermediate_size": 208, "head_dim": 32}
MOE = {"moe_intermediate_size": 56, "num_experts_per_tok": 3}


def kept_bytes(kind: str, layers: int, length: int, *, cast: bool, autocast: bool) -> int:
    """Bytes of all tensors that autograd really keeps of a transformers model's layers, its parameters aside."""
    changes = WIDE | {"num_hidden_layers": layers} | (MOE if kind == "qwen3_moe" else {})
    config = tiny.config(kind, **changes)
    if kind == "qwen3_moe":
        config._experts_implementation = "grouped_mm"
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if cast else torch.float32)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    tokens = torch.randint(0, tiny.VOCAB, (2, length), generator=torch.Generator().manual_seed(0))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t), torch.autocast("cpu", enabled=autocast):
        model.model(tokens, use_cache=False)
    return sum(t.untyped_storage().nbytes() for pointer, t in kept.items() if pointer not in own)


ONE = Where(device("cpu"), 1)
CASES = [(kind, how) for kind in tiny.KINDS for how in ("float32", "fsdp2", "autocast")]
CASES.remove(("qwen3_moe", "autocast"))  # on the CPU autocast leaves the experts in float32, which a GPU does not


@pytest.mark.parametrize(("kind", "how"), CASES)
def test_activations_are_what_autograd_keeps(kind: str, how: str) -> None:
    """Bytes a token and layer are the tensors that autograd keeps (slope over layers and tokens) within 5 %."""

    def kept(layers: int, length: int) -> int:
        return kept_bytes(kind, layers, length, cast=how == "fsdp2", autocast=how == "autocast")

    slope = (kept(3, 128) - kept(2, 128) - kept(3, 64) + kept(2, 64)) / (2 * 64)
    changes = WIDE | (MOE if kind == "qwen3_moe" else {})
    shape = ModelShape.from_config(tiny.config(kind, **changes).to_dict())
    expected, _ = memory.layer_activations(shape, how != "float32", how == "fsdp2", kind == "qwen3_moe")
    assert slope == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_weights_gradients_and_moments_are_the_real_tensors(kind: str) -> None:
    """Bytes of masters, gradients and AdamW moments equal those of a model after one step, to the byte."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(tiny.config(kind), dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 8, dtype=torch.long)).logits.sum().backward()
    optimizer.step()
    parts = {p.name: p.bytes for p in memory.parts(planned.tiny(), of(kind), ONE)}

    def count(tensors: Iterable[Any]) -> int:
        return sum(t.nbytes for t in tensors if t.ndim)

    assert parts["master weights"] == count(model.parameters())
    assert parts["gradients"] == count(p.grad for p in model.parameters())
    assert parts["AdamW moments"] == count(t for s in optimizer.state.values() for t in s.values())


def of(kind: str) -> ModelShape:
    return ModelShape.from_config(tiny.config(kind).to_dict())


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_kv_bytes_are_the_caches(kind: str) -> None:
    """Keys and values of a token are what transformers' cache holds; kills heads for kv_heads, one for both."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(tiny.config(kind), dtype=torch.float32)
    cache = model(torch.ones(1, 24, dtype=torch.long), use_cache=True).past_key_values
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert memory.kv_per_token(of(kind), 4) == held / 24


def test_the_logits_chunk_is_the_trainers() -> None:
    """The plan counts the chunk that the log-probs really use."""
    assert memory.LOGITS == linear_logp.CHUNK


def test_ranks_on_a_cpu_share_its_memory() -> None:
    """Two processes have half of the computer each; two GPUs have all of their own."""
    cpu, gpu = device("cpu"), device("h200")
    assert memory.available(Where(cpu, 2)) == cpu.bytes // 2
    assert memory.available(Where(gpu, 2)) == gpu.bytes


def test_one_long_sequence_may_exceed_the_budget() -> None:
    """A micro-batch holds at least one sequence, so its activations are those of model.context where that is more."""
    small, large = (
        {p.name: p.bytes for p in memory.parts(planned.tiny({"trainer.micro_batch_tokens": n}), of("qwen3"), ONE)}
        for n in (16, 256)
    )
    assert small["activations"] == large["activations"]
