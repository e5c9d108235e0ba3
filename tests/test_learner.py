"""The learner: no cut of the batch changes a gradient, the first mini-batch is on policy, faults are skipped."""

import functools
import math

import pytest
import torch
from tiny import tiny_model_dir

from gspo import policy, routing
from gspo.algorithms.hybrids import dapo
from gspo.algorithms.objectives import grpo, gspo, gspo_token
from gspo.batch import micro_batches, split
from gspo.config import ClipSettings, OptimSettings
from gspo.learner import Learner
from gspo.routing import real_inputs
from gspo.routing_meter import load_balance_loss
from gspo.schedule import schedule
from gspo.types import Batch

GSPO = ClipSettings(low=3e-4, high=4e-4)


def load(tmp_path, kind="qwen3_moe", dtype=torch.float64):
    """The tiny model of `tmp_path`, written at the first call: ranks read it at the same time."""
    directory = tmp_path / kind
    if not directory.exists():
        tiny_model_dir(kind, directory, seed=0)
    experts = "eager" if "moe" in kind else None
    return policy.load(directory, experts_implementation=experts, trust_remote_code=False, device="cpu").to(dtype)


def learner(model, *, tokens=10_000, old_logp="trainer", clip=GSPO, packed=False, **optim):
    settings = OptimSettings(**{"lr": 1e-3, "eps": 1e-5, "grad_clip": None} | optim)
    return Learner(model, settings, clip, precision="float32", temperature=0.7, old_logp=old_logp,
                   micro_batch_tokens=tokens, total_updates=10, packed=packed)  # fmt: skip


def batch(groups=4, size=3, seed=0):
    """Random responses of 1 to 12 tokens behind prompts of 2 to 5."""
    g = torch.Generator().manual_seed(seed)
    n = groups * size
    prompts = torch.randint(2, 6, (groups,), generator=g).repeat_interleave(size)
    sampled = torch.randint(1, 13, (n,), generator=g)
    lengths = prompts + sampled
    width = int(lengths.max())
    place = torch.arange(width - 1)[None]
    mask = (place >= prompts[:, None] - 1) & (place < lengths[:, None] - 1)
    tokens = torch.randint(4, 60, (n, width), generator=g)
    return Batch(
        tokens=tokens.masked_fill(torch.arange(width)[None] >= lengths[:, None], 0), lengths=lengths, mask=mask,
        sampler_logp=torch.where(mask, -torch.rand(n, width - 1, generator=g), 0.0),
        adv=torch.randn(n, generator=g), group=torch.arange(groups).repeat_interleave(size), row=torch.arange(n),
        num_sequences=n, num_tokens=int(mask.sum()),
    )  # fmt: skip


def drifted_old_logp(lrn, minibatch, seed=1):
    """Old log-probs a little off the present ones, so that clips bind."""
    logp = lrn.logp(minibatch)
    noise = 1e-3 * torch.randn(logp.shape, generator=torch.Generator().manual_seed(seed))
    return logp + torch.where(minibatch.mask, noise, 0.0)


def gradients(model, minibatch, objective, tokens):
    """The gradient of every parameter after one update with learning rate about 0."""
    lrn = learner(model, tokens=tokens, lr=1e-30)
    update = lrn.update(minibatch, objective, on_policy=False)
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return update, grads


@pytest.mark.parametrize("objective", [grpo, gspo, gspo_token, dapo])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_the_cut_does_not_change_the_gradient(tmp_path, objective, dtype, tolerance):
    """Budgets of 18, 40 and 10,000 tokens a micro-batch: catches denominators per micro-batch or per real token."""
    model = load(tmp_path, dtype=dtype)
    bound = functools.partial(objective, clip_low=3e-4, clip_high=4e-4)
    minibatch = batch()
    minibatch.old_logp = drifted_old_logp(learner(model), minibatch)
    whole, expected = gradients(model, minibatch, bound, 10_000)
    assert whole.rows["tokens_binding"].sum() > 0
    for tokens in (18, 40):
        assert len(micro_batches(minibatch, tokens)) > 2
        cut, found = gradients(model, minibatch, bound, tokens)
        assert cut.loss == pytest.approx(whole.loss, rel=1e-4 if dtype == torch.float32 else 1e-9, abs=1e-7)
        for name, grad in expected.items():
            gap = (found[name] - grad).abs().max() / grad.abs().max().clamp(min=1e-30)
            assert gap <= tolerance or grad.abs().max() < 1e-12, (name, gap)


@pytest.mark.parametrize("packed", [False, True])
def test_the_load_balance_loss_is_that_of_the_whole_mini_batch(tmp_path, packed):
    """loss = -J + c * aux in 1 part or many, and gradients add up (routers compute in float32: 1e-6); catches shares of
    a micro-batch, padding that is counted, and a coefficient of 0 that changes a bit."""
    model = load(tmp_path)
    bound = functools.partial(gspo, clip_low=3e-4, clip_high=4e-4)
    minibatch = batch()
    minibatch.old_logp = drifted_old_logp(learner(model), minibatch)
    inputs = real_inputs(minibatch.tokens, minibatch.lengths)
    with routing.router_logits(model) as logits:
        model(input_ids=minibatch.tokens[:, :-1], use_cache=False)
    direct = load_balance_loss(logits, inputs, 2)
    direct.backward()
    of_aux = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    plain, without = gradients(model, minibatch, bound, 10_000)
    assert plain.aux_loss is None
    for tokens in (30, 10_000):
        lrn = learner(model, tokens=tokens, lr=1e-30, packed=packed)
        lrn.aux_loss_coef = 0.5
        update = lrn.update(minibatch, bound, on_policy=False)
        assert update.aux_loss == pytest.approx(direct.item(), rel=1e-6)
        assert update.loss == pytest.approx(plain.loss + 0.5 * direct.item(), rel=1e-6)
        for name, parameter in model.named_parameters():
            expected = without[name] + 0.5 * of_aux.get(name, torch.zeros(()))
            assert (parameter.grad - expected).abs().max() <= 1e-6 * expected.abs().max(), name


@pytest.mark.parametrize("kind", ["qwen3_moe", "qwen3"])
def test_packed_rows_give_the_same_gradient(tmp_path, kind):
    """Rows end to end, whole or in parts by their real tokens, against padded rows: catches attention across rows,
    positions that run on, and a budget that still counts padding."""
    model = load(tmp_path, kind)
    bound = functools.partial(gspo, clip_low=3e-4, clip_high=4e-4)
    minibatch = batch()
    minibatch.old_logp = drifted_old_logp(learner(model), minibatch)
    _, expected = gradients(model, minibatch, bound, 10_000)
    for tokens in (40, 10_000):
        lrn = learner(model, tokens=tokens, lr=1e-30, packed=True)
        parts = lrn.micro_batches(minibatch)
        assert all(int(part.lengths.sum()) <= tokens for part in parts)
        assert len(parts) == (1 if tokens == 10_000 else len(parts)) <= len(micro_batches(minibatch, tokens))
        lrn.update(minibatch, bound, on_policy=False)
        for name, parameter in model.named_parameters():
            grad = expected[name]
            assert (parameter.grad - grad).abs().max() <= 1e-9 * grad.abs().max().clamp(min=1e-12), name


@pytest.mark.parametrize("kind", ["qwen3_moe", "qwen3"])
def test_the_first_mini_batch_is_exactly_on_policy(tmp_path, kind):
    """log w is exactly 0 in float32 (not 1e-7), so nothing can be clipped; old log-probs of the rest are bit-equal
    to what an update before any step would compute."""
    lrn = learner(load(tmp_path, kind, torch.float32), tokens=60)
    first, *rest = lrn.with_old_logp(split(batch(), 4, seed=0))
    bound = functools.partial(gspo, clip_low=3e-4, clip_high=4e-4)
    frozen = learner(lrn.model, tokens=60, lr=1e-30)
    for minibatch in (first, *rest):
        rows = frozen.update(minibatch, bound, on_policy=True).rows
        assert not rows["max_abs_log_w"].any()
        assert not rows["tokens_outside"].any()
        assert not rows["log_s"].any()


def test_replay_keeps_the_routes_of_the_old_policy(tmp_path):
    """After an update the later mini-batches still take the experts recorded before it, whatever the micro-batches;
    without replay some differ. On unchanged weights replay changes nothing."""
    model = load(tmp_path, dtype=torch.float32)
    lrn = learner(model, tokens=60, lr=0.1)
    lrn.routing_replay = "old"
    bound = functools.partial(grpo, clip_low=None, clip_high=None)
    first, second = lrn.with_old_logp(split(batch(), 2, seed=0))
    assert first.experts is None
    frozen = learner(model, tokens=60, lr=1e-30)
    assert not frozen.update(second, bound, on_policy=False).rows["max_abs_log_w"].any()
    lrn.update(first, bound, on_policy=True)
    whole = learner(model, tokens=10_000)
    with torch.no_grad(), routing.record(model, second.tokens, second.lengths) as live:
        free, _ = whole.token_logp(second)
    assert not torch.equal(live.experts, second.experts), "the update is meant to change routes"
    with torch.no_grad(), routing.replay(model, second.experts, second.lengths):
        replayed, _ = learner(model, tokens=10_000).token_logp(second)
    update = lrn.update(second, bound, on_policy=False)
    order = torch.argsort(torch.from_numpy(update.rows["row"]))
    found = torch.from_numpy(update.rows["log_w_sum"])[order]
    expected = (replayed - second.old_logp).sum(-1)[torch.argsort(second.row)]
    torch.testing.assert_close(found, expected.double(), rtol=1e-4, atol=1e-4)
    assert (found - (free - second.old_logp).sum(-1)[torch.argsort(second.row)]).abs().max() > 1e-2
    assert routing.routers(model)[0][1].weight.grad.abs().max() > 0


def test_old_logp_from_the_sampler(tmp_path):
    """`sampler` takes the engine's numbers for every mini-batch; the mismatch is known in the first one only."""
    lrn = learner(load(tmp_path, dtype=torch.float32), old_logp="sampler")
    first, second = lrn.with_old_logp(split(batch(), 2, seed=0))
    assert torch.equal(first.old_logp, first.sampler_logp)
    bound = functools.partial(gspo, clip_low=None, clip_high=None)
    logp = lrn.logp(first)
    rows = lrn.update(first, bound, on_policy=True).rows
    gap = torch.where(first.mask, (logp - first.sampler_logp).abs(), 0.0).sum().item()
    assert rows["mismatch_abs_sum"].sum() == pytest.approx(gap, rel=1e-5)
    assert rows["log_s"].any()
    assert lrn.update(second, bound, on_policy=False).rows["mismatch_tokens"].sum() == 0


def test_one_step_is_adamw_on_the_objective(tmp_path):
    """Weights after one update equal torch's AdamW fed with the gradient of -J, clipped to the norm; catches a wrong
    sign, a gradient clipped twice, a learning rate set too late."""
    model, twin = load(tmp_path), load(tmp_path)
    minibatch = batch()
    bound = functools.partial(gspo, clip_low=None, clip_high=None)
    update = learner(model, grad_clip=0.05).update(minibatch, bound, on_policy=True)
    logp, _ = policy.token_logp(twin, minibatch.tokens, minibatch.lengths, minibatch.mask, temperature=0.7,
                                precision="float32")  # fmt: skip
    length = minibatch.mask.sum(-1).double()
    s = ((logp - logp.detach()) * minibatch.mask).sum(-1).div(length).exp()
    (-(s * minibatch.adv.double()).sum() / len(s)).backward()
    norm = torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.05)
    assert update.grad_norm == pytest.approx(norm.item(), rel=1e-9)
    assert norm > 0.05
    torch.optim.AdamW(twin.parameters(), lr=1e-3, eps=1e-5, weight_decay=0.0).step()
    for (name, a), b in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9, msg=name)


@pytest.mark.parametrize("fault", [math.nan, math.inf])
def test_a_non_finite_update_is_skipped(tmp_path, fault):
    """Weights, and AdamW's moments, stay as they were; catches a NaN that reaches the weights."""
    model = load(tmp_path, dtype=torch.float32)
    lrn = learner(model)
    before = {name: p.clone() for name, p in model.named_parameters()}
    minibatch = batch()
    minibatch.adv[3] = fault
    update = lrn.update(minibatch, functools.partial(gspo, clip_low=None, clip_high=None), on_policy=True)
    assert update.skipped
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert not lrn.optimizer.state


def test_schedules():
    """Linear warm-up to 1 over 4 updates, then constant, linear to 0 or cosine to 0 at the end."""

    def factors(kind):
        return [schedule(OptimSettings(lr=1.0, schedule=kind, warmup_steps=4), u, 12) for u in (0, 3, 4, 8, 12)]

    assert factors("constant") == [0.25, 1.0, 1.0, 1.0, 1.0]
    assert factors("linear") == pytest.approx([0.25, 1.0, 1.0, 0.5, 0.0])
    assert factors("cosine") == pytest.approx([0.25, 1.0, 1.0, 0.5, 0.0])
    assert schedule(OptimSettings(lr=1.0, schedule="cosine"), 3, 12) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)


def test_mini_batches_are_whole_groups_in_seeded_order():
    """Groups are not torn, every row appears once, the order is the seed's; an uneven deal is refused."""
    whole = batch(groups=6)
    parts = split(whole, 3, seed=5)
    assert sorted(torch.cat([p.row for p in parts]).tolist()) == list(range(18))
    for part in parts:
        assert part.num_sequences == 6 == len(part.row)
        assert part.num_tokens == int(part.mask.sum())
        assert all((whole.group == g).sum() == (part.group == g).sum() for g in part.group.unique())
    assert [p.row.tolist() for p in split(whole, 3, seed=5)] == [p.row.tolist() for p in parts]
    assert [p.row.tolist() for p in split(whole, 3, seed=6)] != [p.row.tolist() for p in parts]
    with pytest.raises(ValueError, match="minibatches=4"):
        split(whole, 4, seed=5)
