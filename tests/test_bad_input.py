"""Wrong command lines and files: one line that names key, value and what is accepted, exit code 2, nothing created.

The table is the promise. Its rows run in children forked from the test process; REAL ones also as processes of their
own, as a user starts them, within 3 CPU seconds.
"""

import ast
import io
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from commands import command, tree

import gspo

BIN = Path(sys.executable).parent
HOME = Path(gspo.__file__ or "").parent
GOOD = '{"id": "a", "prompt": "1+1=", "answer": "2"}\n'
SET = ["data=files", "data.template='{prompt}'", "data.path=set.jsonl"]
CODE = [*SET, "data.kind=code", "reward=code"]


def row(**fields):
    return GOOD + json.dumps(fields) + "\n"


def judged_by(*value):
    """A set whose one row has these tests."""
    return {"set.jsonl": json.dumps({"prompt": "q", "tests": list(value)}) + "\n"}


RECORD = '{"status": "failed", "sessions": [], "wandb_id": "a"}'
SEALED = {
    "r/run.json": RECORD,
    "r/config.yaml": "model: {path: nowhere, experts_implementation: null}",
    "r/checkpoints/step_000001/manifest.json": '{"files": {}}',
}
"""A run with a checkpoint of no files."""

SCHEMA = [
    (["foo=1"], "unknown key foo"),
    (["+foo=1"], "unknown key foo"),
    (["+train.step=3"], "unknown key train.step; near it: train.steps"),
    (["+algo.foo=1", "+clip.bar=2"], "unknown key clip.bar; unknown key algo.foo"),
    (["train.stps=3"], "unknown key train.stps; near it: train.steps"),
    (["data.terms=3"], "unknown key data.terms"),
    (["+data.terms=3"], "data.terms=3: arithmetic takes seed, min_terms, max_terms"),
    (["+algo.objective.clip=3"], "algo.objective.clip=3: gspo takes clip_low, clip_high"),
    (["train.steps=abc"], "train.steps=abc: another type (accepted: a whole number)"),
    (["train.steps=1.5"], "train.steps=1.5: another type (accepted: a whole number)"),
    (["train.steps=1e30"], "train.steps=1e30: another type (accepted: a whole number)"),
    (["train.steps=null"], "train.steps=null: another type (accepted: a value, not null)"),
    (["optim.lr=fast"], "optim.lr=fast: another type (accepted: a number)"),
    (["optim.lr=null"], "optim.lr=null: another type (accepted: a value, not null)"),
    (["clip.high=None"], "clip.high=None: another type (accepted: a number); null stands for no value"),
    (["debug=maybe"], "debug=maybe: another type (accepted: true or false)"),
    (["sampling.stop=END"], "sampling.stop=END: another type (accepted: a list, [a,b])"),
    (["seed=1,2"], "Ambiguous value for argument 'seed=1,2'"),
    (["run.dir=a=b"], "a value that contains = is quoted: 'key=\"a=b\"'"),
    (["run.dir='a b"], "'a b"),
    (["train.steps=[1"], "[1"),
    (["train.steps"], "train.steps"),
    (["=3"], "=3: names no option of its group (accepted: GROUP=OPTION)"),
    (["algo=null"], "algo=null: names no option of its group (accepted: GROUP=OPTION)"),
    (["train=5"], "train=5: another type (accepted: a mapping, {key: value})"),
    (["optim=null"], "optim=null: another type (accepted: a value, not null)"),
    (["ünknown=1"], "ünknown=1: not KEY=VALUE (other characters are quoted: 'key=\"ü\"')"),
    (["train.steps=${foo}"], "train.steps: Interpolation key 'foo' not found"),
    (["--foo"], "unrecognized arguments: --foo (accepted: GROUP=OPTION, KEY=VALUE, --multirun, --cfg job, --help"),
    (["--config-dir=/nope"], "--config-dir=/nope: no such directory"),
]
GROUPS = [
    *[([f"{group}=nothing"], f"Could not find '{group}/nothing'; Available options in '{group}': ") for group in
      ("algo", "clip", "model", "reward", "data", "rollout", "trainer", "seeds", "tracking", "arm", "experiment")],
    (["eval.every=2", "eval.benchmark=aime99"], "eval.benchmark=aime99: one of aime24, aime25"),
]  # fmt: skip
RANGES = [
    (["seed=-1"], "seed=-1: too small (accepted: 0 or more)"),
    (["seed=99999999999999999999999"], "seed=99999999999999999999999: too large (accepted: 0 to 9223372036854775807)"),
    (["train.steps=0"], "train.steps=0: too small (accepted: 1 or more)"),
    (
        ["train.group_size=1"],
        "train.group_size=1: an advantage compares the responses of a group (accepted: 2 or more)",
    ),
    (["train.group_size=50000"], "GiB at backward"),
    (["train.group_size=100000"], "train.group_size=100000: too large (accepted: 2 to 65536)"),
    (["train.prompts_per_step=1000000001"], "train.minibatches=4: does not divide train.prompts_per_step=1000000001"),
    (["train.prompts_per_step=-4"], "train.prompts_per_step=-4: too small (accepted: 1 or more)"),
    (["train.max_skipped=0"], "train.max_skipped=0: too small (accepted: 1 or more)"),
    (["optim.lr=0"], "optim.lr=0.0: out of range (accepted: a positive number)"),
    (["optim.lr=inf"], "optim.lr=inf: out of range"),
    (["optim.lr=nan"], "optim.lr=nan: out of range"),
    (["optim.betas=[0.9,1.0]"], "optim.betas="),
    (["optim.warmup_steps=-1"], "optim.warmup_steps=-1: too small (accepted: 0 or more)"),
    (["optim.schedule=cos"], "optim.schedule=cos: unknown (accepted: constant, linear, cosine)"),
    (["clip.low=-1"], "clip.low=-1.0: 1 - eps_L must lie between 0 and 1"),
    (["sampling.temperature=0"], "sampling.temperature=0.0: greedy sampling gives equal responses (accepted: 0.01"),
    (["sampling.temperature=inf"], "sampling.temperature=inf: must be finite (accepted: 0.01 or more)"),
    (["reward.workers=0"], "reward.workers=0: too small (accepted: 1 or more)"),
    (["reward=mixed", "reward.kinds.code.workers=-3"], "reward.kinds.code.workers=-3: too small (accepted: 1 or more)"),
    (["sampling.max_tokens=99999999999999"], "sampling.max_tokens=99999999999999: context too short"),
    (["model.context=100000"], "model.context=100000: longer than the model's positions (accepted: 2 to 1024)"),
    (["trainer.micro_batch_tokens=0"], "trainer.micro_batch_tokens=0: too small (accepted: 1 or more)"),
    (["trainer.precision=fp16"], "trainer.precision=fp16: unknown (accepted: auto, float32, bfloat16)"),
    (["trainer.devices=0"], "trainer.devices=0: too small (accepted: 1 or more)"),
    (["rollout.dtype=int8"], "rollout.dtype=int8: unknown (accepted: auto, float32, bfloat16)"),
    (["tracking.wandb=maybe"], "tracking.wandb=maybe: unknown (accepted: disabled, offline, online)"),
    (["checkpoint.keep_last=-2"], "checkpoint.keep_last=-2: too small (accepted: 0 or more)"),
    (["eval.every=-1"], "eval.every=-1: too small (accepted: 0 or more)"),
    (["eval.every=2", "eval.benchmark=arithmetic", "eval.k=0"], "benchmark.k=0: too small (accepted: 1 to 65536)"),
    (["eval.every=2", "eval.benchmark=arithmetic", "eval.k=100000000"], "benchmark.k=100000000: too large (accepted:"),
    (
        ["eval.every=2", "eval.benchmark=arithmetic", "eval.problems=-3"],
        "benchmark.problems=-3: too small (accepted: 1",
    ),
    (
        ["eval.every=2", "eval.benchmark=arithmetic", "eval.problems=100000000"],
        "benchmark.problems=100000000: too large",
    ),
    (["optim.betas=[0.9]"], "optim.betas=[0.9]: out of range (accepted: two numbers from 0 to below 1)"),
    (["optim.eps=-1"], "optim.eps=-1.0: out of range (accepted: a positive number)"),
    (["optim.grad_clip=0"], "optim.grad_clip=0.0: out of range (accepted: a positive number, null)"),
    (["optim.weight_decay=nan"], "optim.weight_decay=nan: too small (accepted: 0 or more)"),
    (["clip.high=inf"], "clip.high=inf: 1 + eps_R must lie above 1 (accepted: a positive number, or null)"),
    (["trainer.devices=100000"], "trainer.devices=100000: more ranks than CPUs (accepted: 1 to "),
    (["trainer.threads=100000"], "trainer.threads=100000: too large (accepted: 1 to 1024)"),
    (["rollout.workers=0"], "rollout.workers=0: too small (accepted: 1 or more)"),
    (["rollout.workers=1000"], "GiB at backward, cpu has "),
    (["checkpoint.every=-1"], "checkpoint.every=-1: too small (accepted: 0 or more)"),
    (["sweep.workers=0"], "sweep.workers=0: too small (accepted: 1 or more)"),
    (["plan.device=z9000"], "plan.device=z9000: unknown (accepted: h200, h100"),
    (["plan.prompt_tokens=-1"], "plan.prompt_tokens=-1: too small (accepted: 1 or more)"),
    (["plan.response_tokens=99"], "plan.response_tokens=99: longer than sampling.max_tokens (accepted: 1 to 40, null)"),
    (["model.experts_implementation=fast"], "model.experts_implementation=fast: unknown (accepted: eager, grouped_mm"),
]
TOGETHER = [
    (["train.prompts_per_step=30"], "train.minibatches=4: does not divide train.prompts_per_step=30"),
    (["sampling.top_p=0.9"], "sampling.top_p=0.9: a truncated sampler is another policy than the one trained"),
    (["sampling.top_k=5"], "sampling.top_k=5: a truncated sampler"),
    (["model.context=30"], "sampling.max_tokens=40: context too short: model.context=30"),
    (["eval.every=2"], "eval.every=2: eval.benchmark names what to evaluate on; it is null"),
    (["tracking=wandb"], "tracking.wandb=online: no W&B key; set WANDB_API_KEY"),
    (["algo=rloo", "clip=grpo"], "clip.low=0.2: would be ignored"),
    (["rollout.memory_fraction=0.9"], "rollout.memory_fraction=0.9: has no effect on cpu"),
    (["rollout.tensor_parallel=2"], "rollout.tensor_parallel=2: 1 cpu devices (accepted: 1)"),
    (["data.min_terms=9"], "data.min_terms=9, data.max_terms=7: 2 <= min_terms <= max_terms"),
    (["data.min_terms=two"], "data.min_terms=two: int is accepted, not str"),
    (["data._target_=nowhere.f"], "data._target_=nowhere.f: No module named 'nowhere'"),
    (["+data.stages=[{step: 0}]"], "data.stages[0].step=0: a whole number above 0 is needed"),
    (["+data.stages=[5]"], "data.stages[0]=5: a mapping of step and overrides is needed"),
    (["reward.lenient=5"], "reward.lenient=5: bool is accepted, not int"),
    (["reward._target_=gspo.rewards.math.nothing"], "reward._target_=gspo.rewards.math.nothing: "),
    (["model.path=gspo:nothing"], "model.path=gspo:nothing: shipped are gspo:qwen3_moe_tiny"),
    (["model.path=/no/such/model"], "model.path=/no/such/model: no such directory"),
    (["model.path=folder"], "model.path=folder: a directory without config.json", {"folder/x": ""}),
    (["model=qwen3_tiny", "train.routing_replay=old"], "train.routing_replay=old: qwen3_tiny is dense"),
    (["model.path=bad"], "model.path=bad: its config.json cannot be read: Expecting", {"bad/config.json": "{"}),
    (["model.path=bad"], "model.path=bad: its config.json names no model_type", {"bad/config.json": "[]"}),
    (
        ["model.path=bad"],
        "num_hidden_layers=1.5: the configuration of a qwen3 model needs a whole number here",
        {"bad/config.json": '{"model_type": "qwen3", "num_hidden_layers": 1.5}'},
    ),
    (
        ["model=qwen3_tiny", "model.experts_implementation=eager"],
        "qwen3_tiny is dense, it has no experts (accepted: null)",
    ),
    (["model.thinking=true"], "model.thinking=True: has no effect with model.chat_template=false (accepted: null)"),
    (["trainer.devices=2", "rollout.tensor_parallel=2"], "rollout.tensor_parallel=2: 2 cpu devices (accepted: 1)"),
    (["trainer.offload=true"], "trainer.offload=True: has no effect on cpu (accepted: auto (leave it out))"),
    (["tracking.project='a/b'"], "tracking.project=a/b: W&B takes no such name (accepted: 1 to 128 characters without"),
    (["+data.stages=5"], "data.stages=5: a list is needed, as in [{step: 50, max_terms: 9}]"),
    (["+data.stages=[{step: 5, foo: 1}]"], "data.stages[0].foo=1: arithmetic takes seed, min_terms, max_terms"),
    (["algo.objective._target_=..x"], "algo.objective._target_=..x: MODULE.FUNCTION is needed"),
    (["algo.advantage=5"], "algo.advantage=5: another type (accepted: a mapping, {key: value})"),
    (["reward._target_=print"], "reward._target_=print: MODULE.FUNCTION is needed"),
    (["reward._target_=sys.path"], "reward._target_=sys.path: is list (accepted: a function or a class)"),
    (["reward._target_=builtins.min"], "reward._target_=builtins.min: its signature cannot be read"),
    (["~reward"], "reward._target_=None: MODULE.FUNCTION is needed"),
    (["~algo"], "algo.name=???: a value is needed"),
]
MANY = [
    (["-m", "seed=0,1", "sweep.workers=0"], "sweep.workers=0: too small (accepted: 1 or more)"),
    (["-m", "seed=0,1", "sweep.workers=null"], "sweep.workers=null: another type (accepted: a value, not null)"),
    (["-m", "seed=0,1", "sweep.name=''"], "sweep.name='': names a directory (accepted: any text without /)"),
    (["-m", "seed=0,1", "sweep.name=../.."], "sweep.name='../..': names a directory (accepted: any text without /)"),
    (["-m", "seed=range(0)"], "a swept key has no value (accepted: key=a,b)"),
    (["-m", "algo=glob(zzz*)"], "a swept key has no value (accepted: key=a,b)"),
    (["-m", "seed=0,0"], "1 of 2 jobs refused, none started: the sweep has this job twice"),
    (["-m", "seed=0,1", "run.dir=x"], "2 of 2 jobs refused, none started: run.dir: jobs are named by their overrides"),
    (["-m", "seed=0,1", "resume=/r"], "resume=/r: one directory for every job; never and auto are accepted"),
    (["-m", "train.group_size=1,4"], "1 of 2 jobs refused, none started: train.group_size=1: an advantage compares"),
]
PLACES = [
    (["run.dir=null"], "run.dir=null: another type (accepted: a value, not null)"),
    (['run.name=""'], "run.name='': a name is needed"),
    (["run.dir=/proc/foo"], "run.dir=/proc/foo: /proc: "),
    (['run.dir=""'], "run.dir='': a path is needed"),
    ([f"run.dir={'x' * 300}"], "File name too long (accepted: a path that can be made)"),
    (["run.dir=there"], "run.dir=there: exists; choose another run.dir, or resume=auto", {"there/mine": "x"}),
    (["run.dir=there/run"], "run.dir=there/run: Not a directory (accepted: a path that can be made)", {"there": "x"}),
    (['run.dir="a b/zürich=1"'], "run.dir=a b/zürich=1: exists;", {"a b/zürich=1/x": ""}),
    (["run.dir=there", "resume=auto"], "there is not a run directory: run.json", {"there/mine": "x"}),
    (["resume=/no/such/run"], "resume=/no/such/run: no such run directory (accepted: never, auto, or"),
    (["resume=there"], "there is not a run directory: run.json has no status", {"there/run.json": "{}"}),
    (["resume=there"], "there is not a run directory: run.json: Expecting value", {"there/run.json": ""}),
    (
        ["resume=there"],
        "config.yaml cannot be read: while parsing",
        {"there/run.json": RECORD, "there/config.yaml": "[1"},
    ),
    (["resume=there"], " more); it is left as it is", {"there/run.json": RECORD, "there/config.yaml": "a: 1"}),
    (["run.dir='a\0b'"], "embedded null byte (accepted: a path that can be made)"),
    (["resume=there", "run.dir=b"], "run.dir=b: resume=there names the directory already", {"there/run.json": "{}"}),
]
DATA = [
    (["data=files"], "data.path=???"),
    (SET, "data.path=set.jsonl: no file set.jsonl; give an absolute path or set GSPO_DATA"),
    ([*SET, "data.path=set.csv"], "set.csv: .jsonl, .jsonl.gz, .parquet files are read", {"set.csv": "a,b"}),
    ([*SET, 'data.path="my sets/zürich=1.jsonl"'], "data.path=my sets/zürich=1.jsonl: no file"),
    ([*SET, "data.path=folder"], "data.path=folder: no file folder", {"folder/x": ""}),
    ([*SET, "data.template=x"], "data.template='x': must contain {prompt}", {"set.jsonl": GOOD}),
    ([*SET, "data.kind=proof"], "data.kind=proof", {"set.jsonl": GOOD}),
    ([*SET, "++data.drop_long=maybe"], "data.drop_long=maybe: bool is accepted", {"set.jsonl": GOOD}),
    (SET, "set.jsonl: holds no problem", {"set.jsonl": ""}),
    (SET, "set.jsonl:2: not JSON: ", {"set.jsonl": GOOD + '{"id": "b", "prom\n'}),
    (SET, "set.jsonl:1: a JSON object is needed, not list", {"set.jsonl": "[1]\n"}),
    (SET, "set.jsonl:2: field 'prompt' is missing (the row has answer)", {"set.jsonl": row(answer="1")}),
    (SET, "set.jsonl:2: field 'prompt' is int, a text is needed", {"set.jsonl": row(prompt=7, answer="1")}),
    (SET, "set.jsonl:2: field 'prompt' is empty", {"set.jsonl": row(prompt=" ", answer="1")}),
    (SET, "set.jsonl:2: field 'answer' is missing", {"set.jsonl": row(prompt="q", answer=None)}),
    (SET, "set.jsonl:2: field 'answer' is dict, a text is needed", {"set.jsonl": row(prompt="q", answer={"x": 1})}),
    (SET, "set.jsonl:2: field 'id' is 'a', as on line 1; ids must be unique", {"set.jsonl": GOOD + GOOD}),
    (SET, "set.jsonl:1: not UTF-8: byte 0xff", {"set.jsonl": b'{"prompt": "\xff", "answer": "1"}\n'}),
    ([*SET, "data.path=set.jsonl.gz"], "set.jsonl.gz:1: not a whole gzip file", {"set.jsonl.gz": b"\x1f\x8b\x08no"}),
    ([*SET, "data.path=set.parquet"], "set.parquet: not a parquet file", {"set.parquet": b"PAR0"}),
    (CODE, "set.jsonl:1: field 'tests' is [], a list of tests with at least one is needed", judged_by()),
    (
        CODE,
        "set.jsonl:1: field 'tests[0].type' is 'magic'; accepted: stdin, call, assert",
        judged_by({"type": "magic"}),
    ),
    (CODE, "set.jsonl:1: field 'tests[0].output' is missing, str is needed", judged_by({"input": "1"})),
    (CODE, "set.jsonl:1: field 'tests[0]' is int, an object is needed", judged_by(1)),
]
LATE = [
    (["trainer.offload=maybe"], "trainer.offload=maybe: unknown (accepted: auto, True, False)"),
    (["trainer.offload=true"], "trainer.offload=True: has no effect on cpu (accepted: auto (leave it out))"),
    (["rollout.kv_cache_gb=2"], "rollout.kv_cache_gb=2: has no effect with the hf engine"),
    (['sampling.stop=[""]'], "sampling.stop=['']: an empty stop string stops everything"),
    (["model.chat_template=true"], "model.chat_template=true: the tokenizer of gspo:qwen3_moe_tiny has none"),
    (["reward=steps"], "rewards come by step"),
    (
        ["reward=code"],
        "code_reward: arithmetic has an answer, not tests (accepted: reward=math or mixed, or other data)",
    ),
    (["data=tiny_programs"], "math_reward: tiny_programs has tests, not an answer (accepted: reward=code or mixed"),
    (["model=tiny_programs", "reward.sandbox=docker"], "reward.sandbox='docker': accepted are auto"),
    (SET, "prompts have over 216 tokens", {"set.jsonl": row(prompt="1" * 400, answer="1")}),
    (["algo.objective._target_=gspo.algorithms.objectives.nothing"], "algo.objective._target_="),
    (
        ["rollout._target_=gspo.rollout.hf.Nothing"],
        "rollout._target_=gspo.rollout.hf.Nothing: module 'gspo.rollout.hf'",
    ),
    (["data.max_terms=1000000"], "arithmetic: arithmetic-0 has 723871 tokens, 216 fit"),
]
"""Seen only with torch, tokenizer or judge: before anything is created, but not within 3 seconds."""
OTHERS = [
    ("plan", ["train.group_siz=1"], "unknown key train.group_siz; near it: train.group_size"),
    ("plan", ["model=gpt5"], "Could not find 'model/gpt5'"),
    ("eval", ["benchmark=none"], "Could not find 'benchmark/none'"),
    ("eval", ["k=0"], "benchmark.k=0: too small (accepted: 1 to 65536)"),
    ("eval", ["max_batch=0"], "max_batch=0: out of range (accepted: 1 to 1048576)"),
    ("eval", ["threads=100000"], "threads=100000: out of range (accepted: 1 to 1024)"),
    ("eval", ["sampling.temperature=nan"], "sampling.temperature=nan: must be finite (accepted: 0.01 or more)"),
    ("eval", ["model.context=100000"], "model.context=100000: longer than the model's positions (accepted: 2 to 1024)"),
    ("eval", ["rollout.dtype=int8"], "rollout.dtype=int8: unknown (accepted: auto, float32, bfloat16)"),
    ("eval", ["rollout.workers=2"], "rollout.workers=2: an evaluation has one engine (accepted: 1)"),
    ("eval", ["run.dir=/proc/x"], "run.dir=/proc/x: /proc: "),
    ("eval", ["checkpoint=r/checkpoints/step_000001"], "its run trained model=None (nowhere), not gspo:qwen3", SEALED),
    ("eval", ["benchmark.columns=5"], "benchmark.columns=5: another type (accepted: a mapping, {key: value})"),
    ("eval", ["benchmark=null"], "benchmark=null: names no option of its group (accepted: GROUP=OPTION)"),
    ("eval", ["+benchmark.reward.workers=0"], "benchmark.reward.workers=0: too small (accepted: 1 or more)"),
    ("eval", ["checkpoint=/no/such"], "checkpoint=/no/such: no checkpoint there (accepted: RUN/checkpoints/step_"),
    ("eval", ["benchmark=aime26"], "aime25"),
    ("eval", ["benchmark.reward.lenientt=true"], "unknown key benchmark.reward.lenientt; `--cfg job` lists all keys"),
    ("eval", ["sampling.max_tokens=256"], "sampling.max_tokens=256: context too short: model.context=256 leaves no"),
    ("eval", ["benchmark=gsm8k", "benchmark.data.path=/no/such.jsonl"], "/no/such.jsonl"),
    ("train", ["eval.every=2", "eval.benchmark=aime26"], "aime25"),
    ("eval", ["compare", "a"], "compare takes two directories, not 1"),
    ("eval", ["compare", "a", "b"], "a: no finished evaluation (accepted: "),
    ("plan", ["+train.foo=1"], "unknown key train.foo"),
    ("eval", ["+benchmark.foo=1"], "unknown key benchmark.foo"),
    ("sft", ["+sft.foo=1"], "unknown key sft.foo"),
    ("grade", ["input=a", "output=b", "+foo=1"], "unknown key foo"),
    ("grade", ["input=a", "output=b"], "input=a: no such file"),
    ("grade", ["input=a", "output=b", "reward.workers=0"], "reward.workers=0: too small (accepted: 1 or more)"),
    ("grade", ["output=b"], "input=???: a value is needed"),
    ("sft", ["sft.batch=many"], "sft.batch=many: another type (accepted: a whole number)"),
    ("sft", ["seed=-1"], "seed=-1: too small (accepted: 0 or more)"),
    ("sft", ["output=/proc/x"], "output=/proc/x: /proc: "),
    ("sft", ["sft.slip_rate=nan"], "sft.slip_rate=nan: out of range (accepted: 0 to 1)"),
    ("sft", ["sft.max_updates=0"], "sft.max_updates=0: out of range (accepted: 1 to 1000000)"),
    ("sft", ["optim.betas=[2,3]"], "optim.betas=[2.0, 3.0]: out of range (accepted: two numbers from 0 to below 1)"),
    ("sft", ["model=qwen3_4b"], "model.init=None: model_type and its keywords are needed to start from scratch"),
    ("sft", ["data=files"], "data.path=???: a value is needed"),
    ("grade", ["input=a", "output=b", "reward._target_=nothing.f"], "reward._target_=nothing.f: No module named 'noth"),
    ("grade", ["input=a", "output=b", "reward=steps"], "judges no files (accepted: reward=math, reward=code)"),
    ("grade", ["input=a", "output=b"], "a:1: not UTF-8: ", {"a": b"\xff\n"}),
    ("grade", ["input=a", "output=b"], "a:1: gold=None must be text", {"a": '{"id": 1}\n'}),
    ("grade", ["input=a", "output=a"], "output=a: would overwrite the input", {"a": ""}),
    ("plan", ["train.minibatches=0"], "train.minibatches=0: too small (accepted: 1 or more)"),
    ("plan", ["rollout.workers=0"], "rollout.workers=0: too small (accepted: 1 or more)"),
    ("plan", ["plan.device=z9000"], "plan.device=z9000: unknown (accepted: h200, h100"),
    ("plan", ["model.path=bad"], "model.path=bad: its config.json cannot be read: Expecting", {"bad/config.json": "{"}),
    ("plan", ["-m", "train.group_size=0,1"], "train.group_size=0: an advantage compares the responses of a group"),
    ("report", [], "the following arguments are required: dir; usage: gspo-report "),
    ("report", [".", "--x", "time"], "argument --x: invalid choice: 'time' (choose from 'step', 'tokens', 'flops', "),
    (
        "report",
        ["r", "--out", "f"],
        "--out=f: File exists (accepted: a directory that can be made)",
        SEALED | {"f": ""},
    ),
    ("report", ["r"], "no readable run below r: r: Expecting property name", {"r/run.json": "{"}),
    ("report", ["clip", "r", "--low", "0.1"], "--low and --high come in pairs; got 1 and 0"),
    ("export", [], "the following arguments are required: RUN|CHECKPOINT, out; usage: gspo-export"),
    (
        "export",
        ["r", "o", "--dtype", "int8"],
        "argument --dtype: invalid choice: 'int8' (choose from 'float32', 'bfloat16')",
    ),
    ("export", ["nothing", "o"], "nothing: no checkpoint there (accepted: a run directory, or RUN/checkpoints/step_"),
    ("export", ["r", "o"], "model.path=nowhere: no such directory; accepted are a directory with config.json", SEALED),
    ("export", ["r", "o"], "r: its config.yaml names no model", SEALED | {"r/config.yaml": "a: 1"}),
    ("report", ["/no/such"], "no such directory: /no/such"),
    ("report", ["."], "no run directory (one with run.json) below ."),
    ("report", ["clip", "."], "no run with sequences/*.parquet in ."),
]
TABLE = [("train", *one) for one in (*SCHEMA, *GROUPS, *RANGES, *TOGETHER, *MANY, *PLACES, *DATA)] + OTHERS
REAL = [("train", *one) for one in (SCHEMA[5], RANGES[3], TOGETHER[0], MANY[0], PLACES[3], DATA[9], DATA[20])]
REAL += [next(one for one in reversed(OTHERS) if one[0] == name) for name in ("eval", "sft", "grade", "plan", "export")]


def refused(folder, program, arguments, said, files=None):
    """Run a wrong command line on the files it needs and hold it to the promise."""
    for name, text in (files or {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    before = tree(folder)
    hf = program == "train" and not any(one.startswith("rollout=") for one in arguments)
    done = command(folder, *arguments, *(["rollout=hf"] if hf else []), program=program)
    lines = [line for line in done.err.splitlines() if not line.startswith("warning:")]
    assert done.code == 2, done.err
    assert len(lines) == 1, done.err
    assert lines[0].startswith(f"gspo-{program}: ")
    assert said in lines[0]
    assert done.out == ""
    assert tree(folder) == before


@pytest.fixture(autouse=True)
def _nobodys_key(monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "GSPO_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", "/nowhere")


@pytest.mark.parametrize("case", TABLE, ids=[f"{one[0]} {' '.join(one[1])[-40:]} {i}" for i, one in enumerate(TABLE)])
def test_one_line_and_nothing_else(tmp_path, case):
    """A wrong word, number, path or row is refused where it can be mended, before anything is made."""
    refused(tmp_path, *case)


@pytest.mark.slow
@pytest.mark.parametrize("case", LATE, ids=[" ".join(one[0])[-40:] for one in LATE])
def test_what_only_the_tokenizer_and_the_judge_can_see(tmp_path, case):
    """Combinations that functions refuse, and data that the reward cannot judge: still before anything is made."""
    refused(tmp_path, "train", *case)


JUDGES = """
import os, sys
KINDS = ("code",)

def raises(prompt, rollout, *, lenient=False, workers=2, format_weight=0.0):
    raise RuntimeError("a mistake of mine")

def exits(prompt, rollout, *, lenient=False, workers=2, format_weight=0.0):
    sys.exit(0)

def number(prompt, rollout, *, lenient=False, workers=2, format_weight=0.0):
    return 1.0

def dies(prompt, rollout, *, lenient=False, workers=2, format_weight=0.0):
    os._exit(0)
"""


@pytest.mark.parametrize(
    ("name", "kinds", "said"),
    [
        ("raises", "math", "reward._target_=judges.raises: raised RuntimeError: a mistake of mine"),
        ("exits", "math", "reward._target_=judges.exits: raised SystemExit: 0"),
        ("number", "math", "reward._target_=judges.number: returned float (accepted: gspo.types.Reward)"),
        ("number", "code", "judges.number: arithmetic has an answer, not tests (accepted: reward=math or mixed"),
        ("broken", "math", "reward._target_=broken.f: its import raised NameError: name 'mistake' is not defined"),
    ],
)
def test_a_reward_of_ones_own_is_tried(tmp_path, name, kinds, said):
    """What a user's function or module raises, returns or cannot judge is a line that names it, before the run."""
    (tmp_path / "judges.py").write_text(JUDGES.replace('"code"', f'"{kinds}"'))
    (tmp_path / "broken.py").write_text("mistake")
    target = "broken.f" if name == "broken" else f"judges.{name}"

    def before():
        sys.path.insert(0, str(tmp_path))
        sys.dont_write_bytecode = True

    there = tree(tmp_path)
    done = command(tmp_path, f"reward._target_={target}", "rollout=hf", before=before)
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1), done.err
    assert said in done.err
    assert tree(tmp_path) == there


FOREIGN = {"model_type": "mine", "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}}
"""What config.json says of a model that comes with Python files of its own."""


@pytest.mark.parametrize(
    ("changes", "tokenizer", "code", "said"),
    [
        (FOREIGN, {}, 2, "model.path=mine: model_type 'mine' is code of its own (auto_map in config.json), and no"),
        ({}, {"tokenizer_class": "Mine"}, 2, "mine: its tokenizer is code of its own (auto_map in tokenizer_config"),
        ({"model_type": "mine"}, {}, 2, "model.path=mine: model_type 'mine' is unknown (accepted: a model_type of tra"),
        ({"auto_map": FOREIGN["auto_map"]}, {}, 0, ""),
    ],
    ids=["model", "tokenizer", "unknown", "llama"],
)
def test_no_code_of_a_model_is_run(tmp_path, changes, tokenizer, code, said):
    """A model or tokenizer that exists as Python files in its directory only is refused before anything is made, though
    the user at the terminal says yes to every question; files that offer what transformers has are not looked at."""
    mine = tiny.tiny_model_dir("llama", tmp_path / "mine")
    config = json.loads((mine / "config.json").read_text())
    (mine / "config.json").write_text(json.dumps(config | changes))
    if tokenizer:
        words = json.loads((mine / "tokenizer_config.json").read_text()) | tokenizer
        words["auto_map"] = {"AutoTokenizer": ["code.Mine", None]}
        (mine / "tokenizer_config.json").write_text(json.dumps(words))
    (mine / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Config: ...\nclass Model: ...\n")
    words = ["model.path=mine", "model.name=mine", "model.experts_implementation=null", "tracking=jsonl", "rollout=hf"]
    words += ["train.steps=1", "train.prompts_per_step=4", "train.group_size=2", "data.max_terms=4", "run.dir=run"]

    def yes():
        sys.stdin = io.StringIO("y\n" * 9)

    done = command(tmp_path, *words, before=yes)
    assert done.code == code, done.err
    assert not (tmp_path / "ran").exists()
    assert (tmp_path / "run").exists() == (code == 0)
    if said:
        (line,) = done.err.splitlines()
        assert said in line


def test_transformers_is_always_told_to_run_no_code():
    """Every `from_pretrained` and `from_config` of an Auto class says trust_remote_code=False in so many words: left
    out, transformers asks at the terminal. Catches a new place that loads a model, also in a rank or in an engine."""
    found = []
    for path in sorted(HOME.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in ("from_pretrained", "from_config") and ast.unparse(node.func.value).startswith("Auto"):
                given = {word.arg: ast.unparse(word.value) for word in node.keywords}
                found.append((f"{path.name}:{node.lineno}", given.get("trust_remote_code")))
    assert len(found) >= 9
    assert [one for one in found if one[1] not in ("False", "trust_remote_code")] == []
    asked = {
        word.value.value
        for path in HOME.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        for word in node.keywords
        if word.arg == "trust_remote_code" and isinstance(word.value, ast.Constant)
    }
    assert asked == {False}


@pytest.mark.parametrize("case", REAL, ids=[f"{one[0]} {' '.join(one[1])[-40:]}" for one in REAL])
def test_a_process_of_its_own(tmp_path, case):
    """The command as a user types it: the same line and code, in under 3 s of CPU (another's load does not count)."""
    program, arguments, said, *files = case
    for name, text in (files[0] if files else {}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    before, begun = tree(tmp_path), resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [*arguments, *(["rollout=hf"] if program == "train" else [])]
    done = subprocess.run([BIN / f"gspo-{program}", *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 2
    assert said in done.stderr
    assert (len(done.stderr.splitlines()), tree(tmp_path)) == (1, before)
    assert ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime < 3


def test_debug_shows_where(tmp_path):
    """`debug=true` is the way to a traceback."""
    done = command(tmp_path, "train.group_size=1", "rollout=hf", "debug=true")
    assert "Traceback" in done.err
    assert "train.group_size=1" in done.err


def test_the_table_is_long_enough():
    """The promise speaks of 60."""
    assert len(TABLE) + len(LATE) >= 60
    assert os.environ.get("WANDB_API_KEY") is None
