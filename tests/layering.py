"""The architecture as a table, and a check of the source tree against it.

A *part* is a room directly under hfta_nb, or a module or package in one; `TABLE` lists the parts that it may import, at
the top, inside functions, for type checking only or through `importlib`. Further tables restrict
imports of third-party packages. To change the architecture, change the table first, in a separate commit.
"""

from __future__ import annotations

PACKAGE = "hfta_nb"
FACE = "hfta_nb"
"""The public face: what `hfta_nb/__init__.py` exports."""

_ROWS = """
RECIPE: errors errors.border records.events search.grid data data.augment models.losses models.frechet
    models.accumulators models.directions models.imbalance models.metrics models.phases models.training_axes
    models.study_argument models.study_config models.weights
TRAINING: RECIPE train.memory engine.array optim models.recipes train.step train.plan
HEADLESS: TRAINING errors.plain_text records.regular_files records.pace records.history records.speeds
    records.summaries search search.averages figures.html errors.user_frames figures.tables records.store
    records.telemetry figures.colors models.model_zoo models.ensembles train workers.fleet workers.distributed
records:
engine:
models:
workers:
errors.plain_text:
errors: errors.plain_text
records.regular_files:
records.pace:
records.entry_points: errors
errors.border: errors
train.memory: errors
records.events: errors errors.border
search.grid: errors.plain_text errors errors.border records.events
records.history: errors.plain_text errors records.events
records.speeds: records.events records.history
records.summaries: errors.plain_text errors records.events records.history records.store
search: errors records.regular_files errors.border records.events search.grid
search.averages: errors errors.border records.events search.grid records.history
figures.html:
errors.user_frames:
engine.broadcasts: errors errors.user_frames engine.members
figures.tables: errors.plain_text
records.store: errors.plain_text errors records.regular_files records.events
records.telemetry: errors records.events
figures.colors: errors records.events search.grid records.history
data: errors records.regular_files errors.border errors.user_frames engine.comparison engine.equality
    engine.random_streams engine.members
data.augment: errors records.events search.grid data
engine.comparison: engine.distances engine.equality
engine.distances: engine.equality
engine.equality: engine.random_streams
engine.random_streams:
engine.members: errors errors.border engine.comparison engine.equality
engine.kernels: errors records.regular_files engine.comparison engine.equality engine.members
engine.rules: errors records.entry_points engine.members engine.kernels
engine.eager: errors errors.user_frames engine.broadcasts engine.comparison engine.equality engine.random_streams
    engine.members engine.kernels engine.rules
engine.padded: errors engine.comparison engine.equality engine.random_streams engine.members engine.rules engine.eager
engine.replay: errors engine.comparison engine.distances engine.equality engine.members engine.kernels engine.rules
    engine.eager
engine.array: errors errors.border figures.html engine.broadcasts engine.comparison engine.equality engine.members
    engine.kernels engine.rules engine.eager engine.padded engine.replay
optim: errors errors.border engine.comparison engine.equality engine.random_streams engine.kernels engine.array
models.targets:
models.masks: data engine.array models.targets
models.member_losses: errors engine.array models.masks
models.losses: errors data engine.array models.targets models.masks models.member_losses
models.imbalance: errors search.grid data engine.array models.targets models.losses models.masks models.member_losses
models.metric_sums: data
models.frechet:
models.accumulators: errors errors.user_frames engine.broadcasts
models.directions: errors
models.metrics: errors errors.border data engine.array models.targets models.losses models.frechet models.accumulators
    models.directions models.masks models.metric_sums
models.ensembles: models.losses
models.phases: errors errors.border search.grid models.losses
models.training_axes: errors records.events search.grid
models.study_argument:
models.weights: errors
models.study_config: search models.losses models.study_argument
models.recipes: RECIPE figures.html engine.members
models.model_zoo: RECIPE models.recipes records.entry_points
train.step: errors engine.broadcasts engine.comparison engine.distances engine.equality engine.kernels engine.array
    optim models.losses models.imbalance models.metrics models.phases models.training_axes
train.plan: errors records.events search.grid data data.augment engine.array models.imbalance models.phases
    models.recipes train.step
train: TRAINING errors.user_frames
workers.fleet: errors records.regular_files records.events figures.tables data train.step train.plan train
    workers.distributed
workers.processes: errors records.events errors.user_frames
workers.executor_table:
workers.pools: errors records.events data train.step train.plan train workers.fleet workers.processes
    workers.executor_table workers.distributed
workers.distributed: errors records.events engine.members engine.array models.losses models.metrics models.model_zoo
    optim train.step workers.processes
study: HEADLESS engine.comparison engine.distances engine.equality workers.pools figures study.callbacks
study.executors: errors records.events records.history workers.processes workers.pools study
study.estimators: errors records.events data models.losses models.recipes models.study_config study
sklearn: study.estimators
figures: errors errors.border records.events search.grid records.history records.speeds search.averages figures.colors
study.callbacks: errors records.entry_points records.events search.grid
ui: errors records.regular_files records.pace records.events search search.averages search.grid records.history
    records.speeds records.summaries errors.user_frames figures.colors models.study_argument models.study_config
    models.recipes models.model_zoo study study.executors figures hfta_nb
cli: errors.plain_text errors records.regular_files records.pace records.events search.grid records.history
    records.speeds records.summaries
    records.store models.study_argument models.study_config workers.executor_table study study.executors hfta_nb
hfta_nb: HEADLESS workers.pools study study.executors study.callbacks
__main__: cli
"""
"""``part: what it may import``; a line that begins with spaces continues. A name in capitals stands for its whole row.

What is in records, engine, models and workers is in parts. What models.study_config imports is for types only: see
`WITHOUT_TORCH`.
"""


def _read(rows: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for row in rows.replace("\n    ", " ").strip().splitlines():
        name, _, below = row.partition(":")
        found[name] = set().union(*(found[part] if part.isupper() else {part} for part in below.split()))
    return {name: below for name, below in found.items() if not name.isupper()}


TABLE = _read(_ROWS)

_DRAWS = {"hfta_nb.engine.members.own_draws", "hfta_nb.engine.members.process_streams"}
SINGLE_MODULES = {
    ("optim", "engine.kernels"): {"hfta_nb.engine.kernels.native.adam"},  # a kernel in C that updates flat tensors
    ("data", "engine.members"): _DRAWS,
    ("models.recipes", "engine.members"): _DRAWS,
    # captures whatever runs, an array or a plain module
    ("train.step", "engine.kernels"): {
        "hfta_nb.engine.kernels.capture",
        "hfta_nb.engine.kernels.strategy.matmul_precision",
    },
}
"""(part, other): of these a part may import the named modules only. None of these modules knows of arrays."""

FACE_ONLY = {
    ("ui", "models.model_zoo"),
    ("ui", "study"),
    ("ui", "study.executors"),
    ("cli", "study"),
    ("cli", "study.executors"),
}
"""(part, other): of these a part may import public names only, and from the package, not from a module within."""

JUPYTER = {"IPython", "ipywidgets", "anywidget", "traitlets", "ipykernel", "jupyterlab", "jupyter_client", "comm"}

AT_TOP: dict[str, set[str]] = {
    "pandas": {"figures.tables"},
    "optuna": set(),
    "ray": set(),
    "grpc": set(),
    "sklearn": {"study.estimators"},
    "scipy": set(),
    "matplotlib": {"figures"},
}
"""Packages that are slow to import or optional: where each may be imported at the top of a module."""

_STARTING = {"data", "study.executors", "workers.processes", "workers.pools", "workers.distributed"}

ANYWHERE: dict[str, set[str]] = {
    **{name: {"ui"} for name in JUPYTER},
    "matplotlib": {"figures", "study", "ui"},
    "matplotlib.pyplot": set(),
    "pylab": set(),
    "rich": {"cli", "study"},  # study: the progress bar of `fit`
    "ray": {"workers.pools"},
    "grpc": {"workers.pools"},
    # data: a reader that calls nothing; replay: a graph on its way to the process that compiles it (0015)
    "pickle": {"workers.processes", "workers.pools", "data", "engine.replay"},
    "cloudpickle": {"workers.processes"},
    "threading": {*_STARTING, "engine.members", "engine.kernels"},  # the last two: see docs/decisions/0020 and 0022
    "_thread": {"data", "study.executors"},
    "multiprocessing": {"data", "study.executors"},
    "torch.multiprocessing": {"data", "study.executors"},
    "concurrent.futures": {"data", "study.executors"},
    # kernels: a C compiler (0014), trials (0024); replay: torch.compile's compiler (0015)
    "subprocess": {"data", "workers.processes", "engine.kernels", "engine.replay"},
}
"""Packages that belong to some parts alone, however they are imported."""

LOCKS = {"Lock", "RLock"}
"""Locks start nothing: a part that is called from threads may have these of `threading`, and no more, anywhere."""

WITHOUT_TORCH = {
    "errors",
    "records.events",
    "search.grid",
    "records.history",
    "records.speeds",
    "figures.colors",
    "search",
    "search.averages",
    "figures.html",
    "errors.user_frames",
    "figures.tables",
    "records.regular_files",
}
MAY_PRINT = {"cli", "ui"}
