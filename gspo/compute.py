"""FLOPs of a step, counted from the model's shape and the lengths; and the ledger that adds them up by phase.

Forward FLOPs of a token that attends to c positions (itself included):

    2 * (active matmul parameters: router and lm_head in, embedding look-up out) + 4 * layers * heads * head_dim * c

In a causal pass over L tokens c runs from 1 to L, so sum c = L (L + 1) / 2. The lm_head counts only where it is run.
Backward is twice the forward; activation checkpointing adds a forward of the blocks, chunked log-probs one of the
lm_head. Left out: norms, softmax, rotary embedding, activations, sampling and the optimiser (under 1 % together for
the models here), and the upper triangle that eager attention computes and throws away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gspo.shape import ModelShape

PHASES = ("rollout", "old_logp", "update", "probe", "eval")


def causal(length: int) -> int:
    """sum of c over a causal pass: L (L + 1) / 2."""
    return length * (length + 1) // 2


def blocks_flops(shape: ModelShape, tokens: int, context: int) -> int:
    """Forward of all layers: 2 * active block parameters * tokens + 4 * layers * heads * head_dim * context.

    `context` is the sum of c over the tokens.
    """
    return 2 * shape.blocks_active * tokens + 4 * shape.layers * shape.heads * shape.head_dim * context


def head_flops(shape: ModelShape, positions: int) -> int:
    """lm_head forward at `positions` tokens: 2 * hidden * vocab * positions."""
    return 2 * shape.head_matmul * positions


def forward_flops(shape: ModelShape, lengths: Sequence[int], head_positions: int) -> int:
    """A causal forward of sequences of `lengths` tokens, the lm_head run at `head_positions` of them in all."""
    return blocks_flops(shape, sum(lengths), sum(map(causal, lengths))) + head_flops(shape, head_positions)


def backward_flops(shape: ModelShape, lengths: Sequence[int], head_positions: int) -> int:
    """Twice the forward: each product has two gradients of its own cost."""
    return 2 * forward_flops(shape, lengths, head_positions)


def prefill_flops(shape: ModelShape, prompt: int, group: int, cached: int = 0) -> int:
    """Prefill of a prompt for a group of responses: the lm_head once a response.

    The first `cached` tokens are run once for the group, the rest of the prompt once a response. A token after the
    cached part attends to it all the same.
    """
    once = blocks_flops(shape, cached, causal(cached))
    rest = blocks_flops(shape, prompt - cached, causal(prompt) - causal(cached))
    return once + group * (rest + head_flops(shape, 1))


def decode_flops(shape: ModelShape, prompt: int, response: int) -> int:
    """Decode of a response of `response` tokens after the prefill has given the first.

    response - 1 tokens go through the model, at contexts prompt + 1 .. prompt + response - 1, and each gives the next.
    """
    steps = max(response - 1, 0)
    return blocks_flops(shape, steps, steps * prompt + causal(steps)) + head_flops(shape, steps)


@dataclass
class Ledger:
    """Adds up a run's FLOPs, tokens and device-seconds by phase; `row()` closes a step."""

    shape: ModelShape | None
    """None: a model whose FLOPs are not known; only tokens and seconds are counted."""
    peak_flops: float | None
    """Matmul peak of one device at the precision trained in, FLOP/s; None: unknown, no MFU."""
    devices: int = 1
    """Devices that work together; every second counts this many device-seconds."""
    flops: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("prompt", "sampled", "trained"), 0))
    device_seconds: float = 0.0
    step_model_flops: int = 0
    """Forward and backward without recompute, of this step's old_logp and update."""
    step_train_seconds: float = 0.0
    step_seconds: float = 0.0
    step_sampled: int = 0

    def add_rollout(
        self,
        prompt_lengths: Sequence[int],
        response_lengths: Sequence[Sequence[int]],
        seconds: float,
        shared_prefix: bool,
        *,
        block: int = 1,
        phase: str = "rollout",
    ) -> None:
        """Responses sampled to each prompt: lengths `[P]` and `[P][G]`.

        With `shared_prefix` the engine's prefix cache runs a prompt once a group, in whole blocks of `block` tokens;
        without it once a response. `phase` is `rollout` or `eval`; tokens are counted for the rollout only.
        """
        for prompt, responses in zip(prompt_lengths, response_lengths, strict=True):
            if self.shape is not None:
                cached = prompt // block * block if shared_prefix else 0
                self.flops[phase] += prefill_flops(self.shape, prompt, len(responses), cached)
                self.flops[phase] += sum(decode_flops(self.shape, prompt, length) for length in responses)
            if phase == "rollout":
                self.tokens["prompt"] += prompt * len(responses)
                self.step_sampled += sum(responses)
        if phase == "rollout":
            self.tokens["sampled"] += sum(map(sum, response_lengths))
        self.add_seconds(seconds, training=False, step=phase == "rollout")

    def add_forward(self, phase: str, lengths: Sequence[int], head_positions: int, seconds: float) -> None:
        """A forward pass without gradient over sequences of `lengths` tokens: `old_logp` or `probe`."""
        if self.shape is not None:
            flops = forward_flops(self.shape, lengths, head_positions)
            self.flops[phase] += flops
            self.step_model_flops += flops if phase == "old_logp" else 0
        self.add_seconds(seconds, training=phase == "old_logp", step=phase == "old_logp")

    def add_update(
        self,
        lengths: Sequence[int],
        head_positions: int,
        seconds: float,
        *,
        recompute_blocks: bool,
        recompute_head: bool,
    ) -> None:
        """Forward and backward over sequences of `lengths` tokens, with what is computed twice to save memory.

        `head_positions` are the trained positions.
        """
        if self.shape is not None:
            forward = forward_flops(self.shape, lengths, head_positions)
            model = forward + backward_flops(self.shape, lengths, head_positions)
            head = head_flops(self.shape, head_positions)
            blocks = forward - head
            self.flops["update"] += model + recompute_blocks * blocks + recompute_head * head
            self.step_model_flops += model
        self.tokens["trained"] += head_positions
        self.add_seconds(seconds, training=True)

    def add_seconds(self, seconds: float, *, training: bool = False, step: bool = True) -> None:
        """Time the devices were held, also when they computed nothing counted here (rewards, weight sync)."""
        self.device_seconds += seconds * self.devices
        self.step_seconds += seconds if step else 0.0
        self.step_train_seconds += seconds if training else 0.0

    def row(self) -> dict[str, float]:
        """Columns of this step, the `compute/*` ones cumulative; begins the next step.

        perf/mfu = model FLOPs of old_logp and update / (peak * devices * their seconds); perf/tokens_per_s = sampled
        tokens of the step / its seconds without evaluation. A column without a meaning is left out, not zero.
        """
        row: dict[str, float] = {}
        if self.shape is not None:
            row |= {f"compute/flops_{phase}": float(self.flops[phase]) for phase in PHASES}
            row["compute/flops_total"] = float(sum(self.flops.values()))
        row |= {f"compute/tokens_{kind}": count for kind, count in self.tokens.items()}
        row["compute/device_seconds"] = self.device_seconds
        held = self.step_train_seconds * self.devices
        if self.shape is not None and self.peak_flops and held > 0:
            row["perf/mfu"] = self.step_model_flops / (self.peak_flops * held)
        if self.step_seconds > 0:
            row["perf/tokens_per_s"] = self.step_sampled / self.step_seconds
        self.step_model_flops = self.step_sampled = 0
        self.step_train_seconds = self.step_seconds = 0.0
        return row

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps (JSON): the cumulative counts, at a step's end."""
        return {"flops": dict(self.flops), "tokens": dict(self.tokens), "device_seconds": self.device_seconds}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state()` of an earlier process."""
        self.flops = dict(state["flops"])
        self.tokens = dict(state["tokens"])
        self.device_seconds = float(state["device_seconds"])
