"""Evaluation end to end: in training, as a command, and its benchmarks, on the shipped model and on the staged data."""

import base64
import json
import os
import pickle
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf
from tiny import tiny_model_dir

from gspo import benchmarks, eval_config, evaluate, pretrained
from gspo.benchmarks import elo
from gspo.benchmarks.codeforces import unsuitable
from gspo.benchmarks.livecodebench import private_tests
from gspo.benchmarks.programs import whole_program
from gspo.binding import bind
from gspo.config import EvalSettings, ModelSettings, RolloutSettings, SamplingSettings, conf_dir, register
from gspo.data import PromptStream, Stage, files
from gspo.estimators import by_problem
from gspo.eval_command import find_checkpoint, paired
from gspo.eval_config import BenchmarkSettings, read_benchmark
from gspo.eval_config import benchmarks as names
from gspo.material import readiness
from gspo.rollout import request_seed
from gspo.rollout.hf import HfEngine
from gspo.types import Prompt, Reward, Rollout

DATA = Path(os.environ["GSPO_DATA"])
TINY = ModelSettings(name="tiny", path="gspo:qwen3_moe_tiny", context=256, chat_template=False)
SAMPLING = SamplingSettings(max_tokens=40)
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


def prompt(id="a", reference="1", kind="math", text="1+0=", **meta):
    return Prompt(id, text, (5, 6), reference, "test", kind, meta)


def rollout(text, finish="stop", n=3):
    return Rollout(np.arange(n), np.ones(n, dtype=bool), np.zeros(n, dtype=np.float32), finish, 7, text)


class Canned:
    """An engine of written responses; keeps what it was asked for."""

    ranks = 1

    def __init__(self, responses):
        self.responses, self.asked = responses, []

    def generate(self, prompts, group_size, *, seed, step):
        self.asked.append(([p.id for p in prompts], group_size, seed, step))
        return [[rollout(*r) for r in self.responses[p.id]] for p in prompts]

    def update_weights(self, weights, *, version):
        raise AssertionError("an evaluation changes no weights")

    def close(self):
        pass


def bench(prompts, reward, k, columns=None):
    return evaluate.Benchmark("test", k, prompts, reward, columns, {"temperature": 1.0})


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


# -- benchmarks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "k", "size"),
    [("aime24", 32, 30), ("aime25", 32, 30), ("math500", 4, 500), ("gsm8k", 1, 1319), ("humaneval", 1, 164),
     ("mbpp", 1, 500), ("codeforces", 8, 330)],
)  # fmt: skip
def test_benchmarks_are_read(name, k, size):
    """Every file of conf/benchmark with staged data opens, with the paper's samples and the published sizes."""
    settings = read_benchmark(name)
    source = evaluate.check(settings)()
    assert (settings.k, source.size) == (k, size)
    assert len({source.row(i).id for i in range(size)}) == size


def test_every_benchmark_has_a_file():
    """The names of the specification; a misspelt one lists them."""
    wanted = {"aime24", "aime25", "math500", "gsm8k", "humaneval", "mbpp", "livecodebench", "codeforces", "arithmetic"}
    assert wanted <= set(names())
    with pytest.raises(ValueError, match="aime24, aime25"):
        read_benchmark("aime")


def test_held_out_arithmetic_is_none_of_training():
    """128 problems, the same in every run, from a generator that no training seed reaches; prompts in order."""
    opened = evaluate.open_benchmark(
        read_benchmark("arithmetic"), pretrained.load_tokenizer(pretrained.ASSETS / "qwen3_moe_tiny"), TINY, SAMPLING
    )
    assert [p.id for p in opened.prompts] == [f"arithmetic-{i}" for i in range(128)]
    texts = {p.text for p in opened.prompts}
    for seed in range(3):
        source = bind({"_target_": "gspo.data.arithmetic", "min_terms": 4, "max_terms": 7, "seed": seed}, "data")()
        assert [source.row(i).prompt for i in range(128)] != [p.text for p in opened.prompts]
        assert len(texts & {source.row(i).prompt for i in range(3200)}) <= 3


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


# -- programs ---------------------------------------------------------------------------------------------------------


def judged(row, response, finish="stop"):
    one = Prompt(row.id, row.prompt, (1,), row.reference, "test", "code", row.meta)
    return benchmarks.program_reward(one, rollout(response, finish))


def test_references_of_humaneval_and_mbpp_pass():
    """The published solutions, answered as a block and (HumanEval) as the bare rest of the body, are right; broken ones
    and truncated ones are not. Catches lost imports and helpers of the prompt, and asserts that never run."""
    source = evaluate.check(read_benchmark("humaneval"))()
    for number in (0, 38, 50):  # 38 and 50 need helpers that only the prompt holds
        row = source.row(number)
        solution = row.meta["canonical_solution"]
        head = row.meta["prelude"][row.meta["prelude"].index(f"def {row.meta['entry_point']}") :]
        answers = [f"Here:\n```python\n{head}{solution}\n```\nDone.", solution, f"```python\n{solution}```"]
        for answer in answers:
            assert judged(row, answer).verdict == "ok", answer
        assert judged(row, f"{solution}\n\nprint(undefined)\n").verdict == "ok"
        assert judged(row, "    return None\n").verdict == "wrong"
        assert judged(row, answers[0], finish="length").verdict == "wrong"
    source = evaluate.check(read_benchmark("mbpp"))()
    for number in (0, 7):
        row = source.row(number)
        assert "assert" in row.prompt
        use = f"print({row.meta['entry_point']})"
        answer = f"```python\n{row.meta['canonical_solution']}\n```\nFor example:\n```python\n{use}\n```"
        assert judged(row, answer).verdict == "ok", row.id
        broken = answer.replace("return", "return None and")
        assert judged(row, broken).verdict == "wrong", row.id


def test_the_sandbox_of_a_benchmark_is_tested_before_it_is_used():
    """run.json gets the self-test of the box that will judge; catches a benchmark whose reward hides it."""
    assert readiness(read_benchmark("humaneval").reward)["sandbox"]["works"]
    assert readiness(read_benchmark("aime24").reward) == {}


def test_preludes_stand_where_python_takes_them():
    """`from __future__` stays first; fences inside a program do not cut it."""
    one = prompt(kind="code", prelude="import math\n")
    text = "```python\nfrom __future__ import annotations\nprint(math.pi)\n```"
    assert whole_program(one, text) == "from __future__ import annotations\nimport math\n\n\nprint(math.pi)\n"
    fences = prompt(
        kind="code", reference=[{"type": "stdin", "input": "", "output": "```\nx\n```"}], prelude="x = 'x'\n"
    )
    answer = "~~~python\nprint('```')\nprint(x)\nprint('''```''')\n~~~"
    assert benchmarks.program_reward(fences, rollout(answer)).verdict == "ok"


def packed(tests):
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def lcb(path, **changes):
    """Two rows in the released schema: a program on stdin, and a method with starter code and packed private tests."""
    stdin = {
        "question_title": "Sum", "question_content": "Read two numbers, print their sum.", "platform": "atcoder",
        "question_id": "abc1_a", "contest_id": "abc1", "contest_date": "2025-02-28T00:00:00", "starter_code": "",
        "difficulty": "easy", "metadata": "{}",
        "public_test_cases": json.dumps([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]),
        "private_test_cases": json.dumps([{"input": "5 6\n", "output": "11\n", "testtype": "stdin"}]),
    }  # fmt: skip
    method = stdin | {
        "question_id": "3000", "contest_date": "2024-10-01T10:00:00", "platform": "leetcode",
        "starter_code": "class Solution:\n    def pairs(self, nums: List[int], k: int) -> int:\n        ",
        "metadata": json.dumps({"func_name": "pairs"}),
        "public_test_cases": json.dumps([{"input": "[1, 2, 3]\n3", "output": "1", "testtype": "functional"}]),
        "private_test_cases": packed([{"input": "[1, 1, 1]\n2", "output": "3", "testtype": "functional"}]),
    }  # fmt: skip
    early = stdin | {"question_id": "early", "contest_date": "2024-09-30T23:59:59"}
    late = stdin | {"question_id": "late", "contest_date": "2025-03-01T00:00:00"}
    path.write_text("".join(json.dumps(row | changes) + "\n" for row in (stdin, method, early, late)))
    return path


def test_livecodebench_in_its_released_schema(tmp_path):
    """October 2024 to February 2025; public and packed private tests both judge; a method is called on an instance,
    with the imports that starter code relies on."""
    settings = read_benchmark("livecodebench")
    node = settings.data | {"paths": [str(lcb(tmp_path / "test5.jsonl"))]}
    source = bind(node, "data")()
    assert [source.row(i).id for i in range(source.size)] == ["abc1_a", "3000"]
    stdin, method = source.row(0), source.row(1)
    assert [len(row.reference) for row in (stdin, method)] == [2, 2]
    assert method.reference[1] == {"type": "call", "fn": "Solution.pairs", "args": [[1, 1, 1], 2], "output": 3}
    assert method.meta["prelude"].startswith("import")
    assert "class Solution:" in method.prompt
    assert "stdin" in stdin.prompt
    assert judged(stdin, "```python\na, b = map(int, input().split())\nprint(a + b)\n```").verdict == "ok"
    assert judged(stdin, "```python\ninput()\nprint(3)\n```").verdict == "wrong"
    right = (
        "class Solution:\n    def pairs(self, nums: List[int], k: int) -> int:\n        count = Counter(nums)\n"
        "        return sum(a + b == k for a, b in combinations(nums, 2)) + 0 * pow(2, 3, 5) * len(count)\n"
    )
    assert judged(method, f"```python\n{right}```").verdict == "ok"
    assert judged(method, f"```python\n{right.replace('combinations(nums, 2)', '[(1, 2)]')}```").verdict == "wrong"


class Bomb:
    """What a hostile file would hold: a pickle that runs a command when it is read."""

    def __reduce__(self):
        return os.mkdir, ("bomb",)


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (base64.b64encode(zlib.compress(pickle.dumps(Bomb()))).decode(), "mkdir is refused"),
        (base64.b64encode(zlib.compress(pickle.dumps({"a": Path("x")}))).decode(), "is refused"),
        (base64.b64encode(zlib.compress(pickle.dumps([1, 2]))).decode(), "JSON as a text is needed"),
        (base64.b64encode(zlib.compress(b"no pickle")).decode(), "neither JSON nor packed"),
        (base64.b64encode(zlib.compress(pickle.dumps("[]"))[:-5]).decode(), "cut short"),
        ("!!", "neither JSON nor packed"),
        ('{"a": 1}', "a list of tests is needed"),
    ],
)
def test_private_tests_run_nothing(tmp_path, monkeypatch, held, said):
    """Whatever the pickle names is refused before it is imported, and the error names the place."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=f"^here.*{said}"):
        private_tests(held, "here")
    assert not (tmp_path / "bomb").exists()
    assert private_tests(packed([{"a": 1}]), "here") == [{"a": 1}]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"metadata": "{"}, "abc1_a: field 'metadata' is not JSON"),
        ({"public_test_cases": None}, "field 'public_test_cases' is NoneType"),
        ({"public_test_cases": '[{"input": 1}]'}, "abc1_a: test 1: input, output"),
        ({"contest_date": "2023-01-01"}, "no contest_date from 2024-10 to 2025-02"),
    ],
)
def test_bad_livecodebench_rows_are_named(tmp_path, changes, said):
    """File, problem and field of what is wrong."""
    node = read_benchmark("livecodebench").data | {"paths": [str(lcb(tmp_path / "test5.jsonl", **changes))]}
    with pytest.raises(ValueError, match=said):
        bind(node, "data")()


def test_codeforces_problems_that_outputs_can_judge():
    """Interactive ones, lost pictures and several right outputs are left out; no tag is shown. The samples judge."""
    every = files(path="codeforces_codeelo.jsonl", kind="code")
    kept = evaluate.check(read_benchmark("codeforces"))()
    rows = [kept.row(i) for i in range(kept.size)]
    assert not [
        row.id for row in rows if "Tags:" in row.prompt or "CDN_BASE_URL" in row.prompt or row.meta["interactive"]
    ]
    left = {row.id: unsuitable(row) for row in map(every.row, range(every.size)) if unsuitable(row)}
    assert left.keys() == {every.row(i).id for i in range(every.size)} - {row.id for row in rows}
    assert left["codeforces-1971B"] is not None  # "print any of them"
    program = "for _ in range(int(input())):\n    print(*sorted(map(int, input().split())))\n"
    assert judged(rows[0], f"```python\n{program}```").verdict == "ok"
    assert judged(rows[0], f"```python\n{program.replace('sorted', 'list')}```").verdict == "wrong"


# -- ratings ----------------------------------------------------------------------------------------------------------


def test_rating_of_rank():
    """Closed forms: half-way past one opponent is his rating; among equals of rating R the rank 1 + n/4 is
    R + 400 log10(3); first of all is capped at 100 above the best, last at 0."""
    assert elo.rating_of_rank(1.5, [1500]) == pytest.approx(1500, abs=1e-3)
    assert elo.rating_of_rank(1 + 8 / 4, [1400] * 8) == pytest.approx(1400 + min(400 * np.log10(3), 100), abs=1e-3)
    assert elo.rating_of_rank(1 + 8 * 3 / 4, [1400] * 8) == pytest.approx(1400 - 400 * np.log10(3), abs=1e-3)
    assert elo.rating_of_rank(1, [800, 2300]) == pytest.approx(2400, abs=1e-3)
    assert elo.rating_of_rank(3, [800, 2300]) == pytest.approx(0, abs=1e-3)


def test_scores_count_attempts():
    """Points less 50 a failed attempt and never below 0; without points one a problem and 10 minutes an attempt."""
    problems = [{"index": "A", "points": 500}, {"index": "B", "points": 100}, {"index": "C", "points": 1500}]
    solved = {"A": [0, 0, 1], "B": [0, 0, 0, 1], "C": [0, 0], "Z": [1]}
    assert elo.score(problems, solved) == (400, 0)
    plain = [{"index": index} for index in "ABC"]
    assert elo.score(plain, solved) == (2, 50)


def test_codeforces_rating_from_standings(tmp_path):
    """Two contests from a file in the answers of Codeforces' interface; the rank is among all rows, ties before us."""
    rows = [{"points": p, "penalty": q} for p, q in ((900, 0), (500, 0), (400, 0), (100, 0))]
    changes = [{"oldRating": r} for r in (2000, 1500, 1500, 1000)]
    contest = {"standings": {"problems": [{"index": "A", "points": 500}], "rows": rows}, "rating_changes": changes}
    (tmp_path / "standings.json").write_text(json.dumps({"7": contest, "8": contest, "9": contest}))
    (tmp_path / "histogram.json").write_text(json.dumps({"1000": 60, "1400": 30, "3000": 10}))
    prompts = [prompt(f"{c}A", kind="code", contest_id=c, index="A") for c in (7, 8)]
    correct = [[0, 0, 1], [0, 0, 0]]
    found = elo.rating_columns(
        prompts, correct, standings=str(tmp_path / "standings.json"), histogram=str(tmp_path / "histogram.json")
    )
    ratings = [2000, 1500, 1500, 1000]

    def expected(r):
        return 1 + sum(1 / (1 + 10 ** ((r - other) / 400)) for other in ratings)

    first = 2 * found["codeforces_rating"] - elo.rating_of_rank(5, ratings)  # nothing solved: fifth of five
    assert expected(first) == pytest.approx(4, abs=1e-3)  # 400 points: 900, 500 and the equal 400 come before
    assert found["codeforces_contests"] == 2
    assert found["codeforces_percentile"] == 0
    assert elo.percentile(1400, {"1000": 60, "1400": 30, "3000": 10}) == 60
    with pytest.raises(ValueError, match="holds none of the contests 5"):
        elo.rating_columns([prompt(contest_id=5, index="A")], [[1]], standings=str(tmp_path / "standings.json"))
    with pytest.raises(ValueError, match="cannot be read"):
        elo.rating_columns(prompts, correct, standings=str(tmp_path / "none.json"))


def test_the_estimate_from_problem_ratings_has_another_name():
    """Half of problems rated 1500 solved is 1500, a fraction 10/11 is 1900; never called a Codeforces rating, and
    absent without ratings or when everything was solved."""
    assert elo.problem_rating_estimate([1500] * 4, [1, 0, 1, 0]) == pytest.approx(1500, abs=1e-3)
    assert elo.problem_rating_estimate([1500] * 11, [1] * 10 + [0]) == pytest.approx(1900, abs=1e-3)
    assert elo.problem_rating_estimate([1500, 1600], [1, 1]) is None
    rated = [prompt(str(i), rating=1500) for i in range(2)]
    assert set(elo.rating_columns(rated, [[1, 0], [0, 1]])) == {"problem_rating_estimate", "rated_problems"}
    assert elo.rating_columns([prompt()], [[1, 0]]) == {}


def test_more_columns_reach_the_row():
    """`columns` of a benchmark sees the prompts and the scores, and its numbers stand in the row."""
    reward = bind({"_target_": "gspo.rewards.math.math_reward"}, "reward")
    columns = bind({"_target_": "gspo.benchmarks.elo.rating_columns"}, "columns")
    engine = Canned({"a": [("\\boxed{1}",), ("\\boxed{2}",)]})
    row, samples = evaluate.evaluate(engine, bench([prompt("a", rating=1200)], reward, 2, columns), seed=0)
    assert row["problem_rating_estimate"] == pytest.approx(1200, abs=1e-3)
    assert by_problem([[s["correct"] for s in samples]]).tolist() == [0.5]


# -- configuration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "override",
    [f"benchmark={name}" for name in names()]
    + [f"model={path.stem}" for path in sorted((conf_dir() / "model").glob("*.yaml"))],
)
def test_every_benchmark_and_model_composes(override):
    """conf/eval.yaml takes whatever keys a model file brings; a benchmark composed by Hydra is the one that
    `eval.benchmark` names; its functions take their keywords."""
    register()
    eval_config.register()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = compose("eval", overrides=["run.dir=somewhere", override])
    settings = OmegaConf.to_object(config)
    assert isinstance(settings, eval_config.EvalConfig)
    evaluate.check(settings.benchmark)
    assert settings.benchmark == read_benchmark(settings.benchmark.name)
