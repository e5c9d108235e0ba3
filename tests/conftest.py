"""One OpenMP thread (two on busy cores stall each other), no network, nobody's W&B."""

import os

os.environ |= {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "offline",
    "TOKENIZERS_PARALLELISM": "false",
}
os.environ.setdefault("GSPO_DATA", os.path.join(os.path.dirname(__file__), "..", "..", "shared", "data"))
