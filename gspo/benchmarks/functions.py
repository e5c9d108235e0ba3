"""HumanEval and MBPP: functions from a description, judged by assertions."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from dataclasses import replace

from gspo.data.files import files
from gspo.data.source import Row, Source


def humaneval(*, path: str, template: str, name: str = "humaneval") -> Source:
    """HumanEval's rows (`prompt, entry_point, test`): run prompt + completion + test + check(entry_point).

    `template` is what the user says, `{prompt}` the function to complete. Raises ValueError as `gspo.data.files`, and
    for a row without `entry_point`.
    """
    source = files(path=path, name=name, kind="code")

    def change(row: Row) -> Row:
        entry = row.meta.get("entry_point")
        if not isinstance(entry, str) or not entry.isidentifier():
            raise ValueError(f"{source.where}: {row.id}: field 'entry_point' is {entry!r}, a name is needed")
        tests = [{"type": "assert", "fn": entry, "code": f"{row.reference[0]['code']}\ncheck({entry})\n"}]
        meta = row.meta | {"prelude": row.prompt, "completion": True}
        return replace(row, prompt=filled(template, prompt=row.prompt), reference=tests, meta=meta)

    return changed(source, change)


def mbpp(*, path: str, template: str, split: str = "test", name: str = "mbpp") -> Source:
    """MBPP's rows of one split (`prompt, test, split`); `{tests}` in `template` is where the assertions are shown.

    They name the function, which nothing else does. Raises ValueError as `gspo.data.files`, for a `template` without
    `{tests}` and for a split without rows.
    """
    if "{tests}" not in template:
        raise ValueError(f"benchmark.data.template={template!r}: must contain {{tests}}, which name the function")
    source = files(path=path, name=name, kind="code")

    def change(row: Row) -> Row:
        tests = row.reference[0]["code"]
        meta = row.meta | {"entry_point": called(tests)}
        return replace(row, prompt=filled(template, prompt=row.prompt, tests=tests.strip()), meta=meta)

    return changed(source, change, lambda row: row.meta.get("split") == split, f"split={split}")


def called(tests: str) -> str | None:
    """The function that test code calls: the first called name, in an assertion, that is not built in or its own."""
    tree = ast.parse(tests)
    own = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {alias.asname or alias.name for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names}  # fmt: skip
    own |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for statement in (node for node in ast.walk(tree) if isinstance(node, ast.Assert)):
        for node in ast.walk(statement):
            name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None
            if name is not None and name not in own and not hasattr(builtins, name):
                return name
    return None


def changed(
    source: Source, change: Callable[[Row], Row], wanted: Callable[[Row], bool] | None = None, what: str = ""
) -> Source:
    """The source's rows that are `wanted`, each changed. Raises ValueError, saying `what` was wanted, if none is."""
    assert source.size is not None
    every = map(source.row, range(source.size))
    rows = [change(row) for row in every if wanted is None or wanted(row)]
    if not rows:
        raise ValueError(f"{source.where}: no row with {what}")
    return replace(source, row=rows.__getitem__, size=len(rows))


def filled(template: str, **parts: str) -> str:
    """The template with `{name}` replaced, in one pass, so that braces inside the parts stay."""
    if "{prompt}" not in template:
        raise ValueError(f"benchmark.data.template={template!r}: must contain {{prompt}}")
    pieces, rest = [], template
    while rest:
        at, name = min(((rest.find(f"{{{n}}}") % (len(rest) + 1), n) for n in parts), default=(len(rest), ""))
        pieces.append(rest[:at])
        if at == len(rest):
            break
        pieces.append(parts[name])
        rest = rest[at + len(name) + 2 :]
    return "".join(pieces)
