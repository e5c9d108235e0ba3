"""Finite sets: JSON lines (also .gz), parquet, and the hub; every row checked before anything heavy is loaded."""

from __future__ import annotations

import gzip
import json
import logging
import math
import os
import ssl
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from gspo.data.source import Row, Source
from gspo.rewards.math import check_gold

log = logging.getLogger(__name__)

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
PROBE = 5.0
"""Seconds that the hub has to answer."""
TESTS = {"stdin": {"input": str, "output": str}, "call": {"fn": str, "args": list}, "assert": {"code": str}}
"""Kinds of tests of a code row, and the fields each must have."""


def files(
    *,
    path: str,
    name: str | None = None,
    kind: Literal["math", "code"] = "math",
    template: str = "{prompt}",
    prompt_field: list[str] = ["prompt"],  # noqa: B006 (read only)
    answer_field: list[str] = ["answer"],  # noqa: B006
    tests_field: list[str] = ["tests", "test"],  # noqa: B006
    id_field: str = "id",
    answer_after: str | None = None,
    hub: str | None = None,
    hub_config: str | None = None,
    hub_split: str = "train",
    drop_long: bool = False,
    drop_unanswered: bool = False,
    check_answers: bool = True,
) -> Source:
    """Problems from `path` (absolute; else under GSPO_DATA when that is set; else under the current directory).

    Where there is no such file and GSPO_DATA is not set, the set is taken from `hub` (`hub_config`, `hub_split`). Of
    several names of a field the first that a row has counts. `template` is what the user says, `{prompt}` the problem.
    `answer_after`: the answer is what follows this mark in the field, without thousands commas. A row without
    `id_field` is named after its number. Other fields go into `meta`. Rows of kind `code` need tests: a list of
    {type: stdin | call | assert, ...}, or test code as a text. `drop_unanswered` leaves out the rows whose answer
    is null, empty or of no use to the verifier (`gspo.rewards.math.check_gold`), and says how many; `drop_long`
    those whose prompts are too long for the model.
    `check_answers=False` takes any text for an answer, for references that are no answers of mathematics.
    Raises ValueError naming file, line (rows count from 1) and field for whatever is wrong.
    """
    if "{prompt}" not in template:
        raise ValueError(f"data.template={template!r}: must contain {{prompt}}")
    where, records = _open(path, hub, hub_config, hub_split)
    rows: list[Row] = []
    ids: dict[str, int] = {}
    unanswered: list[int] = []
    for line, record in records:
        at = f"{where}:{line}"
        if drop_unanswered and _unanswered(record, answer_field):
            unanswered.append(line)
            continue
        problem = _text(record, prompt_field, at)
        reference = (
            _tests(record, tests_field, at) if kind == "code" else _answer(record, answer_field, answer_after, at)
        )
        if kind == "math" and check_answers and (why := check_gold(reference)):
            if drop_unanswered:
                unanswered.append(line)
                continue
            name_of = _field(record, answer_field, at)[0]
            raise ValueError(f"{at}: field '{name_of}': {why}; data.drop_unanswered=true leaves such rows out")
        row_id = _id(record, id_field, line, at)
        if row_id in ids:
            raise ValueError(f"{at}: field '{id_field}' is {row_id!r}, as on line {ids[row_id]}; ids must be unique")
        ids[row_id] = line
        used = {*prompt_field, *(tests_field if kind == "code" else answer_field), id_field}
        meta = {key: value for key, value in record.items() if key not in used}
        rows.append(Row(row_id, template.replace("{prompt}", problem), reference, kind, meta))
    if not rows:
        raise ValueError(f"{where}: holds no problem")
    if unanswered:
        lines = ", ".join(map(str, unanswered[:5]))
        log.warning("%s: %d rows without an answer are left out (line %s)", where, len(unanswered), lines)
    return Source(name or Path(path).name.split(".")[0], rows.__getitem__, len(rows), where, drop_long)


Records = Iterable[tuple[int, dict[str, Any]]]
"""Rows with their line numbers, from 1."""


def _open(path: str, hub: str | None, config: str | None, split: str) -> tuple[str, Records]:
    """What to call the set in messages, and its rows."""
    root = os.environ.get("GSPO_DATA")
    file = Path(path).expanduser()
    file = file if file.is_absolute() else Path(root or ".") / file
    if file.is_file():
        if not file.name.endswith(SUFFIXES):
            raise ValueError(f"{file}: {', '.join(SUFFIXES)} files are read")
        return str(file), _read_parquet(file) if file.suffix == ".parquet" else _read_lines(file)
    if hub is None or root:
        ways = "" if hub is None else f", or unset GSPO_DATA to take {hub} from the hub"
        raise ValueError(
            f"data.path={path}: no file {file}; give an absolute path or set GSPO_DATA to its folder{ways}"
        )
    return f"hub:{hub}", enumerate(_from_hub(path, hub, config, split), start=1)


def _read_lines(file: Path) -> Records:
    line = 0
    try:
        with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as stream:
            for line, raw in enumerate(stream, start=1):
                if not raw.strip():
                    continue
                record = json.loads(raw.decode("utf-8"))
                if not isinstance(record, dict):
                    raise ValueError(f"{file}:{line}: a JSON object is needed, not {type(record).__name__}")
                yield line, record
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}:{line}: not JSON: {error.msg} at column {error.colno}") from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{file}:{line}: not UTF-8: byte {error.object[error.start]:#04x} at column {error.start + 1}"
        ) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{file}:{line + 1}: not a whole gzip file: {error}") from error


def _read_parquet(file: Path) -> Records:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(file)
    except pyarrow.ArrowException as error:
        raise ValueError(f"{file}: not a parquet file: {str(error).splitlines()[0]}") from error
    yield from enumerate(table.to_pylist(), start=1)


def _from_hub(path: str, hub: str, config: str | None, split: str) -> list[dict[str, Any]]:
    """The rows of a hub data set. Raises ValueError, naming the other ways to the data, when it cannot be had."""
    from datasets import config as settings
    from datasets import load_dataset
    from huggingface_hub import constants

    # offline, what is cached is used at once; else the client tries for half a minute
    if constants.HF_HUB_OFFLINE or not _answers(constants.ENDPOINT):
        settings.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        return load_dataset(hub, config, split=split).to_list()  # pyright: ignore
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"data.path={path}: no such file, and {hub} is not to be had from the hub ({reason}); set GSPO_DATA to the "
            f"folder that holds {path}, or data.path to an absolute path"
        ) from error


def _answers(url: str) -> bool:
    """Whether anything answers at `url` within some seconds, through the proxies of the environment."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=PROBE).close()
    except urllib.error.HTTPError:
        return True
    except urllib.error.URLError as error:
        return isinstance(error.reason, ssl.SSLError)  # the client has certificates of its own
    except OSError:
        return False
    return True


def _field(record: dict[str, Any], names: list[str], at: str) -> tuple[str, Any]:
    for name in names:
        if record.get(name) is not None:
            return name, record[name]
    here = ", ".join(map(str, record)) or "nothing"
    raise ValueError(f"{at}: field '{' or '.join(names)}' is missing (the row has {here})")


def _text(record: dict[str, Any], names: list[str], at: str) -> str:
    name, value = _field(record, names, at)
    if not isinstance(value, str):
        raise ValueError(f"{at}: field '{name}' is {type(value).__name__}, a text is needed")
    if not value.strip():
        raise ValueError(f"{at}: field '{name}' is empty")
    return value


def _answer(record: dict[str, Any], names: list[str], after: str | None, at: str) -> str:
    name, value = _field(record, names, at)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        value = str(value)
    answer = _text({name: value}, [name], at)
    if after is not None and after in answer:
        answer = answer.rpartition(after)[2].replace(",", "")
    if not answer.strip():
        raise ValueError(f"{at}: field '{name}' has nothing after {after!r}")
    return answer.strip()


def _unanswered(record: dict[str, Any], names: list[str]) -> bool:
    """The row has an answer field, with null or an empty text in it."""
    values = [record[name] for name in names if name in record]
    return bool(values) and all(value is None or value == "" or str(value).isspace() for value in values)


def _id(record: dict[str, Any], name: str, number: int, at: str) -> str:
    value = record.get(name, number)
    if not isinstance(value, (str, int)) or isinstance(value, bool) or value == "":
        raise ValueError(f"{at}: field '{name}' is {value!r}, a text or a whole number is needed")
    return str(value)


def _tests(record: dict[str, Any], names: list[str], at: str) -> list[dict[str, Any]]:
    """The tests of a code row; input-output pairs without a type are `stdin`, a text is one `assert` test."""
    name, value = _field(record, names, at)
    if isinstance(value, str) and value.strip():
        return [{"type": "assert", "code": value}]
    if not isinstance(value, list) or not value:
        raise ValueError(f"{at}: field '{name}' is {value!r:.40}, a list of tests with at least one is needed")
    tests = []
    for number, test in enumerate(value):
        if not isinstance(test, dict):
            raise ValueError(f"{at}: field '{name}[{number}]' is {type(test).__name__}, an object is needed")
        test = {"type": "stdin"} | {key: one for key, one in test.items() if one is not None}
        needed = TESTS.get(test["type"])
        if needed is None:
            raise ValueError(f"{at}: field '{name}[{number}].type' is {test['type']!r}; accepted: {', '.join(TESTS)}")
        for key, kind in needed.items():
            if not isinstance(test.get(key), kind):
                found = type(test.get(key)).__name__ if key in test else "missing"
                raise ValueError(f"{at}: field '{name}[{number}].{key}' is {found}, {kind.__name__} is needed")
        tests.append(test)
    return tests
