"""`gspo-grade`: the training verifier on a file of responses, one JSON object a line in, one verdict a line out."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

from gspo.binding import bind, target
from gspo.rewards.score import check_workers

Row = dict[str, Any]
OWN_FAILURES = ("verifier_failed", "infrastructure")
"""Verdicts that speak of the judge, not of the response."""
EVERY = 5.0
"""Seconds between progress lines where there is no terminal."""


def judge_of(reward: dict[str, Any]) -> tuple[Callable[[Row], Row], Callable[[Row], str | None]]:
    """`grade_row`, bound to a reward node's keywords, and `row_problem`, from the module of the node's `_target_`.

    Raises ValueError for a reward whose module grades no files.
    """
    target(reward, "reward")
    home = str(reward["_target_"]).rpartition(".")[0]
    if not hasattr(importlib.import_module(home), "grade_row"):
        raise ValueError(
            f"reward._target_={reward.get('_target_')}: judges no files (accepted: reward=math, reward=code)"
        )
    judge = bind(reward | {"_target_": f"{home}.grade_row"}, "reward")
    check_workers(judge, "reward")
    return judge, target({"_target_": f"{home}.row_problem"}, "reward")


def read_rows(path: Path, problem: Callable[[Row], str | None]) -> list[Row]:
    """Every row of a JSONL file. Raises ValueError naming file and line for the first that cannot be judged."""
    if not path.is_file():
        raise ValueError(f"input={path}: no such file")
    rows: list[Row] = []
    seen: set[Any] = set()
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except UnicodeDecodeError as error:
            raise ValueError(f"{where}: not UTF-8: {error}") from error
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f"{where}: a JSON object is expected, not {type(row).__name__}")
        name = row.get("id")
        if not isinstance(name, str | int) or isinstance(name, bool):
            raise ValueError(f"{where}: id={name!r} must be text or an integer")
        if name in seen:
            raise ValueError(f"{where}: id={name!r} stands twice")
        if why := problem(row):
            raise ValueError(f"{where}: {why}")
        seen.add(name)
        rows.append(row)
    if not rows:
        raise ValueError(f"input={path}: no rows")
    return rows


def open_beside(target: Path) -> tuple[Path, TextIO]:
    """The file that becomes `target` when it is whole, and its stream.

    Raises ValueError when `target` cannot be written, is no ordinary file, or holds anything but earlier verdicts.
    """
    if target.is_dir() or not target.name:
        raise ValueError(f"output={target}: is a directory, a file is needed")
    if target.exists() and not target.is_file():
        raise ValueError(f"output={target}: is no ordinary file")
    if target.exists() and target.stat().st_size and not _holds_verdicts(target):
        raise ValueError(f"output={target}: exists and holds something other than verdicts; choose another file")
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return part, part.open("w", encoding="utf-8")
    except OSError as error:
        raise ValueError(f"output={target}: cannot be written: {error.strerror}") from error


def _holds_verdicts(path: Path) -> bool:
    """Was this file written by an earlier grading?"""
    with path.open("rb") as lines:
        try:
            first = json.loads(lines.readline())
        except ValueError:
            return False
    return isinstance(first, dict) and {"id", "verdict", "reward", "reason", "path"} <= first.keys()


def _with_progress(results: Iterable[Row], total: int, stream: TextIO) -> Iterator[Row]:
    """The results as they come, with a bar on a terminal and plain lines elsewhere."""
    if stream.isatty():
        from rich.console import Console
        from rich.progress import track

        yield from track(results, "grading", total=total, console=Console(file=stream))
        return
    said = time.monotonic()
    for done, result in enumerate(results, 1):
        yield result
        if done == total or time.monotonic() - said >= EVERY:
            said = time.monotonic()
            print(f"graded {done} of {total}", file=stream, flush=True)


def summary(results: list[Row], seconds: float) -> str:
    """Verdicts and paths with counts and shares, and the mean reward of the judged rows."""
    lines = [f"{'verdict':<18}{'path':<22}{'rows':>7}{'share':>8}"]
    counts = Counter((str(r["verdict"]), str(r["path"])) for r in results)
    for (verdict, path), count in sorted(counts.items(), key=lambda item: -item[1]):
        lines.append(f"{verdict:<18}{path:<22}{count:>7}{count / len(results):>8.1%}")
    judged = [r["reward"] for r in results if r["reward"] is not None]
    mean = f"{sum(judged) / len(judged):.4f}" if judged else "none"
    lines.append(f"mean reward {mean} over {len(judged)} judged of {len(results)} rows, {seconds:.1f} s")
    return "\n".join(lines)


def grade(
    judge: Callable[[Row], Row],
    problem: Callable[[Row], str | None],
    input: str | Path,
    output: str | Path,
    *,
    threads: int | None = None,
    stream: TextIO | None = None,
) -> int:
    """Judge every row of `input`; write `id, verdict, reward, reason, path` to `output`; return the exit code.

    `judge` maps an input row to its output row and may be called from several threads; `problem` says what is wrong
    with an input row, or None. 1 when the judge itself failed anywhere (`verifier_failed`, `infrastructure`: reward
    null) or the disk was full, else 0. Raises ValueError for an input that cannot be read and an output that cannot be
    written or holds other things; `output` appears whole or not at all.
    """
    source, target = Path(input), Path(output)
    if source.resolve() == target.resolve():
        raise ValueError(f"output={target}: would overwrite the input")
    rows = read_rows(source, problem)
    said = stream or sys.stderr
    begun, results = time.monotonic(), []
    part, out = open_beside(target)
    try:
        with out, ThreadPoolExecutor(threads or 2 * (os.cpu_count() or 1)) as pool:
            for result in _with_progress(pool.map(judge, rows), len(rows), said):
                out.write(json.dumps(result, ensure_ascii=False) + "\n")
                results.append(result)
        part.replace(target)
    except OSError as error:
        print(f"gspo-grade: output={target}: {error.strerror}; nothing was written", file=said)
        return 1
    finally:
        part.unlink(missing_ok=True)
    print(summary(results, time.monotonic() - begun), flush=True)
    failed = [r for r in results if r["verdict"] in OWN_FAILURES]
    for row in failed[:5]:
        print(f"not judged: id={row['id']}: {row['reason']}", file=said)
    return 1 if failed else 0
