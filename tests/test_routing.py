"""Routing: recorded choices are replayed exactly, each once, or the run stops."""

from __future__ import annotations

import pytest
import tiny
import torch
from torch import Tensor

from gspo.policy import token_logp
from gspo.routing import PAD, is_moe, record, replay, route_weights, routers
from gspo.routing_meter import expert_change, expert_choices

LENGTHS = torch.tensor([14, 9, 5, 2])


def moe(dtype: torch.dtype = torch.float32, **changes):
    model = tiny.tiny_model("qwen3_moe", **changes).to(dtype).train()
    if dtype == torch.float64:
        model.set_experts_implementation("eager")
    return model


def batch(lengths: Tensor = LENGTHS, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    width = int(lengths.max())
    tokens = torch.randint(4, tiny.VOCAB, (len(lengths), width), generator=generator)
    places = torch.arange(width - 1)
    mask = (places < lengths[:, None] - 1) & (places >= lengths[:, None] - 6)
    return tokens, lengths, mask


def logp(model, tokens, lengths, mask, **more) -> Tensor:
    return token_logp(model, tokens, lengths, mask, temperature=1.0, precision="float32", **more)[0]


def recorded(model, tokens, lengths, mask, **more) -> tuple[Tensor, Tensor]:
    with torch.no_grad(), record(model, tokens, lengths) as routes:
        values = logp(model, tokens, lengths, mask, **more)
    return values, routes.experts


def perturb(model, size: float = 0.05, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += size * torch.randn(weight.shape, generator=generator, dtype=torch.float64).to(weight.dtype)


def router_grads(model) -> list[Tensor]:
    return [router.weight.grad.clone() for _, router in routers(model)]


def taken_by_experts(model, layer: int):
    """What reaches the experts of a layer, read at the experts themselves and not at the router."""
    seen = []
    experts = model.model.layers[layer].mlp.experts
    handle = experts.register_forward_pre_hook(lambda _module, args: seen.append(args))
    return seen, handle


def test_live_weights_at_recorded_experts_have_the_handed_values():
    """Case B14: logits [0, 2, 1, 3], recorded {0, 2}: catches weights of the live top-2 or zeros."""
    logits, experts = torch.tensor([[0.0, 2, 1, 3]], requires_grad=True), torch.tensor([[0, 2]])
    weights = route_weights(logits, experts, normalised=True)
    torch.testing.assert_close(weights[0], torch.tensor([0.268941, 0.731059]), atol=1e-6, rtol=0)
    plain = route_weights(logits, experts, normalised=False)
    torch.testing.assert_close(plain[0], torch.tensor([0.032059, 0.087144]), atol=1e-6, rtol=0)
    (gradient,) = torch.autograd.grad(weights[0, 0], logits)  # d w_0 / d logits = w_0 w_2 (1, 0, -1, 0)
    slope = 0.268941 * 0.731059
    torch.testing.assert_close(gradient[0], torch.tensor([slope, 0, -slope, 0]), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("norm", "expected"), [(True, [0.268941, 0.731059]), (False, [0.032059, 0.087144])])
def test_a_models_experts_receive_the_handed_weights(norm, expected):
    """Case B14 inside a real Qwen3-MoE whose router says [0, 2, 1, 3]: catches a hook that the experts do not see."""
    model = moe(num_hidden_layers=1, num_experts=4, norm_topk_prob=norm)
    tokens, lengths = torch.tensor([[5, 6]]), torch.tensor([2])
    router, inputs = routers(model)[0][1], []
    handle = router.register_forward_pre_hook(lambda _module, args: inputs.append(args[0].detach().reshape(1, -1)))
    expert_choices(model, tokens, lengths)
    handle.remove()
    with torch.no_grad():
        router.weight.copy_(torch.tensor([0.0, 2, 1, 3])[:, None] * inputs[0] / inputs[0].square().sum())
    assert set(expert_choices(model, tokens, lengths).flatten().tolist()) == {1, 3}
    seen, handle = taken_by_experts(model, 0)
    with replay(model, torch.tensor([[[[0, 2]]]]), lengths):
        logp(model, tokens, lengths, torch.tensor([[True]])).sum().backward()
    handle.remove()
    _, experts, weights = seen[0]
    assert experts.tolist() == [[0, 2]]
    torch.testing.assert_close(weights[0].detach(), torch.tensor(expected), atol=2e-6, rtol=0)
    assert router.weight.grad.abs().max() > 0


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_replay_with_unchanged_weights_is_bit_equal(packed, norm, precision):
    """Log-probs with replay equal those without, bit for bit: catches weights computed in another dtype or order."""
    model, (tokens, lengths, mask) = moe(norm_topk_prob=norm), batch()
    more = {"temperature": 1.0, "precision": precision, "packed": packed}
    with torch.no_grad(), record(model, tokens, lengths) as routes:
        plain, _ = token_logp(model, tokens, lengths, mask, **more)
    with replay(model, routes.experts, lengths):
        again, _ = token_logp(model, tokens, lengths, mask, **more)
    assert torch.equal(again, plain)


def test_a_record_holds_what_the_model_says_of_itself():
    """Routes equal the top-k of transformers' own router logits, padding is PAD, and packing changes nothing."""
    model, (tokens, lengths, mask) = moe(), batch()
    _, experts = recorded(model, tokens, lengths, mask)
    _, packed = recorded(model, tokens, lengths, mask, packed=True)
    assert torch.equal(experts, packed)
    with torch.no_grad():
        says = model(tokens[:, :-1], output_router_logits=True).router_logits
    for layer, logits in enumerate(says):
        top = logits.topk(2, -1).indices.view(4, -1, 2)
        for row, length in enumerate(lengths.tolist()):
            assert torch.equal(experts[row, : length - 1, layer].long(), top[row, : length - 1])
            assert (experts[row, length - 1 :] == PAD).all()


@pytest.mark.parametrize("packed", [False, True])
def test_after_an_update_the_recorded_experts_are_used(packed):
    """With other weights the experts still receive the record, each layer its own, and routers get a gradient."""
    model, (tokens, lengths, mask) = moe(), batch()
    _, experts = recorded(model, tokens, lengths, mask)
    real = experts[:, :, 0, 0] != PAD
    perturb(model)
    live = expert_choices(model, tokens, lengths)
    assert expert_change(experts[real].transpose(0, 1), live).overall > 0.1
    watches = [taken_by_experts(model, layer) for layer in (0, 1)]
    with replay(model, experts, lengths):
        logp(model, tokens, lengths, mask, packed=packed).sum().backward()
    for layer, (seen, handle) in enumerate(watches):
        handle.remove()
        taken = seen[0][1] if packed else seen[0][1].view(4, -1, 2)[real]
        assert torch.equal(taken, experts[real][:, layer].long())
    assert all(grad.abs().max() > 1e-3 for grad in router_grads(model))


def test_replay_does_not_depend_on_the_cut():
    """Float64: rows alone, reordered and trimmed, give the whole batch's gradients; catches a record out of line."""
    model, (tokens, lengths, mask) = moe(torch.float64), batch()
    _, experts = recorded(model, tokens, lengths, mask)
    perturb(model)
    with replay(model, experts, lengths):
        whole = logp(model, tokens, lengths, mask)
        whole.sum().backward()
    expected = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    for rows, packed in (([3, 1], False), ([2], False), ([0], True)):
        width = int(lengths[rows].max())
        cut = tokens[rows, :width], lengths[rows], mask[rows, : width - 1]
        with replay(model, experts[rows, : width - 1], lengths[rows]):
            part = logp(model, *cut, packed=packed)
            part.sum().backward()
        torch.testing.assert_close(part, whole[rows, : width - 1], atol=1e-9, rtol=0)
    for name, weight in model.named_parameters():
        largest = expected[name].abs().max()
        assert (weight.grad - expected[name]).abs().max() <= 1e-9 * largest, name


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_replays_the_same_record(reentrant):
    """What is computed again in the backward uses the record, and is no second consumption: gradients are unchanged."""
    model, (tokens, lengths, mask) = moe(), batch()
    _, experts = recorded(model, tokens, lengths, mask)
    perturb(model)
    with replay(model, experts, lengths):
        logp(model, tokens, lengths, mask).sum().backward()
    expected = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()
    with replay(model, experts, lengths):
        logp(model, tokens, lengths, mask).sum().backward()
    for name, weight in model.named_parameters():
        assert torch.equal(weight.grad, expected[name]), name


def test_a_block_that_ends_before_the_recomputing_backward_is_refused():
    """Otherwise the recompute would route live and the gradient would belong to another function."""
    model, (tokens, lengths, mask) = moe(), batch()
    _, experts = recorded(model, tokens, lengths, mask)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    with pytest.raises(RuntimeError, match="before the backward"), replay(model, experts, lengths):
        logp(model, tokens, lengths, mask)
    with torch.no_grad(), replay(model, experts, lengths):
        logp(model, tokens, lengths, mask)


def test_each_route_is_consumed_once():
    """A record that is used twice, or not at all, stops the run with the numbers."""
    model, (tokens, lengths, mask) = moe(), batch()
    _, experts = recorded(model, tokens, lengths, mask)

    def run(context, times: int) -> None:
        with context:
            for _ in range(times):
                logp(model, tokens, lengths, mask)

    with pytest.raises(RuntimeError, match=r"of its 26 routes is consumed 2 times"):
        run(replay(model, experts, lengths), 2)
    with pytest.raises(RuntimeError, match=r"consumed once .* 2 layers, but .*gate 0 times"):
        run(replay(model, experts, lengths), 0)
    with pytest.raises(RuntimeError, match=r"recorded once .* 2 times"):
        run(record(model, tokens, lengths), 2)
    assert not any(router._forward_hooks for _, router in routers(model))


def test_records_that_do_not_fit_are_refused():
    """Wrong layer count (an MTP layer more), k, length, expert or batch: ValueError, never another token's route."""
    model, (tokens, lengths, mask) = moe(), batch()
    _, experts = recorded(model, tokens, lengths, mask)
    longer, strange = lengths.clone(), experts.clone()
    longer[1] += 1
    strange[0, 0, 0, 0] = 8
    for wrong, of, message in (
        (experts[:, :, :1], lengths, "2 layers"),
        (torch.cat([experts, experts[:, :, :1]], 2), lengths, "2 layers"),
        (experts[..., :1], lengths, "routers choose 2"),
        (experts, longer, r"\[13, 8, 4, 1\] routes a row: prompt \+ response - 1 is \[13, 9, 4, 1\]"),
        (strange, lengths, "expert 8: the model has experts 0 to 7"),
    ):
        with pytest.raises(ValueError, match=message), replay(model, wrong, of):
            pass
    with (
        pytest.raises(ValueError, match=r"saw 21 tokens: expected 52 \(padded\) or 26"),
        replay(model, experts, lengths),
    ):
        logp(model, *batch(torch.tensor([8, 5, 3])))


def test_dense_models_and_unknown_routers_are_refused():
    """One clear line each: a dense model, experts without a router module, a router that weighs in another way."""
    dense, (tokens, lengths, mask) = tiny.tiny_model("qwen3"), batch()
    assert is_moe(moe())
    assert not is_moe(dense)
    with pytest.raises(ValueError, match="Qwen3ForCausalLM is a dense model"):
        expert_choices(dense, tokens, lengths)
    dense.config.num_experts = 8
    with pytest.raises(ValueError, match="no module named"):
        routers(dense)
    model = moe()
    _, experts = recorded(model, tokens, lengths, mask)
    for _, router in routers(model):
        router.register_forward_hook(lambda _module, _args, out: (out[0], 2.5 * out[1], out[2]))
    with pytest.raises(ValueError, match="does not weigh experts by their softmax"), replay(model, experts, lengths):
        logp(model, tokens, lengths, mask)
