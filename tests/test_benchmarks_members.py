"""The numbers of members that the suite's command measures."""

from __future__ import annotations

import pytest

from benchmarks.suite import command


@pytest.mark.parametrize(
    ("words", "rates", "tried"),
    [
        (["auto"], {1: 10.0, 2: 19.0, 4: 30.0, 8: 31.0, 16: 31.2}, [1, 2, 4, 8, 16]),  # while that helps
        (["capacity"], {}, [1, 2, 4, 8, 16, 32, 64]),  # while they are trained, faster or not
        (["capacity", "--most", "256"], {}, [2**n for n in range(9)]),
        (["capacity", "--most", "3"], {}, [1, 2]),
        (["capacity"], {2: 0.0}, [1, 2]),  # out of memory
    ],
)
def test_members_are_doubled(words: list[str], rates: dict[int, float], tried: list[int]) -> None:
    given = command.parse(["--members", *words, "--device", "cpu"])
    found: list[float] = []
    asked = []
    for members in command._members(given, found):
        asked.append(members)
        found.append(rates.get(members, 1.0))
    assert asked == tried


@pytest.mark.parametrize("words", ["x", "capacity,0", "", "1,,2", "-1", "1.5"])
def test_other_words_are_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.parse([f"--members={words}", "--device", "cpu"])
    assert ended.value.code == 2
    assert f"numbers from 1 such as 1,8,32, or auto, or capacity; not {words!r}" in capsys.readouterr().err
