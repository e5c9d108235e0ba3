"""What is known of the devices a run may be planned for, and which ones this computer has. No torch."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, or one CPU thread with the computer's memory."""

    name: str
    bytes: int
    """Memory that torch can use."""
    bf16: float
    """Dense matmul peak in bfloat16, FLOP/s."""
    fp32: float
    """Dense matmul peak in float32 (no TF32), FLOP/s."""
    bandwidth: float | None
    """Memory bandwidth, bytes/s; None: not known."""
    train_share: float
    """Share of the peak that training reaches: an assumption of the estimate of time."""
    decode_share: float
    """Share of the bandwidth (of the peak where the bandwidth is not known) that decoding reaches: an assumption."""
    source: str

    @property
    def cuda(self) -> bool:
        return self.name != "cpu"

    def peak(self, precision: str) -> float:
        """Matmul peak at `float32` or `bfloat16`, FLOP/s."""
        return self.bf16 if precision == "bfloat16" else self.fp32


def host_bytes() -> int:
    """Memory of this computer, or the control group's limit where that is lower."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
    found = [int(text) for path in limits if path.is_file() and (text := path.read_text().strip()).isdigit()]
    return min([total, *found])


M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4
"""Parameters of glibc's mallopt (malloc.h)."""

DEVICES = {
    device.name: device
    for device in (
        Device("h200", int(139.8 * GIB), 989e12, 67e12, 4.8e12, 0.35, 0.6, "NVIDIA H200 SXM data sheet, dense"),
        Device("h100", int(79.1 * GIB), 989e12, 67e12, 3.35e12, 0.35, 0.6, "NVIDIA H100 SXM data sheet, dense"),
        Device("a100", int(79.1 * GIB), 312e12, 19.5e12, 2.039e12, 0.4, 0.6, "NVIDIA A100 80GB SXM data sheet, dense"),
        Device("l40s", int(44.4 * GIB), 362e12, 91.6e12, 0.864e12, 0.35, 0.6, "NVIDIA L40S data sheet, dense"),
        Device(
            "cpu", host_bytes(), 421e9, 169e9, None, 0.3, 0.07,
            "measured on one AVX-512 core: matmul peak; tiny MoE training 0.28-0.36 of it, vLLM decoding 0.07",
        ),
    )
}  # fmt: skip


def device(name: str) -> Device:
    """The device of that name. Raises ValueError for an unknown one."""
    if name not in DEVICES:
        raise ValueError(f"plan.device={name}: accepted are {', '.join(DEVICES)}")
    return DEVICES[name]


def recognise(product: str) -> Device | None:
    """The device that a product name (`NVIDIA H200`, as torch or the driver says it) stands for; None: not known."""
    words = product.lower().replace("-", " ").split()
    if {"40gb", "pcie", "nvl", "mig"} & set(words):  # other peaks or memory than the table's
        return None
    return next((d for d in DEVICES.values() if d.cuda and d.name in words), None)


def here() -> tuple[Device | None, int]:
    """The accelerators of this computer that torch can use and how many; `cpu` and 1 when there are none.

    Read from the driver's files, since asking torch takes seconds. None for an accelerator that is not in the table.
    """
    cards = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = len(cards) if visible is None else min(len(cards), len([v for v in visible.split(",") if v.strip()]))
    if not count or _torch_is_for_cpus():
        return DEVICES["cpu"], 1
    lines = (line.partition(":")[2].strip() for line in cards[0].read_text().splitlines() if line.startswith("Model:"))
    return recognise(next(lines, "")), count


def keep_memory() -> None:
    """Keep freed memory in this process (glibc): activations of a step then reuse pages instead of asking for new ones.

    Without it every large tensor on the CPU is mapped, zeroed by the kernel and given back: a sixth of an
    update's time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(M_TOP_PAD, 2**26)


def _torch_is_for_cpus() -> bool:
    return importlib.util.find_spec("torch") is None or "+cpu" in importlib.metadata.version("torch")


@dataclass(frozen=True, slots=True)
class Where:
    """The devices that a run is checked or planned for."""

    device: Device
    devices: int
    """How many share the model."""
    note: str = ""
    """How they were chosen, when the configuration does not say."""
