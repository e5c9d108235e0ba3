"""The shape of a decoder, read from its `config.json` without torch; and where that file is."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ASSETS = Path(__file__).parent / "assets"
FAMILIES = ("llama", "qwen3", "qwen3_moe")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the arithmetic needs to know of a decoder: dense Qwen3 or Llama, or Qwen3-MoE."""

    family: str
    """transformers' `model_type`."""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    """Longest sequence the positions were made for."""
    tied: bool
    """The lm_head is the embedding."""
    intermediate: int
    """Width of a dense layer's MLP."""
    moe_layers: int = 0
    experts: int = 0
    experts_per_token: int = 0
    moe_intermediate: int = 0
    """Width of one expert."""
    attention_biases: int = 0
    """Bias parameters of one layer's attention."""
    mlp_biases: int = 0
    """Bias parameters of one dense MLP."""

    @property
    def attention_matmul(self) -> int:
        """q, k, v and o projections of a layer: 2 * hidden * head_dim * (heads + kv_heads)."""
        return 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)

    @property
    def mlp_matmul(self) -> int:
        """gate, up and down of a dense layer: 3 * hidden * intermediate."""
        return 3 * self.hidden * self.intermediate

    @property
    def expert_matmul(self) -> int:
        """gate, up and down of one expert: 3 * hidden * moe_intermediate."""
        return 3 * self.hidden * self.moe_intermediate

    @property
    def router_matmul(self) -> int:
        """Router of an MoE layer: hidden * experts."""
        return self.hidden * self.experts

    @property
    def head_matmul(self) -> int:
        """lm_head: hidden * vocab, tied or not."""
        return self.hidden * self.vocab

    def blocks_matmul(self, experts: int) -> int:
        """Matmul parameters of all layers with `experts` experts counted in each MoE layer."""
        dense = (self.layers - self.moe_layers) * self.mlp_matmul
        moe = self.moe_layers * (experts * self.expert_matmul + self.router_matmul)
        return self.layers * self.attention_matmul + dense + moe

    @property
    def blocks_active(self) -> int:
        """Matmul parameters of all layers that one token passes through."""
        return self.blocks_matmul(self.experts_per_token)

    @property
    def matmul_active(self) -> int:
        """Active matmul parameters: blocks and lm_head, no embedding look-up."""
        return self.blocks_active + self.head_matmul

    @property
    def vectors(self) -> int:
        """Parameters in no matmul: norms (q and k norms of the Qwen3 family too) and biases."""
        qk = 2 * self.head_dim if self.family.startswith("qwen3") else 0
        per_layer = 2 * self.hidden + qk + self.attention_biases
        return self.layers * per_layer + (self.layers - self.moe_layers) * self.mlp_biases + self.hidden

    @property
    def embeddings(self) -> int:
        """Embedding and lm_head, counted once when tied."""
        return self.vocab * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.embeddings + self.blocks_matmul(self.experts) + self.vectors

    @property
    def active(self) -> int:
        """Parameters a token uses, embeddings included."""
        return self.embeddings + self.blocks_active + self.vectors

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ModelShape:
        """The shape of a transformers `config.json`; keys that may be absent have transformers' own defaults.

        transformers 5 writes an MoE's `num_experts` as `num_local_experts`; both are read.

        Raises ValueError for another `model_type` than llama, qwen3 and qwen3_moe, and for a missing key.
        """
        family = config.get("model_type")
        if family not in FAMILIES:
            raise ValueError(f"model_type={family}: the arithmetic is known for {', '.join(FAMILIES)}")

        def need(key: str) -> int:
            if not isinstance(config.get(key), int):
                raise ValueError(
                    f"{key}={config.get(key)}: the configuration of a {family} model needs a whole number here"
                )
            return config[key]

        layers, hidden, heads, inter = map(
            need, ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
        )
        kv = config.get("num_key_value_heads") or heads
        head_dim = config.get("head_dim") or (128 if family == "qwen3" else hidden // heads)
        shape = cls(
            family=family,
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=kv,
            head_dim=head_dim,
            vocab=need("vocab_size"),
            max_positions=config.get("max_position_embeddings") or 0,
            tied=bool(config.get("tie_word_embeddings", False)),
            intermediate=inter,
            attention_biases=((heads + 2 * kv) * head_dim + hidden) if config.get("attention_bias") else 0,
            mlp_biases=(2 * inter + hidden) if config.get("mlp_bias") else 0,
        )
        if family != "qwen3_moe":
            return shape
        every, skipped = config.get("decoder_sparse_step") or 1, config.get("mlp_only_layers") or []
        return replace(
            shape,
            moe_layers=sum((i + 1) % every == 0 and i not in skipped for i in range(layers)),
            experts=need("num_local_experts" if "num_local_experts" in config else "num_experts"),
            experts_per_token=need("num_experts_per_tok"),
            moe_intermediate=need("moe_intermediate_size"),
        )


def known(config: dict[str, Any]) -> ModelShape | None:
    """The shape of a transformers configuration; None for a model whose arithmetic is not known."""
    return ModelShape.from_config(config) if config.get("model_type") in FAMILIES else None


def find(model: dict[str, Any]) -> ModelShape | None:
    """The shape of a configuration's `model` group, without a download; None where it is not known.

    Looked for in `model.path` (a directory, or `gspo:NAME`), in `assets/shapes` by the hub id, in the hub's cache, and
    in `model.init`, the keywords of a model made from scratch.
    """
    config = model.get("init")
    file = _config_file(str(model.get("path")))
    if file is not None:
        config = json.loads(file.read_text(encoding="utf-8"))
    return known(config or {})


def _config_file(path: str) -> Path | None:
    """The `config.json` (or the shipped copy of its values) that belongs to `model.path`."""
    kind, _, name = path.rpartition(":")
    if (Path(path) / "config.json").is_file():
        return Path(path) / "config.json"
    if kind == "gspo":
        return next(iter(sorted(ASSETS.rglob(f"{name}/config.json"))), None)
    for file in sorted((ASSETS / "shapes").glob("*.json")):
        known = json.loads(file.read_text(encoding="utf-8"))["_name_or_path"]
        if path == known or (kind and name == known.rpartition("/")[2]):
            return file
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{path.replace('/', '--')}"
    return next(iter(sorted(cache.glob("snapshots/*/config.json"))), None)
