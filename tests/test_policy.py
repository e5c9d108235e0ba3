"""Log-probs of tokens: equal to the plain log-softmax in value and gradient, and to themselves bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tiny
import torch
from torch import Tensor
from torch.nn.attention import varlen
from torch.utils._python_dispatch import TorchDispatchMode

from gspo.policy import check_dropout, check_head, load, pack, token_logp, use_varlen

LENGTHS = torch.tensor([14, 9, 5, 2])


def model_of(kind: str, dtype: torch.dtype = torch.float64, **changes):
    model = tiny.tiny_model(kind, **changes).to(dtype).train()
    if kind == "qwen3_moe" and dtype == torch.float64:
        model.set_experts_implementation("eager")
    return model


def batch(lengths: Tensor = LENGTHS, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Random tokens, padding included, and a mask over the last five targets of each row."""
    generator = torch.Generator().manual_seed(seed)
    width = int(lengths.max())
    tokens = torch.randint(4, tiny.VOCAB, (len(lengths), width), generator=generator)
    places = torch.arange(width - 1)
    return tokens, lengths, (places < lengths[:, None] - 1) & (places >= lengths[:, None] - 6)


def plain(model, tokens: Tensor, mask: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The definition: all logits, log-softmax, gather."""
    logp = (model(tokens[:, :-1]).logits / temperature).log_softmax(-1)
    chosen = logp.gather(-1, tokens[:, 1:, None])[..., 0]
    return chosen.masked_fill(~mask, 0), -(logp.exp() * logp).sum(-1).masked_fill(~mask, 0)


def gradients(model, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("chunk", [None, 3 * tiny.VOCAB])
@pytest.mark.parametrize("kind", tiny.KINDS)
def test_equals_the_plain_log_softmax(kind, chunk, packed):
    """Float64, T = 0.7: values, entropy and every gradient to 1e-9; catches chunk seams, targets off by one, packing
    that lets sequences see each other, a tied head whose gradient is lost."""
    model, (tokens, lengths, mask) = model_of(kind), batch()
    weights = torch.randn(mask.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected, spread = plain(model, tokens, mask, 0.7)
    wanted = gradients(model, (weights * expected).sum())
    more = {"temperature": 0.7, "precision": "float32", "packed": packed, "chunk": chunk}
    logp, entropy = token_logp(model, tokens, lengths, mask, entropy=True, **more)
    got = gradients(model, (weights * logp).sum())
    torch.testing.assert_close(logp, expected, atol=1e-9, rtol=0)
    torch.testing.assert_close(entropy, spread.detach(), atol=1e-9, rtol=0)
    assert not entropy.requires_grad
    for name, gradient in got.items():
        assert (gradient - wanted[name]).abs().max() <= 1e-9 * wanted[name].abs().max(), name


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("experts", ["eager", "grouped_mm"])
def test_with_and_without_gradients_the_bits_agree(kind, packed, precision, experts):
    """The old-log-prob pass and the update's own forward agree exactly, so that the first ratio is exactly 1."""
    model, (tokens, lengths, mask) = model_of(kind, torch.float32), batch(torch.tensor([70, 64, 33, 7]))
    if kind == "qwen3_moe":
        model.set_experts_implementation(experts)
    more = {"temperature": 0.9, "precision": precision, "packed": packed}
    with torch.no_grad():
        old, _ = token_logp(model, tokens, lengths, mask, **more)
    logp, _ = token_logp(model, tokens, lengths, mask, entropy=True, **more)
    assert logp.requires_grad
    assert logp.dtype == torch.float32
    assert torch.equal(old, logp)
    assert (logp <= 0).all()


class Largest(TorchDispatchMode):
    """Size in elements of the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.numel())
        return out


def largest(run: Callable[[], Tensor]) -> int:
    with Largest() as seen:
        run().sum().backward()
    return seen.numel


def test_the_logits_of_a_batch_are_never_held():
    """No tensor, forward or backward, exceeds a chunk or a weight; the plain way holds [positions, vocabulary]."""
    model = model_of("qwen3", torch.float32, vocab_size=4096)
    tokens, lengths, _ = batch(torch.full((8,), 65))
    mask = torch.ones(8, 64, dtype=torch.bool)
    more = {"temperature": 1.0, "precision": "float32", "entropy": True, "chunk": 16 * 4096}
    assert largest(lambda: token_logp(model, tokens, lengths, mask, **more)[0]) <= 64 * 4096
    assert largest(lambda: plain(model, tokens, mask, 1.0)[0]) == 8 * 64 * 4096


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_padding_is_never_seen(kind):
    """Other padding tokens: the same bits; more padding: the same numbers. Catches a mask that lets padding in."""
    model, (tokens, lengths, mask) = model_of(kind), batch()
    other = torch.where(torch.arange(tokens.shape[1]) < lengths[:, None], tokens, 0)
    wider = torch.nn.functional.pad(other, (0, 3)), lengths, torch.nn.functional.pad(mask, (0, 3))
    one, two, three = (
        token_logp(model, *inputs, temperature=1.0, precision="float32")[0]
        for inputs in ((tokens, lengths, mask), (other, lengths, mask), wider)
    )
    assert torch.equal(one, two)
    torch.testing.assert_close(three[:, :-3], one, atol=1e-9, rtol=0)


calls: list[int] = []


def by_sequence(q, k, v, starts, _, longest, __, *, window_size, scale, enable_gqa=False):
    """What torch documents of varlen_attn, [S, heads, D], one sequence at a time: its kernel needs CUDA."""
    calls.append(len(starts) - 1)
    assert window_size == (-1, 0)
    pieces = zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
    rows = [[x[start:stop].transpose(0, 1) for x in (q, k, v)] for start, stop in pieces]
    assert longest == max(row[0].shape[1] for row in rows)
    attend = torch.nn.functional.scaled_dot_product_attention
    outs = [attend(*row, is_causal=True, enable_gqa=enable_gqa, scale=scale).transpose(0, 1) for row in rows]
    return torch.cat(outs)


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_varlen_attention_is_fed_as_torch_documents(kind, monkeypatch):
    """With torch's documented varlen_attn packed = padded to 1e-9, and a padded row still goes through sdpa."""
    model, (tokens, lengths, mask) = model_of(kind), batch()
    more = {"temperature": 1.0, "precision": "float32"}
    expected, _ = token_logp(model, tokens, lengths, mask, **more)
    wanted = gradients(model, expected.sum())
    calls.clear()
    monkeypatch.setattr(varlen, "varlen_attn", by_sequence)
    use_varlen(model)
    logp, _ = token_logp(model, tokens, lengths, mask, packed=True, **more)
    got = gradients(model, logp.sum())
    assert calls == [4, 4]
    torch.testing.assert_close(logp, expected, atol=1e-9, rtol=0)
    for name, gradient in got.items():
        assert (gradient - wanted[name]).abs().max() <= 1e-9 * wanted[name].abs().max(), name
    assert torch.equal(token_logp(model, tokens, lengths, mask, **more)[0], expected)
    assert calls == [4, 4]


def test_pack_lists_the_real_inputs():
    """By hand: rows of 3, 1 and 2 tokens have 2, 0 and 1 inputs; positions start at 0 in every row."""
    row = pack(torch.tensor([[5, 6, 7], [8, 0, 0], [9, 4, 0]]), torch.tensor([3, 1, 2]))
    assert row.input_ids.tolist() == [[5, 6, 9]]
    assert row.position_ids.tolist() == [[0, 1, 0]]
    assert row.starts.tolist() == [0, 2, 2, 3]
    assert row.longest == 2
    assert row.real.tolist() == [[True, True], [False, False], [True, False]]


def test_a_batch_that_trains_no_token_has_zero_gradients():
    """An empty mask gives zeros that still reach every weight, as FSDP2 ranks without work need."""
    model, (tokens, lengths, mask) = model_of("qwen3"), batch()
    logp, _ = token_logp(model, tokens, lengths, mask & False, temperature=1.0, precision="float32")
    assert logp.abs().sum() == 0
    assert all(not gradient.any() for gradient in gradients(model, logp.sum()).values())


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_load_gives_float32_weights_without_dropout_or_cache(kind, tmp_path):
    """A directory saved in bfloat16 is float32 masters in train mode, and says what the saved model says."""
    saved, rounded = tiny.tiny_model(kind).bfloat16(), tiny.tiny_model(kind)
    saved.config.output_router_logits = True
    saved.save_pretrained(tmp_path)
    rounded.load_state_dict(saved.state_dict())
    experts = "grouped_mm" if kind == "qwen3_moe" else None
    model = load(tmp_path, experts_implementation=experts, trust_remote_code=False, device="cpu")
    assert model.training
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert not model.config.use_cache
    assert not getattr(model.config, "output_router_logits", False)
    tokens, lengths, mask = batch()
    logp, _ = token_logp(model, tokens, lengths, mask, temperature=1.0, precision="float32")
    torch.testing.assert_close(logp, plain(rounded, tokens, mask, 1.0)[0], atol=1e-5, rtol=0)


def test_what_would_be_wrong_in_silence_is_refused():
    """Soft-capped or scaled logits, dropout, T = 0 and unknown precisions: one ValueError line each."""
    from transformers import Gemma2Config, Gemma2ForCausalLM, GraniteConfig, GraniteForCausalLM

    size = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    size |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    with pytest.raises(ValueError, match=r"final_logit_softcapping=30.0 changes the logits"):
        check_head(Gemma2ForCausalLM(Gemma2Config(**size)))
    granite = GraniteForCausalLM(GraniteConfig(**size, logits_scaling=8.0, pad_token_id=0))
    with pytest.raises(ValueError, match=r"logits_scaling=8.0 changes the logits"):
        check_head(granite)
    tokens, lengths, mask = torch.tensor([[3, 4, 5]]), torch.tensor([3]), torch.tensor([[True, True]])
    with pytest.raises(ValueError, match="GraniteForCausalLM changes its logits after the head"):
        token_logp(granite, tokens, lengths, mask, temperature=1.0, precision="float32")
    with pytest.raises(ValueError, match=r"'config.attention_dropout': 0.1"):
        check_dropout(tiny.tiny_model("llama", attention_dropout=0.1))
    model = tiny.tiny_model("llama")
    with pytest.raises(ValueError, match="temperature=0: must be positive"):
        token_logp(model, tokens, lengths, mask, temperature=0, precision="float32")
    with pytest.raises(ValueError, match="precision=fp16"):
        token_logp(model, tokens, lengths, mask, temperature=1.0, precision="fp16")
