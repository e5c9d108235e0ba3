"""vLLM in this process.

One request a prompt with n = G: vLLM gives sample g the seed `request_seed + g`. Log-probs are `processed_logprobs`,
i.e. log_softmax(logits / T) at the sampled tokens; vLLM's default ignores the temperature.

vLLM changes its host process (gspo.rollout.vllm_host says how); what it changes is put back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gspo.config import RolloutSettings, SamplingSettings
from gspo.rollout import request_seed
from gspo.rollout.contract import check_prompts, check_settings, checked, engine_dtype, make_rollout, stop_ids
from gspo.rollout.hf import empty_model, weight_shapes
from gspo.rollout.vllm_host import kept, prepare_environment, quiet
from gspo.types import Prompt, Rollout

if TYPE_CHECKING:
    from torch import Tensor


GPU_MAX_BATCH = 1024
"""Sequences that a GPU decodes at once; the others wait for a place."""


def available(device: str | None = None) -> str | None:
    """Why vLLM cannot be used here, in one line, or None when it can. Imports vLLM (seconds).

    `device` (`cpu` or `cuda`): also whether this build of vLLM is for it, and on the CPU whether its version is the one
    that the weight sync is written for.
    """
    prepare_environment(device)
    try:
        with quiet():
            import vllm
            from vllm import LLM  # noqa: F401
            from vllm.platforms import current_platform
    except (ImportError, OSError, RuntimeError) as error:
        return f"vLLM cannot be imported: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    if device is not None and current_platform.is_cpu() != (device == "cpu"):
        return f"vLLM {vllm.__version__} here is built for {current_platform.device_type}, the run is on {device}"
    from gspo.rollout.vllm_weights import VERSION

    if device == "cpu" and not vllm.__version__.startswith(f"{VERSION}."):
        return f"vLLM {vllm.__version__}: on the CPU the weight sync is written for {VERSION}"
    return None


def check(settings: RolloutSettings, device: str) -> None:
    """Raise ValueError where vLLM is not available for `device`."""
    if reason := available(device):
        raise ValueError(f"rollout=vllm: {reason}; rollout=hf works without it")


class VllmEngine:
    """Engine protocol on an in-process vLLM."""

    def __init__(
        self,
        model_dir: Path,
        tokenizer: Any,
        settings: RolloutSettings,
        sampling: SamplingSettings,
        *,
        precision: str,
        context: int,
        seed: int,
        max_batch: int,
        device: str,
    ) -> None:
        """Start an engine on `model_dir`. `max_batch`: sequences decoded at once, P * G.

        Raises ValueError for settings outside the contract, where vLLM is not available, and on the CPU for a model
        whose weights cannot be synchronised exactly.
        """
        check_settings(settings, sampling, context=context, device=device)
        check(settings, device)
        from gspo.rollout import vllm_weights

        self._tokenizer, self._sampling, self._context, self._version = tokenizer, sampling, context, 0
        self._stop_ids = stop_ids(model_dir, tokenizer)
        import torch

        ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.ranks = settings.tensor_parallel if ranks else 1
        self._in_process = settings.tensor_parallel == self.ranks
        self._asleep = False
        model = empty_model(model_dir)
        self._model_type = model.config.model_type
        self._shapes, self._tied = weight_shapes(model)
        keywords = _engine_keywords(settings, precision, context, max_batch, device) | {"seed": seed % 2**32}
        if ranks and device == "cuda":  # an engine's ranks are this run's: each holds its part, all run in step
            keywords["distributed_executor_backend"] = "external_launcher"
        self._owns_group = not ranks
        with kept(), quiet(), vllm_weights.unpacked_linears() if device == "cpu" else nullcontext():
            self._llm: Any = _start(model_dir, tokenizer, keywords, needs_text=bool(sampling.stop))
            self.prefix_block = int(self._llm.llm_engine.vllm_config.cache_config.block_size)
        self._plan = None
        try:
            if device == "cpu":
                self._plan = vllm_weights.plan(vllm_weights.live_model(self._llm), self._shapes)
            self._try_once()
        except ValueError:
            self.close()
            raise

    def generate(self, prompts: Sequence[Prompt], group_size: int, *, seed: int, step: int) -> list[list[Rollout]]:
        """`[P][G]` responses; see `Engine.generate`. Raises RuntimeError when the engine is dead."""
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        check_prompts(prompts, group_size, self._context)
        if not prompts:
            return []
        requests = [{"prompt_token_ids": list(prompt.token_ids)} for prompt in prompts]
        how = [self._request(prompt, group_size, request_seed(seed, step, prompt.id)) for prompt in prompts]
        try:
            with kept():
                outputs = self._llm.generate(requests, how, use_tqdm=False)
        except (EngineDeadError, EngineGenerateError) as error:
            raise RuntimeError(f"vLLM: {type(error).__name__}: {error}") from error
        return [self._group(prompt, output, group_size) for prompt, output in zip(prompts, outputs, strict=True)]

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Write every weight and drop the prefix cache; see `Engine.update_weights`."""
        from gspo.rollout import vllm_weights

        accepted = checked(weights, self._shapes, self._tied)
        if self._plan is not None:
            vllm_weights.push(self._plan, accepted)
        else:
            if self._asleep:
                self._llm.wake_up(tags=["weights"])
            vllm_weights.reload(self._llm, accepted, model_type=self._model_type, in_process=self._in_process)
            if self._asleep:
                self._llm.wake_up(tags=["kv_cache"])
            self._asleep = False
        self._drop_prefixes()
        self._version = version

    def sleep(self) -> None:
        """Give weights and KV cache of a GPU back; see `Engine.sleep`."""
        if self._plan is None and not self._asleep:
            self._llm.sleep(level=2)  # the weights too: the next update brings all of them
            self._asleep = True

    def close(self) -> None:
        """Stop the engine and free its memory; another one may be started afterwards."""
        import gc

        from vllm.distributed import parallel_state

        if self._llm is None:
            return
        self._llm.llm_engine.engine_core.shutdown()
        self._llm = self._plan = None
        gc.unfreeze()
        parallel_state.destroy_model_parallel()
        if self._owns_group:
            parallel_state.destroy_distributed_environment()
        gc.collect()

    def _try_once(self) -> None:
        """Sample one token. Raises ValueError when vLLM has no kernel for the model's shapes."""
        from vllm import SamplingParams

        how = SamplingParams(max_tokens=1, seed=0, detokenize=False)
        try:
            with kept():
                self._llm.generate([{"prompt_token_ids": [self._stop_ids[0]]}], how, use_tqdm=False)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"rollout=vllm: vLLM cannot run this model here ({reason}); rollout=hf may") from error

    def _drop_prefixes(self) -> None:
        """Forget cached prompts: their keys and values come from older weights."""
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not drop its prefix cache: requests were still running")

    def _request(self, prompt: Prompt, group_size: int, seed: int) -> Any:
        from vllm import SamplingParams

        return SamplingParams(
            n=group_size,
            seed=seed,
            temperature=self._sampling.temperature,
            max_tokens=min(self._sampling.max_tokens, self._context - len(prompt.token_ids)),
            logprobs=0,
            stop=list(self._sampling.stop) or None,
            stop_token_ids=list(self._stop_ids),
            detokenize=bool(self._sampling.stop),
        )

    def _group(self, prompt: Prompt, output: Any, group_size: int) -> list[Rollout]:
        samples = sorted(output.outputs, key=lambda sample: sample.index)
        assert [sample.index for sample in samples] == list(range(group_size)), prompt.id
        return [self._rollout(prompt, sample) for sample in samples]

    def _rollout(self, prompt: Prompt, sample: Any) -> Rollout:
        ids = list(sample.token_ids)
        finish = sample.finish_reason if sample.finish_reason in ("stop", "length") else "abort"
        return make_rollout(
            ids,
            sampled_logp(ids, sample.logprobs),
            finish=finish,
            version=self._version,
            prompt=prompt,
            tokenizer=self._tokenizer,
        )


def sampled_logp(token_ids: Sequence[int], logprobs: Sequence[Any] | None) -> list[float | None]:
    """The log-prob of each sampled token, looked up by its id (the entry may list others); None where it is absent."""
    if logprobs is None or len(logprobs) != len(token_ids):
        return [None] * len(token_ids)
    entries = [None if entry is None else entry.get(token) for token, entry in zip(token_ids, logprobs, strict=True)]
    return [None if entry is None else entry.logprob for entry in entries]


def _engine_keywords(
    settings: RolloutSettings, precision: str, context: int, max_batch: int, device: str
) -> dict[str, Any]:
    """Keywords of vLLM's `LLM`."""
    keywords: dict[str, Any] = {
        "dtype": engine_dtype(settings, precision),
        "max_model_len": context,
        "max_num_seqs": max_batch,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }
    if device == "cpu":
        keywords["enforce_eager"] = True
        keywords["max_num_batched_tokens"] = max(4096, context, max_batch)
        keywords["enable_chunked_prefill"] = False  # a prompt cut in two rewinds its generator; CPU generators refuse
        keywords["kv_cache_memory_bytes"] = settings.kv_cache_gb * 2**30
    else:
        keywords["max_num_seqs"] = min(max_batch, GPU_MAX_BATCH)
        keywords["tensor_parallel_size"] = settings.tensor_parallel
        keywords["gpu_memory_utilization"] = settings.memory_fraction
        keywords["enable_sleep_mode"] = True
    return keywords


def _start(model_dir: Path, tokenizer: Any, keywords: dict[str, Any], *, needs_text: bool) -> Any:
    """vLLM's `LLM`. It gets the tokenizer only when stop strings need text."""
    import tempfile

    from vllm import LLM

    if not needs_text:
        return LLM(str(model_dir), skip_tokenizer_init=True, **keywords)
    with tempfile.TemporaryDirectory(prefix="gspo-tokenizer-") as folder:
        tokenizer.save_pretrained(folder)
        return LLM(str(model_dir), tokenizer=folder, **keywords)
