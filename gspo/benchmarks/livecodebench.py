"""LiveCodeBench in its released schema (code_generation_lite): contest problems of a span of dates.

A row has `question_id, question_content, contest_date, starter_code`, `public_test_cases` (JSON text),
`private_test_cases` (JSON text, or base64 of zlib of a pickled JSON text) and `metadata` (JSON text, with `func_name`
for functions). A pickle can call anything, so the one that reads these refuses every class and function.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import pickle
import zlib
from dataclasses import replace
from typing import Any

from gspo.benchmarks.functions import filled
from gspo.data.files import files
from gspo.data.source import Row, Source

MOST_BYTES = 1 << 30
"""Longest private tests of a problem, unpacked."""
IMPORTS = """\
import bisect, collections, copy, datetime, functools, heapq, io, itertools, json, math, operator, random, re
import statistics, string, sys, typing
from bisect import *
from collections import *
from copy import *
from datetime import *
from functools import *
from heapq import *
from itertools import *
from math import *
from operator import *
from random import *
from re import *
from statistics import *
from string import *
from typing import *
from builtins import *
sys.setrecursionlimit(50000)
"""
"""What the benchmark's own runner imports before a program; starter code uses `List` and the like without saying so."""
WITH_STARTER = (
    "You will use the following starter code to write the solution to the problem and enclose your code within "
    "delimiters."
)
WITHOUT_STARTER = (
    "Read the inputs from stdin, solve the problem and write the answer to stdout (do not directly test on the sample "
    "inputs). Enclose your code within delimiters as follows."
)


def livecodebench(
    *, paths: list[str], template: str, since: str = "", until: str = "9999", name: str = "livecodebench"
) -> Source:
    """The problems of the files `paths` whose `contest_date` (ISO) is from `since` to `until`, both included.

    `until` may be a day or the start of one ("2025-02" is all of February). `template`: `{prompt}` is the problem,
    `{format}` the starter code or where to write the program. Raises ValueError naming file, problem and field.
    """
    for part in ("{prompt}", "{format}"):
        if part not in template:
            raise ValueError(f"benchmark.data.template={template!r}: must contain {part}")
    sources = [
        files(path=path, name=name, prompt_field=["question_content"], answer_field=["private_test_cases"],
              id_field="question_id", check_answers=False)
        for path in paths
    ]  # fmt: skip

    def within(row: Row) -> bool:
        date = str(row.meta.get("contest_date", ""))
        return date >= since and date[: len(until)] <= until

    found = [
        _row(row, template, f"{source.where}: {row.id}")
        for source in sources
        for row in map(source.row, range(source.size or 0))
        if within(row)
    ]
    if not found:
        raise ValueError(f"{', '.join(s.where for s in sources)}: no contest_date from {since} to {until}")
    return replace(sources[0], row=found.__getitem__, size=len(found), where=", ".join(s.where for s in sources))


def _row(row: Row, template: str, at: str) -> Row:
    """A row as the sandbox judges it. The private tests stand in `reference` before."""
    name = _json(row.meta.get("metadata") or "{}", f"{at}: field 'metadata'").get("func_name")
    public = _json(row.meta.get("public_test_cases"), f"{at}: field 'public_test_cases'")
    private = private_tests(row.reference, f"{at}: field 'private_test_cases'")
    starter = row.meta.get("starter_code") or ""
    entry = None if name is None else f"Solution.{name}" if "class Solution" in starter else name
    tests = [_test(test, entry, f"{at}: test {i + 1}") for i, test in enumerate([*public, *private])]
    if not tests:
        raise ValueError(f"{at}: no test")
    how = (
        f"{WITH_STARTER}\n```python\n{starter}\n```"
        if starter
        else f"{WITHOUT_STARTER}\n```python\n# YOUR CODE HERE\n```"
    )
    kept = ("question_title", "platform", "contest_id", "contest_date", "difficulty")
    meta = {key: row.meta[key] for key in kept if key in row.meta} | {"prelude": IMPORTS}
    meta |= {"entry_point": entry} if entry else {}
    return Row(row.id, filled(template, prompt=row.prompt, format=how), tests, "code", meta)


def private_tests(text: str, at: str) -> list[Any]:
    """The list that `private_test_cases` holds, packed or not. Raises ValueError for anything else."""
    try:
        return _listed(json.loads(text), at)
    except json.JSONDecodeError:
        packed = text
    try:
        opened = zlib.decompressobj()
        data = opened.decompress(base64.b64decode(packed, validate=True), MOST_BYTES)
        if opened.unconsumed_tail or not opened.eof:
            raise ValueError(f"{at}: cut short, or over {MOST_BYTES} bytes")
        held = _Plain(io.BytesIO(data)).load()
    except (binascii.Error, zlib.error, pickle.UnpicklingError, EOFError, AttributeError, IndexError) as error:
        raise ValueError(f"{at}: neither JSON nor packed JSON ({error})") from error
    return _listed(_json(held, at), at)


class _Plain(pickle.Unpickler):
    """Reads pickled text, numbers and lists; a class or function in it is refused before anything is imported."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is refused")


def _json(text: Any, at: str) -> Any:
    if not isinstance(text, str):
        raise ValueError(f"{at} is {type(text).__name__}, JSON as a text is needed")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{at} is not JSON: {error.msg} at column {error.colno}") from error


def _listed(value: Any, at: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{at} holds {type(value).__name__}, a list of tests is needed")
    return value


def _test(test: Any, entry: str | None, at: str) -> dict[str, Any]:
    """`{input, output, testtype}` as a test of the sandbox: an argument a line for functions, else stdin and stdout."""
    given = (test.get("input"), test.get("output")) if isinstance(test, dict) else (None, None)
    kind = test.get("testtype") if isinstance(test, dict) else None
    if not all(isinstance(text, str) for text in given) or kind not in ("stdin", "functional"):
        raise ValueError(f"{at}: input, output (texts) and testtype (stdin or functional) are needed, not {test!r:.60}")
    if kind == "stdin":
        return {"type": "stdin", "input": given[0], "output": given[1]}
    if entry is None:
        raise ValueError(f"{at}: a functional test, and no func_name in field 'metadata'")
    args = [_json(line, f"{at}: input") for line in str(given[0]).split("\n") if line.strip()]
    return {"type": "call", "fn": entry, "args": args, "output": _json(given[1], f"{at}: output")}
