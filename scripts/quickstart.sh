#!/usr/bin/env bash
# Sets up (once) and runs the main job: GSPO on a tiny Qwen3-MoE with real vLLM, on a laptop CPU.
# Options are Hydra overrides: bash scripts/quickstart.sh algo=grpo seed=1
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec .venv/bin/gspo-train algo=gspo model=qwen3_moe_tiny "$@"
