"""Preflight: each error names key, value and what is accepted; each warning comes when, and only when, it should."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import planned
import pytest

from gspo import preflight, ranges
from gspo.devices import Where, device
from gspo.formula import clipped_ratio, formula
from gspo.shape import find

NODE = Where(device("h200"), 8)
CPU = Where(device("cpu"), 1)


def found(changes: dict[str, Any], where: Where | None = NODE) -> list[preflight.Finding]:
    config = planned.config(changes)
    return preflight.findings(config, find(config["model"]), where)


def test_a_sound_configuration_has_no_findings() -> None:
    """The paper's settings on a node of h200, and the tiny run on a CPU, raise nothing: no false alarms."""
    assert found({}) == []
    tiny = planned.tiny()
    assert preflight.findings(tiny, find(tiny["model"]), CPU) == []


ERRORS = [
    ("train.group_size", 1, "2 or more"),
    ("train.minibatches", 5, "1, 2, 4, 8, 16, 32, 64"),
    ("train.minibatches", 0, "1 or more"),
    ("train.prompts_per_step", -4, "1 or more"),
    ("train.steps", 0, "1 or more"),
    ("train.max_skipped", 0, "1 or more"),
    ("train.old_logp", "engine", "trainer, sampler"),
    ("optim.schedule", "cos", "constant, linear, cosine"),
    ("optim.lr", 0.0, "positive"),
    ("optim.lr", -1e-6, "positive"),
    ("optim.lr", float("nan"), "positive"),
    ("optim.lr", float("inf"), "positive"),
    ("optim.grad_clip", 0.0, "null"),
    ("optim.eps", 0.0, "positive"),
    ("optim.betas", (0.9, 1.0), "below 1"),
    ("optim.warmup_steps", -1, "0 or more"),
    ("sampling.top_p", 0.95, "1"),
    ("sampling.top_k", 20, "-1"),
    ("sampling.temperature", 0.0, "0.01 or more"),
    ("sampling.temperature", float("nan"), "0.01 or more"),
    ("sampling.max_tokens", 10240, "1 to 10239"),
    ("sampling.max_tokens", 0, "1 or more"),
    ("model.context", 65536, "40960"),
    ("clip.low", 1.0, "between 0 and 1, or null"),
    ("clip.low", -0.2, "between 0 and 1, or null"),
    ("clip.high", 0.0, "positive number, or null"),
    ("trainer.precision", "fp16", "auto, float32, bfloat16"),
    ("trainer.devices", 0, "1 or more"),
    ("trainer.micro_batch_tokens", 0, "1 or more"),
    ("rollout.dtype", "half", "auto, float32, bfloat16"),
    ("rollout.tensor_parallel", 3, "1, 2, 4, 8"),
    ("rollout.memory_fraction", 1.5, "between 0 and 1"),
    ("rollout.kv_cache_gb", 4, "leave it out"),
    ("tracking.wandb", "on", "disabled, offline, online"),
    ("checkpoint.every", -1, "0 or more"),
    ("seed", -1, "0 or more"),
]


@pytest.mark.parametrize(("key", "value", "accepted"), ERRORS, ids=[f"{key}={value}" for key, value, _ in ERRORS])
def test_errors_name_key_value_and_what_is_accepted(key: str, value: Any, accepted: str) -> None:
    """Each wrong value gives an error on its own key, on one line, that says key=value and what would do."""
    errors = [f for f in found({key: value}) if f.level == "error"]
    assert [f.key for f in errors] == [key]
    assert errors[0].text.startswith(f"{key}={value}: ")
    assert accepted in errors[0].text.partition("(accepted: ")[2]
    assert "\n" not in errors[0].text


def test_null_is_a_value_where_it_means_off() -> None:
    """An open clip, an unclipped gradient, keep-all and all devices are settings, not mistakes."""
    off = {"clip.low": None, "clip.high": None, "optim.grad_clip": None, "checkpoint.keep_last": None}
    assert found(off | {"trainer.devices": None}) == []


GRPO = {"algo.objective": {"_target_": "gspo.algorithms.objectives.grpo"}, "clip.low": 0.2, "clip.high": 0.27}
WARNINGS = [
    ({"train.minibatches": 1}, ["train.minibatches"]),
    ({"train.minibatches": 1, "clip.low": None, "clip.high": None}, []),
    ({"clip.high": 0.2}, ["clip.high"]),
    ({"clip.low": 0.01}, ["clip.low"]),
    ({"clip.low": 0.0099}, []),
    (GRPO, []),
    (GRPO | {"clip.low": 3e-4, "clip.high": 4e-4}, ["clip.low", "clip.high"]),
    (GRPO | {"clip.low": 0.01}, []),
    ({"train.old_logp": "sampler"}, ["train.old_logp"]),
    ({"train.steps": 39}, ["train.steps"]),
    ({"train.steps": 40}, []),
    ({"optim.warmup_steps": 400}, ["optim.warmup_steps"]),
    ({"optim.warmup_steps": 399}, []),
    ({"data.stages": [{"step": 50}, {"step": 100}]}, ["data.stages"]),
    ({"data.stages": [{"step": 99}]}, []),
]


@pytest.mark.parametrize(("changes", "keys"), WARNINGS, ids=[str(changes) for changes, _ in WARNINGS])
def test_warnings_come_when_they_should(changes: dict[str, Any], keys: list[str]) -> None:
    """One update a rollout, a range of the other level, bf16 sampler values, short runs: and not a step earlier."""
    assert [f.key for f in found(changes) if f.level == "warning"] == keys


def test_bf16_is_seen_where_auto_means_it() -> None:
    """`auto` is bfloat16 on a GPU and float32 on the CPU: the same configuration warns there and not here."""
    config = planned.tiny({"train.old_logp": "sampler"})
    shape = find(config["model"])
    assert [f.key for f in preflight.findings(config, shape, Where(device("h200"), 1))] == ["train.old_logp"]
    assert preflight.findings(config, shape, CPU) == []


def test_memory_over_the_device_is_an_error_that_shows_the_sum() -> None:
    """30 B parameters with fp32 masters do not fit one h200 nor this CPU; on 8 x h100 generation is what is over."""
    one = found({"trainer.devices": 1}, Where(device("h200"), 1))
    assert [f.key for f in one if f.level == "error"] == ["model.name"]
    # 16 B a parameter for masters, gradients and moments is 455 GiB before anything else.
    assert float(one[0].text.partition("needs ")[2].split()[0]) > 16 * 30_532_122_624 / 2**30
    eight = found({"trainer.offload": False}, Where(device("h100"), 8))
    assert "at generation" in eight[0].text
    assert found({}, None) == [], "without a known device nothing is claimed about memory"


def test_kv_cache_must_hold_one_sequence() -> None:
    """56.9 GiB of engine weights leave nothing of half an h100; tensor parallelism over 4 does."""
    keys = {"trainer.offload": True}
    errors = found(keys, Where(device("h100"), 8))
    assert [f.key for f in errors if f.level == "error"] == ["rollout.memory_fraction"]
    assert "rollout.tensor_parallel" in errors[0].text
    assert not [f for f in found(keys | {"rollout.tensor_parallel": 4}, Where(device("h100"), 8)) if f.level == "error"]


def test_a_tensor_parallel_cache_is_shared() -> None:
    """Four h100 hold a quarter of each key and value: 0.3 GiB a device is room for 0.94 GiB, a sequence; 0.2 is not."""
    keys = {"trainer.offload": True, "rollout.tensor_parallel": 4}
    levels = {
        fraction: [
            f.level
            for f in found(keys | {"rollout.memory_fraction": fraction}, Where(device("h100"), 8))
            if f.key != "model.name"
        ]
        for fraction in ((14.22 + 0.3) / 79.1, (14.22 + 0.2) / 79.1)
    }
    assert list(levels.values()) == [[], ["error"]]


def test_a_tight_fit_is_a_warning() -> None:
    """126.5 of 139.8 GiB is over nine tenths: allowed, and said."""
    assert [(f.level, f.key) for f in found({"rollout.memory_fraction": 0.6})] == [("warning", "model.name")]


def test_gpu_settings_are_refused_on_the_cpu() -> None:
    """An option that would be ignored is refused: memory_fraction and tensor_parallel on the CPU."""
    config = planned.tiny({"rollout.memory_fraction": 0.9, "rollout.tensor_parallel": 2})
    errors = preflight.findings(config, find(config["model"]), CPU)
    assert [f.key for f in errors] == ["rollout.tensor_parallel", "rollout.memory_fraction"]


LEVELS = {
    "objectives.grpo": "w_it", "objectives.gspo": "s_i", "objectives.gspo_token": "s_it", "hybrids.dapo": "w_it",
    "hybrids.grpo_seqclip": "s_i", "hybrids.gspo_tokenclip": "w_it", "hybrids.dr_grpo": "w_it",
    "hybrids.cispo": "w_it", "hybrids.gmpo": "w_it", "hybrids.reinforce": None,
}  # fmt: skip


@pytest.mark.parametrize(("name", "ratio"), LEVELS.items())
def test_the_clipped_ratio_is_read_from_the_formula(name: str, ratio: str | None) -> None:
    """Which ratio the clip tests comes from the objective's own `J =` line, hybrids included, not from its name."""
    line = formula({"_target_": f"gspo.algorithms.{name}"})
    assert line is not None
    assert clipped_ratio(line) == ratio


def test_a_clip_that_the_formula_lacks_is_refused() -> None:
    """REINFORCE has no ratio and CISPO no lower side: a range given there would be ignored."""
    reinforce = {"algo.objective": {"_target_": "gspo.algorithms.hybrids.reinforce"}}
    assert [f.key for f in found(reinforce) if f.level == "error"] == ["clip.low", "clip.high"]
    cispo = {"algo.objective": {"_target_": "gspo.algorithms.hybrids.cispo"}, "clip.high": 0.2}
    assert [f.key for f in found(cispo) if f.level == "error"] == ["clip.low"]
    assert found(cispo | {"clip.low": None}) == []


def test_an_objective_of_the_users_own_is_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function outside the package is read without being run; one without a formula is left alone."""
    (tmp_path / "mine.py").write_text(
        'raise RuntimeError("imported")\ndef f(logp):\n    """Mine.\n\n    J = clip(s_i, 1-eL, 1+eR)\n    """\n'
        'def g(logp):\n    """No formula."""\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [f.key for f in found({"algo.objective": {"_target_": "mine.f"}, "clip.low": 0.2})] == ["clip.low"]
    assert found({"algo.objective": {"_target_": "mine.g"}, "clip.low": 0.2}) == []
    assert found({"algo.objective": {"_target_": "nowhere.f"}}) == []


def test_check_raises_every_error_and_returns_warnings() -> None:
    """gspo-train's entry: errors together on one line, warnings handed back for run.json."""
    with pytest.raises(ValueError, match=r"^optim\.lr=0: .*; train\.group_size=1: [^\n]*$"):
        preflight.check(planned.tiny({"train.group_size": 1, "optim.lr": 0}))
    assert [f.key for f in preflight.check(planned.tiny({"train.steps": 10}))] == ["train.steps"]


def test_every_check_is_in_the_table() -> None:
    """A check that is written but not called would say nothing for ever."""
    checks = {
        f.name
        for module in (preflight, ranges)
        for f in ast.parse(inspect.getsource(module)).body
        if isinstance(f, ast.FunctionDef) and [a.arg for a in f.args.args] == ["config", "shape", "where"]
    }
    assert checks - {"findings"} == {check.__name__ for check in preflight.CHECKS}
