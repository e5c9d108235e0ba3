"""Group advantages against hand-worked numbers; the undefined cases."""

import math

import pytest
import torch

from gspo.algorithms.advantages import group_centered, group_normalized, leave_one_out

ALL = [group_normalized, group_centered, leave_one_out]


def test_population_std():
    """[1, 0, 0, 0] by hand; sample std would give [1.5, -0.5, ...]."""
    adv = group_normalized(torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    assert adv[0].tolist() == pytest.approx([math.sqrt(3)] + [-1 / math.sqrt(3)] * 3, abs=1e-12)


def test_centered_and_leave_one_out():
    """Dr. GRPO: r - mean. RLOO: r minus the mean of the others."""
    rewards = torch.tensor([[1.0, 0.0, 0.5, 0.25]])
    assert group_centered(rewards)[0].tolist() == pytest.approx([0.5625, -0.4375, 0.0625, -0.1875])
    others = [1 - 0.75 / 3, 0 - 1.75 / 3, 0.5 - 1.25 / 3, 0.25 - 1.5 / 3]
    assert leave_one_out(rewards)[0].tolist() == pytest.approx(others)


@pytest.mark.parametrize("advantage", ALL)
@pytest.mark.parametrize("rewards", [[0.1] * 3, [0.7] * 6, [0.0] * 4, [1e-300] * 3])
def test_no_spread_is_exactly_zero(advantage, rewards):
    """max = min gives exactly 0; a tiny rounding std (1.7e-17 for three 0.1) must not be blown up to 0.8."""
    assert not advantage(torch.tensor([rewards], dtype=torch.float64)).any()


def test_tiny_spread_is_not_flattened():
    """Without an epsilon, [1e-9, 0] normalises to [1, -1] like any other pair."""
    adv = group_normalized(torch.tensor([[1e-9, 0.0]], dtype=torch.float64))
    assert adv[0].tolist() == pytest.approx([1.0, -1.0])


@pytest.mark.parametrize("advantage", ALL)
def test_a_failed_verifier_leaves_the_others_alone(advantage):
    """NaN: mean and std over the others, its own A = 0; with fewer than two left the group's A = 0."""
    nan = math.nan
    adv = advantage(torch.tensor([[1.0, nan, 0.0, 0.0], [1.0, nan, nan, nan], [1.0, 0.0, 1.0, 0.0]]))
    alone = advantage(torch.tensor([[1.0, 0.0, 0.0]]))
    assert adv[0, [0, 2, 3]].tolist() == pytest.approx(alone[0].tolist())
    assert adv[0, 1].item() == 0.0
    assert not adv[1].any()
    assert adv[2].any()


@pytest.mark.parametrize("advantage", ALL)
def test_groups_do_not_mix(advantage):
    """Each row has its own mean: rows of different level give the same advantages; catches a batch-level std."""
    rows = torch.tensor([[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]], dtype=torch.float64)
    adv = advantage(rows)
    assert adv[0].tolist() == pytest.approx(adv[1].tolist())
    assert adv.sum(-1).tolist() == pytest.approx([0.0, 0.0], abs=1e-12)


@pytest.mark.parametrize("advantage", ALL)
def test_refused(advantage):
    """A group of one has no baseline; infinite rewards have no mean."""
    with pytest.raises(ValueError, match="G >= 2"):
        advantage(torch.ones(3, 1))
    with pytest.raises(ValueError, match="finite"):
        advantage(torch.tensor([[1.0, math.inf]]))
