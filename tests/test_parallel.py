"""Two and three gloo ranks with FSDP2 do what one process does: loss, norm, gradients, metrics, weights."""

import functools
import multiprocessing
import os
import socket

import pytest
import torch
from test_learner import batch, drifted_old_logp, learner, load

from gspo import metrics, parallel, sequences
from gspo.algorithms.hybrids import dapo
from gspo.algorithms.objectives import grpo, gspo, gspo_token
from gspo.batch import micro_batches, select
from gspo.parallel import World

CLIP = {"clip_low": 3e-4, "clip_high": 4e-4}


def three_updates(model, objective, world, tokens):
    """Three AdamW steps on one mini-batch of 11 rows; what a comparison needs, as plain tensors."""
    lrn = learner(model, tokens=tokens, grad_clip=1.0)
    lrn.world, lrn.device = world, torch.device("cpu")
    minibatch = select(batch(), torch.arange(11))
    minibatch.old_logp = drifted_old_logp(lrn, minibatch)
    bound = functools.partial(objective, **CLIP)
    out = {"micro_batches": len(micro_batches(minibatch, tokens))}
    for k in range(3):
        update = lrn.update(minibatch, bound, on_policy=False)
        if k == 0:
            out["grads"] = {n: parallel.full(p.grad).clone() for n, p in model.named_parameters() if p.grad is not None}
            out |= {"loss": update.loss, "grad_norm": update.grad_norm}
            n = len(update.rows["row"])
            judged = {"reward": update.rows["adv"].astype(float), "group": minibatch.group.numpy()[:n]}
            judged |= dict.fromkeys(("truncated", "empty"), update.rows["length"] * 0)
            judged |= {"reward_low": judged["reward"], "reward_high": judged["reward"]}
            judged |= {"sampled": update.rows["length"], "sample": update.rows["length"]}
            rows = sequences.join(judged, [update.rows])
            out["metrics"] = metrics.from_rows(rows)
    out["weights"] = {name: w.clone() for name, w in lrn.weights()}
    return out


def rank(number, size, port, kind, objective, path, tokens):
    os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}  # fmt: skip
    torch.set_num_threads(1)
    world = parallel.join()
    model = parallel.shard(load(path, kind), world, precision="float32", whole=0 if tokens > 1 else parallel.WHOLE)
    out = three_updates(model, objective, world, tokens)
    if world.first:
        torch.save(out, path / "rank0.pt")
    parallel.leave()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_ranks(size, kind, objective, path, tokens):
    port, spawn = free_port(), multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=rank, args=(r, size, port, kind, objective, path, tokens)) for r in range(size)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(280)
    assert [process.exitcode for process in ranks] == [0] * size
    return torch.load(path / "rank0.pt", weights_only=True)


@pytest.mark.parametrize(
    ("size", "kind", "objective", "tokens"),
    [
        (2, "qwen3_moe", gspo, 30),
        (3, "qwen3", grpo, 1),
        pytest.param(3, "qwen3_moe", gspo_token, 30, marks=pytest.mark.slow),
        pytest.param(2, "qwen3_moe", dapo, 1, marks=pytest.mark.slow),
        pytest.param(2, "qwen3", gspo, 30, marks=pytest.mark.slow),
        pytest.param(3, "qwen3_moe", grpo, 1, marks=pytest.mark.slow),
    ],
)
def test_ranks_equal_one_process(tmp_path, size, kind, objective, tokens):
    """Catches denominators per rank, gradients averaged twice or not at all, ranks out of step: with a row to each
    micro-batch the 11 do not divide evenly, so one rank repeats its last with weight 0. The model is gathered block by
    block where `tokens` is 30, else at once."""
    expected = three_updates(load(tmp_path, kind), objective, World(), tokens)
    assert tokens > 1 or expected["micro_batches"] % size, "the deal is meant to be uneven"
    found = run_ranks(size, kind, objective, tmp_path, tokens)
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5, abs=1e-9)
    assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)
    assert found["metrics"] == pytest.approx(expected["metrics"], rel=1e-5, abs=1e-9)
    for name, grad in expected["grads"].items():
        assert (found["grads"][name] - grad).abs().max() <= 1e-5 * grad.abs().max(), name
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(found["weights"][name], weight, rtol=0, atol=1e-6, msg=name)


def test_deal_gives_every_part_once_and_keeps_step():
    """Parts of weight 1 are a partition of the whole, and every rank has the same number of rounds."""
    parts = micro_batches(batch(), 30)
    for size in (1, 2, 3, 5, 20):
        dealt = [parallel.deal(parts, World(r, size)) for r in range(size)]
        assert len({len(mine) for mine in dealt}) == 1
        rows = sorted(row for mine in dealt for part, weight in mine if weight for row in part.row.tolist())
        assert rows == list(range(12))


def test_ranks_of_one_engine_are_given_the_same_prompts(monkeypatch):
    """Four ranks, two to an engine: both ranks of an engine see its items, every item is answered once, in order, and
    the answer of an engine's first rank counts: catches items dealt to ranks where engines were meant."""
    seen = {}

    def work_of(rank):
        def work(items):
            seen[rank] = items
            return [(item, rank) for item in items]

        return work

    held = [work_of(rank)(["a", "b", "c"][rank // 2 :: 2]) for rank in range(4)]
    for rank in range(4):
        monkeypatch.setattr(
            parallel, "gather", lambda mine, world: [h if r % 2 == 0 else None for r, h in enumerate(held)]
        )
        found = parallel.spread(work_of(rank), ["a", "b", "c"], World(rank, 4), together=2)
        assert found == [("a", 0), ("b", 2), ("c", 0)]
    assert seen == {0: ["a", "c"], 1: ["a", "c"], 2: ["b"], 3: ["b"]}
