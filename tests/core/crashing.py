"""A study that is killed repeatedly: ``python -m tests.core.crashing DIRECTORY KILLS EPOCHS SEED``.

This process imports the modules and computes nothing. It forks a child for each attempt, which continues the study
until it is killed at a random time; the last child may end. Therefore an attempt costs no import.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sys
import traceback
from pathlib import Path

import hfta_nb as hfta
from hfta_nb.records import events as ev
from hfta_nb.train import schedule
from hfta_nb.train.schedule import Schedule

LONGEST_S = 0.3
"""A child is killed by then; by the last of its steps it writes a checkpoint each few milliseconds."""


def make(place: Path, epochs: int = 3) -> hfta.Study:
    grid = {"lr": [1e-3, 1e-2], "width": [4, 8]}
    options = {"epochs": epochs, "dropout": 0.2, "lr_scheduler": "cosine", "batch_size": 16, "patience": 4}
    return hfta.Study(
        "mlp", grid, "iris", directory=place, device="cpu", deterministic=True, padding="never", **options
    )


def save_at_each_step() -> None:
    """Have checkpoints between any two steps, so that kills meet them in all their stages."""
    schedule.CHECKPOINT_SHARE = 1e9
    Schedule.__init__.__defaults__ = tuple(0.0 if v == 10.0 else v for v in Schedule.__init__.__defaults__ or ())


def attempt(place: Path, epochs: int) -> None:
    """Carry the study on to its end; an attempt killed between that and the end of its process leaves nothing to do."""
    study = make(place, epochs)
    if study.store.exists and hfta.Study.load(place).history.state == ev.COMPLETE:
        return
    list(study.run(resume=study.store.exists))


def main(place: Path, kills: int, epochs: int, seed: int) -> int:
    """Kill so many children, then let one run to the end; returns how many were killed before the study had ended."""
    save_at_each_step()
    make(place.with_name("never_run"), epochs)  # so that no child needs to import what reads the data
    chance = random.Random(seed)
    for number in range(kills + 1):
        child = os.fork()
        if not child:
            try:
                attempt(place, epochs)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        watched = os.pidfd_open(child)
        limit_s = chance.uniform(0.0, LONGEST_S) if number < kills else 60.0
        ended = bool(select.select([watched], [], [], limit_s)[0])
        if not ended:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.close(watched)
        if ended:
            return number if os.waitstatus_to_exitcode(status) == 0 else -1
    return -1


if __name__ == "__main__":
    directory, *numbers = sys.argv[1:]
    sys.stdout.write(f"{main(Path(directory), *map(int, numbers))}\n")
