"""Tiny random models on disk, for the tests: three architectures, one character tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CHARS = " 0123456789+-*/=()?.,:abcdefghijklmnopqrstuvwxyz\nABCDEFGHIJKLMNOPQRSTUVWXYZ<>[]{}\\"
KINDS = ("qwen3_moe", "qwen3", "llama")
VOCAB = 128
EOS = 2


def tokenizer() -> Any:
    """One token a character; ids 0 pad, 1 bos, 2 eos, 3 unknown. No BOS is added when it encodes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {"<pad>": 0, "<bos>": 1, "<eos>": EOS, "<unk>": 3}
    for char in CHARS:
        vocab[char] = len(vocab)
    inner = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
    )


def config(kind: str, **changes: Any) -> Any:
    """transformers' configuration of one of KINDS: hidden 64, 2 layers; the heads of qwen3 and llama are tied.

    `changes` replace keywords of the configuration (`vocab_size=101`, `attention_bias=True`, ...).
    """
    from transformers import LlamaConfig, Qwen3Config, Qwen3MoeConfig

    size: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 1024,
        "bos_token_id": 1,
        "eos_token_id": EOS,
        "pad_token_id": 0,
        "tie_word_embeddings": kind != "qwen3_moe",
    }
    if kind == "qwen3_moe":
        size |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
        return Qwen3MoeConfig.from_dict(size | changes)
    if kind == "qwen3":
        return Qwen3Config.from_dict(size | changes)
    if kind == "llama":
        return LlamaConfig.from_dict(size | changes)
    raise ValueError(f"kind={kind}: one of {KINDS}")


def tiny_model(kind: str, seed: int = 0, *, scale: float = 6.0, **changes: Any) -> Any:
    """A random float32 model in eval mode.

    Matrices are `scale` times wider than the default 0.02, so that log-probs depend on the context and differ from
    uniform; norms and biases are drawn too, so that one left out shows.
    """
    import torch
    from transformers import AutoModelForCausalLM

    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config(kind, **changes), dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.uniform_(-0.5, 0.5) if name.endswith("bias") else weight.uniform_(0.5, 1.5)
            else:
                weight.normal_(0.0, 0.02 * scale)
    torch.random.set_rng_state(state)
    model.generation_config.eos_token_id = EOS
    model.generation_config.pad_token_id = 0
    model.generation_config.bos_token_id = 1
    return model.eval()


def tiny_model_dir(kind: str, path: Path | str, seed: int = 0, **changes: Any) -> Path:
    """`tiny_model(kind, seed, **changes)` and the tokenizer, saved in `path`."""
    path = Path(path)
    tiny_model(kind, seed, **changes).save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path
