"""Metrics are sums over one table: hand-worked fractions, and independence of how the batch was cut."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from gspo import metrics, sequences
from gspo.algorithms.hybrids import cispo
from gspo.algorithms.objectives import grpo, gspo, gspo_token
from gspo.batch import micro_batches, select
from gspo.types import Batch, Group, Prompt, Reward, Rollout

LENGTHS = [10, 10, 10, 30]
DRIFT = [5e-4, -5e-4, 5e-4, -5e-4]
ADV = [1.0, 1.0, -1.0, -1.0]


def make(lengths, drift, adv, *, seed=0):
    """A batch with a one-token prompt, and logp = old_logp + drift per token; drift [B] or [B][T]."""
    n, width = len(lengths), max(lengths)
    mask = torch.arange(width)[None] < torch.tensor(lengths)[:, None]
    old = -torch.rand(n, width, generator=torch.Generator().manual_seed(seed))
    d = torch.zeros(n, width)
    for i, value in enumerate(drift):
        d[i, : lengths[i]] = torch.as_tensor(value)
    batch = Batch(
        tokens=torch.randint(0, 50, (n, width + 1)), lengths=torch.tensor(lengths) + 1, mask=mask, sampler_logp=old,
        adv=torch.tensor(adv), group=torch.arange(n) // 2, row=torch.arange(n), num_sequences=n,
        num_tokens=sum(lengths), old_logp=old,
    )  # fmt: skip
    return batch, (old.double() + d.double())


def responses(lengths, rewards=None):
    """`of_groups` columns of real groups of two."""
    rewards = rewards or [1.0, 0.0] * (len(lengths) // 2)
    groups = []
    for p in range(0, len(lengths), 2):
        rollouts = [
            Rollout(np.arange(k), np.ones(k, bool), np.zeros(k, np.float32), "stop", 0) for k in lengths[p : p + 2]
        ]
        verdicts = [Reward(r, {"correct": r}) for r in rewards[p : p + 2]]
        groups.append(Group(Prompt(f"q{p}", "", (1,), "1", "test"), rollouts, verdicts))
    return sequences.of_groups(groups)


def table(objective, batch, logp, clip, *, cuts=None):
    """The step's table for one mini-batch, cut into the given micro-batches of rows."""
    parts = []
    for rows in cuts or [list(range(len(logp)))]:
        micro = select(batch, torch.tensor(rows))
        width = micro.mask.shape[1]
        lp, old = logp[rows, :width], micro.old_logp.double()
        terms = objective(lp, old, micro.adv.double(), micro.mask, **clip)
        entropy = torch.full_like(lp, 0.5)
        parts.append(sequences.of_update(micro, lp, old, entropy, terms, old, **clip))
    return sequences.join(responses((batch.lengths - 1).tolist()), [sequences.concatenate(parts)])


GSPO = {"clip_low": 3e-4, "clip_high": 4e-4}
GRPO = {"clip_low": 0.2, "clip_high": 0.28}


@pytest.mark.parametrize("objective", [gspo, gspo_token])
def test_four_clip_fractions_of_gspo(objective):
    """Responses 1 and 4 of lengths 10 and 30 bind: 2/4 of responses, 40/60 of tokens; all four are outside."""
    row = metrics.from_rows(table(objective, *make(LENGTHS, DRIFT, ADV), GSPO))
    assert row["clip/seq_binding"] == pytest.approx(0.5)
    assert row["clip/token_binding"] == pytest.approx(40 / 60)
    assert (row["clip/token_binding_num"], row["clip/token_binding_den"]) == (40, 60)
    assert row["clip/seq_outside"] == row["clip/token_outside"] == 1.0


def test_four_clip_fractions_of_grpo():
    """Ratios 1.5/+, 1.5/-, 0.5/+, 0.5/- : two of four bind, all are outside; a response counts by its share."""
    drift = [math.log(1.5), math.log(1.5), math.log(0.5), math.log(0.5)]
    row = metrics.from_rows(table(grpo, *make([1, 1, 1, 1], drift, [1.0, -1.0, 1.0, -1.0]), GRPO))
    assert row["clip/token_binding"] == 0.5
    assert row["clip/token_outside"] == 1.0
    one_of_four = [math.log(1.5), 0.0, 0.0, 0.0]
    row = metrics.from_rows(table(grpo, *make([4, 2], [one_of_four, 0.0], [1.0, 1.0]), GRPO))
    assert row["clip/token_binding"] == pytest.approx(1 / 6)
    assert row["clip/seq_binding"] == pytest.approx(0.25 / 2)


def test_zero_advantage_is_in_the_denominator_but_for_given_adv():
    """A = 0 cannot bind; the plain fraction counts it below the line, `_given_adv` does not."""
    row = metrics.from_rows(table(gspo, *make([10, 10, 10, 10], DRIFT, [1.0, 0.0, 0.0, 1.0]), GSPO))
    assert row["clip/seq_binding"] == 0.25
    assert row["clip/seq_binding_given_adv"] == 0.5
    assert row["clip/token_binding_given_adv_den"] == 20


@pytest.mark.parametrize(
    ("objective", "clip"), [(grpo, GSPO), (gspo, GSPO), (cispo, {"clip_low": None, "clip_high": 1e-4})]
)
def test_given_adv_is_a_fraction(objective, clip):
    """Responses with A = 0 leave numerator and denominator: all drift outside, so `outside` given A is 1, not 4/3."""
    batch, logp = make([10, 10, 10, 10], [2e-3] * 4, [1.0, 0.0, 0.0, -1.0])
    row = metrics.from_rows(table(objective, batch, logp, clip))
    for name in ("token_outside", "seq_outside", "token_binding", "seq_binding"):
        assert 0 <= row[f"clip/{name}_given_adv"] <= 1
    assert row["clip/token_outside_given_adv"] == row["clip/seq_outside_given_adv"] == 1.0
    assert row["clip/token_outside_given_adv_num"] == 20


@pytest.mark.parametrize("objective", [grpo, gspo, gspo_token])
def test_no_cut_of_the_batch_changes_a_number(objective):
    """Catches a mean of micro-batch means: lengths are far apart, so any such mean would differ."""
    lengths = [3, 40, 7, 25, 1, 18, 30, 2]
    g = torch.Generator().manual_seed(3)
    drift = [1e-3 * torch.randn(k, generator=g) for k in lengths]
    batch, logp = make(lengths, drift, torch.randn(8, generator=g).tolist())
    whole = metrics.from_rows(table(objective, batch, logp, GSPO))
    assert 0 < whole["clip/token_binding"] < 1
    for cuts in ([[0, 1, 2], [3], [4, 5, 6, 7]], [[7, 0], [6, 1], [5, 2], [4, 3]]):
        assert metrics.from_rows(table(objective, batch, logp, GSPO, cuts=cuts)) == pytest.approx(whole, rel=1e-12)


def test_ratio_statistics_by_hand():
    """log s and log w of two responses: population std, extremes, k3."""
    row = metrics.from_rows(table(gspo, *make([2, 1], [[0.1, 0.3], -0.2], [1.0, -1.0]), GSPO))
    assert row["ratio/log_s_std"] == pytest.approx(0.2, rel=1e-6)
    assert row["ratio/log_s_max"] == pytest.approx(0.2, rel=1e-6)
    assert row["ratio/log_w_std"] == pytest.approx(np.std([0.1, 0.3, -0.2]), rel=1e-6)
    assert row["ratio/log_w_max"] == pytest.approx(0.3, rel=1e-6)
    k3 = np.mean([math.expm1(d) - d for d in (0.1, 0.3, -0.2)])
    assert row["policy/kl_old"] == pytest.approx(k3, rel=1e-6)
    assert row["policy/entropy"] == pytest.approx(0.5)


def test_mismatch_by_hand():
    """Trainer minus sampler of +0.1 and -0.3 on one response, 0 on the other."""
    batch, logp = make([2, 2], [0.0, 0.0], [1.0, -1.0])
    trainer = batch.old_logp.double() + torch.tensor([[0.1, -0.3], [0.0, 0.0]], dtype=torch.float64)
    terms = gspo(logp, trainer, batch.adv.double(), batch.mask, **GSPO)
    rows = sequences.of_update(batch, logp, trainer, torch.zeros_like(logp), terms, trainer, **GSPO)
    row = metrics.from_rows(sequences.join(responses([2, 2]), [rows]))
    assert row["mismatch/token_abs_mean"] == pytest.approx(0.1, rel=1e-5)
    assert row["mismatch/token_abs_max"] == pytest.approx(0.3, rel=1e-5)
    assert row["mismatch/seq_ratio_mean"] == pytest.approx((math.exp(-0.1) + 1) / 2, rel=1e-5)
    assert row["mismatch/seq_ratio_sum"] == pytest.approx((math.exp(-0.2) + 1) / 2, rel=1e-5)
    assert row["mismatch/seq_log_std"] == pytest.approx(0.05, rel=1e-5)


def test_rewards_and_groups():
    """Zero spread is counted group by group from max - min; a failed verifier is no reward of 0."""
    batch, logp = make([5, 5, 5, 5], [0.0] * 4, ADV)
    update = table(gspo, batch, logp, GSPO)
    names = responses([5, 5, 5, 5])
    columns = {name: column for name, column in update.items() if name not in names}
    judged = responses([5, 5, 5, 5], [0.7, 0.7, 1.0, math.nan])
    row = metrics.from_rows(judged | columns)
    assert row["reward/zero_spread"] == 1.0
    assert row["reward/verifier_failed"] == 0.25
    assert row["reward/mean"] == pytest.approx(0.8)
    assert row["reward/correct"] == pytest.approx(0.8)


def test_spread_of_steps():
    """Two responses of the same mean, right and wrong at other steps, have something to learn from; all right has not.

    By hand: the spread is over the steps, not over the responses' values.
    """
    steps = [[(1, 1.0), (2, 0.0)], [(1, 0.0), (2, 1.0)], [(1, 1.0)], [(1, 1.0), (2, 1.0)]]
    rollout = Rollout(np.arange(2), np.ones(2, bool), np.zeros(2, np.float32), "stop", 0)
    rewards = [Reward(sum(v for _, v in one) / len(one), steps=one) for one in steps]
    prompt = Prompt("q", "", (1,), "1", "test")
    rows = sequences.of_groups([Group(prompt, [rollout] * 2, rewards[i : i + 2]) for i in (0, 2)])
    assert metrics.groups_without_spread(rows) == 1


def test_counts_on_the_grid_are_the_objective_s_own():
    """At an eps of the grid, w_above/w_below give exactly what grpo counts as outside and binding there."""
    g = torch.Generator().manual_seed(5)
    lengths = [6, 9, 4, 12]
    drift = [0.3 * torch.randn(k, generator=g) for k in lengths]
    batch, logp = make(lengths, drift, [1.0, -1.0, 0.0, -0.5])
    for eps in (0.2, 0.05):
        rows = table(grpo, batch, logp, {"clip_low": eps, "clip_high": eps})
        k = sequences.EPS_GRID.index(eps)
        assert (rows["w_above"][:, k] + rows["w_below"][:, k]).tolist() == rows["tokens_outside"].tolist()
        bound = rows["w_above_bound"][:, k] + rows["w_below_bound"][:, k]
        assert bound.tolist() == rows["tokens_binding"].tolist()
        assert 0 < bound.sum() < rows["tokens_outside"].sum()


def test_break_downs_partition_the_whole():
    """Numerators and denominators of the length quartiles and of the mini-batches add up to the step's."""
    lengths = [3, 40, 7, 25, 1, 18, 30, 2]
    g = torch.Generator().manual_seed(3)
    batch, logp = make(lengths, [1e-3 * torch.randn(k, generator=g) for k in lengths], [1.0, -1.0] * 4)
    row = metrics.from_rows(table(gspo, batch, logp, GSPO))
    for end in ("_num", "_den"):
        quartiles = sum(row[f"clip/token_binding/len_q{q}{end}"] for q in (1, 2, 3, 4))
        assert quartiles == row[f"clip/token_binding{end}"]


def test_glossary_names_every_metric():
    """The README's table is generated: one line a metric, with unit and formula."""
    text = metrics.glossary()
    for metric in [*metrics.FROM_ROWS, *metrics.FROM_UPDATES]:
        assert f"| `{metric.name}` | {metric.unit} |" in text
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    assert readme.partition("<!-- glossary -->\n")[2].partition("\n<!-- /glossary -->")[0] == text


def test_micro_batches_respect_the_token_budget():
    """rows * longest <= budget, every row once, and the counts of the optimiser step travel along."""
    batch, _ = make([3, 40, 7, 25, 1, 18, 30, 2], [0.0] * 8, [1.0] * 8)
    parts = micro_batches(batch, 64)
    assert sorted(torch.cat([p.row for p in parts]).tolist()) == list(range(8))
    assert all(p.tokens.numel() <= 64 for p in parts)
    assert all(p.num_sequences == 8 and p.num_tokens == batch.num_tokens for p in parts)
    assert len(micro_batches(batch, 1)) == 8


def test_micro_batches_are_even():
    """The largest cost is the smallest of all cuts into as many parts, by trying them all: catches filling up from the
    shortest, which leaves the longest alone. Ranks get a multiple of their number where there are rows enough."""
    batch, _ = make([3, 40, 7, 25, 1, 18, 30, 2], [0.0] * 8, [1.0] * 8)
    for ranks, packed in [(1, False), (2, False), (3, False), (5, True), (16, False)]:
        parts = micro_batches(batch, 96, ranks=ranks, packed=packed)
        assert sorted(torch.cat([p.row for p in parts]).tolist()) == list(range(8))
        assert len(parts) % ranks == 0 or len(parts) == 8
        costs = [int(p.lengths.sum()) if packed else p.tokens.numel() for p in parts]
        rows = sorted(batch.lengths.tolist())
        best = min(max(cost(rows[a:b], packed) for a, b in itertools.pairwise([0, *cut, 8]))
                   for cut in itertools.combinations(range(1, 8), len(parts) - 1))  # fmt: skip
        assert max(costs) == best <= 96
        assert packed or sum(rows) >= 0.95 * sum(costs), "padding"


def cost(rows, packed):
    return sum(rows) if packed else len(rows) * max(rows)
