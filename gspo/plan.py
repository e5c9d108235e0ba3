"""What a run will need, by arithmetic on its configuration: memory, tokens, FLOPs, time. No weights, no torch.

Every number comes with the sum that gives it, so that a reader can check it by hand. Lengths are not known before a
run: `plan.prompt_tokens` and `plan.response_tokens` state them; without these a prompt has 256 tokens (or what the
context leaves) and every response is as long as `sampling.max_tokens` allows.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

from gspo import memory
from gspo.devices import GIB, Where
from gspo.formula import algebra
from gspo.preflight import Finding, findings, require, shape_of
from gspo.shape import FAMILIES, ModelShape
from gspo.workload import Work, choose, decode_seconds, flops_of_a_step, workload

Row = tuple[str, str, str]
"""What, how much, and the sum that gives it."""


@dataclass(slots=True)
class Plan:
    """A plan as a table in sections, the same numbers by name, and the preflight findings."""

    title: str
    sections: dict[str, list[Row]] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    """Parameters, bytes (`memory/...`), FLOPs (`flops/...`), tokens and seconds (`seconds/...`), a step each."""
    findings: list[Finding] = field(default_factory=list)


def plan(config: dict[str, Any]) -> Plan:
    """The plan of a resolved `gspo-train` configuration.

    `plan.device` and `trainer.devices` say where; see `choose`. Raises ValueError for a model whose shape is not known
    and for an objective without a formula.
    """
    model = config["model"]
    shape = shape_of(config)
    if shape is None:
        raise ValueError(
            f"model.path={model.get('path')}: no config.json of a {', '.join(FAMILIES)} model found "
            "(accepted: a directory, gspo:NAME, a hub id with a shape file or in the hub's cache)"
        )
    require(config)
    where = choose(config, shape)
    work = workload(config, where)
    clip = {"clip_low": config["clip"]["low"], "clip_high": config["clip"]["high"]}
    objective = algebra(config["algo"]["objective"], clip | config["algo"]["objective"])
    out = Plan(f"{config['algo'].get('name')} on {model.get('name')}\n{objective}")
    _model(out, shape)
    _memory(out, config, shape, where)
    _step(out, config, work)
    _flops(out, config, shape, work)
    _time(out, config, shape, work)
    out.findings = findings(config, shape, where)
    return out


def _model(out: Plan, s: ModelShape) -> None:
    mlp = f"3 * {s.hidden} * {s.intermediate}"
    if s.moe_layers:
        mlp = f"{{n}} experts * 3 * {s.hidden} * {s.moe_intermediate} + router {s.hidden} * {s.experts}"
    attention = f"attention 2 * {s.hidden} * {s.head_dim} * ({s.heads} + {s.kv_heads})"
    if 0 < s.moe_layers < s.layers:
        mlp += f" in {s.moe_layers} of {s.layers} layers, else 3 * {s.hidden} * {s.intermediate}"
    blocks, embed = f"{s.layers} * ({attention} + {mlp})", f"{1 if s.tied else 2} * {s.vocab:,} * {s.hidden}"
    vectors = f"norms and biases {s.vectors:,}"
    rows = [
        ("parameters", s.parameters, f"{blocks.format(n=s.experts)} + embeddings {embed} + {vectors}"),
        ("active for a token", s.active, f"{s.experts_per_token} of {s.experts} experts" if s.moe_layers else "all"),
        (
            "active in matmuls",
            s.matmul_active,
            f"{blocks.format(n=s.experts_per_token)} + head {s.vocab:,} * {s.hidden}",
        ),
    ]
    out.sections["model"] = [(name, f"{count:,}", how) for name, count, how in rows]
    out.numbers |= {"parameters": s.parameters, "active": s.active, "matmul_active": s.matmul_active}


def _memory(out: Plan, config: dict[str, Any], shape: ModelShape, where: Where) -> None:
    found = memory.parts(config, shape, where)
    sums = memory.peaks(found)
    rows = [(part.name, gib(part.bytes), part.arithmetic) for part in found]
    for moment, total in sums.items():
        rows.append((f"= at {moment}", gib(total), " + ".join(part.name for part in found if moment in part.at)))
    if where.device.cuda and where.devices > 1:
        moments = next(part for part in found if part.name == "AdamW moments")
        rest = sums["generation"] - (moments.bytes if "generation" in moments.at else 0)
        rows.append(("= at generation, offloaded", gib(rest), "without AdamW moments (trainer.offload=true)"))
        rows.append(("= at generation, kept", gib(rest + moments.bytes), "with them (trainer.offload=false)"))
    rows.append((f"{where.device.name} has", gib(memory.available(where)), "a rank; " + where.note))
    kind = (
        f"FSDP2 over {where.devices} {where.device.name}"
        if where.devices > 1
        else f"one {where.device.name}" + ("" if where.device.cuda else " process")
    )
    out.sections[f"memory of one device ({kind}, {memory.precision(config, where.device)})"] = rows
    out.numbers |= {f"memory/{part.name}": part.bytes for part in found}
    out.numbers |= {f"memory/at {moment}": total for moment, total in sums.items()}


def _step(out: Plan, config: dict[str, Any], w: Work) -> None:
    steps, asked, at_most = config["train"]["steps"], config.get("plan") or {}, "sampling.max_tokens: at most"
    rows = [
        ("responses", w.sequences, f"{w.prompts} prompts * {w.group}"),
        ("optimiser steps", w.minibatches, f"{w.sequences // w.minibatches} responses each"),
        ("tokens of a prompt", w.prompt, "plan.prompt_tokens" + ("" if asked.get("prompt_tokens") else ", assumed")),
        ("tokens of a response", w.response, "plan.response_tokens" if asked.get("response_tokens") else at_most),
        ("prompt tokens", w.sequences * w.prompt, f"{w.sequences:,} * {w.prompt:,}"),
        ("sampled and trained tokens", w.sequences * w.response, f"{w.sequences:,} * {w.response:,}"),
    ]
    out.sections["a rollout step"] = [(name, f"{count:,}", how) for name, count, how in rows]
    out.sections["the run"] = [
        ("rollout steps", f"{steps:,}", "train.steps"),
        ("optimiser steps", f"{steps * w.minibatches:,}", f"{steps:,} * {w.minibatches}"),
        ("sampled tokens", f"{steps * w.sequences * w.response:,}", f"{steps:,} * {w.sequences * w.response:,}"),
    ]
    out.numbers |= {"responses": w.sequences, "tokens": w.sequences * w.response, "updates": steps * w.minibatches}


def _flops(out: Plan, config: dict[str, Any], s: ModelShape, w: Work) -> None:
    flops = flops_of_a_step(config, s, w)
    attention = f"4 * {s.layers} * {s.heads} * {s.head_dim}"
    block, head, n, x, y = f"2 * {s.blocks_active:,}", f"2 * {s.head_matmul:,}", w.sequences, w.prompt, w.response
    forward = f"{n:,} * ({block} * L + {attention} * L (L + 1) / 2 + {head} * {y:,}), L = {w.inputs:,}"
    again = "blocks + head" if memory.recomputes_blocks(config, w.where) else "head"
    served = f"{w.prompts:,} prompts (prefix shared)" if w.shared_prefix else f"{n:,} prompts"
    how = {
        "prefill": f"{served} * ({block} * {x:,} + {attention} * {x:,} * {x + 1:,} / 2) + {n:,} * {head}",
        "decode": f"{n:,} * {y - 1:,} * ({block} + {head} + {attention} * c), mean c = {x + y / 2:,.1f}",
        "old_logp": f"a forward of {w.minibatches - 1} of {w.minibatches} mini-batches: {forward}",
        "update": f"3 forwards, and {again} again",
    }
    rows = [(name, f"{count:.3e}", how[name]) for name, count in flops.items() if count]
    total, steps = sum(flops.values()), config["train"]["steps"]
    out.sections["FLOPs of a step"] = [*rows, ("= in all", f"{total:.3e}", "")]
    out.sections["the run"].append(("FLOPs", f"{total * steps:.3e}", f"{steps:,} * {total:.3e}"))
    out.numbers |= {f"flops/{name}": count for name, count in flops.items()} | {"flops/total": total}


def _time(out: Plan, config: dict[str, Any], shape: ModelShape, w: Work) -> None:
    d, flops = w.where.device, flops_of_a_step(config, shape, w)
    kind = memory.precision(config, d)
    rate = w.where.devices * d.peak(kind) * d.train_share
    speed = f"({w.where.devices} * {d.peak(kind):.3g} FLOP/s {kind} * {d.train_share} assumed)"
    seconds = {name: flops[name] / rate for name in ("prefill", "old_logp", "update")}
    how = {name: f"{flops[name]:.3e} / {speed}" for name in seconds}
    seconds["decode"], how["decode"] = decode_seconds(config, shape, w, flops["decode"])
    total, steps = sum(seconds.values()), config["train"]["steps"]
    rows = [(name, f"{seconds[name]:,.1f} s", how[name]) for name in flops if flops[name]]
    rows.append(("= in all", f"{total:,.1f} s", "without rewards, weight sync, evaluation, start"))
    out.sections[f"estimated time of a step ({d.source})"] = rows
    device_hours = total * steps * w.where.devices / 3600
    out.sections["the run"].append(("time", f"{total * steps / 3600:,.2f} h", f"{steps:,} * {total:,.1f} s"))
    out.sections["the run"].append(
        ("device-hours", f"{device_hours:,.1f}", f"{w.where.devices} * {total * steps / 3600:,.2f} h")
    )
    out.numbers |= {f"seconds/{name}": value for name, value in seconds.items()} | {"seconds/total": total}


def gib(count: int) -> str:
    """Bytes for people: GiB, MiB from a tenth of a GiB down, bytes under a MiB."""
    if count >= GIB / 10:
        return f"{count / GIB:.2f} GiB"
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count:,} B"


def render(out: Plan, width: int = 160) -> str:
    """The plan as plain text, each number beside the sum that gives it."""
    from rich.console import Console
    from rich.table import Table

    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    console.print(out.title)
    for name, rows in out.sections.items():
        table = Table(
            title=name, title_justify="left", box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0)
        )
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(overflow="fold")
        for row in rows:
            table.add_row(*row)
        console.print()
        console.print(table)
    console.print()
    for finding in out.findings:
        console.print(f"{finding.level}: {finding.text}", soft_wrap=True, markup=False)
    if not out.findings:
        console.print("no findings")
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"  # type: ignore[attr-defined]
