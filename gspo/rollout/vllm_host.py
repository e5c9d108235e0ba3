"""What vLLM does to the process that hosts it, and how it is put back.

It reads its settings from the environment when it is imported; it replaces `torch.set_num_threads` by a no-op; it seeds
and draws from the global random states; its process group replaces `sys.excepthook`; it sets variables that every later
child process would inherit (LD_PRELOAD); and it writes warnings to stderr from Python and from C++.
"""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
CPU_ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCHDYNAMO_DISABLE": "1",
}
"""Dynamo off saves 6 to 20 seconds of a first call on the CPU, at no cost later."""
INHERITED = ("LD_PRELOAD", "LOCAL_WORLD_SIZE", "NUMEXPR_MAX_THREADS", "TORCHINDUCTOR_COMPILE_THREADS")


def prepare_environment(device: str | None) -> None:
    """Set the variables that vLLM, and torch beneath it, read when imported; those the user has set stay.

    `device` None: what a run would take, `cuda` where there is one.
    """
    import torch

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    for name, value in (ENVIRONMENT | (CPU_ENVIRONMENT if device == "cpu" else {})).items():
        os.environ.setdefault(name, value)


@contextmanager
def kept() -> Iterator[None]:
    """Leave threads, random states, the exception hook and inherited variables as they were."""
    import numpy as np
    import torch

    hook = sys.excepthook
    set_threads, threads = torch.set_num_threads, torch.get_num_threads()
    states = random.getstate(), np.random.get_state(), torch.random.get_rng_state()  # noqa: NPY002
    environment = {name: os.environ.get(name) for name in INHERITED}
    try:
        yield
    finally:
        sys.excepthook = hook
        torch.set_num_threads = set_threads
        torch.set_num_threads(threads)
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.random.set_rng_state(states[2])
        for name, value in environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def quiet() -> Iterator[None]:
    """Hold warnings and stderr back, C++ and child processes included; stderr is shown after all if the body raises.

    Does nothing when the user asks for more of vLLM's log than errors (VLLM_LOGGING_LEVEL).
    """
    import tempfile

    if os.environ.get("VLLM_LOGGING_LEVEL", "ERROR") != "ERROR":
        yield
        return
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as held, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            sys.stderr.flush()
            held.seek(0)
            os.write(saved, held.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
