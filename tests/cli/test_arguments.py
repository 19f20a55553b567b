"""Accepted arguments, and error messages for others."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hfta_nb.cli import main, studies
from hfta_nb.cli.options import parse

COMMANDS = ["run", "tune", "plan", "families", "results"]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of arguments that end the program at once."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


USAGE = [
    ((), "no command"),
    (("walk",), "argument COMMAND: invalid choice: 'walk'"),
    (("run", "--epochs", "0"), "argument --epochs: '0' is not a whole number from 1"),
    (("run", "--epochs", "five"), "argument --epochs: 'five' is not a whole number from 1"),
    (("run", "--epochs", "2.5"), "argument --epochs: '2.5' is not a whole number from 1"),
    (("run", "--epochs", "-3"), "argument --epochs: '-3' is not a whole number from 1"),
    (("run", "--epochs"), "argument --epochs: expected one argument"),
    (("run", "--validate-every", "0"), "argument --validate-every: '0' is not a whole number from 1"),
    (("run", "--steps-per-epoch", "x"), "argument --steps-per-epoch: 'x' is not a whole number from 1"),
    (("run", "--resume", "DIR", "--validate-every", "2"), "so --validate-every can't be given with it"),
    (("run", "--patience", "0"), "argument --patience: '0' is not a whole number from 1"),
    (("run", "--member-steps", "0"), "argument --member-steps: '0' is not a whole number from 1"),
    (("run", "--member-seconds", "0"), "argument --member-seconds: '0' is not a number above 0"),
    (("run", "--resume", "DIR", "--member-steps", "9"), "so --member-steps can't be given with it"),
    (("run", "--seed", "-1"), "argument --seed: '-1' is not a whole number from 0"),
    (("run", "--threads", "0"), "argument --threads: '0' is not a whole number from 1 to 1024"),
    (("run", "--threads", "1000000"), "argument --threads: '1000000' is not a whole number from 1 to 1024"),
    (("plan", "--capacity", "most"), "argument --capacity: 'most' is not a whole number from 1, nor auto"),
    (("run", "--compile", "sometimes"), "argument --compile: invalid choice: 'sometimes'"),
    (("run", "--checkpointing", "maybe"), "argument --checkpointing: invalid choice: 'maybe'"),
    (("run", "--verify", "sometimes"), "argument --verify: invalid choice: 'sometimes'"),
    (("run", "--resume", "DIR", "--verify", "never"), "so --verify can't be given with it"),
    (("run", "--resume", "DIR", "--compile", "never"), "so --compile can't be given with it"),
    (("run", "--dtype", "float16"), "argument --dtype: invalid choice: 'float16'"),
    (("run", "--precision", "half"), "argument --precision: invalid choice: 'half'"),
    (("run", "--resume", "DIR", "--precision", "bf16"), "so --precision can't be given with it"),
    (("run", "--check", "best"), "argument --check: 'best' is not a list of member numbers such as 0,3"),
    (("run", "--fast"), "unrecognized arguments: --fast"),
    (("run", "--epoch", "3"), "unrecognized arguments: --epoch 3"),
    (("run", "cnn"), "unrecognized arguments: cnn"),
    (
        ("run", "--resume", "x", "--batch-size", "3"),
        "--resume takes the study as it was saved, so --batch-size can't be given with it",
    ),
    (("run", "--resume", "x", "--lr-scheduler", "step"), "so --lr-scheduler can't be given with it"),
    (("run", "--resume", "x", "--serial"), "so --serial can't be given with it"),
    (("run", "--padding", "1"), "argument --padding: '1' is neither auto, never nor a number from 0 to below 1"),
    (("plan", "--padding", "some"), "argument --padding: 'some' is neither auto, never nor a number"),
    (("run", "--resume", "DIR", "--padding", "never"), "so --padding can't be given with it"),
    (("run", "--output", ""), "argument --output: '' is not the name of a file or directory"),
    (("run", "--resume", " "), "argument --resume: ' ' is not the name of a file or directory"),
    (("run", "--csv", "a\0b"), "argument --csv: 'a\\x00b' is not the name of a file or directory"),
    (("results", ""), "argument DIR: '' is not the name of a file or directory"),
    (("results",), "the following arguments are required: DIR"),
    (("families", "cnn"), "unrecognized arguments: cnn"),
]


@pytest.mark.parametrize(("arguments", "message"), USAGE)
def test_wrong_usage_gives_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = answer(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("hfta-nb: error: ")
    assert message in err
    assert "--help" in err


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_help_explains(capsys: pytest.CaptureFixture[str], command: tuple[str, ...]) -> None:
    code, out, err = answer(capsys, *command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith("usage: hfta-nb")


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = answer(capsys, "--help")
    assert all(f"\n    {name} " in out for name in COMMANDS)


def test_the_example_of_the_help_is_one_that_parses(capsys: pytest.CaptureFixture[str]) -> None:
    import shlex

    _, out, _ = answer(capsys, "run", "--help")
    examples = [line.strip() for line in out.splitlines() if line.startswith("  hfta-nb ")]
    assert len(examples) == 4
    for example in examples:
        given = parse(shlex.split(example)[1:])
        assert given.command == "run"
        if given.resume is None:
            assert studies.new(given).variants


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    import hfta_nb

    code, out, _ = answer(capsys, "--version")
    assert code == 0
    assert out.startswith(f"hfta-nb {hfta_nb.__version__} (torch ")


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["--version"], ["run", "--epochs", "0"]])
def test_help_does_not_wait_for_torch(arguments: list[str]) -> None:
    code = f"""
import sys
from hfta_nb.cli import main
try:
    main({arguments!r})
except SystemExit:
    pass
print(sorted({{m.partition('.')[0] for m in sys.modules}} & {{'torch', 'numpy', 'pandas', 'rich', 'sklearn'}}))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


def test_check_takes_members_or_none() -> None:
    assert parse(["run"]).check is None
    assert parse(["run", "--check"]).check == ()
    assert parse(["run", "--check", "0,#3"]).check == (0, 3)


def test_across() -> None:
    assert parse(["run"]).padding is None
    assert parse(["run", "--padding", "0.4"]).padding == 0.4
    apart = studies.new(parse(["plan", "--family", "mlp", "--grid", "width=8,9", "--padding", "never"]))
    together = studies.new(parse(["plan", "--family", "mlp", "--grid", "width=8,9", "--padding", "0.5"]))
    assert [len(apart.groups()), len(together.groups())] == [2, 1]


def test_devices() -> None:
    asked = ["plan", "--family", "mlp", "--grid", "lr=1e-3", "--device", "cpu"]
    assert studies.new(parse(asked)).devices == 1
    assert studies.new(parse([*asked, "--devices", "3"])).options["devices"] == 3


def test_verify() -> None:
    asked = ["plan", "--family", "mlp", "--grid", "lr=1e-3"]
    assert studies.new(parse(asked)).verify == "first"
    assert studies.new(parse([*asked, "--verify", "never"])).settings().verify == "never"


def test_capacity() -> None:
    assert parse(["run", "--capacity", "4"]).capacity == 4
    assert parse(["plan", "--capacity", "auto", "--checkpointing", "always"]).capacity == "auto"
    for wrong in ("0", "most", "2.5"):
        with pytest.raises(SystemExit):
            parse(["run", "--capacity", wrong])
