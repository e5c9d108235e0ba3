"""One contract, every engine: what `Engine` promises, checked against a plain transformers forward pass."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from scipy import stats

from gspo.config import RolloutSettings, SamplingSettings
from gspo.rollout import request_seed
from gspo.rollout.contract import make_rollout, stop_ids
from gspo.rollout.hf import HfEngine, sample
from gspo.rollout.vllm_local import VllmEngine, available, sampled_logp
from gspo.rollout.workers import Workers
from gspo.types import Prompt, Rollout


def three_workers(*args: Any, **settings: Any) -> Workers:
    return Workers(functools.partial(HfEngine, *args, **settings), 3, functools.partial(torch.set_num_threads, 1))


ENGINES = {"hf": HfEngine, "workers": three_workers, "vllm": VllmEngine}
CONTEXT, MAX_TOKENS, TEMPERATURE = 256, 24, 0.6
OTHER_EOS = 44
STOPS = {tiny.EOS, OTHER_EOS}
"""The tokenizer's EOS, and one that only the model's own files name (chat models have two)."""
TEXTS = ("1+2=", "what is 34+55?", "a" * 150, "9")


def prompt(text: str, name: str | None = None) -> Prompt:
    ids = tuple(tiny.tokenizer()(text)["input_ids"])
    return Prompt(id=name or text, text="not what the engine reads", token_ids=ids, reference="", source="test")


PROMPTS = [prompt(text) for text in TEXTS]


def host_state() -> tuple[Any, ...]:
    """What an engine must leave alone in its process."""
    random = torch.random.get_rng_state().tolist()
    return random, torch.get_num_threads(), torch.set_num_threads, sys.excepthook, os.environ.get("LD_PRELOAD")


@pytest.fixture(scope="module")
def open_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Opens an engine on one random Qwen3-MoE; the one before is closed first unless it is the same."""
    path = tiny.tiny_model_dir("qwen3_moe", tmp_path_factory.mktemp("model"), eos_token_id=OTHER_EOS)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [OTHER_EOS]}))
    live: dict[Any, Any] = {}

    def get(kind: str, **sampling: Any) -> Any:
        key = (kind, repr(sampling))
        if key not in live:
            if kind == "vllm" and (reason := available("cpu")):
                pytest.skip(reason)
            while live:
                live.popitem()[1].close()
            chosen = {"temperature": TEMPERATURE, "max_tokens": MAX_TOKENS} | sampling
            before = host_state()
            live[key] = ENGINES[kind](
                path,
                tiny.tokenizer(),
                RolloutSettings(),
                SamplingSettings(**chosen),
                precision="float32",
                context=CONTEXT,
                seed=0,
                max_batch=32,
                device="cpu",
            )
            assert host_state() == before, "starting an engine changed its host process"
        return live[key]

    yield get
    while live:
        live.popitem()[1].close()


@pytest.fixture(scope="module", params=list(ENGINES))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def ids(groups: list[list[Rollout]]) -> list[list[list[int]]]:
    return [[rollout.token_ids.tolist() for rollout in group] for group in groups]


@functools.cache
def model() -> Any:
    return tiny.tiny_model("qwen3_moe")


def plain_logp(given: Prompt, rollout: Rollout, temperature: float = TEMPERATURE) -> np.ndarray:
    """log_softmax(logits / T) of the response's tokens, from one forward pass over prompt and response."""
    tokens = torch.tensor([*given.token_ids, *rollout.token_ids.tolist()])
    with torch.no_grad():
        logits = model()(tokens[None]).logits[0]
    first = len(given.token_ids)
    logp = torch.log_softmax(logits.double() / temperature, dim=-1)[first - 1 : -1]
    return logp.gather(1, tokens[first:, None])[:, 0].numpy()


def test_logp_is_that_of_a_plain_forward_at_the_temperature(open_engine: Any, kind: str) -> None:
    """Log-probs equal log_softmax(logits / 0.6) of exactly prompt + response ids.

    Would catch raw log-probs (0.8 off), a wrong token's entry, a BOS added to the prompt, an EOS left out (B09, B46).
    """
    with_bos = Prompt(id="bos", text="", token_ids=(1, *PROMPTS[0].token_ids), reference="", source="test")
    groups = open_engine(kind).generate([*PROMPTS, with_bos], 4, seed=0, step=0)
    for given, group in zip([*PROMPTS, with_bos], groups, strict=True):
        for rollout in group:
            np.testing.assert_allclose(rollout.logp, plain_logp(given, rollout), rtol=0, atol=1e-4)
            assert rollout.logp.dtype == np.float32
            assert rollout.token_ids.dtype == np.int64
            assert rollout.trained.all()
            assert len(rollout.trained) == len(rollout.token_ids) == len(rollout.logp)
            chars = [tiny.CHARS[token - 4] for token in rollout.token_ids if token - 4 in range(len(tiny.CHARS))]
            assert rollout.text == "".join(chars)


def test_samples_follow_the_policy(open_engine: Any, kind: str) -> None:
    """First tokens of 800 samples pass a chi-square test against the policy at T = 0.6.

    Would catch a sampler that draws at another temperature or reuses its random numbers.
    """
    given = prompt("12+34=")
    (group,) = open_engine(kind).generate([given], 800, seed=3, step=0)
    with torch.no_grad():
        logits = model()(torch.tensor([given.token_ids])).logits[0, -1]
    expected = 800 * torch.softmax(logits.double() / TEMPERATURE, -1).numpy()
    counts = np.bincount([int(rollout.token_ids[0]) for rollout in group], minlength=tiny.VOCAB)
    often = expected > 5
    observed = [*counts[often], counts[~often].sum()]
    assert stats.chisquare(observed, [*expected[often], expected[~often].sum()]).pvalue > 1e-3


def test_seeds_decide_and_neighbours_do_not(open_engine: Any, kind: str) -> None:
    """Same seed, step and prompt: same samples, alone or among others, in any order; another seed or step: others.

    Would catch one generator for the whole batch and a seed that never reaches the engine (B47).
    """
    engine = open_engine(kind)
    together = ids(engine.generate(PROMPTS, 4, seed=0, step=5))
    assert ids(engine.generate(PROMPTS, 4, seed=0, step=5)) == together
    assert ids(engine.generate(PROMPTS[::-1], 4, seed=0, step=5)) == together[::-1]
    for given, group in zip(PROMPTS, together, strict=True):
        assert ids(engine.generate([given], 4, seed=0, step=5)) == [group]
    assert all(a != b for a, b in zip(ids(engine.generate(PROMPTS, 4, seed=1, step=5)), together, strict=True))
    assert all(a != b for a, b in zip(ids(engine.generate(PROMPTS, 4, seed=0, step=6)), together, strict=True))


def test_no_two_samples_share_their_randomness(open_engine: Any, kind: str) -> None:
    """Samples of a prompt differ from each other, and so do those of two prompts with the same tokens (B47)."""
    twins = [prompt("3*4=", "first"), prompt("3*4=", "second")]
    first, second = ids(open_engine(kind).generate(twins, 8, seed=0, step=0))
    everything = [tuple(sample) for sample in first + second if len(sample) > 2]
    assert len(everything) > 10
    assert len(set(everything)) == len(everything)


def test_a_group_begins_with_the_smaller_group(open_engine: Any, kind: str) -> None:
    """Sample g depends on g, not on the size of the group: a group of 3 is the first 3 of a group of 7."""
    engine = open_engine(kind)
    large = ids(engine.generate(PROMPTS, 7, seed=0, step=1))
    assert ids(engine.generate(PROMPTS, 3, seed=0, step=1)) == [group[:3] for group in large]


@pytest.mark.parametrize("kind", ["vllm"], indirect=True)
def test_group_equals_single_requests(open_engine: Any, kind: str) -> None:
    """n = G with a seed is G requests of n = 1 with seed + g: what `Engine` documents, and DESIGN relies on."""
    engine = open_engine(kind)
    (group,) = ids(engine.generate([PROMPTS[1]], 4, seed=0, step=2))
    first = request_seed(0, 2, PROMPTS[1].id)
    for g, expected in enumerate(group):
        how = engine._request(PROMPTS[1], 1, first + g)
        (output,) = engine._llm.generate([{"prompt_token_ids": list(PROMPTS[1].token_ids)}], how, use_tqdm=False)
        assert list(output.outputs[0].token_ids) == expected


def test_finish_reasons(open_engine: Any, kind: str) -> None:
    """`stop` exactly when the last token is an EOS, which is kept; else `length` at max_tokens or context's end."""
    long = prompt("b" * (CONTEXT - 3), "long")
    groups = open_engine(kind).generate([*PROMPTS, long], 16, seed=0, step=3)
    for given, group in zip([*PROMPTS, long], groups, strict=True):
        room = min(MAX_TOKENS, CONTEXT - len(given.token_ids))
        for rollout in group:
            tokens = rollout.token_ids.tolist()
            assert not STOPS & set(tokens[:-1])
            assert rollout.finish == ("stop" if tokens[-1] in STOPS else "length")
            assert len(tokens) == room or (rollout.finish == "stop" and len(tokens) < room)
    assert {r.token_ids[-1] for group in groups for r in group if r.finish == "stop"} == STOPS
    assert {len(rollout.token_ids) for rollout in groups[-1] if rollout.finish == "length"} == {3}


def test_version_travels_with_the_samples(open_engine: Any, kind: str) -> None:
    """Every rollout carries the version of the weights that sampled it: 0 at start, then that of the last update."""
    engine = open_engine(kind)
    engine.update_weights(model().state_dict().items(), version=11)
    assert {r.version for group in engine.generate(PROMPTS, 2, seed=0, step=0) for r in group} == {11}


def test_impossible_prompts_are_refused_by_name(open_engine: Any, kind: str) -> None:
    """A prompt without tokens or without room for a response is named in the error, before anything is sampled."""
    engine = open_engine(kind)
    with pytest.raises(ValueError, match=r"'huge' has 256 tokens.*255"):
        engine.generate([prompt("c" * CONTEXT, "huge")], 2, seed=0, step=0)
    with pytest.raises(ValueError, match=r"'nothing' has no tokens"):
        engine.generate([prompt("", "nothing")], 2, seed=0, step=0)


@pytest.mark.parametrize(
    ("settings", "sampling", "message"),
    [
        ({}, {"top_p": 0.9}, "top_p=0.9"),
        ({}, {"top_k": 20}, "top_k=20"),
        ({}, {"temperature": 0.0}, "temperature=0.0"),
        ({}, {"temperature": float("nan")}, "temperature=nan"),
        ({}, {"max_tokens": 0}, "max_tokens=0"),
        ({}, {"stop": [""]}, "stop="),
        ({"workers": 0}, {}, r"workers=0: must be"),
        ({"tensor_parallel": 2}, {}, "tensor_parallel=2"),
        ({"memory_fraction": 0.9}, {}, "memory_fraction=0.9"),
    ],
)
@pytest.mark.parametrize("engine", ["hf", "vllm"])
def test_refused_settings(engine: str, settings: Any, sampling: Any, message: str, tmp_path: Any) -> None:
    """What would sample another policy than the one trained, or has no effect, is one line before anything loads."""
    with pytest.raises(ValueError, match=message) as caught:
        ENGINES[engine](
            tmp_path / "no model here",
            tiny.tokenizer(),
            RolloutSettings(**settings),
            SamplingSettings(**({"max_tokens": 4} | sampling)),
            precision="float32",
            context=CONTEXT,
            seed=0,
            max_batch=4,
            device="cpu",
        )
    assert "\n" not in str(caught.value)


def test_engines_leave_their_host_alone(open_engine: Any, kind: str) -> None:
    """Starting and sampling change no thread count, random state, hook or inherited variable of the process.

    vLLM replaces torch.set_num_threads, seeds torch, and preloads an allocator into every later child (checked at its
    start in `open_engine`); its CPU sampler draws from torch's global state.
    """
    engine, before = open_engine(kind), host_state()
    engine.generate(PROMPTS, 2, seed=0, step=0)
    assert host_state() == before
    torch.set_num_threads(2)
    changed = torch.get_num_threads()
    torch.set_num_threads(before[1])
    assert changed == 2


def test_stop_strings(open_engine: Any, kind: str) -> None:
    """A response ends at the token that completes a stop string, keeps it, and finishes with `stop`."""
    groups = open_engine(kind, stop=["E", "xy"], temperature=1.0).generate(PROMPTS, 8, seed=0, step=0)
    stopped = [r for group in groups for r in group if r.finish == "stop" and r.token_ids[-1] not in STOPS]
    assert len(stopped) > 3
    for group in groups:
        for rollout in group:
            assert ("E" in rollout.text or "xy" in rollout.text) == any(rollout is s for s in stopped)
            assert not any(stop in rollout.text[:-1] for stop in ("E", "xy"))


def test_workers_that_fail_say_so_and_stay_in_step(open_engine: Any) -> None:
    """An error in one engine's share leaves the others' answers in order; weights that are refused are read to their
    end; a worker that is killed is one line, for `Restarting` to hear."""
    engine = open_engine("workers", max_tokens=8)
    expected = ids(engine.generate(PROMPTS, 2, seed=0, step=0))
    for place in range(3):
        bad = [*PROMPTS[:place], prompt("c" * CONTEXT, "huge"), *PROMPTS[place:]]
        with pytest.raises(ValueError, match="'huge' has 256 tokens"):
            engine.generate(bad, 2, seed=0, step=0)
        assert ids(engine.generate(PROMPTS, 2, seed=0, step=0)) == expected
    weights = {name: weight.clone() for name, weight in model().state_dict().items()}
    with pytest.raises(ValueError, match="weight unknown"):
        engine.update_weights([("unknown", torch.zeros(2)), *weights.items()], version=5)
    engine.update_weights(weights.items(), version=6)
    assert {r.version for group in engine.generate(PROMPTS, 1, seed=0, step=0) for r in group} == {6}
    engine._workers[1][0].kill()
    with pytest.raises(RuntimeError, match=r"rollout worker rollout-2 is gone \(signal 9"):
        engine.generate(PROMPTS, 2, seed=0, step=0)
    processes = [process for process, _ in engine._workers]
    engine.close()
    assert not any(process.is_alive() for process in processes)


@pytest.mark.parametrize("bad", [None, float("nan"), float("-inf")])
def test_broken_logp_is_named(bad: float | None) -> None:
    """A log-prob that is None, NaN or -inf raises with prompt id and position; never a silent 0 or ratio 1 (B11)."""
    with pytest.raises(ValueError, match=r"'p7'.*position 1"):
        make_rollout(
            [5, 6, 7], [-0.1, bad, -0.3], finish="stop", version=0, prompt=prompt("1", "p7"), tokenizer=tiny.tokenizer()
        )


def test_logp_is_picked_by_token_id() -> None:
    """vLLM's entry may list the most likely token first: the sampled one is found by id, and an absent one is None."""

    class Entry:
        def __init__(self, logprob: float) -> None:
            self.logprob = logprob

    listed = [{9: Entry(-0.1), 4: Entry(-2.5)}, {4: Entry(-0.7)}, None, {8: Entry(-0.2)}]
    assert sampled_logp([4, 4, 4, 4], listed) == [-2.5, -0.7, None, None]
    assert sampled_logp([4, 4], listed[:1]) == [None, None]


def test_sample_by_hand() -> None:
    """logits [2, 1, 0] at T = 0.5: log-prob of token 0 is -0.142932 (B09); the uniform picks by cumulative probability.

    Probabilities are softmax(4, 2, 0) = 0.866814, 0.117310, 0.015876, the masked fourth token never drawn.
    """
    logits = torch.tensor([2.0, 1.0, 0.0, -torch.inf]).expand(5, -1)
    uniform = torch.tensor([0.0, 0.8668, 0.8669, 0.9842, 1 - 2**-53], dtype=torch.float64)
    drawn, logp = sample(logits, 0.5, uniform)
    assert drawn.tolist() == [0, 0, 1, 2, 2]
    assert logp.tolist() == pytest.approx([-0.142932, -0.142932, -2.142932, -4.142932, -4.142932], abs=1e-6)


def test_stop_ids_come_from_tokenizer_and_generation_config(tmp_path: Any) -> None:
    """Several EOS are allowed (chat models list two); none at all is refused, since nothing would ever stop."""
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 5]}')
    assert stop_ids(tmp_path, tiny.tokenizer()) == (tiny.EOS, 5, 7)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 9}')
    assert stop_ids(tmp_path, tiny.tokenizer()) == (tiny.EOS, 9)
    nameless = tiny.tokenizer()
    nameless.eos_token = None
    (tmp_path / "generation_config.json").unlink()
    with pytest.raises(ValueError, match="EOS"):
        stop_ids(tmp_path, nameless)
