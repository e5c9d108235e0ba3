"""Breaks each equation on purpose and demands that a named test notices.

    .venv/bin/python scripts/mutants.py [NAME ...]

A mutant is one replacement of source text in a copy of the package; it is *killed* when the test named beside it fails.
A survivor, or a mutant whose text is no longer there, fails the run. The tests named pass on the unbroken copy first.
Each mutant runs in a child forked from a process that has imported torch and pytest, so one costs about a second.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from mutant_table import MUTANTS, Mutant

ROOT = Path(__file__).parent.parent
OUTCOMES = {0: "SURVIVED", 1: "killed"}


def run_test(test: str, mutant: Mutant | None) -> int:
    """pytest's exit code for `test` on a copy of the package with the mutant applied, in a forked child."""
    with tempfile.TemporaryDirectory() as tmp:
        shutil.copytree(
            ROOT / "gspo", Path(tmp) / "gspo", ignore=shutil.ignore_patterns("__pycache__", "*.safetensors")
        )
        shutil.copytree(ROOT / "tests", Path(tmp) / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        if mutant:
            path = Path(tmp) / mutant.file
            path.write_text(path.read_text().replace(mutant.before, mutant.after))
        child = os.fork()
        if child == 0:
            os._exit(_pytest(tmp, test))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _pytest(root: str, test: str) -> int:
    import pytest

    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)
    sys.path.insert(0, root)
    sys.dont_write_bytecode = True
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", f"--rootdir={root}", f"{root}/tests/{test}"]))


def main(names: list[str]) -> int:
    import pytest  # noqa: F401  imported before the forks
    import torch
    from transformers.models import llama, qwen3, qwen3_moe

    for family in (llama, qwen3, qwen3_moe):  # transformers imports a family at its first use
        _ = [getattr(family, name) for name in dir(family) if name.endswith("ForCausalLM")]

    torch.set_num_threads(1)
    chosen = [m for m in MUTANTS if not names or m.name in names]
    start, bad = time.time(), 0
    for test in sorted({m.test for m in chosen}):
        if run_test(test, None) != 0:
            print(f"BROKEN     {test} fails on the unbroken package", flush=True)
            bad += 1
    for mutant in chosen:
        count = (ROOT / mutant.file).read_text().count(mutant.before)
        outcome = OUTCOMES.get(run_test(mutant.test, mutant), "BROKEN") if count == 1 else f"TEXT FOUND {count} TIMES"
        bad += outcome != "killed"
        print(f"{outcome:10} {mutant.name}  [{mutant.test}]", flush=True)
    print(f"mutants: {len(chosen)} made, {bad} not killed, {time.time() - start:.0f} s", flush=True)
    return bad > 0


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.exit(main(sys.argv[1:]))
