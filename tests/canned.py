"""An engine of written responses, and problems for it."""

import numpy as np

from gspo import evaluate
from gspo.config import ModelSettings, SamplingSettings
from gspo.types import Prompt, Rollout

TINY = ModelSettings(name="tiny", path="gspo:qwen3_moe_tiny", context=256, chat_template=False)
SAMPLING = SamplingSettings(max_tokens=40)


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
