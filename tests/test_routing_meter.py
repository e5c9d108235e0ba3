"""The routing meter: change and load as counted by hand, the auxiliary loss as Switch and transformers define it."""

from __future__ import annotations

import pytest
import torch
from test_routing import batch, logp, moe, router_grads

from gspo.routing import PAD, router_logits
from gspo.routing_meter import expert_change, expert_choices, expert_load, load_balance_loss, load_imbalance

ONE_EXPERT = 4 * torch.tensor([4.0, 0, 0, 0], dtype=torch.float64).softmax(-1)[0].item()


def test_change_is_counted_as_sets():
    """By hand: order does not matter, one of two replaced counts a half; catches a comparison slot by slot."""
    before = torch.tensor([[[0, 1], [2, 3]], [[4, 5], [6, 7]]], dtype=torch.int16)
    after = torch.tensor([[[1, 0], [2, 5]], [[5, 4], [0, 1]]], dtype=torch.int16)
    change = expert_change(before, after)
    assert change == (3 / 8, [1 / 4, 2 / 4], 3, 8)
    assert expert_change(before, before) == (0.0, [0.0, 0.0], 0, 8)
    with pytest.raises(ValueError, match=r"\(2, 2, 2\) and \(2, 1, 2\)"):
        expert_change(before, after[:, :1])


def test_choices_do_not_see_padding():
    """The probe of a padded batch equals the probes of its rows, one after the other."""
    model, (tokens, lengths, _) = moe(torch.float64), batch()
    rows = [expert_choices(model, tokens[i : i + 1, :n], lengths[i : i + 1]) for i, n in enumerate(lengths.tolist())]
    assert torch.equal(expert_choices(model, tokens, lengths), torch.cat(rows, 1))


def test_load_counts_assignments():
    """By hand, PAD left out: layer 0 gives expert 0 three of four assignments, layer 1 is even."""
    choices = torch.tensor([[[0, 1], [0, PAD], [0, PAD]], [[0, 1], [2, 3], [PAD, PAD]]], dtype=torch.int16)
    load = expert_load(choices, 4)
    assert load.tolist() == [[3, 1, 0, 0], [1, 1, 1, 1]]
    assert load_imbalance(load).tolist() == [3.0, 1.0]


def test_load_balance_loss_has_the_handed_values():
    """Case B15: softmax once (twice gives 1.8323), 1 in balance for every k, padding excluded."""
    skewed, yes = torch.tensor([[4.0, 0, 0, 0]]).repeat(3, 1), torch.ones(3, dtype=torch.bool)
    assert load_balance_loss([skewed], yes, 1).item() == pytest.approx(3.7917, abs=5e-5)
    assert load_balance_loss([skewed], yes, 1).item() == pytest.approx(ONE_EXPERT, rel=1e-6)
    padded = torch.cat([skewed, torch.tensor([[0.0, 0, 50, 0]]).repeat(5, 1)])
    mask = torch.tensor([[True] * 3 + [False], [False] * 4])
    assert load_balance_loss([padded], mask, 1).item() == pytest.approx(ONE_EXPERT, rel=1e-6)
    even = 3.0 * torch.eye(4)
    assert load_balance_loss([even], torch.ones(4), 1).item() == pytest.approx(1.0, rel=1e-6)
    both = load_balance_loss([skewed, 3.0 * torch.eye(4)[:3]], yes, 1).item()
    three_even = 4 * 3 * (1 / 3) * (torch.tensor([3.0, 0, 0, 0]).softmax(-1)[:2] * torch.tensor([1.0, 2])).sum() / 3
    assert both == pytest.approx((ONE_EXPERT + three_even.item()) / 2, rel=1e-6)
    with pytest.raises(ValueError, match=r"mask of 2 tokens: the routers saw \[3\]"):
        load_balance_loss([skewed], yes[:2], 1)


def test_load_balance_loss_equals_transformers_on_a_model():
    """One layer, k = 2, padding masked: transformers' own function, which is k in balance, divided by k."""
    from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

    model, (tokens, lengths, mask) = moe(num_hidden_layers=1), batch()
    real = torch.arange(tokens.shape[1] - 1) < lengths[:, None] - 1
    with router_logits(model) as logits:
        logp(model, tokens, lengths, mask)
    ours = load_balance_loss(logits, real, 2)
    theirs = load_balancing_loss_func(tuple(logits), 8, 2, real)
    assert ours.item() == pytest.approx(theirs.item() / 2, rel=1e-5)
    ours.backward()
    assert router_grads(model)[0].abs().max() > 0


def test_load_balance_loss_of_micro_batches_adds_up():
    """With the mini-batch's share and token count, losses and gradients of its parts sum to those of the whole."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 12, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    mask = torch.arange(12) % 5 > 0
    whole = load_balance_loss(list(logits), mask, 2)
    (expected,) = torch.autograd.grad(whole, logits)
    choices = logits[:, mask].topk(2, -1).indices
    share = expert_load(choices, 4).double() / choices[0].numel()
    more = {"share": share, "num_tokens": int(mask.sum())}
    parts = [load_balance_loss(list(logits[:, at]), mask[at], 2, **more) for at in (slice(0, 5), slice(5, 12))]
    (gradient,) = torch.autograd.grad(sum(parts), logits)
    assert sum(parts).item() == pytest.approx(whole.item(), rel=1e-12)
    torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=0)
