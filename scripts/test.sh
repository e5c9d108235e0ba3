#!/usr/bin/env bash
# Sets up (once) and runs the tests in two processes; arguments go to pytest: bash scripts/test.sh -m slow
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
export OMP_NUM_THREADS=1
exec .venv/bin/python -m pytest -n 2 "$@"
