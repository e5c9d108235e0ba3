"""The learner: log-probs of a batch, and one optimiser step on a mini-batch. It knows nothing of the algorithm."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from gspo import parallel, policy, routing, routing_meter, sequences
from gspo.algorithms.objectives import Objective
from gspo.batch import micro_batches, to
from gspo.config import ClipSettings, OptimSettings
from gspo.metrics import Rows
from gspo.parallel import World
from gspo.schedule import schedule
from gspo.types import Batch

ObjectiveFn = Callable[..., Objective]


@dataclasses.dataclass(slots=True)
class Update:
    """What one optimiser step was."""

    loss: float
    """-J of the mini-batch before the step, plus aux_loss_coef * aux_loss where that is asked for."""
    grad_norm: float
    """Global L2 norm of the gradient before clipping."""
    lr: float
    skipped: bool
    """True: loss or gradient was not finite and the weights were left as they were."""
    rows: Rows
    """One entry a response of the mini-batch (`sequences.of_update`)."""
    aux_loss: float | None = None
    """The routers' load-balance loss of the mini-batch; None without `aux_loss_coef`."""


class Learner:
    """A model with its optimiser on this rank's device; the ranks of `world` share the work on each mini-batch."""

    def __init__(
        self,
        model: Any,
        optim: OptimSettings,
        clip: ClipSettings,
        *,
        precision: str,
        temperature: float,
        old_logp: str,
        routing_replay: str = "off",
        micro_batch_tokens: int,
        total_updates: int,
        aux_loss_coef: float = 0.0,
        packed: bool = False,
        offload: bool = False,
        world: World | None = None,
    ):
        """`old_logp`: who says pi_theta_old, `trainer` or `sampler`; `routing_replay`: `off`, or `old` to take the
        experts that pi_theta_old chose; `micro_batch_tokens`: tokens of a forward, padding included; `total_updates`:
        optimiser steps at which the schedule ends; `aux_loss_coef`: weight of the routers' load-balance loss;
        `packed`: rows run end to end, without padding; `offload`: see `make_room`. Raises ValueError for a replay or a
        load-balance loss on a dense model."""
        if routing_replay != "off" or aux_loss_coef:
            routing.routers(model)
        self.model, self.optim, self.clip = model, optim, clip
        self.precision, self.temperature, self.old_logp = precision, temperature, old_logp
        self.routing_replay = routing_replay
        self.num_experts = int(routing.routers(model)[0][1].num_experts) if routing.is_moe(model) else 0  # pyright: ignore
        self.micro_batch_tokens, self.total_updates = micro_batch_tokens, total_updates
        self.aux_loss_coef, self.packed, self.offload = aux_loss_coef, packed, offload
        self.world = world or World(device=next(model.parameters()).device)
        self.device = self.world.device
        self.updates = 0
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=optim.lr,
            betas=(optim.betas[0], optim.betas[1]),
            eps=optim.eps,
            weight_decay=optim.weight_decay,
        )

    def token_logp(self, micro: Batch, *, entropy: bool = False) -> tuple[Tensor, Tensor | None]:
        """log pi_theta, and on request the entropy, at every trained position of a micro-batch: [B, T], 0 elsewhere."""
        return policy.token_logp(
            self.model,
            micro.tokens,
            micro.lengths,
            micro.mask,
            temperature=self.temperature,
            precision=self.precision,
            entropy=entropy,
            packed=self.packed,
        )

    def micro_batches(self, batch: Batch) -> list[Batch]:
        """The parts of a batch that go through the model at once."""
        return micro_batches(batch, self.micro_batch_tokens, packed=self.packed, ranks=self.world.size)

    def logp(self, batch: Batch) -> Tensor:
        """log pi_theta(y_it | x, y_i<t) of the present weights: [B, T], in the micro-batches an update would use."""
        return self._pass(batch)[0]

    def with_old_logp(self, minibatches: Sequence[Batch]) -> list[Batch]:
        """The mini-batches with `old_logp`, from the trainer (call it before any update) or the sampler; with replay
        also with the experts that the weights which sampled chose in the trainer.

        The trainer's first mini-batch stays without: its own forward says the same numbers and takes the same routes,
        so that there log w is exactly 0 and no pass is spent.
        """
        first, *rest = minibatches
        if self.old_logp == "trainer" or self.routing_replay == "old":
            passes = [self._pass(m, routes=self.routing_replay == "old") for m in rest]
            rest = [dataclasses.replace(m, old_logp=p[0], experts=p[1]) for m, p in zip(rest, passes, strict=True)]
        if self.old_logp == "sampler":
            return [dataclasses.replace(m, old_logp=m.sampler_logp) for m in (first, *rest)]
        return [first, *rest]

    @torch.no_grad()
    def _pass(self, batch: Batch, *, routes: bool = False) -> tuple[Tensor, Tensor | None]:
        """Log-probs [B, T] of all ranks, and with `routes` the experts [B, T, layers, k] of this rank's rows.

        Rows that other ranks compute keep PAD: the deal of micro-batches is that of the update, so each rank replays
        what it recorded.
        """
        out = torch.zeros(batch.mask.shape, dtype=torch.float32)
        experts: Tensor | None = None
        place = torch.full((int(batch.row.max()) + 1,), -1)
        place[batch.row] = torch.arange(len(batch.row))
        for micro, weight in parallel.deal(self.micro_batches(batch), self.world):
            micro = to(micro, self.device)
            with routing.record(self.model, micro.tokens, micro.lengths) if routes else nullcontext() as record:
                logp, _ = self.token_logp(micro)
            rows = place[micro.row.cpu()]
            if weight:
                out[rows, : logp.shape[1]] = logp.to(out)
            if record is not None:
                found = record.experts.cpu()
                if experts is None:
                    experts = found.new_full((*batch.mask.shape, *found.shape[2:]), routing.PAD)
                experts[rows, : found.shape[1]] = found
        return parallel.sum_tensor(out, self.world), experts

    def update(self, minibatch: Batch, objective: ObjectiveFn, *, on_policy: bool) -> Update:
        """One optimiser step: maximise J = sum(value) / denominator over the whole mini-batch.

        `on_policy`: no update lies between sampling and this one, so that `logp` is also what the trainer says of the
        weights that sampled.
        """
        self.optimizer.zero_grad(set_to_none=True)
        loss, aux, rows = 0.0, 0.0, []
        balance = self._balance(minibatch) if self.aux_loss_coef else None
        for micro, weight in parallel.deal(self.micro_batches(minibatch), self.world):
            micro = to(micro, self.device)
            with self._replay(micro), balance.watch() if balance else nullcontext() as routed:
                logp, entropy = self.token_logp(micro, entropy=True)
                old_logp = logp.detach() if micro.old_logp is None else micro.old_logp.to(logp)
                terms = objective(logp, old_logp, micro.adv.to(logp), micro.mask)
                micro_loss = -terms.value.sum() / denominator(terms, minibatch)
                if balance and routed is not None:
                    uneven = balance.loss(routed, micro)
                    micro_loss = micro_loss + self.aux_loss_coef * uneven
                    aux += weight * uneven.item()
                (micro_loss * weight * self.world.size).backward()  # the ranks' gradients are averaged
            if weight:
                loss += micro_loss.item()
                trainer_says = logp.detach() if on_policy else old_logp if self.old_logp == "trainer" else None
                rows.append(self._rows(micro, logp, old_logp, entropy, terms, trainer_says))
        loss, rows = parallel.total(loss, self.world), [r for part in parallel.gather(rows, self.world) for r in part]
        grad_norm, lr, skipped = self._step(loss)
        aux = parallel.total(aux, self.world)
        return Update(loss, grad_norm, lr, skipped, sequences.concatenate(rows), aux if balance else None)

    def probe(self, minibatch: Batch) -> Batch | None:
        """One process's first micro-batch of the mini-batch, on which routing is compared over a step; None for a dense
        model."""
        if not routing.is_moe(self.model):
            return None
        return to(micro_batches(minibatch, self.micro_batch_tokens, packed=self.packed)[0], self.device)

    def routes(self, probe: Batch) -> Tensor:
        """Experts that the present weights choose for the probe, [layers, tokens, k]."""
        return routing_meter.expert_choices(self.model, probe.tokens, probe.lengths, precision=self.precision)

    @property
    def recomputes(self) -> bool:
        """Are the blocks computed again in the backward (activation checkpointing)?"""
        return bool(getattr(self.model, "is_gradient_checkpointing", False))

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor], optimizer: dict[str, Any]) -> None:
        """Take whole weights by name and the whole state of AdamW, which every rank holds; a rank keeps its shard."""
        named = dict(self.model.named_parameters())
        for name, parameter in named.items():
            parameter.copy_(parallel.cut_like(weights[name], parameter))
        for index, parameter in enumerate(named.values()):
            moments = optimizer["state"].get(index, {})
            moments |= {key: parallel.cut_like(m, parameter) for key, m in moments.items() if m.ndim}
        self.optimizer.load_state_dict(optimizer)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter under its name in transformers' state dict, whole on every rank, one at a time."""
        yield from parallel.full_weights(self.model)

    def make_room(self) -> None:
        """On a GPU, before the engine wakes: gradients and cached blocks are freed, and with `offload` AdamW's moments
        go to host memory, until the next step of the optimiser."""
        if torch.device(self.device).type != "cuda":
            return
        self.optimizer.zero_grad(set_to_none=True)
        if self.offload:
            self.move_moments("cpu")
        torch.cuda.empty_cache()

    def move_moments(self, device: torch.device | str) -> None:
        """AdamW's moments (not its step counts, which stay where AdamW keeps them) on `device`."""
        for state in self.optimizer.state.values():
            state |= {key: value.to(device) for key, value in state.items() if value.ndim}

    def _balance(self, minibatch: Batch) -> routing_meter.Balance:
        """What the load-balance loss of the mini-batch's parts needs to know of the whole: its experts' shares."""
        if (experts := minibatch.experts) is None:
            _, experts = self._pass(minibatch, routes=True)
        assert experts is not None
        load = routing_meter.expert_load(experts.flatten(0, 1).transpose(0, 1), self.num_experts)
        load = parallel.sum_tensor(load.to(self.device), self.world)
        return routing_meter.Balance(self.model, load, int((minibatch.lengths - 1).sum()))

    def _replay(self, micro: Batch) -> AbstractContextManager[None]:
        """The recorded routes around forward and backward (recomputation included), where the batch carries any."""
        if micro.experts is None:
            return nullcontext()
        return routing.replay(self.model, micro.experts, micro.lengths)

    def _rows(self, micro, logp, old_logp, entropy, terms, trainer_says) -> Rows:
        return sequences.of_update(
            micro, logp, old_logp, entropy, terms, trainer_says, clip_low=self.clip.low, clip_high=self.clip.high
        )

    def _step(self, loss: float) -> tuple[float, float, bool]:
        lr = self.optim.lr * schedule(self.optim, self.updates, self.total_updates)
        limit = math.inf if self.optim.grad_clip is None else self.optim.grad_clip
        grad_norm = parallel.full(torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)).item()
        skipped = not (math.isfinite(loss) and math.isfinite(grad_norm))
        if not skipped:
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            if self.offload:
                self.move_moments(self.device)
            self.optimizer.step()
        self.updates += 1
        return grad_norm, lr, skipped


def denominator(terms: Objective, minibatch: Batch) -> int:
    """The objective's declared denominator, over the whole mini-batch: N, or sum_i |y_i| (at least 1)."""
    counts = {"sequences": minibatch.num_sequences, "tokens": max(minibatch.num_tokens, 1)}
    if terms.denominator not in counts:
        raise ValueError(f"objective denominator {terms.denominator!r}: {sorted(counts)} are accepted")
    return counts[terms.denominator]
