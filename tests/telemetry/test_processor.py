"""The processor's load and memory."""

from __future__ import annotations

from collections import namedtuple

import pytest

from hfta_nb.records import telemetry
from hfta_nb.records.telemetry import processor

Times = namedtuple("Times", "user system idle iowait guest guest_nice")


@pytest.fixture
def cores(monkeypatch):
    """Two cores whose times a test sets."""
    times = [Times(10, 0, 90, 0, 0, 0), Times(20, 0, 80, 0, 0, 0)]
    monkeypatch.setattr(processor.psutil, "cpu_times", lambda percpu: list(times))
    monkeypatch.setattr(processor, "usable_cores", lambda: {0, 1})
    return times


def loads(sample):
    return {k: v for k, v in sample.values.items() if k.startswith("core")}


def test_load_is_the_busy_share_of_the_time_since_the_last_sample(cores):
    busy = telemetry.sampler("cpu")
    cores[:] = [Times(10.5, 0.25, 90.25, 0, 0, 0), Times(20, 0, 81, 0, 0, 0)]
    assert loads(busy.sample()) == {"core0": 0.75, "core1": 0.0}
    cores[:] = [Times(10.5, 0.25, 91.25, 0, 0, 0), Times(21, 0, 81, 0, 0, 0)]
    assert loads(busy.sample()) == {"core0": 0.0, "core1": 1.0}


def test_waiting_for_a_disk_is_idle_and_a_guest_counts_once(cores):
    busy = telemetry.sampler("cpu")
    cores[:] = [Times(10, 0, 90.5, 0.5, 0, 0), Times(20.5, 0, 80.5, 0, 0.5, 0)]
    assert loads(busy.sample()) == {"core0": 0.0, "core1": 0.5}


def test_two_samplers_do_not_shorten_each_others_intervals(cores):
    one, other = telemetry.sampler("cpu"), telemetry.sampler("cpu")
    cores[:] = [Times(11, 0, 90, 0, 0, 0), Times(20, 0, 81, 0, 0, 0)]
    one.sample()
    cores[:] = [Times(11, 0, 91, 0, 0, 0), Times(20, 0, 82, 0, 0, 0)]
    assert loads(one.sample())["core0"] == 0.0
    assert loads(other.sample())["core0"] == 0.5


def test_an_interval_of_a_few_ticks_gives_no_load_and_is_made_up_for(cores):
    busy = telemetry.sampler("cpu")
    cores[:] = [Times(10.01, 0, 90, 0, 0, 0), Times(20, 0, 80.01, 0, 0, 0)]
    assert loads(busy.sample()) == {}
    cores[:] = [Times(10.01, 0, 90.99, 0, 0, 0), Times(20, 0, 81, 0, 0, 0)]
    assert loads(busy.sample()) == {"core0": pytest.approx(0.01), "core1": 0.0}


def test_only_cores_that_may_be_used_are_told_of(cores, monkeypatch):
    monkeypatch.setattr(processor, "usable_cores", lambda: {1})
    busy = telemetry.sampler("cpu")
    cores[:] = [Times(11, 0, 90, 0, 0, 0), Times(20, 0, 81, 0, 0, 0)]
    assert set(loads(busy.sample())) == {"core1"}


def test_in_a_container_that_numbers_its_cores_anew_all_are_told_of(cores, monkeypatch):
    monkeypatch.setattr(processor, "usable_cores", lambda: {6, 7})
    busy = telemetry.sampler("cpu")
    cores[:] = [Times(11, 0, 90, 0, 0, 0), Times(20, 0, 81, 0, 0, 0)]
    assert set(loads(busy.sample())) == {"core0", "core1"}


def test_a_core_that_is_switched_off_starts_the_count_anew(cores):
    busy = telemetry.sampler("cpu")
    del cores[1]
    assert loads(busy.sample()) == {}
    cores[:] = [Times(11, 0, 90, 0, 0, 0)]
    assert loads(busy.sample()) == {"core0": 1.0}


def test_counters_that_fail_are_left_out(monkeypatch):
    def fail(*given, **named):
        raise OSError("not here")

    monkeypatch.setattr(processor.psutil, "cpu_times", fail)
    monkeypatch.setattr(processor.psutil, "virtual_memory", fail)
    values = telemetry.sampler("cpu").sample().values
    assert set(values) == {"process_memory_bytes"}


def test_this_machine():
    with telemetry.sampler("cpu") as busy:
        found = busy.sample()
    assert found.device == "cpu"
    assert 0 < found.values["process_memory_bytes"] < found.values["memory_total_bytes"]
    assert 0 < found.values["memory_bytes"] < found.values["memory_total_bytes"]
    assert all(0 <= v <= 1 for v in loads(found).values())


def test_the_name_tells_of_the_cores(monkeypatch):
    monkeypatch.setattr(processor, "usable_cores", lambda: {3})
    processor.processor_name.cache_clear()
    assert telemetry.device_name("cpu").endswith(", 1 core")
    processor.processor_name.cache_clear()


def test_of_several_gpus_the_runs_own_is_sampled_last():
    assert telemetry.names("cuda:1", 3) == ["cuda:2", "cuda:3", "cuda:1"]
    assert telemetry.names("cuda:0", 1) == ["cuda:0"]
    assert telemetry.names("cpu", 2) == ["cpu"]
