"""The options of the command line. Imports nothing slow, so that `--help` answers at once."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from hfta_nb import __version__
from hfta_nb.errors.plain_text import encodes, visible
from hfta_nb.models.study_argument import Argument
from hfta_nb.models.study_config import ARGUMENTS, FLAGS, RENAMED
from hfta_nb.workers.executor_table import EXECUTORS, INLINE, NAMES

PROGRAM = "hfta-nb"

MOST_THREADS = 1024
"""As in `hfta_nb.workers.processes.cores`."""

DESCRIPTION = "Train many variants of a model as one (a horizontally fused training array), without a notebook."

EXAMPLES = """\
examples:
  hfta-nb run --family cnn --data digits --grid lr=1e-3,3e-3,1e-2 --grid width=8,16 --epochs 5
  hfta-nb run --family mlp --grid 'lr=logspace(1e-4,1e-1,6)' --grid 'seed=seeds(3)' --set optimizer=sgd
  hfta-nb plan --family mlp --grid width=8,16 --grid lr=1e-3,1e-2
  hfta-nb families
  hfta-nb tune study.toml
  hfta-nb runs
  hfta-nb results hfta_runs/RUN
  hfta-nb doctor
"""

GRID_HELP = """\
values of an axis:
  lr=1e-3,3e-3,1e-2          a list of numbers, words, true/false or none
  lr=logspace(1e-4,1e-1,4)   4 values from 1e-4 to 1e-1, each the same multiple of the one before
  dropout=linspace(0,0.5,3)  3 evenly spaced values
  depth=integers(1,4)        1, 2, 3, 4
  seed=seeds(3)              0, 1, 2
(quote values with parentheses; `hfta-nb families` lists the axes)
"""

RUN_EXAMPLES = """\
examples:
  hfta-nb run --family cnn --data digits --grid lr=1e-3,3e-3,1e-2 --grid width=8,16 --epochs 5
  hfta-nb run --family mlp --grid 'lr=logspace(1e-4,1e-1,6)' --epochs 50 --patience 5 --csv results.csv
  hfta-nb run --family mlp --grid lr=1e-3,1e-2 --set width=32 --set weight_decay=0.01 --check
  hfta-nb run --resume hfta_runs/RUN

Ctrl-C stops between two steps and keeps everything; a second Ctrl-C exits at once.
Exit code: 0; 1 if the run failed or a check found a difference; 2 for wrong input; 130 if it was interrupted.
"""

TUNE_EXAMPLES = """\
a file:
  family = "mlp"
  data = "digits"
  epochs = 9
  trials = 32
  sampler = "tpe"
  pruner = "asha"
  directory = "hfta_runs/first"       # by default hfta_runs/NAME-OF-THE-FILE

  [space]
  lr = { low = 1e-4, high = 1e-1, log = true }
  width = { low = 8, high = 64, step = 8 }
  activation = ["relu", "gelu"]

  [fixed]
  optimizer = "adam"

Other keys are the options of `hfta-nb run`, with _ for -. Without trials, every combination of lists is trained.

Ctrl-C stops between two steps and keeps everything; the same command goes on. More epochs or trials in the file are
trained as well. Exit code: 0; 1 if the run failed; 2 for wrong input; 130 if it was interrupted.
"""

ATTACHED = "Ctrl-C leaves the run alone; hfta-nb stop DIR stops it."

OF_THE_STUDY = ("family", "data", "grid", "set", "lr", "optimizer", "lr_scheduler", "output", *FLAGS)
"""Options that define a study, which can't be given with --resume; --epochs can, as it makes a run longer."""


class UsageError(SystemExit):
    """Options that can't be understood; the message is one line."""

    def __init__(self, message: str) -> None:
        super().__init__(2)
        self.message = message


class _Parser(argparse.ArgumentParser):
    """Raises errors, in one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{visible(message)}; see {self.prog} --help")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        try:
            torch = version("torch")
        except PackageNotFoundError:
            torch = "not installed"
        print(f"{PROGRAM} {__version__} (torch {torch}, Python {sys.version.split()[0]})")
        raise SystemExit(0)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments as a namespace; `command` is the name of a module of `hfta_nb.cli`.

    Raises:
        SystemExit: after --help and --version, with code 0.
        UsageError: on wrong usage.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.command is None:
        parser.error("no command")
    if given.command == "run":
        _check_run(parser, given)
    return given


def _parser() -> argparse.ArgumentParser:
    parser = _command(None, PROGRAM, DESCRIPTION, EXAMPLES)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=_Parser)

    run = _command(commands, "run", "train a grid of variants", GRID_HELP + "\n" + RUN_EXAMPLES)
    _study_options(run)
    _option(run, "serial")
    run.add_argument(
        "--output", metavar="DIR", type=_path, help="directory of the run (default: a new folder in hfta_runs)"
    )
    run.add_argument(
        "--resume",
        metavar="DIR",
        type=_path,
        help="resume the run in DIR from its last checkpoint, with --epochs N up to N epochs",
    )
    *others, last = (f"in {one.text}" for one in EXECUTORS.values())
    where = f"where arrays train: {', '.join(['in this process', *others])}, or {last} (default: {INLINE})"
    run.add_argument("--executor", choices=NAMES, help=where)
    run.add_argument("--workers", metavar="N", type=_whole(1), help="the most processes or actors at a time")
    run.add_argument("--address", metavar="ADDRESS", help="of the Ray cluster, such as auto (default: a new one here)")
    run.add_argument("--trust", action="store_true", help="with --resume: import the constructor that DIR names")
    shown = run.add_argument_group("display and check")
    _csv_option(shown)
    check = "retrain these members alone afterwards and compare (default: the best one)"
    shown.add_argument("--check", metavar="IDS", nargs="?", const=(), type=_numbers, help=check)
    shown.add_argument("--plain", action="store_true", help="plain lines (the default if output is not a terminal)")
    shown.add_argument("--quiet", action="store_true", help="the leaderboard only")

    tune = _command(commands, "tune", "run the study of a TOML file, or go on with it", TUNE_EXAMPLES)
    tune.add_argument("file", metavar="FILE", type=_path, help="the study: family, data, space, trials, ...")
    tune.add_argument("--plain", action="store_true", help="plain lines (the default if output is not a terminal)")
    tune.add_argument("--quiet", action="store_true", help="the leaderboard only")
    _csv_option(tune)
    _threads_option(tune)

    plan = _command(commands, "plan", "show which variants train together, and why others don't", GRID_HELP)
    _study_options(plan)

    _command(commands, "families", "list the model families, their data and their axes", "")
    _command(commands, "doctor", "say what this machine has, and what it costs where something is missing", "")

    results = _command(commands, "results", "show the leaderboard of a run", "")
    results.add_argument("directory", metavar="DIR", type=_path, help="the folder of the run")
    results.add_argument("--follow", action="store_true", help="first show how it goes on, until it ends or Ctrl-C")
    _csv_option(results)

    runs = _command(commands, "runs", "list the runs of a folder, the latest first", "")
    runs.add_argument("folder", metavar="FOLDER", nargs="?", type=_path, default="hfta_runs", help="default: hfta_runs")
    attach = _command(commands, "attach", "show how a run of another process goes on, such as a Workbench's", ATTACHED)
    stop = _command(commands, "stop", "stop a run of another process, such as a Workbench's", "")
    for command in (attach, stop):
        command.add_argument("directory", metavar="DIR", type=_path, help="the folder of the run")
    return parser


def _command(commands: Any, name: str, text: str, epilog: str) -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    description = text[0].upper() + text[1:].rstrip(".") + "."
    if commands is None:
        return _Parser(name, description=description, epilog=epilog, formatter_class=form, allow_abbrev=False)
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=description, epilog=epilog, formatter_class=form, allow_abbrev=False
    )
    parser.add_argument("--json", action="store_true", help="print lines of JSON, for programs")
    return parser


def _study_options(parser: argparse.ArgumentParser) -> None:
    study = parser.add_argument_group("the study")
    study.add_argument("--family", metavar="NAME", help="the model family, for example cnn")
    study.add_argument("--data", metavar="NAME", help="the data set (default: the family's first)")
    grid = "an axis and its values; may be repeated, every combination is a variant"
    study.add_argument("--grid", metavar="AXIS=VALUES", action="append", help=grid)
    study.add_argument(
        "--set", metavar="AXIS=VALUE", action="append", help="one value for all variants; may be repeated"
    )
    study.add_argument("--lr", metavar="X", help="learning rate of all variants")
    study.add_argument("--optimizer", metavar="NAME", help="optimizer of all variants (hfta-nb families lists them)")
    study.add_argument("--lr-scheduler", metavar="NAME", help="lr scheduler of all variants (likewise)")
    more = parser.add_argument_group("the study in detail")
    for name in FLAGS:
        if name != "serial":  # of a run only
            _option(study if ARGUMENTS[name].basic else more, name)
    _threads_option(more)


def _option(parser: Any, name: str) -> None:
    """The option of an argument of the study; omitted, it is None."""
    known = ARGUMENTS[name]
    how: dict[str, Any] = {"metavar": known.metavar, "choices": known.choices or None, "type": _reader(name)}
    if known.type == "bool":
        how = {"action": "store_true", "default": None}
    elif "Sequence" in known.type and known.choices:
        how["nargs"] = "+"
    parser.add_argument("--" + name.replace("_", "-"), help=known.hint, **how)
    for old in (old for old, new in RENAMED.items() if new == name):
        parser.add_argument("--" + old, dest=name, help=argparse.SUPPRESS, **how)


def _reader(name: str) -> Callable[[str], Any] | None:
    """What reads an option's text, where that is more than a word."""
    known = ARGUMENTS[name]
    of_type = _whole(known.low) if known.bare_type == "int" and known.low is not None else _number(known)
    special: dict[str, Any] = {"padding": _padding, "capacity": _capacity, "folds": _whole(2)}
    return special.get(name, of_type if known.range else None)


def _threads_option(parser: Any) -> None:
    parser.add_argument(
        "--threads", metavar="N", type=_whole(1, MOST_THREADS), help="torch threads on the CPU (default: automatic)"
    )


def _csv_option(parser: Any) -> None:
    parser.add_argument("--csv", metavar="FILE", type=_path, help="also write the leaderboard to FILE")


def _check_run(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    if given.resume is None:
        if given.trust:
            parser.error("--trust goes with --resume")
        return
    for name in OF_THE_STUDY:
        if name != "epochs" and getattr(given, name) is not None:
            option = "--" + name.replace("_", "-")
            parser.error(f"--resume takes the study as it was saved, so {option} can't be given with it")


def _whole(low: int, high: int | None = None) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if number < low or (high is not None and number > high):
            to = "" if high is None else f" to {high}"
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low}{to}")
        return number

    return read


def _number(known: Argument) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not known.has_in_range(number):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number {known.range}")
        return number

    return read


def _path(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a file or directory")
    if not encodes(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not UTF-8")
    return text


def _capacity(text: str) -> int | str:
    if text == "auto":
        return text
    try:
        return _whole(1)(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, nor auto") from None


def _padding(text: str) -> float | str:
    if text in ("auto", "never"):
        return text
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is neither auto, never nor a number from 0 to below 1")
    return share


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part.strip().removeprefix("#")) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of member numbers such as 0,3") from None
