"""What is noted beside what was asked and what happened: in which environment, and where each variant is from."""

from __future__ import annotations

import hashlib
import inspect
import platform
import sqlite3
import sys
import time
import warnings
from typing import Any

import torch

from hfta_nb.engine.array.access import kept_times
from hfta_nb.errors import ChoicesWarning
from hfta_nb.records import telemetry
from hfta_nb.study import adding
from hfta_nb.study.study_state import Added, StudyState

PACKAGE = __name__.partition(".")[0]
_CHOICES, _KERNELS = "choices", "kernels"


def environment(study: StudyState) -> None:
    """Note with what this run computes: one for each time that the study is run."""
    store = study.store
    warn_of_other_choices(study)
    store.note("environment", {f"{len(store.notes('environment')):04d}": found(study)})


def found(study: StudyState) -> dict[str, Any]:
    """Versions, device, code and seeds, as plain data."""
    return {
        "time_s": time.time(),
        PACKAGE: str(getattr(sys.modules.get(PACKAGE), "__version__", "")),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "sqlite": sqlite3.sqlite_version,
        "platform": platform.platform(),
        "device": str(study.device),
        "device_name": telemetry.device_name(str(study.device)),
        "threads": torch.get_num_threads(),
        "deterministic": study.deterministic,
        "data_seed": study.seed,
        "family": study.family.name,
        "family_code": _sum_of_code(study.family.function),
    }


def choices(study: StudyState) -> None:
    """Note a fingerprint of what was chosen by time; empty where nothing is, or where it is not kept."""
    found = "" if study.deterministic else kept_times(study.device).fingerprint()
    study.store.note(_CHOICES, {_KERNELS: {"fingerprint": found}})


def warn_of_other_choices(study: StudyState) -> None:
    """Warn where what was chosen by time is not what it was when the run was last saved."""
    before = study.store.notes(_CHOICES).get(_KERNELS, {}).get("fingerprint", "")
    if before and not study.deterministic and not kept_times(study.device).began_as(str(before)):
        what = (
            "the run's kernels and block sizes were chosen by other measurements than those that hold now: it was on "
        )
        what += "another machine, with another number of threads or version, or the folder of the cache is another one"
        warnings.warn(ChoicesWarning(f"{what}; in float32, last bits may differ"), stacklevel=2)


def variants(study: StudyState) -> None:
    """Note each variant's values and seed, and whether the grid or an addition brought it."""
    later = [one for one in study.added for _ in one.variants]
    first = len(study.variants) - len(later)
    origins = ["grid"] * first + [_origin(one) for one in later]
    rows = zip(adding.records(study), origins, strict=True)
    study.store.note(
        "variant", {f"{v.id:06d}": {"config": v.config, "seed": v.seed, "origin": origin} for v, origin in rows}
    )


def _origin(one: Added) -> str:
    if one.parent is not None:
        return f"cloned {'warm' if one.warm else 'cold'} from #{one.parent}"
    return f"added {one.key}".rstrip()


def _sum_of_code(function: Any) -> str:
    """The SHA-256 of a function's or class's source; empty where there is none, as in a bare interpreter."""
    try:
        return hashlib.sha256(inspect.getsource(inspect.unwrap(function)).encode()).hexdigest()
    except (OSError, TypeError, ValueError):
        return ""
