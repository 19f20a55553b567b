"""Utilization of the device: load per core and memory of a processor; SM, tensor and DRAM activity of an NVIDIA GPU.

A sampler measures only when it is called.
"""

from __future__ import annotations

from hfta_nb.records.telemetry.processor import ProcessorSampler, processor_name
from hfta_nb.records.telemetry.sampler import Sampler

__all__ = ["device_name", "names", "sampler"]


def sampler(device: str) -> Sampler:
    """A sampler of a device; `close` it when the work is done.

    Args:
        device: as torch names it: "cpu", "cuda", "cuda:1", ... A GPU whose counters can't be read (no NVML, no
            permission) gives samples with fewer values, or with none.

    Example:
        >>> with sampler("cpu") as busy:
        ...     sorted(busy.sample().values)[:1]
        ['memory_bytes']
    """
    if device.startswith("cuda"):
        from hfta_nb.records.telemetry.gpu import GpuSampler

        return GpuSampler(device)
    return ProcessorSampler(device)


def names(device: str, count: int) -> list[str]:
    """The devices to sample where `count` of them train: from `device` on, which comes last, as does its sample then.

    Processes on a CPU share it: it is one device.

    Example:
        >>> names("cuda:2", 2)
        ['cuda:3', 'cuda:2']
    """
    kind, _, index = device.partition(":")
    further = range(1, count) if kind == "cuda" else ()
    return [*(f"{kind}:{int(index or 0) + place}" for place in further), device]


def device_name(device: str) -> str:
    """The device's name and size for people: "NVIDIA H200, 139 GiB".

    Args:
        device: as torch names it: "cpu", "cuda", "cuda:1", ...
    """
    if device.startswith("cuda"):
        from hfta_nb.records.telemetry.gpu import gpu_name

        return gpu_name(device)
    return processor_name()
