"""The record of a run: its directory, the W&B mirror, the progress display and the picture at the end.

`run_dir` owns the files and is all that reports read; `wandb_mirror` is derived from them; `display` only looks.
"""
