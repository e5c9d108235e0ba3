"""Evaluation: sample, judge, estimate. `gspo-eval` and the evaluations inside training are this one function.

Prompts are rendered by the training's own stream, the verifier is the training's, and the engine is given token ids.
Samples are drawn at the step `SAMPLING_STEP`, which training never uses, so no draw of training changes; at every
checkpoint they are the same draws, so that a paired difference compares weights.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gspo import estimators
from gspo.binding import bind
from gspo.config import EvalSettings, ModelSettings, SamplingSettings
from gspo.data import PromptStream, Source, Stage
from gspo.eval_config import BenchmarkSettings, read_benchmark
from gspo.rewards.answers import find_answer
from gspo.rewards.guards import too_big
from gspo.rewards.nodes import Leaf, squeeze
from gspo.rewards.normalise import normalise
from gspo.rewards.score import VerifierFailures, check_workers, score
from gspo.rewards.structure import read
from gspo.rewards.units import NONE
from gspo.rollout import Engine
from gspo.types import Group, Prompt, Reward, RewardFn, Rollout

if TYPE_CHECKING:
    from gspo.parallel import World

SAMPLING_STEP = -1
"""Steps of training are 0 or more: no seed of an evaluation is one of training."""
CHUNK = 2048
"""Samples that are generated before they are judged."""
MOST_SAMPLES, MOST_PROBLEMS = 2**16, 10**6
"""Samples of a problem count on from a seed whose low 16 bits are free; problems are rendered before the first."""
MAX_FAILED = 0.01
"""Share of samples without a verdict that an evaluation may shrug off; they count as wrong."""

Columns = Callable[[Sequence[Prompt], Sequence[Sequence[float]]], Mapping[str, Any]]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark as a model reads it."""

    name: str
    k: int
    prompts: list[Prompt]
    reward: RewardFn
    columns: Columns | None
    facts: Row = field(default_factory=dict)
    """What every row says of it: sampling settings, the data's hash."""


def settings_of(settings: EvalSettings, reward: Mapping[str, Any]) -> BenchmarkSettings | None:
    """The benchmark that a run evaluates on, its verifier with the run's options where it is the same function.

    None where the run does not evaluate. Raises ValueError for settings that make no sense together.
    """
    if settings.every < 0:
        raise ValueError(f"eval.every={settings.every}: too small (accepted: 0 or more)")
    given = {name: value for name in ("benchmark", "k", "problems") if (value := getattr(settings, name)) is not None}
    if settings.every == 0:
        return None
    if "benchmark" not in given:
        raise ValueError(f"eval.every={settings.every}: eval.benchmark names what to evaluate on; it is null")
    found = read_benchmark(str(settings.benchmark))
    found = replace(found, **{name: value for name, value in given.items() if name != "benchmark"})
    if found.reward["_target_"] == reward.get("_target_"):
        found = replace(found, reward=dict(reward))
    check(found)
    return found


def check(settings: BenchmarkSettings) -> Callable[[], Source]:
    """What reads the benchmark's problems. Raises ValueError for whatever is wrong that no file has to be read for."""
    for name, most in (("k", MOST_SAMPLES), ("problems", MOST_PROBLEMS)):
        if (value := getattr(settings, name)) is not None and not 1 <= value <= most:
            said = "small" if value < 1 else "large"
            raise ValueError(f"benchmark.{name}={value}: too {said} (accepted: 1 to {most})")
    check_workers(bind(settings.reward, "benchmark.reward"), "benchmark.reward")
    if settings.columns:
        bind(settings.columns, "benchmark.columns")
    return bind(settings.data, "benchmark.data")


def open_benchmark(
    settings: BenchmarkSettings, tokenizer: Any, model: ModelSettings, sampling: SamplingSettings
) -> Benchmark:
    """Read the problems and render them as training would, in their own order.

    Raises ValueError for whatever is wrong, a prompt without room for `sampling.max_tokens` included.
    """
    source, room = check(settings)(), model.context - sampling.max_tokens
    if not isinstance(source, Source):
        raise ValueError(f"benchmark.data._target_={settings.data.get('_target_')}: gives no Source")
    if source.size is None and settings.problems is None:
        raise ValueError("benchmark.problems=None: generated problems never end; a number is needed")
    if room < 1:
        raise ValueError(
            f"sampling.max_tokens={sampling.max_tokens}: model.context={model.context} leaves no room for a prompt"
        )
    prompts = _prompts(source, settings.problems, PromptStream([Stage(0, source)], tokenizer, model, seed=0,
                                                               max_prompt_tokens=room))  # fmt: skip
    facts = {"temperature": sampling.temperature, "top_p": sampling.top_p, "max_tokens": sampling.max_tokens}
    facts |= {"dataset_sha256": sha256(prompts, source)}
    columns = bind(settings.columns, "benchmark.columns") if settings.columns else None
    return Benchmark(settings.name, settings.k, prompts, bind(settings.reward, "benchmark.reward"), columns, facts)


def _prompts(source: Source, problems: int | None, stream: PromptStream) -> list[Prompt]:
    """The first `problems` of the source that fit, in its order."""
    if source.size is None:
        assert problems is not None
        return stream.take(problems, 0)
    kept = stream.state()["sets"][0][2]
    place = {source.row(i).id: i for i in range(source.size)}
    return sorted(stream.take(kept, 0), key=lambda prompt: place[prompt.id])[:problems]


def sha256(prompts: Sequence[Prompt], source: Source) -> str:
    """SHA-256 of the problems before a tokenizer saw them: id, text and reference of each, in order."""
    numbers = range(len(prompts) if source.size is None else source.size)
    rows = {row.id: row for row in map(source.row, numbers)}
    digest = hashlib.sha256()
    for prompt in prompts:
        row = rows[prompt.id]
        digest.update(json.dumps([row.id, row.prompt, row.reference], sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def evaluate(
    engine: Engine,
    benchmark: Benchmark,
    *,
    seed: int,
    step: int = 0,
    world: World | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Row, list[Row]]:
    """k samples to each prompt, judged: the row of eval.jsonl, and a record of each sample.

    A sample that is truncated, or that the verifier fails on, counts as wrong, and is counted. `step` is written into
    the row; the ranks of `world` share the work and all get the result; `progress` is told the samples done and their
    number. Raises ValueError without prompts or for ids that are not unique.
    """
    from gspo import parallel

    prompts, reward, k = benchmark.prompts, benchmark.reward, benchmark.k
    if not prompts or len({prompt.id for prompt in prompts}) != len(prompts):
        raise ValueError(f"{len(prompts)} problems: at least one is needed, each with an id of its own")

    def judged(some: list[Prompt]) -> list[Group]:
        sampled = engine.generate(some, k, seed=seed, step=SAMPLING_STEP)
        return score([Group(p, r) for p, r in zip(some, sampled, strict=True)], reward, max_failed=1.0)

    begun, groups, at_once = time.perf_counter(), [], max(1, CHUNK // k)
    for start in range(0, len(prompts), at_once):
        chunk = list(prompts[start : start + at_once])
        groups += parallel.spread(judged, chunk, world or parallel.World(), together=engine.ranks)
        if progress:
            progress(len(groups) * k, len(prompts) * k)
    samples = [_sample(group, g, reward) for group in groups for g in range(k)]
    versions = {rollout.version for group in groups for rollout in group.rollouts}
    assert len(versions) == 1, f"samples of several weights: {sorted(versions)}"
    correct = [[sample["correct"] for sample in samples[i : i + k]] for i in range(0, len(samples), k)]
    row: Row = {"step": step, "benchmark": benchmark.name, "k": k, "problems": len(prompts)}
    row |= estimate(correct, [sample["answer"] for sample in samples], seed) | shares(samples)
    row |= benchmark.columns(prompts, correct) if benchmark.columns else {}
    row |= {"seed": seed, "version": versions.pop()} | benchmark.facts
    return row | {"time/eval_s": time.perf_counter() - begun}, samples


def estimate(correct: Sequence[Sequence[float]], answers: Sequence[Any], seed: int) -> Row:
    """avg@k with its error, pass@j for j = 1, 2, 4, ... and k, maj@k where samples have answers; `correct` [P][k].

    A sample passes when `correct` is 1. The bootstrap's generator is seeded by `seed`.
    """
    k = len(correct[0])
    found = estimators.mean_estimate(estimators.by_problem(correct), np.random.default_rng(seed))
    row: Row = {"avg_at_k": found.value, "avg_at_k_se": found.se}
    row |= {"avg_at_k_low": found.low, "avg_at_k_high": found.high, "interval": found.method}
    counts = [(len(samples), sum(right >= 1 for right in samples)) for samples in correct]
    for j in sorted({2**power for power in range(k.bit_length())} | {k}):
        row[f"pass_at_{j}"] = estimators.mean_pass_at_k(counts, j)
    if any(answer is not None for answer in answers):
        voted = [estimators.maj_at_k(answers[i * k : i * k + k], right) for i, right in enumerate(correct)]
        row["maj_at_k"] = math.fsum(voted) / len(voted)
    return row


def shares(samples: Sequence[Row]) -> Row:
    """Length in tokens, and the shares of samples that were cut, aborted or not judged."""
    n = len(samples)
    lengths = sorted(sample["length"] for sample in samples)
    return {
        "length_mean": sum(lengths) / n,
        "length_max": lengths[-1],
        "truncated": sum(sample["finish"] == "length" for sample in samples) / n,
        "aborted": sum(sample["finish"] == "abort" for sample in samples) / n,
        "verifier_failed": sum(sample["verdict"] == "verifier failed" for sample in samples) / n,
    }


def require_judged(row: Mapping[str, Any]) -> None:
    """Raise VerifierFailures when the verifier failed on more than `MAX_FAILED` of an evaluation's samples."""
    if (share := row["verifier_failed"]) > MAX_FAILED:
        raise VerifierFailures(
            f"evaluation: {share:.1%} of the samples could not be judged (at most {MAX_FAILED:.0%} may)"
        )


def _sample(group: Group, g: int, reward: RewardFn) -> Row:
    rollout, judged = group.rollouts[g], group.rewards[g]
    return {
        "problem": group.prompt.id,
        "sample": g,
        "correct": _correct(judged, rollout),
        "verdict": judged.verdict,
        "path": judged.path,
        "reason": judged.reason,
        "answer": _vote(group.prompt, rollout, reward),
        "finish": rollout.finish,
        "length": len(rollout.token_ids),
        "response": rollout.text,
    }


def _correct(judged: Reward, rollout: Rollout) -> float:
    """The part `correct`; 0 for what was not judged, or did not end by itself."""
    value = judged.parts.get("correct", judged.value)
    return 0.0 if rollout.finish != "stop" or judged.verdict == "verifier failed" or math.isnan(value) else value


def _vote(prompt: Prompt, rollout: Rollout, reward: RewardFn) -> str | None:
    """The answer of a mathematics response in one spelling, for maj@k; None: no answer (or no mathematics).

    Plain rational numbers vote by value, all else by its normalised text; the gold answer has no say.
    """
    if prompt.kind != "math":
        return None
    lenient = isinstance(reward, functools.partial) and bool(reward.keywords.get("lenient"))
    opened = prompt.text.rstrip().endswith("<think>")
    found = find_answer(rollout.text, truncated=rollout.finish != "stop", lenient=lenient, opened=opened)
    if found.text is None:
        return None
    text = normalise(found.text)
    if len(text) > 200 or too_big(text):
        return squeeze(text)[:200]
    node = read(text)
    plain = isinstance(node, Leaf) and node.value is not None and node.unit == NONE and not node.percent
    return str(node.value) if plain else squeeze(text)  # pyright: ignore[reportAttributeAccessIssue]
