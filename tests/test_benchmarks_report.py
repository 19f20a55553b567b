"""The suite's report of its lines: ratios, targets, and what limits a step."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.suite.bars import BARS, verdicts
from benchmarks.suite.report import report, rows_of
from benchmarks.suite.shares import Profile, Spent, held_back, shares


def line(mode: str, ratio: float, **more: Any) -> dict[str, Any]:
    """A line of the suite as far as the report reads it."""
    kept = {"model": "mlp", "members": 8, "precision": "float32", "mode": mode, "measured": True, "agrees": True}
    kept |= {"device": "cpu", "device_name": "abacus", "threads": 1, "versions": {"torch": "2"}, "commit": "c0ffee"}
    kept |= {"command": "python -m benchmarks", "load": {"other_cores_median": 0.0}, "data_share": 0.004}
    both = {"ratio_to_serial": {"median": ratio, "cpu_median": 9.0}, "ratio_to_best_serial": {"median": ratio}}
    return kept | both | {"step_s": {"median": 0.012 / ratio}, "step_cpu_s": {"median": 0.012}} | more


def test_the_report_tells_ratios_bars_and_what_holds_back() -> None:
    limits = {"achieved": 0.25, "bound": "operations", "held_back": {"note": "100% luck"}}
    lines = [
        line("serial", 1.0),
        line("vmap", 2.0),
        line("jax", 4.0),
        line("ours", 3.5, pays_after_steps=120, roofline=limits, samples_per_s=1.0),
        line("ours_split", 3.0),
        line("ours", 0.9, members=2, pays_after_steps=None, roofline=limits, samples_per_s=1.0),
        line("vmap", 0.5, members=2, agrees=False),
    ]
    told = report(lines)
    assert "| mlp | 8 | float32 | 12 | 2.00 | 4.00 | **3.50** | 3.00 |" in told
    assert "| mlp | 2 | float32 | - | does not agree | - | **0.90** | - |" in told
    assert "| at least the best serial | 1 of 2 | mlp x 2 (0.9) |" in told
    assert "| MLP 3 times the best serial, from 8 members | 1 of 1 | - |" in told
    assert "| the split form at least serial | 1 of 1 | - |" in told
    assert "| ahead of `torch.func.vmap` | 1 of 1 | - |" in told  # one that does not agree is no rival
    assert "| ahead of `jax.vmap` (an aim, not a bar) | 0 of 1 | mlp x 8 (0.875) |" in told
    assert "| drawing batches takes at most 2% of a step | 2 of 2 | - |" in told
    assert "| beginning is paid within 200 steps | 1 of 2 | mlp x 2 (never) |" in told
    assert "| mlp | 8 | float32 | 25% (operations) | 0.4% | 120 steps | 100% luck |" in told
    assert "by the clock" in told


def test_on_a_machine_that_was_busy_the_report_is_by_processor_time() -> None:
    told = report([line("serial", 1.0), line("ours", 3.5, load={"other_cores_median": 1.4})])
    assert "by processor time" in told
    assert "**9.00**" in told


def test_bars_of_a_gpu_are_for_the_best_member_count() -> None:
    def ours(members: int, ratio: float, rate: float) -> dict[str, Any]:
        gpu = {"device": "cuda", "model": "pointnet_cls", "precision": "bf16", "members": members}
        return line("ours", ratio, **gpu, samples_per_s=rate, activity={"sm_active": ratio / 30})

    found = verdicts(rows_of([ours(8, 20.0, 5.0), ours(64, 24.0, 9.0), ours(128, 22.0, 8.0)]), False)
    told = {v.bar.what: (v.members, v.passed) for v in found if v.bar.best or "serial" in v.bar.what}
    assert told == {"pointnet_cls 4 times serial with 8 members": (8, True), "SM active 0.9": (64, False)}
    assert len({(bar.what, bar.device) for bar in BARS}) == len(BARS)


def test_slow_products_are_what_holds_back_where_they_lose_most() -> None:
    found = held_back({"products": 0.7, "others": 0.1, "optimizer": 0.1, "data": 0.0, "between": 0.1}, 1.0, 0.35)
    assert (found["most"], found["most_share"]) == ("products", pytest.approx(0.35))
    assert found["note"].startswith("70% products at 50% of the measured rate")
    # Faster than the rate that was measured: nothing is lost to them.
    assert held_back({"products": 0.9, "between": 0.1}, 1.0, 2.0)["most"] == "between"


def test_what_the_profiler_costs_is_taken_off() -> None:
    spent = {"products": Spent(0.5, 10), "others": Spent(0.01, 100)}
    found = shares(Profile(60, 1.0, spent, record_s=0.01))
    assert found == pytest.approx({"products": 0.4, "others": 0.0, "between": 0.6})
    assert shares(Profile(60, 0.2, spent))["between"] == 0.0
