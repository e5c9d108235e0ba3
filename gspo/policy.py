"""The policy: load a causal language model, and log-probs of tokens without ever holding [tokens, vocabulary].

Rows are padded on the right, and attention is causal, so no real token ever sees padding: no attention mask is needed.
The head is applied inside the model's own forward (so that FSDP2 gathers its weights as for any other module), but only
at the positions that are asked for, a chunk at a time, in float32 or wider.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from gspo.linear_logp import linear_logp

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PRECISIONS = ("float32", "bfloat16")
LOGIT_CHANGES = {
    "final_logit_softcapping": (None,),
    "logit_scale": (None, 1, 1.0),
    "logits_scaling": (None, 1, 1.0),
    "lm_head_multiplier": (None, 1, 1.0),
}
"""Configuration fields by which a model changes its logits after the head, and the values that leave them alone."""


def load(
    model_dir: Path, *, experts_implementation: str | None, trust_remote_code: bool, device: str
) -> PreTrainedModel:
    """The model in `model_dir`: float32 weights, train mode, without dropout, cache or router loss.

    Raises ValueError for a model with dropout, with logits that are changed after the head, or with an unknown
    `experts_implementation`.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        model_dir,
        dtype=torch.float32,
        trust_remote_code=trust_remote_code,
        local_files_only=True,
        **_kernel(experts_implementation),
    )
    return _plain(model).to(device)  # pyright: ignore


def empty(model_dir: Path, *, experts_implementation: str | None) -> PreTrainedModel:
    """The same model without memory (meta device), to be sharded before its weights come (`parallel.load_first`)."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(
        model_dir, trust_remote_code=False, local_files_only=True, **_kernel(experts_implementation)
    )
    with torch.device("meta"):
        return _plain(AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False))


def _kernel(experts_implementation: str | None) -> dict[str, str]:
    return {} if experts_implementation is None else {"experts_implementation": experts_implementation}


def _plain(model: PreTrainedModel) -> PreTrainedModel:
    """In train mode, checked, without cache or router loss."""
    check_head(model)
    check_dropout(model)
    model.config.use_cache = False
    if hasattr(model.config, "output_router_logits"):
        model.config.output_router_logits = False
    return model.train()


def _head(model: PreTrainedModel) -> nn.Linear:
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        raise ValueError(f"{type(model).__name__}: output embeddings are {type(head).__name__}, expected a linear head")
    return head


def check_head(model: PreTrainedModel) -> None:
    """Raise ValueError when the model's logits are not `hidden @ head.T + bias`."""
    _head(model)
    for name, harmless in LOGIT_CHANGES.items():
        value = getattr(model.config, name, None)
        if value not in harmless:
            raise ValueError(
                f"{type(model).__name__}: config.{name}={value} changes the logits after the head: refused"
            )


def check_dropout(model: PreTrainedModel) -> None:
    """Raise ValueError when any dropout, of a module or of the configuration, is not 0."""
    found = {name: m.p for name, m in model.named_modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0}
    found |= {
        f"config.{name}": value
        for name, value in model.config.to_dict().items()
        if ("dropout" in name or name.endswith("_pdrop")) and isinstance(value, (int, float)) and value > 0
    }
    if found:
        raise ValueError(f"{type(model).__name__}: dropout must be 0 for ratios to mean anything, found {found}")


def token_logp(
    model: PreTrainedModel,
    tokens: Tensor,
    lengths: Tensor,
    mask: Tensor,
    *,
    temperature: float,
    precision: str,
    entropy: bool = False,
    packed: bool = False,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """log softmax(logits / temperature) of tokens[:, 1:] where `mask`, 0 elsewhere: [B, T]; entropy (nats) likewise.

    `tokens` [B, T + 1] padded on the right, `lengths` [B] real tokens, `mask` [B, T]. Entropy has no gradient. `packed`
    runs the real tokens as one row, see `pack`. `chunk` bounds the logits held at once, see `linear_logp`. Float64
    models are computed in float64. Raises ValueError for a temperature that is not positive, for a precision that is
    unknown or does not fit, and for a model that changes its logits after the head.
    """
    if not temperature > 0:
        raise ValueError(f"temperature={temperature}: must be positive")
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision}: one of {PRECISIONS}")
    device = tokens.device.type
    low = precision == "bfloat16"
    if packed and device == "cuda" and not low:
        raise ValueError(f"precision={precision}: packed rows need bfloat16 on CUDA")
    inputs, where = {"input_ids": tokens[:, :-1]}, mask
    if packed:
        row = pack(tokens, lengths)
        inputs, where = row.inputs(), mask[row.real][None]
    head = _head(model)
    results: list[tuple[Tensor, Tensor | None]] = []

    def at_the_mask(hidden: Tensor) -> Tensor:
        results.append(
            linear_logp(
                hidden[where],
                head.weight,
                head.bias,
                tokens[:, 1:][mask],
                temperature=temperature,
                entropy=entropy,
                chunk=chunk,
                operands=torch.bfloat16 if low and device == "cuda" else None,
            )
        )
        return results[0][0]

    with _forward_is(head, at_the_mask), torch.autocast(device, torch.bfloat16) if low else nullcontext():
        output = model(**inputs, use_cache=False)
    logp, found = results[0]
    if output.logits.data_ptr() != logp.data_ptr():
        raise ValueError(f"{type(model).__name__} changes its logits after the head: refused")
    zeros = torch.zeros(mask.shape, dtype=logp.dtype, device=logp.device)
    return zeros.masked_scatter(mask, logp), None if found is None else zeros.masked_scatter(mask, found)


@contextmanager
def _forward_is(module: nn.Module, function: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """`module(x)` is `function(x)`, with the module's hooks (FSDP2's among them) around it, inside the block."""
    module.forward = function
    try:
        yield
    finally:
        del module.forward


class Packed(NamedTuple):
    """Several sequences as one row without padding; S real input tokens in all."""

    input_ids: Tensor
    """[1, S] int64."""
    position_ids: Tensor
    """[1, S] int64, from 0 in every sequence."""
    starts: Tensor
    """[B + 1] int32, where sequences begin, and S."""
    longest: int
    real: Tensor
    """[B, T] bool, where the S inputs stand in the padded batch, in the same order."""

    def inputs(self) -> dict[str, Any]:
        """Keywords of a model's forward."""
        ends = {"cu_seq_lens_q": self.starts, "cu_seq_lens_k": self.starts}
        ends |= {"max_length_q": self.longest, "max_length_k": self.longest}
        return {"input_ids": self.input_ids, "position_ids": self.position_ids} | ends


def pack(tokens: Tensor, lengths: Tensor) -> Packed:
    """The inputs tokens[i, : lengths[i] - 1] of every row, end to end; `tokens` [B, T + 1], `lengths` [B].

    The last token of a sequence is only ever a target. A row of fewer than two tokens has no input.
    """
    counts = (lengths - 1).clamp(min=0)
    places = torch.arange(tokens.shape[1] - 1, device=tokens.device)
    real = places < counts[:, None]
    starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
    positions = places.expand(real.shape)[real]
    return Packed(tokens[:, :-1][real][None], positions[None], starts, int(counts.max()), real)


def use_varlen(model: PreTrainedModel) -> None:
    """From here on packed rows attend through torch's `varlen_attn` (CUDA, bfloat16), other rows through sdpa.

    For the trainer's model only: rows are taken as padded on the right, no attention mask is ever built. Raises
    ValueError for a sliding window, which the other rows would ignore.
    """
    from transformers import AttentionInterface

    window = getattr(model.config, "sliding_window", None)
    if window is not None:
        raise ValueError(f"{type(model).__name__}: config.sliding_window={window}: packed attention has no window")
    AttentionInterface.register("gspo_varlen", _varlen_attention)
    model.set_attn_implementation("gspo_varlen")


def _varlen_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int = 0,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: heads [1, heads, S, D] of a packed row to [1, S, heads, D]."""
    if cu_seq_lens_q is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **more)
    from torch.nn.attention import varlen

    device = query.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype
    q, k, v = (x[0].transpose(0, 1).to(dtype).contiguous() for x in (query, key, value))
    starts, longest = cu_seq_lens_q, max_length_q
    causal: dict[str, Any] = {"window_size": (-1, 0), "scale": scaling}
    if "enable_gqa" in inspect.signature(varlen.varlen_attn).parameters:  # older releases need no leave
        causal["enable_gqa"] = True
    return varlen.varlen_attn(q, k, v, starts, starts, longest, longest, **causal)[None], None  # type: ignore[index]
