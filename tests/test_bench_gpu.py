"""The GPU benchmark's code, on small shapes on the CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_every_case_runs_on_small_shapes():
    """A row a case with both rates; catches a case that only a GPU's owner would see fail."""
    script = Path(__file__).parent.parent / "scripts" / "bench_gpu.py"
    done = subprocess.run([sys.executable, script, "--smoke"], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()[1:]]
    assert len({row["case"] for row in rows}) == len(rows) == 8
    assert all(row["log-probs tokens/s"] > 0 and row["update tokens/s"] > 0 for row in rows)
