"""The house keeps its shape: who may import whom, where heavy packages live, how long a file may be."""

import ast
import re
from pathlib import Path

import pytest

GSPO = Path(__file__).parent.parent / "gspo"
FILES = sorted(GSPO.rglob("*.py"))
NAMES = [str(path.relative_to(GSPO)) for path in FILES]

LAYERS = {
    "algorithms": set(),
    "types": set(),
    "report": set(),
    "config": set(),
    "binding": set(),
    "sft_config": {"config"},
    "formula": set(),
    "shape": set(),
    "devices": set(),
    "state": set(),
    "linear_logp": set(),
    "compute": {"shape"},
    "metrics": {"algorithms", "types"},
    "sequences": {"algorithms", "metrics", "types"},
    "batch": {"types"},
    "policy": {"linear_logp"},
    "parallel": {"types"},
    "routing": {"policy", "types"},
    "routing_meter": {"routing", "policy", "types"},
    "learner": {
        "algorithms",
        "batch",
        "config",
        "metrics",
        "parallel",
        "policy",
        "routing",
        "routing_meter",
        "schedule",
        "sequences",
        "types",
    },
    "schedule": {"config"},
    "shards": {"checkpoint", "learner", "parallel"},
    "ranks": {"devices"},
    "estimators": set(),
    "forked": set(),
    "trial": {"binding", "config", "data", "learner", "types"},
    "data": {"binding", "config", "types", "rewards"},
    "rewards": {"types"},
    "rollout": {"config", "types"},
    "tracking": {"types"},
    "checkpoint": {"tracking"},
}
"""Room -> rooms of the package it may import besides itself. Rooms above these (parts, train, launch, cli, ...) may
import anything below; nothing here imports them."""

HEAVY = {
    "vllm": {"rollout/vllm_local.py", "rollout/vllm_weights.py"},
    "wandb": {"tracking/wandb_mirror.py", "report/dashboard.py"},
    "latex2sympy2_extended": {"rewards/symbolic.py"},
    "sympy": {"rewards/symbolic.py"},
    "datasets": {"data/files.py"},
    "wandb_workspaces": {"report/dashboard.py"},
}
"""Packages that only the named files import, and only inside a function."""

LIGHT = ("binding.py", "cli.py", "config.py", "launch.py", "material.py", "plan.py", "preflight.py", "pretrained.py")
LIGHT += ("data", "rewards", "report")
"""Reachable before a run starts (or without torch installed): no torch, transformers or matplotlib at import time."""


def imports(path: Path, *, top_only: bool) -> set[str]:
    """Dotted names that a file imports; with `top_only` what importing the file itself would import."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        if top_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(tree)
    return found


def room(name: str) -> str:
    """`rewards/math.py` and `gspo.rewards.math` are in room `rewards`, `train.py` in room `train`."""
    return name.removesuffix(".py").replace("/", ".").split(".")[0]


@pytest.mark.parametrize("name", [n for n in NAMES if room(n) in LAYERS])
def test_imports_point_down(name):
    """A leaf imports nothing of the package, a room only those below it: else a report needs a trainer."""
    allowed = LAYERS[room(name)] | {room(name)}
    inside = {i.removeprefix("gspo.") for i in imports(GSPO / name, top_only=False) if i.startswith("gspo.")}
    wrong = {i for i in inside if room(i) not in allowed}
    assert not wrong, f"{name} imports {wrong}; {room(name)} may import {sorted(allowed)}"


def test_no_room_is_above_itself():
    """No circle of files, also through imports inside functions and functions named as text: else there is no down."""
    known = {name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): GSPO / name for name in NAMES}

    def file_of(name: str) -> str:
        while name and name not in known:
            name = name.rpartition(".")[0]
        return name

    def below(name: str) -> set[str]:
        words = {n.value for n in ast.walk(ast.parse(known[name].read_text())) if isinstance(n, ast.Constant)}
        named = {w for w in words if isinstance(w, str) and re.fullmatch(r"gspo(\.\w+)+", w)}
        found = imports(known[name], top_only=False) | named
        return {file_of(one.removeprefix("gspo.")) for one in found if one.startswith("gspo.")} - {name, ""}

    def look(name: str, above: list[str]) -> None:
        assert name not in above, " -> ".join([*above[above.index(name) :], name])
        if name not in done:
            for one in sorted(below(name)):
                look(one, [*above, name])
            done.add(name)

    done: set[str] = set()
    for name in known:
        look(name, [])


@pytest.mark.parametrize("name", NAMES)
def test_heavy_packages_have_one_home(name):
    """vllm, wandb and their like: one file each, inside the function that uses them."""
    for package, homes in HEAVY.items():
        anywhere = {i for i in imports(GSPO / name, top_only=False) if i.split(".")[0] == package}
        assert not anywhere or name in homes, f"{name} imports {anywhere}; {package} belongs to {sorted(homes)}"
        top = {i for i in imports(GSPO / name, top_only=True) if i.split(".")[0] == package}
        assert not top, f"{name} imports {top} at import time"


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith(LIGHT)])
def test_commands_start_light(name):
    """`gspo-train --help` and reports must not pay for torch."""
    heavy = {"torch", "transformers", "matplotlib", "vllm", "wandb", "datasets", "pyarrow"}
    top = {i for i in imports(GSPO / name, top_only=True) if i.split(".")[0] in heavy}
    if name.startswith("report"):
        top = {i for i in top if i.split(".")[0] != "pyarrow"}
    assert not top, f"{name} imports {top} at import time"


def test_algorithms_know_torch_and_nothing_else():
    """The paper's room: torch, the standard library and itself."""
    for path in (GSPO / "algorithms").glob("*.py"):
        outside = {i.split(".")[0] for i in imports(path, top_only=False)} - {"torch", "gspo"}
        assert outside <= {"dataclasses", "collections", "typing", "math", "__future__"}, (path.name, outside)


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_files_and_functions_stay_short(path):
    """At most 300 lines a file (aim: 250) and 60 lines a function, its docstring not counted."""
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300, f"{path.name}: {len(text.splitlines())} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            assert lines <= 60, f"{path.name}: {node.name} has {lines} lines"


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_what_must_not_exist(path):
    """No drawers for odds and ends, no framework nouns, nothing swallowed, no eval of text."""
    assert path.name not in ("utils.py", "common.py", "base.py")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            assert not node.name.endswith(("Manager", "Factory", "Registry", "Builder")), node.name
        if isinstance(node, ast.ExceptHandler):
            assert not all(isinstance(n, ast.Pass) for n in node.body), f"{path.name}:{node.lineno} swallows an error"
            assert node.type is not None, f"{path.name}:{node.lineno} bare except"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "eval", f"{path.name}:{node.lineno} eval"
        if isinstance(node, ast.Name | ast.Attribute) and path.name not in ("config.py", "cli.py", "binding.py"):
            assert getattr(node, "id", getattr(node, "attr", "")) != "DictConfig", f"{path.name}:{node.lineno}"
