"""A checkpoint as a Hugging Face directory: the same weights to transformers and to vLLM, whole or absent."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import torch
import yaml

from gspo import checkpoint, policy, shards
from gspo.config import RolloutSettings, SamplingSettings
from gspo.export import export
from gspo.rollout import agreement
from gspo.types import Prompt

PROMPT = Prompt("p", "1+2=", tuple(tiny.tokenizer().encode("1+2=")), "3", "tests")


def a_run(folder, kind):
    """A run directory with a checkpoint whose weights are not those of the model it began with; (run, the weights)."""
    home = folder / "model"
    tiny.tiny_model(kind).save_pretrained(home)
    tiny.tokenizer().save_pretrained(home)
    model = policy.load(home, experts_implementation=None, trust_remote_code=False, device="cpu")
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    run = folder / "run"
    checkpoint.save(run / "checkpoints", 3, tensors={"model": dict(model.named_parameters())}, state={"step": 3})
    settings = {"model": {"path": str(home), "name": kind, "experts_implementation": None}}
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    return run, model


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_transformers_loads_what_was_trained(tmp_path, kind):
    """Logits of the exported directory are those of the trained weights to the bit, tied heads and fused experts
    included; the tokenizer is the run's; in bfloat16 they are those weights rounded."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run, model = a_run(tmp_path, kind)
    out = export(run, tmp_path / "out")
    tokens = torch.tensor([PROMPT.token_ids])
    with torch.no_grad():
        expected = model.eval()(tokens).logits
        assert torch.equal(AutoModelForCausalLM.from_pretrained(out).eval()(tokens).logits, expected)
    assert AutoTokenizer.from_pretrained(out).encode("1+2=") == list(PROMPT.token_ids)
    assert {path.suffix for path in out.iterdir()} == {".json", ".safetensors"}
    half = export(run / "checkpoints" / "step_000003", tmp_path / "half", dtype="bfloat16")
    loaded = dict(AutoModelForCausalLM.from_pretrained(half, dtype=torch.bfloat16).named_parameters())
    assert all(torch.equal(loaded[name], weight.bfloat16()) for name, weight in model.named_parameters())


def test_a_checkpoint_of_several_ranks_is_whole(tmp_path):
    """Shards, moments among them, give an export and an evaluation the whole weights by name, to the bit."""
    from transformers import AutoModelForCausalLM

    run, model = a_run(tmp_path, "qwen3_moe")
    learner: Any = SimpleNamespace(model=model, optimizer=torch.optim.AdamW(model.parameters()))
    path = checkpoint.save(
        run / "checkpoints", 4, tensors={}, state={"step": 4}, fill=lambda folder: shards._write(folder, learner)
    )
    assert shards.are_in(path)
    assert not shards.are_in(run / "checkpoints" / "step_000003")
    expected = dict(model.named_parameters())
    found = shards.weights(path)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())
    loaded = dict(AutoModelForCausalLM.from_pretrained(export(run, tmp_path / "out")).named_parameters())
    assert all(torch.equal(loaded[name], weight) for name, weight in expected.items())


def test_refused_without_a_trace(tmp_path):
    """An `out` that exists, a damaged checkpoint, a directory without one, an unknown dtype: one line, nothing made."""
    run, _ = a_run(tmp_path, "llama")
    (tmp_path / "there").mkdir()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ValueError, match="there: exists; a new directory is needed"):
        export(run, tmp_path / "there")
    with pytest.raises(ValueError, match="dtype=int4: one of float32, bfloat16"):
        export(run, tmp_path / "out", dtype="int4")
    for source in ("there", "nowhere"):
        with pytest.raises(ValueError, match=rf"{source}: no checkpoint there \(accepted: a run directory, or RUN/"):
            export(tmp_path / source, tmp_path / "out")
    (run / "checkpoints" / "step_000003" / "state.json").write_text(json.dumps({}))
    with pytest.raises(ValueError, match=r"all 1 checkpoints in .* are damaged"):
        export(run, tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen3_moe", "qwen3"])
def test_vllm_loads_what_was_trained(tmp_path, kind):
    """vLLM, started on the exported directory, gives its samples the log-probs of the trained weights; those of the
    weights that the run began with are off by a hundred times the bound."""
    from gspo.rollout.vllm_local import VllmEngine

    run, model = a_run(tmp_path, kind)
    engine = VllmEngine(
        export(run, tmp_path / "out"), tiny.tokenizer(), RolloutSettings(), SamplingSettings(max_tokens=16),
        precision="float32", context=64, seed=0, max_batch=8, device="cpu",
    )  # fmt: skip
    try:
        (rollouts,) = engine.generate([PROMPT], 8, seed=0, step=0)
    finally:
        engine.close()
    first = policy.load(tmp_path / "model", experts_implementation=None, trust_remote_code=False, device="cpu")
    said = [value for rollout in rollouts for value in rollout.logp.tolist()]
    agreement.require(agreement.check(said, logp(model, rollouts), precision="float32"), "float32")
    with pytest.raises(agreement.WeightsOutOfSync):
        agreement.require(agreement.check(said, logp(first, rollouts), precision="float32"), "float32")


def logp(model, rollouts):
    """log pi of every sampled token, one plain forward a response."""
    found = []
    for rollout in rollouts:
        tokens = torch.tensor([[*PROMPT.token_ids, *rollout.token_ids.tolist()]])
        with torch.no_grad():
            all_logp = torch.log_softmax(model.eval()(tokens).logits[0].double(), -1)
        place = len(PROMPT.token_ids) - 1
        found += [all_logp[place + t, token].item() for t, token in enumerate(rollout.token_ids.tolist())]
    return found
