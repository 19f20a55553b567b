"""The numbers of members that the suite's command measures."""

from __future__ import annotations

import pytest

from benchmarks.suite import command


@pytest.mark.parametrize(
    ("words", "tried"),
    [([], [1, 2, 4, 8, 16, 32, 64]), (["--most", "256"], [2**n for n in range(9)]), (["--most", "3"], [1, 2])],
)
def test_capacity_doubles_the_members_while_they_are_trained(words: list[str], tried: list[int]) -> None:
    given = command.parse(["--members", "capacity", "--device", "cpu", *words])
    rates: list[float] = []
    found = []
    for members in command._members(given, rates):
        found.append(members)
        rates.append(1.0)  # no faster, which is not asked
    assert found == tried
    rates = []
    for members in command._members(given, rates):
        rates.append(0.0 if members > 1 else 1.0)  # out of memory
    assert rates == [1.0, 0.0]


@pytest.mark.parametrize("words", ["x", "capacity,0", "", "1,,2", "-1", "1.5"])
def test_other_words_are_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.parse([f"--members={words}", "--device", "cpu"])
    assert ended.value.code == 2
    assert f"numbers from 1 such as 1,8,32, or auto, or capacity; not {words!r}" in capsys.readouterr().err
