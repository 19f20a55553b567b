"""The process of one member, which answers each line of JSON by another. Started by
`benchmarks.suite.modes.processes`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import Any

import psutil
import torch

from benchmarks.suite.job import Job, numbers
from benchmarks.suite.modes.serial import PlainTrainer
from benchmarks.suite.tasks import Feed


class Member:
    """The state of the process."""

    def __init__(self) -> None:
        self.trainer: PlainTrainer | None = None
        self.done = 0
        self.context = contextlib.ExitStack()

    def build(self, job: dict[str, Any], index: int) -> dict[str, Any]:
        self.forget()
        given = Job(**job)
        self.context.enter_context(numbers(given))
        feed = Feed(given.task, given.where)
        self.trainer = PlainTrainer(given, given.task.member(index), given.lrs[index], feed)
        return {}

    def train(self, steps: int) -> dict[str, Any]:
        assert self.trainer is not None
        cpu_s = time.process_time()
        losses = self.trainer.train(self.done, steps)
        found = torch.stack(losses).double().tolist()  # waits for a GPU
        self.done += steps
        return {"cpu_s": time.process_time() - cpu_s, "losses": found}

    def forget(self) -> dict[str, Any]:
        self.trainer, self.done = None, 0
        self.context.close()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        return {}

    def memory(self) -> dict[str, Any]:
        assert self.trainer is not None
        if self.trainer.job.where.type == "cuda":
            return {"bytes": torch.cuda.max_memory_allocated()}
        return {"bytes": int(psutil.Process().memory_full_info().uss)}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # printed text must not mix with the answers
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))
    member = Member()
    for line in sys.stdin:
        message = json.loads(line)
        try:
            found = getattr(member, message.pop("do"))(**message)
        except Exception as error:
            found = {"why": f"{type(error).__name__}: {str(error)[:300]}"}
        answers.write(json.dumps(found) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
