"""gspo: an experiment runner for reinforcement learning of language models with GSPO, GSPO-token and GRPO."""
