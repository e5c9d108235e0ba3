"""Tiny programs: the task, its judge, and the rewards that a configuration puts together."""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_config import run_of

from gspo.binding import bind
from gspo.data import tiny_programs
from gspo.data.programs import TERMS, value
from gspo.pretrained import character_tokenizer
from gspo.rewards.score import score
from gspo.types import Group, Prompt, Rollout

BIN = Path(sys.executable).parent


def rollout(text, finish="stop", tokens=1):
    zeros = np.zeros(tokens, np.int64)
    return Rollout(zeros, np.ones(tokens, bool), np.zeros(tokens, np.float32), finish, 0, text)


def prompt_of(row):
    return Prompt(row.id, row.prompt, (1,), row.reference, "tiny_programs", row.kind, row.meta)


def test_what_a_description_means():
    """By hand: times binds closer than plus and minus, twice and squared belong to their term."""
    term = {words: (words, python, name) for words, python, name in TERMS}
    assert value([term["twice a"], term["b squared"]], ["minus"], 5, -3) == 1
    assert value([term["a"], term["b"], term["3"]], ["minus", "times"], 2, 4) == -10
    assert value([term["a squared"], term["twice b"], term["b"], term["7"]], ["times", "minus", "plus"], -2, 3) == 28


def test_reference_solutions_pass_and_slips_mostly_fail():
    """Python itself, in the sandbox, agrees with the tests on every solution; a solution with one wrong term or sign
    is caught (a digit times a digit may come out the same another way)."""
    right = tiny_programs(seed=5, min_terms=2, max_terms=4)
    wrong = tiny_programs(seed=5, min_terms=2, max_terms=4, slip_rate=0.15)
    numbers = [i for i in range(80) if wrong.row(i).meta["slips"] == 1][:20]
    groups = []
    for i in numbers:
        texts = [right.row(i).meta["solution"], wrong.row(i).meta["solution"]]
        groups.append(Group(prompt_of(right.row(i)), [rollout(text) for text in texts]))
    score(groups, bind(run_of("model=tiny_programs").reward, "reward"))
    assert len(groups) == 20
    assert all(group.rewards[0].value == 1 for group in groups)
    assert sum(group.rewards[1].value for group in groups) <= 1


def test_rows_fit_the_tiny_model():
    """Prompt and solution are made of the character vocabulary, decode to themselves and are short enough."""
    tokenizer, limit = character_tokenizer(), run_of("model=tiny_programs").sampling.max_tokens
    source = tiny_programs(seed=1, min_terms=2, max_terms=4)
    for i in random.Random(0).sample(range(10**6), 300):
        row = source.row(i)
        assert row == source.row(i)
        for text in (row.prompt, row.meta["solution"]):
            assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text
        assert len(tokenizer.encode(row.meta["solution"], add_special_tokens=False)) + 1 <= limit


def test_mixed_reward_from_its_file():
    """conf/reward/mixed.yaml: each row reaches the verifier of its kind."""
    reward = bind(run_of("reward=mixed").reward, "reward")
    row = tiny_programs(seed=0, min_terms=2, max_terms=2).row(0)
    sum_ = Prompt("p", "1+1=", (1,), "2", "arithmetic", "math")
    assert reward(prompt_of(row), rollout(row.meta["solution"])).path.endswith("pass")
    assert reward(prompt_of(row), rollout(r"\boxed{2}")).path == "no code"
    assert reward(sum_, rollout(r"\boxed{2}")).value == 1
    assert reward(sum_, rollout(row.meta["solution"])).value == 0


def test_length_penalty_from_its_file():
    """conf/reward/math_overlong.yaml: the limit is that of the sampler, and the penalty is no part of `correct`."""
    reward = bind(run_of("reward=math_overlong", "reward.buffer=10", "reward.weight=0.5").reward, "reward")
    judged = reward(Prompt("p", "1+1=", (1,), "2", "arithmetic"), rollout(r"\boxed{2}", tokens=36))
    assert judged.parts == {"correct": 1.0, "format": 1.0, "overlong": -0.6}  # (40 - 10 - 36) / 10
    assert judged.value == pytest.approx(0.7)


def test_format_reward_from_its_file():
    """conf/reward/format.yaml: any box earns it."""
    reward = bind(run_of("reward=format").reward, "reward")
    assert reward(Prompt("p", "1+1=", (1,), "2", "arithmetic"), rollout(r"\boxed{9}")).value == 1


def test_a_reward_that_cannot_judge_is_refused_before_the_run(tmp_path):
    """A buffer longer than the response, a kind without a verifier: exit code 2, one reason, no directory."""
    for overrides, said in (
        (["reward=math_overlong", "reward.buffer=41"], "buffer=41"),
        (["reward=mixed", "~reward.kinds.math"], "kind=math"),
        (["reward=steps", "algo=grpo", "data=arithmetic_words"], "no running totals"),
    ):
        done = subprocess.run(
            [BIN / "gspo-train", "rollout=hf", "tracking=jsonl", "run.dir=run", *overrides],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 2, done.stderr
        assert said in done.stderr.strip().splitlines()[-1]
        assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_programs_are_learnt(tmp_path):
    """From the shipped cold start, judged in the sandbox, at three times the learning rate: the last 5 of 14 steps are
    0.15 above the first 3."""
    command = [BIN / "gspo-train", "model=tiny_programs", "rollout=hf", "optim.lr=3e-4", "train.steps=14"]
    subprocess.run([*command, "tracking=jsonl", "run.dir=run"], cwd=tmp_path, check=True, capture_output=True)
    reward = [json.loads(line)["reward/mean"] for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert sum(reward[-5:]) / 5 - sum(reward[:3]) / 3 >= 0.15
