"""Rewards by step: what is right, which tokens get it, who may take it."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gspo.algorithms.advantages import group_centered, group_normalized, leave_one_out, step_normalized
from gspo.batch import make_batch, micro_batches, reward_tensor, split, step_ends
from gspo.data import arithmetic
from gspo.pretrained import character_tokenizer
from gspo.rewards.steps import steps_reward
from gspo.types import Group, Prompt, Reward, Rollout

BIN = Path(sys.executable).parent
PLAIN = Prompt("p", "7+5-3+9=", (1, 5, 6), "8", "arithmetic", meta={"totals": [2, 9, 8]})


def rollout(text, finish="stop", ids=()):
    n = len(ids) or 1
    ids = np.array(ids or [0], dtype=np.int64)
    return Rollout(ids, np.ones(n, bool), np.zeros(n, np.float32), finish, 0, text)


@pytest.mark.parametrize(
    ("text", "finish", "steps", "correct"),
    [
        (r"7+5=2-3=9+9=8\boxed{8}", "stop", [(5, 1), (9, 1), (13, 1), (22, 1)], 1),
        (r"7+5=2-3=8+9=7\boxed{7}", "stop", [(5, 1), (9, 0), (13, 0), (22, 0)], 0),  # a slip and what follows from it
        (r"7+5=2;2-3=9;9+9=8;\boxed{8}", "stop", [(5, 1), (11, 1), (17, 1), (27, 1)], 1),  # verbose
        (r"7+5=2-3=9\boxed{8}", "stop", [(5, 1), (9, 1), (18, 1)], 1),  # a total left out is no step
        (r"7+5=2-3=9+9=8+0=8\boxed{8}", "stop", [(5, 1), (9, 1), (13, 1), (17, 0), (26, 1)], 1),  # one too many
        (r"7+5=12-3=9\boxed{=8}", "stop", [(6, 0), (10, 1), (20, 0)], 0),  # not modulo 10; nothing inside the box
        (r"7+5=2-3=9+9=8\boxed{8}", "length", [(5, 1), (9, 1), (13, 1), (22, 0)], 0),  # truncated: no answer
        ("", "stop", [(0, 0)], 0),
    ],
)
def test_each_total_and_the_answer_are_steps(text, finish, steps, correct):
    """Where each step ends and whether it is right, by hand; a shift by one pairs totals with the wrong step."""
    reward = steps_reward(PLAIN, rollout(text, finish))
    assert reward.steps == steps
    assert reward.parts["correct"] == correct
    assert reward.value == pytest.approx(sum(value for _, value in steps) / len(steps))


@pytest.mark.parametrize("verbose", [False, True])
def test_reference_solutions_are_right_at_every_step(verbose):
    """The reward reads both formats that the task writes; with slips exactly the totals off the true ones are wrong."""
    for i in range(50):
        row = arithmetic(seed=3, min_terms=2, max_terms=7, verbose=verbose).row(i)
        prompt = Prompt(row.id, row.prompt, (1,), row.reference, "arithmetic", meta=row.meta)
        reward = steps_reward(prompt, rollout(row.meta["solution"]))
        assert [value for _, value in reward.steps or []] == [1.0] * row.meta["terms"]
        ends = [row.meta["solution"][:end][-1] for end, _ in reward.steps or []]
        assert ends == [str(total) for total in row.meta["totals"]] + ["}"]


def test_a_prompt_without_totals_is_refused():
    """On another data set there is nothing to compare the steps with."""
    with pytest.raises(ValueError, match="prompt q of gsm8k has no running totals"):
        steps_reward(Prompt("q", "?", (1,), "8", "gsm8k"), rollout(r"\boxed{8}"))


NAN = math.nan


def test_step_advantages_by_hand():
    """Steps 1, 0 and 1, 1: mean 3/4, std sqrt(3)/4, so 1 -> 1/sqrt(3) and 0 -> -sqrt(3); summed from each step on."""
    one, zero = 1 / math.sqrt(3), -math.sqrt(3)
    adv = step_normalized(torch.tensor([[[1.0, 0.0], [1.0, 1.0]]]))
    assert adv[0].flatten().tolist() == pytest.approx([one + zero, zero, 2 * one, one])
    # three steps and one: mean 1/2, std 1/2; each step counts once, whatever the length of its response
    adv = step_normalized(torch.tensor([[[1.0, 0.0, 0.0], [1.0, NAN, NAN]]]))
    assert adv[0].tolist() == [[-1.0, -2.0, -1.0], [1.0, 0.0, 0.0]]


def test_one_step_a_response_is_the_outcome_advantage():
    """S = 1 is [P, G] with another shape, and `group_normalized` takes either."""
    rewards = torch.tensor([[1.0, 0.0, 0.25, NAN], [1.0, 1.0, 1.0, 1.0]])
    assert step_normalized(rewards[..., None])[..., 0].tolist() == group_normalized(rewards).tolist()
    assert group_normalized(rewards[..., None])[..., 0].tolist() == group_normalized(rewards).tolist()


@pytest.mark.parametrize(
    "steps",
    [
        [[1.0, 1.0], [1.0, NAN]],  # no spread
        [[0.1, 0.1], [0.1, 0.1]],
        [[1.0, 0.0], [NAN, NAN]],  # one response left: nothing to compare it with
        [[NAN, NAN], [NAN, NAN]],
    ],
)
def test_groups_that_say_nothing_are_exactly_zero(steps):
    """No spread, or fewer than two responses with rewards: exactly 0 and never NaN."""
    assert not step_normalized(torch.tensor([steps, [[1.0, 0.0], [0.0, 0.0]]]))[0].any()


def test_a_failed_verifier_leaves_the_others_alone():
    """A response without rewards has A = 0, the others have what they have without it."""
    rest = [[1.0, 0.0], [1.0, 1.0]]
    adv = step_normalized(torch.tensor([[rest[0], [NAN, NAN], rest[1]]]))
    assert not adv[0, 1].any()
    assert adv[0, [0, 2]].tolist() == step_normalized(torch.tensor([rest]))[0].tolist()


@pytest.mark.parametrize("advantage", [group_centered, leave_one_out])
def test_other_advantages_refuse_steps(advantage):
    """No silent flattening of the steps into the group."""
    with pytest.raises(ValueError, match=r"must be \[P, G\].*got \[1, 2, 3\]"):
        advantage(torch.zeros(1, 2, 3))


TEXT = r"7+5=2-3=8+9=7\boxed{7}"


def pieces(*texts):
    """A tokenizer with these tokens, decoded as bytes are: an incomplete character is a replacement character."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {text: i for i, text in enumerate(("<eos>", *texts))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>"))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def test_steps_end_where_the_text_says():
    """One token a character, tokens that straddle steps, and characters of several tokens: by hand for each."""
    reward = steps_reward(PLAIN, rollout(TEXT))
    letters = character_tokenizer()
    ids = [*letters.encode(TEXT, add_special_tokens=False), letters.eos_token_id]
    assert step_ends(rollout(TEXT, ids=ids), reward, letters) == [4, 8, 12, 16]  # the last with EOS
    words = pieces("7+", "5=2-3", "=8+9=7", "\\boxed{7", "}")
    assert step_ends(rollout(TEXT, ids=[1, 2, 3, 4, 5, 0]), reward, words) == [1, 2, 2, 5]
    # an accented letter in two byte tokens before the first total
    bytes_ = pieces("<0xC3>", "<0xA9>", "=2", "\\boxed{7}")
    accent = rollout("\u00e9=2\\boxed{7}", ids=[1, 2, 3, 4])
    assert bytes_.decode([1, 2, 3, 4]) == accent.text
    assert step_ends(accent, steps_reward(PLAIN, accent), bytes_) == [2, 3]


def test_tokens_of_a_batch_have_the_advantage_of_their_step():
    """Through make_batch and both cuts: [N, T] in place of [N], each token the sum from its own step on, by hand."""
    letters = character_tokenizer()
    texts = (r"7+5=2-3=9+9=8\boxed{8}", r"7+5=2-3=8+9=7\boxed{7}")
    rollouts = [rollout(t, ids=[*letters.encode(t, add_special_tokens=False), letters.eos_token_id]) for t in texts]
    groups = [Group(PLAIN, rollouts, [steps_reward(PLAIN, one) for one in rollouts])] * 2
    rewards = reward_tensor(groups)
    assert rewards.tolist() == [[[1, 1, 1, 1], [1, 0, 0, 0]]] * 2  # mean 5/8, std sqrt(15)/8
    one, zero = 3 / math.sqrt(15), -5 / math.sqrt(15)
    batch = make_batch(groups, group_normalized(rewards), tokenizer=letters)
    assert batch.adv.shape == (4, 3 + 17 - 1)  # prompt and response; the first token has no prediction
    spans = (5, 4, 4, 4)  # tokens of each step
    good = np.repeat([4 * one, 3 * one, 2 * one, one], spans)
    bad = np.repeat([one + 3 * zero, 3 * zero, 2 * zero, zero], spans)
    for part in [batch, *micro_batches(batch, 25), *split(batch, 2, seed=0)]:
        for row, adv, mask in zip(part.row, part.adv, part.mask, strict=True):
            assert adv[mask].tolist() == pytest.approx([good, bad][int(row) % 2].tolist(), abs=1e-6)
            assert not adv[~mask].any()


def test_rewards_with_and_without_steps_share_a_batch():
    """A reward without steps is one step that the whole response is; a failed one has advantage 0 at every token."""
    letters = character_tokenizer()
    ids = [*letters.encode(TEXT, add_special_tokens=False), letters.eos_token_id]
    rewards = [Reward(1.0), steps_reward(PLAIN, rollout(TEXT)), Reward(NAN, verdict="verifier failed")]
    groups = [Group(PLAIN, [rollout(TEXT, ids=ids)] * 3, rewards)]
    tensor = reward_tensor(groups)
    assert tensor[0].nan_to_num(-1).tolist() == [[1, -1, -1, -1], [1, 0, 0, 0], [-1] * 4]
    batch = make_batch(groups, group_normalized(tensor), tokenizer=letters)
    first = batch.adv[0][batch.mask[0]].unique().tolist()
    assert first == pytest.approx([0.6 / math.sqrt(0.24)])  # mean 2/5, variance 6/25
    assert not batch.adv[2].any()


SMALL = ["train.prompts_per_step=4", "train.group_size=4", "data.max_terms=5", "trainer.micro_batch_tokens=400",
         "tracking=jsonl", "rollout=hf", "train.steps=2", "reward=steps"]  # fmt: skip


def train(cwd, *overrides):
    return subprocess.run(
        [BIN / "gspo-train", *SMALL, *overrides], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("algo", ["grpo", "gspo-token"])
def test_two_steps_of_training(tmp_path, algo):
    """grpo and gspo-token take advantages a token to the end; value, parts and lengths are in the metrics."""
    done = train(tmp_path, f"algo={algo}", "run.dir=run")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 2
    for row in rows:
        assert (
            row["reward/correct"] <= row["reward/mean"]
        )  # a right answer with a wrong step is rare, the reverse common
        assert 0 < row["reward/mean"] < 1
        assert row["optim/grad_norm"] > 0
        assert row["ratio/log_w_max/mb0"] == 0


@pytest.mark.parametrize("algo", ["gspo", "gmpo", "grpo-seqclip", "dr-grpo"])
def test_algorithms_of_one_advantage_a_response_refuse(tmp_path, algo):
    """One line with the reason, exit code 2, and no run directory."""
    done = train(tmp_path, f"algo={algo}", "run.dir=run")
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert "steps_reward: rewards come by step, but" in last
    assert ("[B]" if algo != "dr-grpo" else "[P, G]") in last
    assert not (tmp_path / "run").exists()
