"""FLOPs against torch's counter and hand figures; the ledger against sums done by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gspo import compute
from gspo.compute import Ledger
from gspo.shape import ModelShape

SHAPES = Path(compute.__file__).parent / "assets" / "shapes"
DENSE = {
    "model_type": "qwen3", "vocab_size": 97, "hidden_size": 48, "intermediate_size": 112, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True,
}  # fmt: skip
MOE = DENSE | {
    "model_type": "qwen3_moe", "tie_word_embeddings": False, "num_experts": 8, "num_experts_per_tok": 3,
    "moe_intermediate_size": 40, "decoder_sparse_step": 1, "mlp_only_layers": [1],
}  # fmt: skip
SPARSE = MOE | {"decoder_sparse_step": 2, "mlp_only_layers": []}
LLAMA = DENSE | {
    "model_type": "llama",
    "head_dim": 20,
    "num_key_value_heads": 1,
    "mlp_bias": True,
    "attention_bias": True,
}


def shape_of(name: str) -> ModelShape:
    return ModelShape.from_config(json.loads((SHAPES / f"{name}.json").read_text()))


def build(config: dict) -> Any:
    """The transformers model of a configuration, eager everywhere so that torch's counter sees every product."""
    from transformers import AutoConfig, AutoModelForCausalLM

    keys = {k: v for k, v in config.items() if k != "model_type"}
    built = AutoConfig.for_model(config["model_type"], **keys)
    built._experts_implementation = "eager"
    return AutoModelForCausalLM.from_config(built, attn_implementation="eager", dtype=torch.float32)


@pytest.mark.parametrize("config", [DENSE, MOE, SPARSE, LLAMA], ids=["qwen3", "qwen3_moe", "every_other", "llama"])
def test_flops_equal_torchs_counter(config: dict) -> None:
    """Blocks, experts, router, attention and lm_head, forward and backward, equal torch's count to 1 %.

    Eager attention computes the whole square, so c = T here. A term left out or an exponent off moves this by more:
    at T = 96 attention is a third of the total.
    """
    from torch.utils.flop_counter import FlopCounterMode

    model, shape, (rows, width) = build(config), ModelShape.from_config(config), (2, 96)
    tokens = torch.randint(0, 97, (rows, width), generator=torch.Generator().manual_seed(0))
    with FlopCounterMode(display=False) as forward:
        logits = model(tokens).logits
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    n = rows * width
    expected = compute.blocks_flops(shape, n, n * width) + compute.head_flops(shape, n)
    assert forward.get_total_flops() == pytest.approx(expected, rel=0.01)
    assert backward.get_total_flops() == pytest.approx(2 * expected, rel=0.01)


@pytest.mark.parametrize("config", [DENSE, MOE, SPARSE, LLAMA], ids=["qwen3", "qwen3_moe", "every_other", "llama"])
def test_parameters_equal_the_models_own(config: dict) -> None:
    """The count by formula is the count of the built model to the last one: norms, q/k norms, biases, tied heads.

    Also from the configuration as transformers writes it, which renames keys (num_experts to num_local_experts).
    """
    model = build(config)
    assert ModelShape.from_config(config).parameters == sum(p.numel() for p in model.parameters())
    assert ModelShape.from_config(model.config.to_dict()).matmul_active == ModelShape.from_config(config).matmul_active


def test_published_parameter_counts() -> None:
    """30.53 B total, 3.35 B active, 3.04 B in matmuls (Qwen3 report: 30.5 B, 3.3 B); 0.6 B, 4.0 B, 134.5 M."""
    moe = shape_of("qwen3_30b_a3b")
    assert moe.parameters == 30_532_122_624
    assert (round(moe.active / 1e9, 2), round(moe.matmul_active / 1e9, 2)) == (3.35, 3.04)
    # attention 2 * 2048 * 128 * 36; 8 experts of 3 * 2048 * 768; router 2048 * 128; 48 layers; head 2048 * 151936
    assert moe.matmul_active == 48 * (18_874_368 + 8 * 4_718_592 + 262_144) + 311_164_928
    assert shape_of("qwen3_0_6b").parameters == 596_049_920
    assert shape_of("qwen3_4b").parameters == 4_022_468_096
    assert shape_of("smollm2_135m").parameters == 134_515_008


def test_forward_of_a_causal_pass_by_hand() -> None:
    """qwen3_30b_a3b, one sequence of 1,000 tokens, lm_head at the last 10: each term by hand.

    Kills: c = L instead of (L + 1) / 2, a head at every token, all experts, the embedding counted as a product.
    """
    blocks = 2 * 2_730_491_904 * 1000
    attention = 4 * 48 * 32 * 128 * (1000 * 1001 // 2)
    head = 2 * 311_164_928 * 10
    assert compute.forward_flops(shape_of("qwen3_30b_a3b"), [1000], 10) == blocks + attention + head


def test_lengths_are_counted_one_by_one() -> None:
    """Two sequences cost the sum of their costs, not that of their mean length or of one long row (B * T tokens)."""
    shape = shape_of("qwen3_0_6b")
    both = compute.forward_flops(shape, [100, 900], 0)
    assert both == compute.forward_flops(shape, [100], 0) + compute.forward_flops(shape, [900], 0)
    assert (
        both - 2 * compute.forward_flops(shape, [500], 0)
        == 4 * 28 * 16 * 128 * (100 * 101 + 900 * 901 - 500 * 1002) // 2
    )


@pytest.mark.parametrize("config", [DENSE, MOE], ids=["qwen3", "qwen3_moe"])
def test_prefill_and_decode_run_what_one_forward_runs(config: dict) -> None:
    """Sampling y after x costs a forward over x and all of y but its last token, with the head at |y| places.

    Kills: a decode of |y| steps (the prefill gives the first token), a context without the token itself, a head at
    every prompt token.
    """
    shape = ModelShape.from_config(config)
    for prompt, response in ((7, 1), (7, 2), (40, 33)):
        sampled = compute.prefill_flops(shape, prompt, 1) + compute.decode_flops(shape, prompt, response)
        assert sampled == compute.forward_flops(shape, [prompt + response - 1], response)


def test_shared_prompt_is_run_once_a_group_and_the_head_once_a_response() -> None:
    """With a prefix cache a group of 8 costs seven prompts' blocks less, and not one lm_head less.

    In whole blocks of 16, of a prompt of 40 only 32 tokens are shared, and the other 8 still attend to them.
    """
    shape = shape_of("qwen3_0_6b")
    alone, shared = compute.prefill_flops(shape, 40, 8), compute.prefill_flops(shape, 40, 8, cached=40)
    assert alone == 8 * compute.forward_flops(shape, [40], 1)
    assert alone - shared == 7 * compute.forward_flops(shape, [40], 0)
    assert alone - compute.prefill_flops(shape, 40, 8, cached=32) == 7 * compute.forward_flops(shape, [32], 0)
    for shared, block, cached in ((True, 16, 32), (True, 1, 40), (True, 128, 0), (False, 16, 0)):
        ledger = Ledger(shape, None)
        ledger.add_rollout([40], [[1] * 8], 1.0, shared, block=block)
        assert ledger.flops["rollout"] == compute.prefill_flops(shape, 40, 8, cached)


def test_ledger_row_by_hand() -> None:
    """Phases apart, cumulative over steps, recompute in the executed FLOPs and not in MFU, seconds times devices.

    Kills: recompute inside MFU, update = 2 forwards, seconds without devices, MFU of the whole run, eval in training.
    """
    shape = shape_of("qwen3_0_6b")
    ledger = Ledger(shape, peak_flops=1e14, devices=2)
    forward = compute.forward_flops(shape, [30, 50], 60)
    blocks, head = compute.forward_flops(shape, [30, 50], 0), compute.head_flops(shape, 60)
    assert blocks + head == forward

    for step in (1, 2):
        ledger.add_rollout([10], [[21, 41]], 3.0, shared_prefix=False)
        ledger.add_forward("old_logp", [30, 50], 60, 1.0)
        ledger.add_update([30, 50], 60, 4.0, recompute_blocks=True, recompute_head=True)
        ledger.add_forward("eval", [5], 5, 8.0)
        ledger.add_seconds(2.0)
        row = ledger.row()
        sampled = compute.forward_flops(shape, [30, 50], 62)
        assert row["compute/flops_rollout"] == step * sampled
        assert row["compute/flops_old_logp"] == step * forward
        assert row["compute/flops_update"] == step * (3 * forward + blocks + head)
        assert row["compute/flops_eval"] == step * compute.forward_flops(shape, [5], 5)
        assert row["compute/flops_total"] == sum(
            row[f"compute/flops_{phase}"] for phase in ("rollout", "old_logp", "update", "eval")
        )
        tokens = tuple(row[f"compute/tokens_{kind}"] for kind in ("prompt", "sampled", "trained"))
        assert tokens == (step * 20, step * 62, step * 60)
        assert row["compute/device_seconds"] == step * 2 * 18.0
        assert row["perf/mfu"] == pytest.approx(4 * forward / (1e14 * 2 * 5.0))
        assert row["perf/tokens_per_s"] == pytest.approx(62 / 10.0)


@pytest.mark.parametrize(("blocks", "head", "passes"), [(True, False, "blocks"), (False, True, "head")])
def test_each_recompute_adds_its_own_forward(blocks: bool, head: bool, passes: str) -> None:
    """Checkpointing adds the blocks with their attention, chunked log-probs the lm_head: each alone, once."""
    shape = shape_of("qwen3_30b_a3b")
    plain, more = Ledger(shape, None), Ledger(shape, None)
    plain.add_update([4000], 3000, 1.0, recompute_blocks=False, recompute_head=False)
    more.add_update([4000], 3000, 1.0, recompute_blocks=blocks, recompute_head=head)
    extra = {
        "blocks": 2 * 2_730_491_904 * 4000 + 4 * 48 * 32 * 128 * 4000 * 4001 // 2,
        "head": 2 * 311_164_928 * 3000,
    }
    assert more.flops["update"] - plain.flops["update"] == extra[passes]


def test_ledger_resumes_from_its_state() -> None:
    """Steps split over two processes give the row of one process; the state survives JSON exactly."""
    shape = shape_of("qwen3_30b_a3b")

    def step(ledger: Ledger) -> dict[str, float]:
        ledger.add_rollout([300], [[2000, 7]], 1.5, shared_prefix=True)
        ledger.add_update([2299, 306], 2007, 2.5, recompute_blocks=True, recompute_head=True)
        return ledger.row()

    straight, first, second = Ledger(shape, 1e15, 8), Ledger(shape, 1e15, 8), Ledger(shape, 1e15, 8)
    step(straight)
    step(first)
    second.restore(json.loads(json.dumps(first.state())))
    assert step(second) == step(straight)


def test_unknown_peak_or_shape_leaves_columns_out() -> None:
    """A number nobody knows is absent from the row: not zero, not a guess. Tokens and seconds are still counted."""
    ledger = Ledger(shape_of("qwen3_0_6b"), None)
    ledger.add_update([10], 5, 1.0, recompute_blocks=False, recompute_head=False)
    assert "perf/mfu" not in ledger.row()
    blind = Ledger(None, 1e14)
    blind.add_rollout([10], [[4, 4]], 2.0, shared_prefix=True)
    blind.add_update([13, 13], 8, 1.0, recompute_blocks=False, recompute_head=True)
    row = blind.row()
    assert not [name for name in row if "flops" in name or "mfu" in name]
    assert (row["compute/tokens_sampled"], row["compute/device_seconds"]) == (8, 3.0)


def test_evaluation_is_no_training_cost() -> None:
    """Responses of an evaluation are eval FLOPs and no sampled tokens, and do not slow tokens_per_s down."""
    ledger = Ledger(shape_of("qwen3_0_6b"), 1e14)
    ledger.add_rollout([10], [[6]], 2.0, shared_prefix=False)
    ledger.add_rollout([10], [[600]], 50.0, shared_prefix=False, phase="eval")
    row = ledger.row()
    assert row["compute/tokens_sampled"] == 6
    assert row["perf/tokens_per_s"] == 3.0
    assert row["compute/flops_eval"] == compute.forward_flops(shape_of("qwen3_0_6b"), [609], 600)
    assert row["compute/device_seconds"] == 52.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "gpt2"}, "model_type=gpt2.*llama, qwen3, qwen3_moe"),
        ({"vocab_size": None}, "vocab_size=None"),
        ({"model_type": "qwen3_moe"}, "num_experts=None"),
    ],
)
def test_unknown_models_are_refused_by_name(change: dict, words: str) -> None:
    """A model whose products are not known is refused with its type or the missing key, never counted wrongly."""
    with pytest.raises(ValueError, match=words):
        ModelShape.from_config(DENSE | change)
