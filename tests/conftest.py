"""One OpenMP thread (two on busy cores stall each other), no network, nobody's W&B."""

import os
from pathlib import Path

import pytest

os.environ |= {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "offline",
    "TOKENIZERS_PARALLELISM": "false",
}
os.environ.setdefault("GSPO_DATA", os.path.join(os.path.dirname(__file__), "..", "..", "shared", "data"))

ONE_AFTER_ANOTHER = ("test_code", "test_evaluate", "test_programs", "test_reward_speed", "test_sandbox",
                     "test_sandbox_limits", "test_score", "test_steps")  # fmt: skip
"""Files whose boxes would be taken for each other's leftovers, or whose rates need a core."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With `-n 2` the tests of a file stay in one process, and those of boxes all in the same."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            name = Path(nodeid.split("::")[0]).stem
            return "boxes" if name in ONE_AFTER_ANOTHER else name

    return ByFile(config, log)
