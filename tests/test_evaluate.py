"""Evaluation end to end, in training and as a command, on the shipped model and on responses that are given."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from canned import Canned, bench, prompt
from tiny import tiny_model_dir

from gspo import evaluate, pretrained
from gspo.binding import bind
from gspo.config import EvalSettings, ModelSettings, RolloutSettings, SamplingSettings
from gspo.data import PromptStream, Stage, files
from gspo.estimators import by_problem
from gspo.eval_command import find_checkpoint, paired
from gspo.eval_config import BenchmarkSettings
from gspo.rollout import request_seed
from gspo.rollout.hf import HfEngine
from gspo.types import Prompt, Reward, Rollout

SMALL = ["train.prompts_per_step=4", "train.group_size=4", "data.max_terms=5", "trainer.micro_batch_tokens=400",
         "tracking=jsonl", "rollout=hf"]  # fmt: skip
CLOCK = ("time/", "perf/", "compute/device_seconds", "compute/flops_eval", "compute/flops_total")
"""Columns of metrics.jsonl that evaluating may change: the clock's, and the FLOPs of the evaluation itself."""


def command(name, cwd, *arguments, check=True):
    """A console command in a process of its own."""
    code = f"import sys; from gspo import cli; sys.argv[0] = 'gspo-{name[:4]}'; cli.{name}()"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=300
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def jsonl(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


# -- in training ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same three steps without evaluation and with one every second step."""
    where = tmp_path_factory.mktemp("runs")
    command("train", where, *SMALL, "train.steps=3", "run.dir=without")
    more = ["eval.every=2", "eval.benchmark=arithmetic", "eval.problems=8", "eval.k=2"]
    command("train", where, *SMALL, "train.steps=3", "run.dir=with", *more)
    return where


def test_evaluation_changes_nothing_of_training(runs):
    """Metrics and final weights are the same to the bit with and without it; catches draws from training's generators
    or seeds, and rows that come in the wrong place."""
    without, with_ = (
        [{k: v for k, v in row.items() if not k.startswith(CLOCK)} for row in jsonl(runs / name / "metrics.jsonl")]
        for name in ("without", "with")
    )
    assert without == with_
    weights = [(runs / n / "checkpoints/step_000003/model.safetensors").read_bytes() for n in ("without", "with")]
    assert weights[0] == weights[1]


def test_rows_of_an_evaluation_in_training(runs):
    """Steps 0, 2 and the end; weights of that version; all that is needed to repeat it; FLOPs in phase eval only."""
    rows = jsonl(runs / "with" / "eval.jsonl")
    assert [(row["step"], row["version"]) for row in rows] == [(0, 0), (2, 2), (3, 3)]
    for row in rows:
        said = [row[key] for key in ("benchmark", "k", "problems", "seed", "temperature", "top_p", "max_tokens")]
        assert said == ["arithmetic", 2, 8, 0, 1.0, 1.0, 40]
        assert row["avg_at_k_low"] <= row["avg_at_k"] <= row["avg_at_k_high"]
        assert row["avg_at_k"] == row["pass_at_1"] <= row["pass_at_2"]
        assert len(row["dataset_sha256"]) == 64
    assert len({row["dataset_sha256"] for row in rows}) == 1
    flops = [(row["compute/flops_eval"], row["compute/flops_rollout"]) for row in jsonl(runs / "with/metrics.jsonl")]
    assert 0 < flops[0][0] == flops[1][0] < flops[2][0]
    assert jsonl(runs / "without/metrics.jsonl")[2]["compute/flops_rollout"] == flops[2][1]


def test_a_checkpoint_evaluates_to_the_row_of_its_training(runs):
    """gspo-eval of checkpoint 3 draws what training drew after step 3: the same score; of the untrained model, that of
    step 0; and the two are compared problem by problem. Catches weights that do not reach the engine."""
    more = ["rollout=hf", "benchmark=arithmetic", "problems=8", "k=2", "max_batch=16"]
    command("evaluate", runs, *more, "run.dir=e0")
    done = command("evaluate", runs, *more, "run.dir=e3", "checkpoint=with/checkpoints/step_000003")
    assert "avg@2" in done.stdout
    first, _, last = jsonl(runs / "with" / "eval.jsonl")
    for name, row in (("e0", first), ("e3", last)):
        found = jsonl(runs / name / "eval.jsonl")[0]
        assert {k: v for k, v in found.items() if k != "time/eval_s"} == {
            k: v for k, v in row.items() if k != "time/eval_s"
        }
        samples = jsonl(runs / name / f"eval_samples/step_{row['step']:06d}.jsonl")
        assert samples == jsonl(runs / f"with/eval_samples/step_{row['step']:06d}.jsonl")
        assert len(samples) == 16
        assert sum(sample["correct"] for sample in samples) / 16 == found["avg_at_k"]
        assert json.loads((runs / name / "run.json").read_text())["status"] == "finished"
    assert find_checkpoint(runs / "with", "gspo:qwen3_moe_tiny") == runs / "with/checkpoints/step_000003"
    with pytest.raises(ValueError, match=r"qwen3_moe_tiny.*not gspo:qwen3_tiny"):
        find_checkpoint(runs / "with", "gspo:qwen3_tiny")
    difference, said = paired(runs / "e0", runs / "e3")
    assert difference.value == pytest.approx(last["avg_at_k"] - first["avg_at_k"])
    assert difference.n == 8
    assert f"{100 * difference.value:.2f} %" in said
    inside, _ = paired(runs / "with/eval_samples/step_000000.jsonl", runs / "with/eval_samples/step_000003.jsonl")
    assert inside == difference
    with pytest.raises(ValueError, match="holds 3 evaluations; name one"):
        paired(runs / "with", runs / "e3")
    with pytest.raises(ValueError, match="no finished evaluation"):
        paired(runs / "without", runs / "e3")
    shutil.copytree(runs / "e0", runs / "other")
    (runs / "other" / "eval.jsonl").write_text(json.dumps(first | {"dataset_sha256": "0"}) + "\n")
    with pytest.raises(ValueError, match="cannot be paired: dataset_sha256"):
        paired(runs / "other", runs / "e3")


@pytest.mark.slow
def test_a_sweep_of_evaluations(runs):
    """--multirun: a process and a directory a job, in one sweep; a job that fails is told and ends no other."""
    jobs = ["checkpoint=with/checkpoints/step_000003,nowhere", "k=1,2", "hydra.sweep.dir=swept"]
    done = command("evaluate", runs, "--multirun", "rollout=hf", "problems=8", "max_batch=16", *jobs, check=False)
    assert done.returncode != 0
    assert done.stderr.count("checkpoint=nowhere: no checkpoint there") == 2
    found = {path.name: jsonl(path / "eval.jsonl")[0]["avg_at_k"] for path in (runs / "swept").glob("check*")}
    assert len(found) == 2
    assert jsonl(runs / "with" / "eval.jsonl")[2]["avg_at_k"] in found.values()


# -- sampling ---------------------------------------------------------------------------------------------------------


def test_samples_depend_on_the_seed_alone(tmp_path):
    """Case B47 on a real tiny model: 8 samples of one problem are not all the same; seed 42 gives the same again,
    whatever is evaluated beside it; 43 gives others; the seed reaches the engine and the row."""
    directory = tiny_model_dir("llama", tmp_path / "model")
    tokenizer = pretrained.load_tokenizer(directory)
    engine = HfEngine(directory, tokenizer, RolloutSettings(), SamplingSettings(max_tokens=8), precision="float32",
                      context=64, seed=0, max_batch=8, device="cpu")  # fmt: skip
    prompts = [Prompt(id, "12", (13, 14), "1", "test") for id in ("a", "b")]
    reward = bind({"_target_": "gspo.rewards.math.math_reward"}, "reward")

    def texts(prompts, seed):
        row, samples = evaluate.evaluate(engine, bench(prompts, reward, 8), seed=seed)
        assert row["seed"] == seed
        return [sample["response"] for sample in samples]

    first = texts(prompts[:1], 42)
    assert len(set(first)) > 1
    both = texts(prompts, 42)
    assert both[:8] == first
    assert both[8:] != first
    assert texts(prompts[:1], 43) != first
    engine = HfEngine(directory, tokenizer, RolloutSettings(), SamplingSettings(max_tokens=8), precision="float32",
                      context=64, seed=1, max_batch=8, device="cpu")  # fmt: skip
    assert texts(prompts[1:], 42) == both[8:]  # two engines that share the problems repeat nothing and change nothing


def test_what_is_trained_are_the_engine_s_ids(tmp_path):
    """Case B46: tokens 5 and 6 whose text encodes as another token stay 5 and 6 in the batch, after one BOS."""
    from gspo.batch import make_batch
    from gspo.types import Group

    tokenizer = pretrained.load_tokenizer(tiny_model_dir("llama", tmp_path / "model"))
    assert tokenizer.encode("12", add_special_tokens=False) not in ([5, 6], [6, 5])
    asked = Prompt("a", "1+0=", (1, 5), "1", "test")
    said = Rollout(np.array([5, 6]), np.ones(2, bool), np.zeros(2, np.float32), "stop", 0, "12")
    batch = make_batch([Group(asked, [said])], torch.zeros(1, 1), tokenizer=tokenizer)
    assert batch.tokens.tolist() == [[1, 5, 5, 6]]
    assert batch.mask.tolist() == [[False, True, True]]


def test_no_seed_of_training_is_used():
    """The engine is asked for step -1, and no (seed, step) of training gives the same request seed."""
    engine = Canned({"a": [("\\boxed{1}",), ("\\boxed{2}",)]})
    evaluate.evaluate(
        engine, bench([prompt()], bind({"_target_": "gspo.rewards.math.math_reward"}, "reward"), 2), seed=3
    )
    assert engine.asked == [(["a"], 2, 3, -1)]
    training = {request_seed(seed, step, "a") for seed in range(10) for step in range(1000)}
    assert request_seed(3, -1, "a") not in training


def test_what_counts_as_wrong():
    """Truncated responses with the right box, and samples that the verifier fails on, are wrong and counted apart;
    problems with the same text stay two (case B44)."""

    def reward(prompt, rollout):
        if rollout.text == "broken":
            raise RuntimeError("no judge")
        right = rollout.text == "right"
        return Reward(float(right) + 0.1, {"correct": float(right)}, "ok" if right else "wrong")

    engine = Canned({
        "a": [("right",), ("right", "length"), ("broken",), ("right", "abort")],
        "b": [("right", "stop", 9), ("wrong",), ("wrong",), ("right",)],
    })  # fmt: skip
    row, samples = evaluate.evaluate(engine, bench([prompt("a"), prompt("b")], reward, 4), seed=0, step=5)
    assert [sample["correct"] for sample in samples] == [1, 0, 0, 0, 1, 0, 0, 1]
    assert row["avg_at_k"] == pytest.approx(0.375)
    assert (row["pass_at_1"], row["pass_at_4"]) == (0.375, 1.0)
    assert row["pass_at_2"] == pytest.approx((0.5 + (1 - 1 / 6)) / 2)
    assert (row["truncated"], row["aborted"], row["verifier_failed"]) == (1 / 8, 1 / 8, 1 / 8)
    assert (row["step"], row["version"], row["problems"], row["length_max"]) == (5, 7, 2, 9)
    assert row["length_mean"] == pytest.approx((7 * 3 + 9) / 8)
    with pytest.raises(RuntimeError, match=r"12\.5% of the samples"):
        evaluate.require_judged(row)
    with pytest.raises(ValueError, match="id of its own"):
        evaluate.evaluate(engine, bench([prompt("a"), prompt("a")], reward, 4), seed=0)


def test_the_majority_votes_by_value():
    """1/2, 0.5 and \\frac12 are one answer, right or wrong; truncated samples have no vote."""
    reward = bind({"_target_": "gspo.rewards.math.math_reward"}, "reward")
    boxes = [f"\\boxed{{{text}}}" for text in ("1/2", "\\frac{1}{2}", "0.5", "3", "3")]
    right = Canned({"a": [(box,) for box in boxes]})
    row, _ = evaluate.evaluate(right, bench([prompt(reference="\\frac12")], reward, 5), seed=0)
    assert (row["maj_at_k"], row["avg_at_k"]) == (1, 0.6)
    row, _ = evaluate.evaluate(right, bench([prompt(reference="3")], reward, 5), seed=0)
    assert (row["maj_at_k"], row["avg_at_k"]) == (0, 0.4)
    cut = Canned({"a": [(box, "length") for box in boxes[:3]] + [(box,) for box in boxes[3:]]})
    row, _ = evaluate.evaluate(cut, bench([prompt(reference="3")], reward, 5), seed=0)
    assert row["maj_at_k"] == 1


def test_prompts_are_those_of_training(tmp_path):
    """Case B46: with a template that prints the BOS and a tokenizer that adds one, evaluation and training hand the
    engine the same ids, with one BOS; a limit on problems keeps the file's order."""
    from tokenizers import processors

    directory = tiny_model_dir("llama", tmp_path / "model")
    tokenizer = pretrained.load_tokenizer(directory)
    tokenizer.chat_template = "<bos>{% for m in messages %}{{ m['content'] }}{% endfor %}:"
    tokenizer._tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 1)]
    )
    assert tokenizer.encode("1") == [1, *tokenizer.encode("1", add_special_tokens=False)]
    path = tmp_path / "set.jsonl"
    path.write_text(
        "".join(json.dumps({"id": f"p{i}", "prompt": f"{i}+{i}", "answer": str(2 * i)}) + "\n" for i in range(9))
    )
    node = {"_target_": "gspo.data.files", "path": str(path)}
    model = ModelSettings(name="t", path=str(directory), context=64, chat_template=True)
    settings = BenchmarkSettings("set", 1, 5, node, {"_target_": "gspo.rewards.math.math_reward"})
    opened = evaluate.open_benchmark(settings, tokenizer, model, SamplingSettings(max_tokens=8)).prompts
    trained = PromptStream([Stage(0, files(path=str(path)))], tokenizer, model, seed=4, max_prompt_tokens=56).take(9, 0)
    assert [p.id for p in opened] == ["p0", "p1", "p2", "p3", "p4"]
    for one in opened:
        assert one.token_ids == next(p for p in trained if p.id == one.id).token_ids
        assert one.token_ids.count(1) == 1 == one.token_ids[0]


def test_a_run_keeps_its_verifier_options():
    """The benchmark's verifier takes the run's options where it is the same function, its own where it is another."""
    reward = {"_target_": "gspo.rewards.math.math_reward", "lenient": True}
    settings = EvalSettings(every=5, benchmark="arithmetic", k=2)
    found = evaluate.settings_of(settings, reward)
    assert found is not None
    assert (found.reward, found.k, found.problems) == (reward, 2, 128)
    other = evaluate.settings_of(settings, {"_target_": "gspo.rewards.code.code_reward"})
    assert other is not None
    assert other.reward == {"_target_": "gspo.rewards.math.math_reward"}
    assert evaluate.settings_of(EvalSettings(), reward) is None


def test_more_columns_reach_the_row():
    """`columns` of a benchmark sees the prompts and the scores, and its numbers stand in the row."""
    reward = bind({"_target_": "gspo.rewards.math.math_reward"}, "reward")
    columns = bind({"_target_": "gspo.benchmarks.elo.rating_columns"}, "columns")
    engine = Canned({"a": [("\\boxed{1}",), ("\\boxed{2}",)]})
    row, samples = evaluate.evaluate(engine, bench([prompt("a", rating=1200)], reward, 2, columns), seed=0)
    assert row["problem_rating_estimate"] == pytest.approx(1200, abs=1e-3)
    assert by_problem([[s["correct"] for s in samples]]).tolist() == [0.5]
