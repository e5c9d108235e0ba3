"""Checkpoints: complete or absent, checked before they are trusted, and no pickle in them.

`checkpoints/step_000100/` holds one safetensors file per group of tensors, `state.json`, and `manifest.json` with the
size and SHA-256 of each. It is written beside under a hidden name, flushed, verified and renamed. The number is the
count of steps trained. What is in a checkpoint is what `test_checkpoint` needs to continue to the bit.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from gspo.tracking import files

log = logging.getLogger(__name__)

_STEP = re.compile(r"step_(\d{6,})")


def save(
    directory: Path,
    step: int,
    *,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    keep_last: int | None = None,
    protect: Collection[int] = (),
    fill: Callable[[Path], None] | None = None,
) -> Path:
    """Write `directory`/step_NNNNNN and then delete all but the newest `keep_last` (None or 0: none is deleted).

    `tensors` maps a file name to named tensors; tied tensors are stored once. `state` must survive JSON. Steps in
    `protect` are never deleted, and nothing is before the new one is verified. `fill` writes further files into the
    directory it is given, which are sealed with the rest. A sound checkpoint of this step that is
    there already stands; a damaged one is replaced. Raises OSError with path and free space: earlier checkpoints are
    intact then, and no part of the new one is left.
    """
    text = json.dumps(state, indent=1)
    assert json.loads(text) == state, "state must be what JSON gives back: no tuples, no keys but strings"
    path = directory / f"step_{step:06d}"
    beside = directory / f".{path.name}.{os.getpid()}.tmp"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _sweep(directory)
        if not path.exists() or damage(path):
            beside.mkdir()
            if fill:
                fill(beside)
            _write(beside, step, tensors, text)
            aside = directory / f".{path.name}.damaged.tmp"
            if path.exists():
                path.rename(aside)
            beside.rename(path)
            files.flush_file(directory)
            shutil.rmtree(aside, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise files.no_room(path, error) from error
    keep(directory, step, keep_last, protect)
    return path


def _write(path: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], text: str) -> None:
    """Fill a checkpoint's directory, flush every file and verify what was written."""
    for name, group in tensors.items():
        kept, aliases = _untie(group)
        save_file(kept, path / f"{name}.safetensors", metadata={"aliases": json.dumps(aliases)})
    (path / "state.json").write_text(text, encoding="utf-8")
    written = {}
    for file in sorted(path.iterdir()):
        written[file.name] = {"bytes": file.stat().st_size, "sha256": _sha256(file)}
    manifest = {"format": 1, "step": step, "files": written}
    (path / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    for file in (*path.iterdir(), path):
        files.flush_file(file)
    for name, group in tensors.items():
        back = _read(path / f"{name}.safetensors")
        for key, tensor in group.items():
            if not _same(back[key], tensor):
                raise OSError(f"{name}.safetensors: {key} reads back other than it was written")


def _untie(group: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors that share no memory, contiguous on the CPU, and {name: the name it is tied to}."""
    kept: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    storages: set[tuple[str, int]] = set()
    for name, tensor in group.items():
        tensor = tensor.detach()
        place = (str(tensor.device), tensor.untyped_storage().data_ptr())
        view = (*place, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        if tensor.numel() and view in first:
            aliases[name] = first[view]
            continue
        first[view] = name
        whole = tensor.cpu().contiguous()
        kept[name] = whole.clone() if place in storages else whole
        storages.add(place)
    return kept, aliases


def _same(a: Tensor, b: Tensor) -> bool:
    """Equal to the bit, NaN included."""
    b = b.detach().cpu().contiguous()
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path) -> dict[str, Tensor]:
    with safe_open(path, framework="pt") as file:
        # Copies, since the tensors of `file` are views of the file on the disk.
        found = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (it is not a dict)
        aliases = json.loads((file.metadata() or {}).get("aliases", "{}"))
    return found | {name: found[other] for name, other in aliases.items()}


def damage(path: Path) -> str:
    """What is wrong with a checkpoint, or an empty string when every file is there with its size and SHA-256."""
    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
        for name, said in manifest["files"].items():
            size = (path / name).stat().st_size
            if size != said["bytes"]:
                return f"{name} has {size} bytes, not {said['bytes']}"
            if _sha256(path / name) != said["sha256"]:
                return f"{name} does not match its SHA-256"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def sealed(path: Path) -> list[str]:
    """Names of the files that the manifest of a sound checkpoint vouches for: others beside them count for nothing."""
    return sorted(json.loads((path / "manifest.json").read_bytes())["files"])


def steps(directory: Path) -> list[int]:
    """Steps of the checkpoints in `directory`, sound or not, in numeric order."""
    if not directory.is_dir():
        return []
    return sorted(int(match[1]) for path in directory.iterdir() if (match := _STEP.fullmatch(path.name)))


def latest(directory: Path) -> Path | None:
    """The newest sound checkpoint, or None when there is none at all.

    Damaged ones before it are named in a warning and passed over. Raises ValueError when all are damaged: a run that
    had checkpoints never starts from zero in silence.
    """
    wrong: dict[str, str] = {}
    for step in reversed(steps(directory)):
        path = directory / f"step_{step:06d}"
        wrong[path.name] = damage(path)
        if not wrong[path.name]:
            for name in list(wrong)[:-1]:
                log.warning("checkpoint %s is damaged (%s); %s is taken", directory / name, wrong[name], path.name)
            return path
    if wrong:
        each = "; ".join(f"{name}: {reason}" for name, reason in wrong.items())
        raise ValueError(f"all {len(wrong)} checkpoints in {directory} are damaged ({each})")
    return None


def best(run: Path) -> set[int]:
    """The step of a run's best checkpoint: the highest avg_at_k in eval.jsonl, the earliest of equals; else nothing.

    A row of eval.jsonl speaks of the weights after `step` steps, which are those of the checkpoint of that number.
    """
    scores = {row["step"]: row.get("avg_at_k", math.nan) for row in files.rows(run / "eval.jsonl")}
    known = [step for step in steps(run / "checkpoints") if not math.isnan(scores.get(step, math.nan))]
    return {max(known, key=lambda step: (scores[step], -step))} if known else set()


def load(path: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """The tensors (on the CPU, tied ones as one object) and the state of a checkpoint.

    Raises ValueError when `path` is missing or damaged.
    """
    wrong = damage(path)
    if wrong:
        raise ValueError(f"checkpoint {path} cannot be read: {wrong}")
    files_of_tensors = [path / name for name in sealed(path) if name.endswith(".safetensors")]
    tensors = {file.stem: _read(file) for file in files_of_tensors}
    return tensors, json.loads((path / "state.json").read_bytes())


def keep(directory: Path, step: int, keep_last: int | None, protect: Collection[int]) -> None:
    """Delete what a killed save left, and of the checkpoints up to `step` all but the newest `keep_last` and `protect`.

    None or 0: no checkpoint is deleted. One that goes is hidden first: a kill leaves none half deleted under its name.
    """
    _sweep(directory)
    for old in [known for known in steps(directory) if known <= step][:-keep_last] if keep_last else []:
        if old not in protect:
            gone = directory / f".step_{old:06d}.old.tmp"
            (directory / f"step_{old:06d}").rename(gone)
            shutil.rmtree(gone)


def _sweep(directory: Path) -> None:
    for stale in directory.glob(".step_*.tmp"):
        shutil.rmtree(stale)
