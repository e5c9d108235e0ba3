"""The cold start: what is learnt from, that it repeats, and what is refused before training."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from gspo import sft, sft_config
from gspo.config import conf_dir
from gspo.data import arithmetic
from gspo.pretrained import character_tokenizer

QUICK = [
    "model=qwen3_tiny", "model.init.num_hidden_layers=1", "model.init.hidden_size=32", "data.min_terms=2",
    "data.max_terms=2", "sft.batch=32", "sft.level_accuracy=0", "sft.measure_every=2", "sft.target_pass_rate=1",
    "train.prompts_per_step=4", "train.group_size=2", "sft.record_prompts=8", "optim.warmup_steps=0",
    "sft.first_terms=2", "sft.least_mixed=0", "sft.least_pass_rate=0",
]  # fmt: skip


def settings(output: Path, *overrides: str) -> sft_config.SftConfig:
    sft_config.register()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = OmegaConf.to_object(compose("sft", overrides=[*QUICK, f"output={output}", *overrides]))
    assert isinstance(config, sft_config.SftConfig)
    return config


@pytest.fixture(scope="module")
def parts():
    tokenizer = character_tokenizer()
    torch.manual_seed(0)
    return sft.from_scratch(settings(Path("unused")), tokenizer), tokenizer


def test_loss_is_that_of_the_solution_and_of_nothing_else(parts):
    """The loss equals transformers' own `labels` loss with the prompt masked; catches a shift by one, a loss on the
    prompt or on padding, a missing EOS. A row is right when argmax gives every solution token."""
    model, tokenizer = parts
    source = arithmetic(seed=0, min_terms=2, max_terms=6)
    rows = [source.row(i) for i in range(12)]
    losses, tokens, right = 0.0, 0, []
    for row in rows:
        prompt = tokenizer.encode(row.prompt)
        solution = [*tokenizer.encode(row.meta["solution"], add_special_tokens=False), tokenizer.eos_token_id]
        ids = torch.tensor([prompt + solution])
        labels = torch.tensor([[-100] * len(prompt) + solution])
        with torch.no_grad():
            out = model(input_ids=ids, labels=labels)
        losses, tokens = losses + out.loss.item() * len(solution), tokens + len(solution)
        right.append(bool((out.logits[0, len(prompt) - 1 : -1].argmax(-1) == torch.tensor(solution)).all()))
    for budget in (40, 10_000):  # one row a forward, all rows in one
        config = settings(Path("unused"), f"trainer.micro_batch_tokens={budget}", "optim.lr=0")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        loss, hits = sft.step(model, tokenizer, rows, optimizer, config)
        assert loss == pytest.approx(losses / tokens, abs=1e-5)
        assert hits.tolist() == right


def test_the_cut_into_micro_batches_does_not_change_the_gradient(parts):
    """Rows of several lengths, one a forward or all at once: the same gradient to float32's rounding."""
    model, tokenizer = parts
    source = arithmetic(seed=1, min_terms=2, max_terms=6)
    rows = [source.row(i) for i in range(10)]
    gradients = []
    for budget in (1, 10_000):
        config = settings(Path("unused"), f"trainer.micro_batch_tokens={budget}", "optim.grad_clip=null")
        sft.step(model, tokenizer, rows, torch.optim.SGD(model.parameters(), lr=0.0), config)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert gradients[0].abs().max() > 0.01
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-6, rtol=1e-4)


def test_slips_are_as_many_as_asked_and_carried_on():
    """A slip is a wrong digit from which the rest follows: of 4000 totals 0.2 are wrong (4 standard errors: 0.025);
    question, answer and totals are those of the row without slips."""
    clean = arithmetic(seed=2, min_terms=5, max_terms=5)
    slipping = arithmetic(seed=2, min_terms=5, max_terms=5, slip_rate=0.2)
    slips = 0
    for i in range(1000):
        row = slipping.row(i)
        assert (row.prompt, row.reference, row.meta["totals"]) == (
            clean.row(i).prompt,
            clean.row(i).reference,
            clean.row(i).meta["totals"],
        )
        steps, box = row.meta["solution"].removesuffix("}").split("\\boxed{")
        total = int(steps[0])
        for sign, digit, _, written in zip(*[iter(steps[1:])] * 4, strict=True):
            slips += (total + int(sign + digit)) % 10 != int(written)
            total = int(written)
        assert box == str(total)
    assert abs(slips / 4000 - 0.2) < 0.025
    assert slips == sum(slipping.row(i).meta["slips"] for i in range(1000))


def test_a_run_repeats_and_is_recorded(tmp_path):
    """Two runs with one seed give the same bytes, another seed others; the record's hash is that of the file."""
    hashes = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        path = sft.run(settings(tmp_path / name, f"seed={seed}"), command="gspo-sft some=thing")
        record = json.loads((path / sft.RECORD).read_text())
        assert record["sha256"] == hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()
        assert (record["command"], record["seed"], record["group_size"]) == ("gspo-sft some=thing", seed, 2)
        hashes.append(record["sha256"])
    assert hashes[0] == hashes[1] != hashes[2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


def test_an_unreachable_target_is_said(tmp_path):
    """A pass rate that never comes down to the target, that is too low, or that is right while no group is mixed (an
    untrained model is never right), end the command with a reason and without an output."""
    for overrides in (["sft.level_accuracy=1"], ["sft.least_mixed=0.5"], ["sft.least_pass_rate=0.5"]):
        config = settings(tmp_path / "x", "sft.max_updates=4", *overrides)
        with pytest.raises(sft.PassRateNotReached, match=r"sft.max_updates=4"):
            sft.run(config)
    assert list(tmp_path.iterdir()) == []


def test_wrong_settings_are_refused_before_training(tmp_path):
    """An existing output is never overwritten; what cannot be trained from scratch is named."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "kept").write_text("x")
    for overrides, said in (
        ([f"output={tmp_path}/there"], "exists"),
        (["model=qwen3_4b", "data=arithmetic", "data.max_terms=2"], "model.init"),
        (["model.init.model_type=nothing"], "model.init"),
        (["model.chat_template=true"], "chat_template"),
        (["data=arithmetic_words", "~data.min_terms", "~data.max_terms"], "data._target_=gspo.data.arithmetic_words"),
        (["sft.target_pass_rate=1.5"], "sft.target_pass_rate=1.5"),
        (["sft.least_mixed=-1"], "sft.least_mixed=-1"),
        (["sft.target_pass_rate=0.2", "sft.least_pass_rate=0.3"], "sft.least_pass_rate=0.3"),
        (["sft.first_terms=3"], "sft.first_terms=3"),
        (["train.group_size=1"], "train.group_size=1"),
    ):
        if overrides[0].startswith(("model=", "data=")):
            kept = [one for one in QUICK if not one.startswith(("model", "data"))]
            with initialize_config_dir(str(conf_dir()), version_base="1.3"):
                chosen = [one for one in overrides if not one.startswith("~")]
                config = OmegaConf.to_object(compose("sft", overrides=[*kept, f"output={tmp_path}/new", *chosen]))
        else:
            config = settings(tmp_path / "new", *overrides)
        assert isinstance(config, sft_config.SftConfig)
        with pytest.raises(ValueError, match=said):
            sft.run(config)
    assert (tmp_path / "there" / "kept").read_text() == "x"
    assert not (tmp_path / "new").exists()
