"""A checkpoint as a Hugging Face directory, which transformers, vLLM and the hub read.

gspo-export RUN|CHECKPOINT OUT [--dtype float32|bfloat16]
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import Any, NoReturn

DTYPES = ("float32", "bfloat16")


def export(source: Path, out: Path, *, dtype: str = "float32") -> Path:
    """Write the weights of a checkpoint with configuration and tokenizer into `out`, a new directory; returns it.

    `source` is a run directory (its newest sound checkpoint) or RUN/checkpoints/step_NNNNNN; its run says which model
    it is. Weights are safetensors under the names of the hub, cast to `dtype`. `out` is written beside and renamed.
    Raises ValueError for a checkpoint that is missing or damaged, an `out` that exists, and an unknown dtype.
    """
    from gspo import checkpoint
    from gspo.tracking.run_dir import read_config

    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype}: one of {', '.join(DTYPES)}")
    if out.exists() or out.is_symlink():
        raise ValueError(f"{out}: exists; a new directory is needed")
    path = checkpoint.latest(source / "checkpoints") if (source / "checkpoints").is_dir() else source
    if path is None or not (path / "manifest.json").is_file():
        raise ValueError(f"{source}: no checkpoint there (accepted: a run directory, or RUN/checkpoints/step_NNNNNN)")
    if wrong := checkpoint.damage(path):
        raise ValueError(f"checkpoint {path} cannot be read: {wrong}")
    settings = read_config(path.parent.parent).get("model") or {}
    if not {"path", "experts_implementation"} <= settings.keys():
        raise ValueError(f"{path.parent.parent}: its config.yaml names no model")
    beside = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        _write(path, beside, settings, dtype)
        beside.rename(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return out


def _write(path: Path, out: Path, settings: dict[str, Any], dtype: str) -> None:
    import torch

    from gspo import checkpoint, policy, pretrained, shards

    home = pretrained.resolve(settings["path"])
    kernel = settings["experts_implementation"]
    model = policy.load(home, experts_implementation=kernel, trust_remote_code=False, device="cpu")
    weights = shards.weights(path) if shards.are_in(path) else checkpoint.load(path)[0]["model"]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    model.config.use_cache = True
    model.to(getattr(torch, dtype)).save_pretrained(out)  # pyright: ignore
    pretrained.load_tokenizer(home).save_pretrained(out)


class Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments in one line."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; {self.format_usage()}")


def main() -> int:
    parser = Parser("gspo-export", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path, metavar="RUN|CHECKPOINT")
    parser.add_argument("out", type=Path, help="a new directory")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    try:
        args = parser.parse_args()
        print(export(args.source, args.out, dtype=args.dtype))
    except (ValueError, OSError) as error:
        print(f"gspo-export: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
