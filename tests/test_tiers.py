"""The default tier: what its marks select."""

from __future__ import annotations

import itertools

import pytest

pytest_plugins = ["pytester"]

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
    markers = "".join(f"    {name}\n" for name in ("each: ", "only: ", "long: ", "pairs: "))
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


def test_each_two_values_of_two_parameters_meet(table: pytest.Pytester) -> None:
    values = {"row": [1, 2, 3, 4], "way": ["a", "b", "c"], "block": [0, 1]}
    marks = "\n".join(f"@pytest.mark.parametrize({name!r}, {each})" for name, each in values.items())
    table.makepyfile(f"import pytest\n\n@pytest.mark.pairs\n{marks}\ndef test(row, way, block): pass")
    ran = [name.removeprefix("test[").removesuffix("]").split("-") for name in _ran(table.runpytest_inprocess("-v"))]
    assert len(ran) == 12  # of 24: no fewer have each row in each way
    for one, other in itertools.combinations(range(3), 2):
        assert len({(row[one], row[other]) for row in ran}) == len({r[one] for r in ran}) * len({r[other] for r in ran})


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
