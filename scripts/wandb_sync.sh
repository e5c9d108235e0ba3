#!/usr/bin/env bash
# Uploads every offline W&B run below a directory (default: outputs): bash scripts/wandb_sync.sh [DIR] [option of `wandb sync` ...]
# Needs `wandb login` once, or WANDB_API_KEY. A run that was uploaded before is skipped by W&B. WANDB names the program.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
directory=${1:-$here/outputs}
shift || true
if [ ! -d "$directory" ]; then
    echo "wandb_sync: $directory: no such directory" >&2
    exit 2
fi
mapfile -d '' runs < <(find "$directory" -type d -path '*/wandb/offline-run-*' -prune -print0 | sort -z)
if [ "${#runs[@]}" -eq 0 ]; then
    echo "wandb_sync: $directory: no offline runs (accepted: a run, a sweep, or a directory above them)" >&2
    exit 2
fi
program=${WANDB:-$here/.venv/bin/wandb}
[ -n "${WANDB:-}" ] || [ -x "$program" ] || program=wandb
exec "$program" sync "$@" "${runs[@]}"
