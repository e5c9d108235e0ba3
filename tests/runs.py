"""A small run directory, and forked children, for the tests of what a run leaves behind."""

import json
import os

from gspo.tracking import run_dir

CONFIG = {"seed": 7, "run": {"name": "a=b c"}, "optim": {"lr": 1e-6, "betas": [0.9, 0.999]}, "clip": {"low": None}}
FACTS = {"objective": "J = 1/N sum_i s_i A_i", "seed": 7, "overrides": ["optim.lr=1e-6"]}


def make(path):
    return run_dir.create(path, CONFIG, FACTS)


def known(path):
    return json.loads((path / "run.json").read_text())


def fork(work) -> int:
    """Start `work` in a forked child; its process id."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            code = work() or 0
        finally:
            os._exit(code)
    return child


def code_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
