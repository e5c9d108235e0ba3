"""The engine holds the trainer's weights: exactly, after every update, and a check that fails when it does not."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file
from torch import nn

from gspo.config import RolloutSettings, SamplingSettings
from gspo.rollout import agreement, vllm_weights
from gspo.rollout.contract import checked
from gspo.rollout.experts import fuse, unfuse
from gspo.rollout.hf import HfEngine, weight_shapes
from gspo.rollout.vllm_local import VllmEngine, available
from gspo.types import Prompt

VARIANTS = {
    "qwen3_moe": ("qwen3_moe", {}),
    "qwen3": ("qwen3", {}),
    "llama": ("llama", {}),
    "padded vocabulary, experts and a dense layer": (
        "qwen3_moe",
        {"vocab_size": 101, "moe_intermediate_size": 48, "mlp_only_layers": [0]},
    ),
    "tied experts": ("qwen3_moe", {"tie_word_embeddings": True}),
    "biases, untied": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}),
}


def start(kind: str, path: Path, variant: str, precision: str = "float32") -> Any:
    """An engine on a variant with the weights of seed 0."""
    architecture, changes = VARIANTS[variant]
    return {"hf": HfEngine, "vllm": VllmEngine}[kind](
        tiny.tiny_model_dir(architecture, path, **changes),
        tiny.tokenizer(),
        RolloutSettings(),
        SamplingSettings(max_tokens=12),
        precision=precision,
        context=256,
        seed=0,
        max_batch=16,
        device="cpu",
    )


@pytest.fixture(scope="module")
def vllm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, str]]:
    """A vLLM engine on (variant, precision), and the variant; tests of one engine run together, engines in turn."""
    if reason := available("cpu"):
        pytest.skip(reason)
    engine = start("vllm", tmp_path_factory.mktemp("model"), *request.param)
    yield engine, request.param[0]
    engine.close()


def engines(*variants: str, precision: str = "float32") -> Any:
    return pytest.mark.parametrize("vllm", [(v, precision) for v in variants], indirect=True, ids=lambda p: p[0])


def prompts() -> list[Prompt]:
    """Two prompts, one longer than a block of the prefix cache (128 tokens)."""
    tokenizer, texts = tiny.tokenizer(), ("17*3=", "(1+2)*3" * 21)
    return [Prompt(id=t, text=t, token_ids=tuple(tokenizer(t)["input_ids"]), reference="", source="") for t in texts]


def compare(engine: Any, model: Any, step: int = 0, precision: str = "float32") -> agreement.Agreement:
    """Log-probs of fresh samples, from the engine and from a plain forward of `model`."""
    ours, theirs = [], []
    for given, group in zip(prompts(), engine.generate(prompts(), 8, seed=0, step=step), strict=True):
        responses = [torch.from_numpy(rollout.token_ids) for rollout in group]
        first = len(given.token_ids)
        right = nn.utils.rnn.pad_sequence(responses, batch_first=True)  # causal: padding is never seen
        tokens = torch.cat([torch.tensor(given.token_ids).expand(len(group), -1), right], dim=1)
        with torch.no_grad():
            logp = torch.log_softmax(model(tokens).logits[:, first - 1 : -1].float(), -1)
        logp = logp.gather(2, right[..., None])[..., 0]
        for row, rollout in zip(logp, group, strict=True):
            theirs += row[: len(rollout.token_ids)].tolist()
            ours += rollout.logp.tolist()
    return agreement.check(ours, theirs, precision=precision)


@functools.cache
def changed(variant: str, seed: int) -> Any:
    architecture, changes = VARIANTS[variant]
    return tiny.tiny_model(architecture, seed, **changes)


def check_updates(engine: Any, variant: str) -> None:
    for step, seed in enumerate((1, 2, 1, 0)):
        model = changed(variant, seed)
        sent = model.state_dict().items() if step == 1 else model.named_parameters()
        engine.update_weights(sent, version=step)
        found = compare(engine, model, step)
        assert found.max_abs <= 1e-5, f"update {step}: {found}"
        agreement.require(found, "float32")
        with pytest.raises(agreement.WeightsOutOfSync):
            agreement.require(compare(engine, changed(variant, seed + 1), step), "float32")


def check_names(engine: Any, state: dict[str, torch.Tensor]) -> None:
    norm = "model.norm.weight"
    with pytest.raises(ValueError, match=r"model\.extra\.weight .*unknown"):
        engine.update_weights([*state.items(), ("model.extra.weight", state[norm])], version=1)
    with pytest.raises(ValueError, match=r"1 weights were not sent \(model\.norm\.weight"):
        engine.update_weights([(n, w) for n, w in state.items() if n != norm], version=1)
    with pytest.raises(ValueError, match=r"model\.norm\.weight was sent twice"):
        engine.update_weights([*state.items(), (norm, state[norm])], version=1)
    with pytest.raises(ValueError, match=r"model\.norm\.weight has shape \[63\].*\[64\]"):
        engine.update_weights((state | {norm: state[norm][:63]}).items(), version=1)


@engines("qwen3_moe", "qwen3", "llama")
def test_updates_are_exact(vllm: tuple[Any, str]) -> None:
    """After each of four updates to other random weights, log-probs agree to 1e-5, and with other weights they do not.

    vLLM's own routes on the CPU are off by 0.1 to 1.0 here: packed linears, packed experts, a stale tied head.
    """
    check_updates(*vllm)


@pytest.mark.parametrize("variant", ["qwen3_moe", "qwen3", "llama"])
def test_hf_updates_are_exact_and_names_must_match(variant: str, tmp_path: Path) -> None:
    """The reference engine likewise takes every weight, and refuses unknown, missing, doubled and misshapen ones."""
    engine = start("hf", tmp_path, variant)
    check_updates(engine, variant)
    check_names(engine, dict(changed(variant, 0).named_parameters()))


@pytest.mark.slow
@engines(*list(VARIANTS)[3:])
def test_updates_of_other_layouts_are_exact(vllm: tuple[Any, str]) -> None:
    """The same for padded vocabularies, experts padded to the kernel's width, dense layers among experts, biases."""
    check_updates(*vllm)


@pytest.mark.slow
@engines("qwen3_moe", "qwen3", precision="bfloat16")
def test_bfloat16_is_within_its_bounds_and_wrong_weights_are_not(vllm: tuple[Any, str]) -> None:
    """A bfloat16 engine after an update passes the bfloat16 bounds; the same engine fails them for other weights."""
    engine, model = vllm[0], changed(vllm[1], 1)
    engine.update_weights(model.named_parameters(), version=1)
    agreement.require(compare(engine, model, precision="bfloat16"), "bfloat16")
    with pytest.raises(agreement.WeightsOutOfSync):
        agreement.require(compare(engine, changed(vllm[1], 2), precision="bfloat16"), "bfloat16")


@engines("qwen3_moe")
def test_each_weight_left_out_is_noticed(vllm: tuple[Any, str]) -> None:
    """With any single weight of the last layer or outside the layers kept back, the agreement check refuses.

    From the q norm to the router. The two expert tensors of a layer are written together, so left out together.
    """
    engine, old, new = vllm[0], dict(changed(vllm[1], 1).named_parameters()), changed(vllm[1], 2)
    sent = dict(new.named_parameters())
    for name in [name for name in sent if ".layers.0." not in name and not name.endswith("down_proj")]:
        kept = {name, name.replace("experts.gate_up_proj", "experts.down_proj")}
        engine.update_weights(old.items(), version=0)
        vllm_weights.push(engine._plan, [(n, w) for n, w in sent.items() if n not in kept])
        engine._drop_prefixes()
        with pytest.raises(agreement.WeightsOutOfSync):
            agreement.require(compare(engine, new), "float32")
    vllm_weights.push(engine._plan, [(n, w) for n, w in sent.items() if n in kept])
    engine._drop_prefixes()
    agreement.require(compare(engine, new), "float32")


@engines("qwen3")
def test_kept_prefix_cache_is_noticed(vllm: tuple[Any, str]) -> None:
    """Right weights but cached keys and values of the old ones: refused; after dropping the cache: accepted (B12)."""
    engine, old, new = vllm[0], changed(vllm[1], 1), changed(vllm[1], 2)
    engine.update_weights(old.named_parameters(), version=1)
    agreement.require(compare(engine, old), "float32")
    vllm_weights.push(engine._plan, new.named_parameters())
    with pytest.raises(agreement.WeightsOutOfSync):
        agreement.require(compare(engine, new), "float32")
    engine._drop_prefixes()
    agreement.require(compare(engine, new), "float32")


@engines("qwen3")
def test_stale_tied_head_is_noticed(vllm: tuple[Any, str]) -> None:
    """New embeddings with the old ones as the head: refused; tied again: accepted (B12)."""
    engine, old, new = vllm[0], changed(vllm[1], 1), changed(vllm[1], 2)
    engine.update_weights(old.named_parameters(), version=1)
    head: Any = vllm_weights.live_model(engine._llm).get_submodule("lm_head")
    tied = head.weight
    head.weight = nn.Parameter(tied.detach().clone(), requires_grad=False)
    engine.update_weights(new.named_parameters(), version=2)
    with pytest.raises(agreement.WeightsOutOfSync):
        agreement.require(compare(engine, new), "float32")
    head.weight = tied
    agreement.require(compare(engine, new), "float32")


@engines("qwen3")
def test_names_must_match(vllm: tuple[Any, str]) -> None:
    """A weight unknown, missing, sent twice or of another shape is an error naming it, not a log line (B12)."""
    check_names(vllm[0], dict(changed(vllm[1], 0).named_parameters()))


def test_tied_head_may_be_left_out_but_an_untied_one_may_not() -> None:
    """`weight_shapes` tells a tied head from a free one, by the tensors themselves."""
    for kind, tied in (("qwen3", {"lm_head.weight"}), ("llama", {"lm_head.weight"}), ("qwen3_moe", set())):
        model = tiny.tiny_model(kind)
        shapes, names = weight_shapes(model)
        assert names == tied
        assert set(shapes) == {name for name, _ in model.named_parameters()}
    parameters = [(n, w) for n, w in model.named_parameters() if n != "lm_head.weight"]
    with pytest.raises(ValueError, match=r"lm_head\.weight"):
        list(checked(parameters, shapes, names))


@pytest.mark.parametrize("hidden", [4, 6])
def test_experts_by_hand(hidden: int) -> None:
    """E=2, I=3: expert 1's gate is slab 1 rows 0..2, its up rows 3..5; there and back is bit-equal (B13).

    With H = 6 = 2I both layouts have the shape [2, 6, 6]: only the type of model can tell them apart.
    """
    gate_up = torch.arange(2 * 6 * hidden, dtype=torch.float32).view(2, 6, hidden)
    down = torch.arange(2 * hidden * 3, dtype=torch.float32).view(2, hidden, 3)
    for model_type, transposed in (("qwen3_moe", False), ("llama4_text", True)):
        held = [t.transpose(1, 2).contiguous() if transposed else t for t in (gate_up, down)]
        pairs = dict(unfuse("m.mlp.experts.gate_up_proj", held[0], model_type))
        pairs |= dict(unfuse("m.mlp.experts.down_proj", held[1], model_type))
        names = [f"m.mlp.experts.{e}.{p}_proj.weight" for e in (0, 1) for p in ("gate", "up", "down")]
        assert sorted(pairs) == sorted(names)
        assert pairs[names[3]][0, 0] == 6 * hidden  # 24 at H = 4
        assert pairs[names[4]][0, 0] == 9 * hidden  # 36 at H = 4
        assert [tuple(pairs[n].shape) for n in names[:3]] == [(3, hidden), (3, hidden), (hidden, 3)]
        back = fuse(pairs.items(), model_type)
        assert torch.equal(back["m.mlp.experts.gate_up_proj"], held[0])
        assert torch.equal(back["m.mlp.experts.down_proj"], held[1])
    with pytest.raises(ValueError, match="model_type=unheard_of"):
        list(unfuse("m.mlp.experts.down_proj", down, "unheard_of"))
    with pytest.raises(ValueError, match=r"m\.mlp\.experts\.0"):
        fuse([(n, w) for n, w in pairs.items() if "0.up" not in n], "qwen3_moe")


class Recorder:
    """Stands where a vLLM with worker processes would: keeps what `reload_weights` is given."""

    def __init__(self) -> None:
        self.got: dict[str, torch.Tensor] = {}

    def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> None:
        assert method == "reload_weights"
        if "weights_iterator" in kwargs:
            self.got = dict(kwargs["weights_iterator"])
        else:
            for path in sorted(Path(kwargs["weights_path"]).glob("*.safetensors")):
                self.got |= load_file(path)


@pytest.mark.parametrize("in_process", [True, False])
@pytest.mark.parametrize("kind", tiny.KINDS)
def test_reload_sends_what_a_checkpoint_holds(kind: str, in_process: bool, tmp_path: Path) -> None:
    """On GPUs vLLM's loader is given exactly the names and tensors that transformers writes into a checkpoint."""
    model, recorder = tiny.tiny_model(kind), Recorder()
    model.save_pretrained(tmp_path)
    vllm_weights.reload(recorder, model.named_parameters(), model_type=kind, in_process=in_process)
    expected = load_file(tmp_path / "model.safetensors")
    assert sorted(recorder.got) == sorted(expected)
    assert all(torch.equal(recorder.got[name], tensor) for name, tensor in expected.items())


def test_missing_private_names_are_one_line() -> None:
    """A vLLM without a name that the sync needs is refused with its version and the one expected."""
    pytest.importorskip("vllm")
    with pytest.raises(ValueError, match=r"vllm .*Linear has no quant_method\.moe_kernel.*0\.32") as caught:
        vllm_weights._private(nn.Linear(1, 1), "quant_method.moe_kernel")
    assert "\n" not in str(caught.value)


def test_plan_refuses_what_it_does_not_cover() -> None:
    """An engine weight without a source, or a policy weight without a place, is refused before training starts."""
    engine = nn.ModuleDict({"a": nn.Linear(2, 3), "b": nn.Linear(2, 3, bias=False)})
    shapes = {"a.weight": (3, 2), "a.bias": (3,), "b.weight": (3, 2)}
    assert sorted(vllm_weights.plan(engine, shapes)) == sorted(shapes)
    with pytest.raises(ValueError, match=r"b\.bias \[3\]: no place"):
        vllm_weights.plan(engine, shapes | {"b.bias": (3,)})
    with pytest.raises(ValueError, match=r"a\.bias takes a\.bias \[3\], not None"):
        vllm_weights.plan(engine, {name: shape for name, shape in shapes.items() if name != "a.bias"})
    with pytest.raises(ValueError, match=r"b\.weight takes b\.weight \[3, 2\], not \(2, 3\)"):
        vllm_weights.plan(engine, shapes | {"b.weight": (2, 3)})


def test_agreement_numbers_and_bounds() -> None:
    """Mean, 99th percentile and maximum by hand; each bound alone refuses; NaN and infinities are out of sync."""
    sampler, trainer = np.zeros(101), np.zeros(101)
    trainer[0] = -0.5  # a near-tie in routing: one token may be off
    trainer[1:] = 2e-6
    found = agreement.check(sampler, trainer, precision="float32")
    assert (found.tokens, found.max_abs) == (101, 0.5)
    assert found.mean_abs == pytest.approx((0.5 + 100 * 2e-6) / 101)
    assert found.p99_abs == pytest.approx(2e-6)
    with pytest.raises(agreement.WeightsOutOfSync, match=r"mean 0\.00495 \(at most 0\.0001\)"):
        agreement.require(found, "float32")
    agreement.require(found, "bfloat16")
    agreement.require(agreement.Agreement(9e-5, 9e-4, 3.0, 1000), "float32")
    for broken in (agreement.Agreement(1.1e-4, 0, 0, 9), agreement.Agreement(0, 1.1e-3, 0, 9)):
        with pytest.raises(agreement.WeightsOutOfSync):
            agreement.require(broken, "float32")
    for value in (np.nan, -np.inf):
        for first, second in (([value, 0], [0, 0]), ([0, 0], [0, value]), ([value], [value])):
            with pytest.raises(agreement.WeightsOutOfSync):
                agreement.require(agreement.check(first, second, precision="float32"), "float32")
    for first, second in (([0.0], [0.0, 0.0]), ([], []), ([[0.0]], [[0.0]])):
        with pytest.raises(ValueError, match="shapes"):
            agreement.check(first, second, precision="float32")
