"""The default tier: its selection, and that it covers everything in the package."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.tiers import DEFAULT

pytest_plugins = ["pytester"]
ROOT = Path(__file__).resolve().parent.parent

TABLE = """
    import pytest

    @pytest.mark.each("row")
    @pytest.mark.parametrize("way", ["a", "b", "c"])
    @pytest.mark.parametrize("row", [1, 2, 3, 4])
    def test_table(row, way): pass

    @pytest.mark.each("row", every=2, begin=1)
    @pytest.mark.parametrize("way", ["a", "b"])
    @pytest.mark.parametrize("row", [1, 2, 3, 4])
    def test_some(row, way): pass

    @pytest.mark.each
    @pytest.mark.parametrize("row", [1, 2])
    def test_one(row): pass

    @pytest.mark.only(dtype=["double", "half"])
    @pytest.mark.parametrize("dtype", ["double", "float", "half"])
    def test_dtypes(dtype): pass

    @pytest.mark.long
    def test_long(): pass

    @pytest.mark.parametrize("row", [1, pytest.param(2, marks=pytest.mark.long)])
    def test_marked(row): pass
"""


@pytest.fixture
def table(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(TABLE)
    markers = "".join(f"    {name}\n" for name in ("each: ", "only: ", "long: "))
    pytester.makeini(f"[pytest]\naddopts = -p tests.tiers -p no:cacheprovider --strict-markers\nmarkers =\n{markers}")
    return pytester


def _ran(run: pytest.RunResult) -> list[str]:
    return [line.partition("::")[2].partition(" ")[0] for line in run.outlines if " PASSED" in line]


def test_the_default_tier_has_a_case_of_each_row_and_every_other_value(table: pytest.Pytester) -> None:
    run = table.runpytest_inprocess("-v", "-m", "not long")
    assert _ran(run) == [
        *("test_table[1-a]", "test_table[2-b]", "test_table[3-c]", "test_table[4-a]"),
        *("test_some[2-a]", "test_some[4-b]"),
        *("test_one[1]", "test_dtypes[double]", "test_dtypes[half]", "test_marked[1]"),
    ]
    run.stdout.fnmatch_lines(["10 passed in * s; left out: 18 long tests (`make test-all` runs them)*"])


def test_all_shares_together_are_everything_once(table: pytest.Pytester) -> None:
    shares = [_ran(table.runpytest_inprocess("-v", "--share", f"{n}/8")) for n in range(8)]
    assert sorted(name for share in shares for name in share) == sorted(_ran(table.runpytest_inprocess("-v")))


def test_a_share_of_the_rest_leaves_the_default_tier_out(table: pytest.Pytester) -> None:
    rest = [name for n in range(3) for name in _ran(table.runpytest_inprocess("-v", "-m", "long", "--share", f"{n}/3"))]
    assert len(rest) == 18
    assert not {"test_one[1]", "test_marked[1]"} & set(rest)


@pytest.mark.parametrize("mark", ['each("rwo")', 'only(rwo="a")'])
def test_a_name_that_is_no_parameter_is_an_error(table: pytest.Pytester, mark: str) -> None:
    table.makepyfile(f"import pytest\n\n@pytest.mark.{mark}\n@pytest.mark.parametrize('row', [1])\ndef test(row): pass")
    run = table.runpytest_inprocess()
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines(["*names*rwo*row*"])


def test_a_share_that_is_none_is_an_error(table: pytest.Pytester) -> None:
    run = table.runpytest_inprocess("--share", "first")
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines(["*--share takes N/M*first*"])


# What the package has, and where in the default tier it is.


@pytest.fixture(scope="module")
def default_tier(request: pytest.FixtureRequest) -> list[str]:
    """Names of the cases in the files with the tables, as `make test` selects them."""
    if [Path(argument).resolve() for argument in request.config.args] == [ROOT / "tests"]:  # all are collected already
        return request.config.stash[DEFAULT]
    files = ["rules", "modules", "module_db", "optimizers", "lr_schedulers", "families"]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not long", "-p", "no:cacheprovider"]
    command += [*(f"tests/contract/test_{name}.py" for name in files), "tests/native/test_checks.py"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "::" in line]


def _lacking(rows: Iterable[object], cases: list[str], test: str) -> list[str]:
    """The rows of a table without a case of this test."""
    ids = ["-" + case.partition("[")[2].rpartition("]")[0] + "-" for case in cases if f"{test}[" in case]
    return [str(row) for row in rows if not any(f"-{row}-" in found for found in ids)]


def test_every_rule(default_tier: list[str]) -> None:
    from tests.contract.test_rules import CASES, name_of

    assert _lacking(map(name_of, CASES), default_tier, "test_rules.py::test_equals_serial") == []


def test_every_module(default_tier: list[str]) -> None:
    from tests.contract.rows import MODULES
    from tests.contract.zoo.kinds import KINDS

    names = [row.name for row in MODULES]
    for test in ("forward_and_gradients", "twenty_steps", "a_lost_member_harms_no_other"):
        assert _lacking(names, default_tier, f"test_modules.py::test_{test}") == []
    assert _lacking((kind.name for kind in KINDS), default_tier, "test_module_db.py::test_kind") == []


def test_every_optimizer_and_lr_scheduler(default_tier: list[str]) -> None:
    from tests.contract.optim_rows import LR_SCHEDULERS, OPTIMIZERS

    assert _lacking(OPTIMIZERS, default_tier, "test_optimizers.py::test_twenty_steps") == []
    cases = [case for case in default_tier if "test_lr_schedulers.py::test_twenty_steps[" in case]
    assert [row.name for row in LR_SCHEDULERS if not any(f"-{row.name} " in case for case in cases)] == []


def test_every_family(default_tier: list[str]) -> None:
    from hfta_nb.models.model_zoo import BUILT_IN
    from tests.contract.test_families import ROWS

    assert {row.name for row in ROWS} == {family.name for family in BUILT_IN}
    cases = [case.replace("_of_several_networks[", "[") for case in default_tier]
    assert _lacking(ROWS, cases, "test_families.py::test_steps") == []


def test_every_kernel(default_tier: list[str]) -> None:
    kernels = [source.stem for source in (ROOT / "hfta_nb" / "engine" / "kernels" / "native").glob("*.c")]
    assert kernels
    assert _lacking(kernels, default_tier, "test_checks.py::test_each_kernel_at_each_width") == []
