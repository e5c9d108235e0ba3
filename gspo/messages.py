"""What the commands say on a terminal: help, and an error as one line."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import re
import sys
import traceback
from collections.abc import Iterator

import yaml
from hydra.errors import HydraException

from gspo.config import Run, conf_dir

HELP = """{command}: {what}

Usage: {command} [GROUP=OPTION ...] [KEY=VALUE ...]{multirun}
Groups:
{groups}

`{command} --cfg job` prints the composed configuration; every key and its meaning stand in gspo/config.py.
`--hydra-help` lists Hydra's own flags."""


def help_text(command: str, config_name: str) -> str:
    """Usage and the groups that a configuration composes, read from conf/ (Hydra's own way takes over a second)."""
    text = (conf_dir() / f"{config_name}.yaml").read_text(encoding="utf-8")
    what = text.splitlines()[0].lstrip("# ").rstrip(".")
    entries = [entry for entry in yaml.safe_load(text)["defaults"] if isinstance(entry, dict)]
    groups = [group for entry in entries for group in entry if " " not in group]
    lines = []
    for group in groups:
        options = sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
        lines.append(f"  {group}: {', '.join(options)}")
    multirun = " [--multirun]" if config_name == "train" else ""
    return HELP.format(command=command, what=what, multirun=multirun, groups="\n".join(lines))


def one_line(error: BaseException) -> str:
    """The error's message, and that of its cause, on one line without Hydra's and omegaconf's own bookkeeping."""
    text = str(error)
    if error.__cause__ is not None and isinstance(error, HydraException):
        text += f"\n{error.__cause__}"
    text = text.partition("Config search path:")[0]
    lines = [line.strip().rstrip(".;") for line in text.splitlines() if line.strip()]
    bookkeeping = ("object_type=", "reference_type=", "full_key:", "To append to your config", "See https")
    kept = [line for line in lines if not line.startswith(bookkeeping)]
    unknown = re.search(r"Could not override '([^']+)'|^unknown key (\S+)$", text)
    if unknown:
        key = unknown.group(1) or unknown.group(2)
        kept = [f"unknown key {key}{near(key)}"]
    elif (where := re.search(r"full_key: (\S+)", text)) and where.group(1) not in kept[0]:
        missing = kept[0].startswith("Missing mandatory value")
        kept[0] = f"Missing mandatory value: {where.group(1)}" if missing else f"{where.group(1)}: {kept[0]}"
    options = next((n for n, line in enumerate(kept) if line.startswith("Available options")), None)
    if options is not None:
        kept = [*kept[:options], f"{kept[options]} {', '.join(kept[options + 1 :])}"]
    kept = [re.sub(r"^.*Missing mandatory value: (\S+)", r"\1=???: a value is needed", line) for line in typed(kept)]
    if text.startswith("LexerNoViableAlt"):
        kept = [f"{text.partition(': ')[2].splitlines()[0]}: not KEY=VALUE (other characters are quoted: 'key=\"ü\"')"]
    if "group override must be a string" in text:
        kept = [f"{_group_of_nothing()}: names no option of its group (accepted: GROUP=OPTION)"]
    if "mismatched input '='" in text:
        kept.append("a value that contains = is quoted: 'key=\"a=b\"'")
    if "Value 'None'" in text or ("could not be converted" in text and "'null'" in text):
        kept.append("null stands for no value")
    return re.sub(r"\s+", " ", "; ".join(kept)) or type(error).__name__


def _group_of_nothing() -> str:
    """The word of the command line that gives a group no option: Hydra's error does not say."""
    words = [word for word in sys.argv[1:] if "=" in word]
    odd = [word for word in words if word.startswith("=") or (conf_dir() / word.partition("=")[0]).is_dir()]
    return next((word for word in odd if not re.search(r"=.*[^\W\d]", word) or word.endswith("=null")), "an override")


KINDS = {
    "converted to Integer": "a whole number",
    "converted to Float": "a number",
    "not a valid bool": "true or false",
    "is not Optional": "a value, not null",
    "is not a ListConfig": "a list, [a,b]",
    "is not a DictConfig": "a mapping, {key: value}",
    "is not a subclass of": "a mapping, {key: value}",
    "to Dict[": "a mapping, {key: value}",
}
"""What a refusal of the schema says, and what it means by that."""


def typed(lines: list[str]) -> list[str]:
    """The schema's refusal of an override, as `key=value: not accepted (accepted: a number)`; other lines stay."""
    override = next((m for line in lines if (m := re.match(r"Error merging override (\S.*)", line))), None)
    accepted = next((kind for line in lines for words, kind in KINDS.items() if words in line), None)
    if override is None or accepted is None:
        return lines
    return [f"{override.group(1)}: another type (accepted: {accepted})"]


SMALLER = {
    "rollout": "sampling.max_tokens, train.group_size, rollout.kv_cache_gb (CPU), rollout.memory_fraction (GPU)",
    "update": "trainer.micro_batch_tokens, model.context",
    "all": "trainer.devices (more), model",
}
"""Settings that take less memory, by who needs it."""


def is_out_of_memory(error: BaseException) -> bool:
    """Did memory run out? torch says so by a class of its own on a GPU, and by text alone on the CPU."""
    said = str(error)
    return isinstance(error, MemoryError) or "out of memory" in said or "DefaultCPUAllocator" in said


@contextlib.contextmanager
def memory_explained() -> Iterator[None]:
    """Raises RuntimeError, on one line with the settings that take less, for memory that ran out inside."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        said = " ".join((str(error) or type(error).__name__).split())[:300]
        ways = "; ".join(f"{who}: {settings}" for who, settings in SMALLER.items())
        raise OutOfMemory(
            f"{said}. Less is needed with smaller values of: {ways}; `gspo-plan` shows the sum"
        ) from error


class OutOfMemory(RuntimeError):
    """Memory ran out; the message names the settings that take less."""


def near(key: str) -> str:
    """Keys of the schema that look like `key`, or the ones beside it."""
    known = {}
    for group in dataclasses.fields(Run):
        inner = group.default_factory() if group.default_factory is not dataclasses.MISSING else None
        fields = [f.name for f in dataclasses.fields(inner)] if dataclasses.is_dataclass(inner) else []
        known |= {f"{group.name}.{name}": group.name for name in fields} or {group.name: ""}
    close = difflib.get_close_matches(key, known, n=3, cutoff=0.6) or [
        k for k in known if key.split(".")[0] == known[k]
    ]
    return f"; near it: {', '.join(close)}" if close else "; `--cfg job` lists all keys"


def failure(error: BaseException) -> str:
    """What error.txt holds: the error in a line, and where it came from."""
    line = " ".join(f"{type(error).__name__}: {error}".rstrip(": ").split())
    return f"{line}\n\n{''.join(traceback.format_exception(error))}"
