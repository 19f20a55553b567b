"""How busy the device is."""

from __future__ import annotations

import platform
import time

import psutil

from hfta_nb.events import DeviceSampled


class Sampler:
    """Measures the processor."""

    def __init__(self, device: str) -> None:
        self.device = device
        psutil.cpu_percent(percpu=True)
        self._process = psutil.Process()

    def sample(self) -> DeviceSampled:
        """What happened since the last sample."""
        values = {f"core{i}": load / 100 for i, load in enumerate(psutil.cpu_percent(percpu=True))}
        memory = psutil.virtual_memory()
        values["memory_bytes"] = float(memory.used)
        values["memory_total_bytes"] = float(memory.total)
        values["process_memory_bytes"] = float(self._process.memory_info().rss)
        return DeviceSampled(time.time(), self.device, values)


def sampler(device: str) -> Sampler:
    """A sampler of a device."""
    return Sampler(device)


def device_name(device: str) -> str:
    """The device's name, for people."""
    return platform.processor() or platform.machine()
