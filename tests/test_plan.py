"""The plan: its memory against real tensors, its FLOPs against the ledger, its sums against themselves."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any

import planned
import pytest
import tiny
import torch

from gspo import linear_logp, memory
from gspo.compute import Ledger
from gspo.devices import DEVICES, GIB, Where, device, recognise
from gspo.plan import plan, render
from gspo.shape import ModelShape, find
from gspo.workload import choose, decode_seconds, flops_of_a_step, workload

P = 30_532_122_624
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


@pytest.mark.parametrize("how", ["float32", "fsdp2", "autocast"])
@pytest.mark.parametrize("kind", tiny.KINDS)
def test_activations_are_what_autograd_keeps(kind: str, how: str) -> None:
    """Bytes a token and layer are the tensors that autograd keeps (slope over layers and tokens) within 5 %.

    Under autocast torch's CPU experts stay in float32, which is not what a GPU does: the MoE is not compared there.
    """
    if kind == "qwen3_moe" and how == "autocast":
        pytest.skip("CPU autocast leaves grouped_mm in float32")

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
    parts = {p.name: p.bytes for p in memory.parts(planned.tiny(), of(kind), Where(device("cpu"), 1))}

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


def test_thirty_billion_on_eight_h200_by_hand() -> None:
    """Each part of qwen3_30b_a3b on 8 devices from its definition: masters, moments, gathered blocks, engine, cache."""
    numbers = plan(planned.config({"plan.device": "h200"})).numbers
    attention, expert, router, embedding = 18_874_368, 4_718_592, 262_144, 311_164_928
    block = attention + 128 * expert + router
    by_hand = {
        "master weights": P * 4 / 8,
        "gradients": P * 4 / 8,
        "AdamW moments": P * 8 / 8,
        "gathered weights": 2 * (2 * block + 2 * embedding),
        "gathered gradients": 6 * block + 2 * 2 * embedding,
        # bf16 inputs of 48 layers, and one layer being recomputed with its gradients
        "activations": 16384 * (48 * 2048 * 2 + 2 * (16 * 2048 + 10 * 36 * 128 + 8 * (8 * 768 + 4 * 2048))),
        "engine weights": P * 2,
        "KV cache": 0.5 * 139.8 * 2**30 - P * 2,
    }
    assert {name: numbers[f"memory/{name}"] for name in by_hand} == pytest.approx(by_hand, rel=1e-6)
    held = sum(numbers[f"memory/{n}"] for n in ("master weights", "AdamW moments", "engine weights", "KV cache"))
    assert numbers["memory/at generation"] == held


def test_offload_moves_the_moments_where_needed() -> None:
    """`auto` keeps AdamW's moments on an h200 and moves them off an h100 while generating; the backward keeps them."""
    config = planned.config({"trainer.offload": "auto"})
    shape = find(config["model"])
    assert shape is not None
    at = {
        name: next(p.at for p in memory.parts(config, shape, Where(device(name), 8)) if p.name == "AdamW moments")
        for name in ("h200", "h100")
    }
    assert at == {"h200": memory.MOMENTS, "h100": ("backward", "optimizer step")}


@pytest.mark.parametrize("changes", [{}, {"trainer.devices": 1}, {"train.old_logp": "sampler"}], ids=str)
@pytest.mark.parametrize("engine", ["vllm_local.VllmEngine", "hf.HfEngine"])
def test_flops_are_what_the_ledger_would_count(changes: dict[str, Any], engine: str) -> None:
    """The plan of a step equals the ledger fed with the same lengths, recompute and prefix sharing as stated."""
    config = planned.config(changes | {"rollout._target_": f"gspo.rollout.{engine}", "plan.prompt_tokens": 300})
    shape = find(config["model"])
    where = Where(device("h200"), config["trainer"]["devices"])
    assert shape is not None
    ledger, n, x, y = Ledger(shape, None), 64 * 8, 300, 8192
    ledger.add_rollout([x] * 64, [[y] * 8] * 64, 1.0, shared_prefix=engine.startswith("vllm"))
    if config["train"]["old_logp"] == "trainer":
        ledger.add_forward("old_logp", [x + y - 1] * (n * 3 // 4), n * 3 // 4 * y, 1.0)
    ledger.add_update([x + y - 1] * n, n * y, 1.0, recompute_blocks=where.devices > 1, recompute_head=True)
    flops = flops_of_a_step(config, shape, workload(config, where))
    assert flops["prefill"] + flops["decode"] == ledger.flops["rollout"]
    assert (flops["old_logp"], flops["update"]) == (ledger.flops["old_logp"], ledger.flops["update"])


def test_decoding_time_by_hand() -> None:
    """One h200, 64 sequences of qwen3_4b at once: weights once a token, keys and values of the whole context each."""
    changes = {
        "model.path": "Qwen/Qwen3-4B",
        "train.prompts_per_step": 8,
        "plan.prompt_tokens": 100,
        "sampling.max_tokens": 1000,
    }
    config = planned.config(changes | {"trainer.devices": 1})
    shape = find(config["model"])
    assert shape is not None
    seconds, _ = decode_seconds(config, shape, workload(config, Where(device("h200"), 1)), 0)
    weights = 2 * (4_022_468_096 - 36 * (2 * 2560 + 2 * 128) - 2560)
    contexts = 64 * sum(100 + j for j in range(1, 1000))
    cache = 2 * 36 * 8 * 128 * 2
    assert seconds == pytest.approx((1000 * weights + contexts * cache) / (4.8e12 * 0.6), rel=1e-6)


def test_every_printed_sum_gives_its_number() -> None:
    """What stands beside a number, computed as written, is that number: the reader's check by hand, done here."""
    for config in (planned.config({"plan.device": "h200"}), planned.tiny()):
        out, checked = plan(config), 0
        for rows in out.sections.values():
            for name, shown, sum_of in rows:
                text = re.sub(r"\b(B|tokens|positions|prompts|responses)\b|\(foreach\)|,(?=\d{3})", "", sum_of)
                if not re.fullmatch(r"[\d.e+*/() -]+", text) or not text.strip("0123456789. "):
                    continue
                value = re.fullmatch(r"([\d,.e+]+) ?(GiB|MiB|B|s|h)?", shown)
                assert value, (name, shown)
                unit = {"GiB": GIB, "MiB": 2**20}.get(value.group(2), 1)
                assert float(value.group(1).replace(",", "")) * unit == pytest.approx(eval(text), rel=0.06), name
                checked += 1
        assert checked >= 14


def test_the_whole_sums_are_in_the_text() -> None:
    """The rendered plan holds 30,532,122,624 parameters, the finding, and no line wider than asked."""
    text = render(plan(planned.config({"plan.device": "h200", "train.steps": 10})), width=120)
    assert "30,532,122,624" in text
    assert "3,041,656,832" in text
    assert "warning: train.steps=10" in text
    assert max(map(len, text.split("warning:")[0].splitlines())) <= 120


def test_devices_are_chosen_and_named() -> None:
    """A named device wins, 8 of them where no number is given; unknown names and other variants are not guessed at."""
    config = planned.config()
    shape = find(config["model"])
    assert shape is not None
    named = choose(planned.config({"plan.device": "a100", "trainer.devices": None}), shape)
    assert (named.device.name, named.devices) == ("a100", 8)
    with pytest.raises(ValueError, match=r"plan\.device=v100: accepted are h200, h100, a100, l40s, cpu"):
        choose(planned.config({"plan.device": "v100"}), shape)
    products = {
        "NVIDIA H200": "h200",
        "NVIDIA H100 80GB HBM3": "h100",
        "NVIDIA A100-SXM4-80GB": "a100",
        "NVIDIA L40S": "l40s",
    }
    assert {p: d.name for p in products if (d := recognise(p))} == products
    assert [recognise(p) for p in ("NVIDIA A100-SXM4-40GB", "NVIDIA H100 PCIe", "Tesla T4")] == [None] * 3
    assert all(d.source for d in DEVICES.values())


def test_lengths_outside_the_settings_are_refused() -> None:
    """A plan for responses longer than max_tokens would be another run's."""
    with pytest.raises(ValueError, match=r"plan\.response_tokens=9000: 1 to sampling\.max_tokens=8192"):
        plan(planned.config({"plan.response_tokens": 9000}))
    with pytest.raises(ValueError, match=r"model\.path=nobody/nothing: no config\.json"):
        plan(planned.config({"model.path": "nobody/nothing"}))


def test_a_plan_needs_no_torch_and_no_time() -> None:
    """Planning 30 B parameters takes under 5 s in a fresh interpreter and imports no torch, vLLM or transformers."""
    code = (
        "import sys, planned; from gspo.plan import plan, render; render(plan(planned.config()));"
        "sys.exit(' '.join({'torch', 'vllm', 'transformers', 'wandb'} & set(sys.modules)) or None)"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], cwd="tests", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert time.perf_counter() - start < 5
