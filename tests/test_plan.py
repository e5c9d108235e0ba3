"""The plan: its FLOPs against the ledger, its memory by hand, its printed sums against its printed numbers."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import planned
import pytest

from gspo import memory
from gspo.compute import Ledger
from gspo.config import conf_dir, register
from gspo.devices import DEVICES, GIB, Where, device, recognise
from gspo.plan import plan, render
from gspo.shape import find
from gspo.workload import choose, decode_seconds, flops_of_a_step, workload

P = 30_532_122_624


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
    ledger.add_rollout([x] * 64, [[y] * 8] * 64, 1.0, shared_prefix=True)
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


@pytest.mark.parametrize(("prompts", "waves", "experts"), [(64, 4, 128), (1, 1, 8)])
def test_decoding_time_of_experts_and_waves_by_hand(prompts: int, waves: int, experts: int) -> None:
    """8 h200, qwen3_30b_a3b: 13.0 GiB of cache hold 16 of an engine's 64 sequences, and 16 tokens reach every expert.

    One response an engine reaches 8 experts of a layer and no more. Kills: one wave, active experts only, all always.
    """
    config = planned.config({"train.prompts_per_step": prompts, "plan.prompt_tokens": 300})
    shape = find(config["model"])
    assert shape is not None
    seconds, _ = decode_seconds(config, shape, workload(config, Where(device("h200"), 8)), 0)
    weights = 2 * (48 * (18_874_368 + experts * 4_718_592 + 262_144) + 311_164_928)
    contexts = prompts * sum(300 + j for j in range(1, 8192))
    read = waves * 8192 * weights + contexts * 98_304
    assert seconds == pytest.approx(read / (4.8e12 * 0.6), rel=1e-6)


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
    """The rendered plan holds 30,532,122,624 parameters, the formula, the finding, and no line wider than asked."""
    text = render(plan(planned.config({"plan.device": "h200", "train.steps": 10})), width=120)
    assert "30,532,122,624" in text
    assert "3,041,656,832" in text
    assert "warning: train.steps=10" in text
    assert "J = 1/N sum_i min( s_i A_i" in text
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


def test_what_does_not_fit_this_computer_is_planned_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no accelerator the tiny MoE is planned for the CPU, 30 B parameters for a node of h200, and it is said."""
    monkeypatch.setattr("gspo.workload.here", lambda: (device("cpu"), 1))
    small, large = planned.tiny(), planned.config({"trainer.devices": None})
    shapes = find(small["model"]), find(large["model"])
    assert shapes[0] is not None
    assert shapes[1] is not None
    assert choose(small, shapes[0]).device.name == "cpu"
    where = choose(large, shapes[1])
    assert (where.device.name, where.devices) == ("h200", 8)
    assert "planned for h200" in where.note


def composed(overrides: list[str]) -> Any:
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    register()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return OmegaConf.to_container(
            compose("train", overrides=[*overrides, "run.dir=r", "run.name=r", "sweep.name=s"])
        )


@pytest.mark.parametrize("model", sorted(path.stem for path in (conf_dir() / "model").glob("*.yaml")))
def test_every_shipped_model_can_be_planned(model: str) -> None:
    """Each conf/model composes into a plan without an error on a node of h200, at its own lengths and batch."""
    config = composed([f"model={model}", "algo=gspo"]) | {"plan": {"device": "h200"}}
    assert [f.text for f in plan(config).findings if f.level == "error"] == []


def test_lengths_outside_the_settings_are_refused() -> None:
    """A plan for responses longer than max_tokens would be another run's."""
    with pytest.raises(
        ValueError, match=r"plan\.response_tokens=9000: longer than sampling\.max_tokens \(accepted: 1 to 8192"
    ):
        plan(planned.config({"plan.response_tokens": 9000}))
    with pytest.raises(ValueError, match=r"model\.path=nobody/nothing: no config\.json"):
        plan(planned.config({"model.path": "nobody/nothing"}))


def test_a_plan_needs_no_torch_and_no_time() -> None:
    """Planning 30 B parameters takes under 5 s of CPU in a new interpreter, without torch, vLLM or transformers."""
    code = (
        "import sys, planned; from gspo.plan import plan, render; render(plan(planned.config()));"
        "sys.exit(' '.join({'torch', 'vllm', 'transformers', 'wandb'} & set(sys.modules)) or None)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    here = Path(__file__).parent
    done = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (done.returncode, done.stderr) == (0, "")
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 5
