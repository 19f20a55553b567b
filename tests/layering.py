"""The architecture as a table, and a check of the source tree against it.

A *part* is a room directly under hfta_nb, or a module or package in one; `TABLE` lists the parts that it may import, at
the top, inside functions, for type checking only or through `importlib`. Further tables restrict
imports of third-party packages. To change the architecture, change the table first, in a separate commit.
"""

from __future__ import annotations

PACKAGE = "hfta_nb"
FACE = "hfta_nb"
"""The public face: what `hfta_nb/__init__.py` exports."""

_RECIPE = {
    "errors",
    "models.accumulators",
    "models.directions",
    "records.events",
    "search.grid",
    "data",
    "data.augment",
    "models.losses",
    "models.metrics",
    "models.frechet",
}
_RECIPE |= {"errors.border", "models.phases", "models.study_argument", "models.study_config", "models.training_axes"}
_TRAINING = {*_RECIPE, "engine.array", "train.memory", "models.recipes", "optim", "train.step", "train.plan"}
_HEADLESS = {
    *_TRAINING,
    "models.model_zoo",
    "search",
    "records.store",
    "records.telemetry",
    "train",
    "workers.distributed",
    "workers.fleet",
    "records.history",
    "figures.colors",
    "search.averages",
    "figures.html",
    "errors.user_frames",
    "records.regular_files",
    "records.pace",
    "errors.plain_text",
    "figures.tables",
    "errors.border",
}

TABLE: dict[str, set[str]] = {
    **{room: set() for room in ("records", "engine", "models", "workers")},  # what is in them is in parts
    "errors.plain_text": set(),
    "errors": {"errors.plain_text"},
    "records.regular_files": set(),
    "records.pace": set(),
    "errors.border": {"errors"},
    "train.memory": {"errors"},
    "records.events": {"errors.border", "errors"},
    "search.grid": {"errors.border", "errors", "records.events", "errors.plain_text"},
    "records.history": {"errors", "records.events", "errors.plain_text"},
    "search": {"errors.border", "errors", "records.events", "search.grid", "records.regular_files"},
    "search.averages": {"errors.border", "errors", "records.events", "search.grid", "records.history"},
    "figures.html": set(),
    "errors.user_frames": set(),
    "engine.broadcasts": {"errors", "engine.members", "errors.user_frames"},
    "figures.tables": {"errors.plain_text"},
    "records.store": {"errors", "records.events", "errors.plain_text", "records.regular_files"},
    "records.telemetry": {"errors", "records.events"},
    "figures.colors": {"errors", "records.events", "search.grid", "records.history"},
    "data": {
        "errors.border",
        "errors",
        "engine.comparison",
        "engine.equality",
        "engine.random_streams",
        "engine.members",
        "errors.user_frames",
        "records.regular_files",
    },
    "data.augment": {"errors", "records.events", "search.grid", "data"},
    "engine.comparison": {"engine.equality"},
    "engine.equality": {"engine.random_streams"},
    "engine.random_streams": set(),
    "engine.members": {"errors.border", "errors", "engine.comparison", "engine.equality"},
    "engine.kernels": {"errors", "records.regular_files", "engine.members", "engine.comparison", "engine.equality"},
    "engine.rules": {"errors", "engine.members", "engine.kernels"},
    "engine.eager": {
        "errors",
        "engine.broadcasts",
        "engine.comparison",
        "engine.equality",
        "engine.random_streams",
        "errors.user_frames",
        "engine.members",
        "engine.kernels",
        "engine.rules",
    },
    "engine.padded": {
        "errors",
        "engine.comparison",
        "engine.equality",
        "engine.random_streams",
        "engine.members",
        "engine.rules",
        "engine.eager",
    },
    "engine.replay": {
        "errors",
        "engine.comparison",
        "engine.equality",
        "engine.members",
        "engine.kernels",
        "engine.rules",
        "engine.eager",
    },
    "engine.array": {
        "errors.border",
        "errors",
        "engine.broadcasts",
        "engine.comparison",
        "engine.equality",
        "figures.html",
        "engine.members",
        "engine.kernels",
        "engine.rules",
        "engine.eager",
        "engine.padded",
        "engine.replay",
    },
    "optim": {
        "errors.border",
        "errors",
        "engine.kernels",
        "engine.comparison",
        "engine.equality",
        "engine.random_streams",
        "engine.array",
    },
    "models.targets": set(),
    "models.losses": {"errors", "engine.array", "models.targets"},
    "models.frechet": set(),
    "models.accumulators": {"errors", "engine.broadcasts", "errors.user_frames"},
    "models.directions": {"errors"},
    "models.metrics": {
        "errors.border",
        "errors",
        "models.accumulators",
        "engine.array",
        "models.directions",
        "models.losses",
        "models.frechet",
        "models.targets",
    },
    "models.phases": {"errors.border", "errors", "search.grid", "models.losses"},
    "models.training_axes": {"errors", "records.events", "search.grid"},
    "models.study_argument": set(),
    "models.study_config": {"models.losses", "models.study_argument", "search"},  # for types only: see WITHOUT_TORCH
    "models.recipes": {*_RECIPE, "figures.html", "engine.members"},
    "models.model_zoo": {*_RECIPE, "models.recipes"},
    "train.step": {
        "errors",
        "engine.broadcasts",
        "engine.comparison",
        "engine.equality",
        "engine.kernels",
        "engine.array",
        "optim",
        "models.losses",
        "models.metrics",
        "models.phases",
        "models.training_axes",
    },
    "train.plan": {
        "errors",
        "records.events",
        "search.grid",
        "data",
        "data.augment",
        "models.recipes",
        "models.phases",
        "engine.array",
        "train.step",
    },
    "train": {*_TRAINING, "errors.user_frames"},
    "workers.fleet": {
        "errors",
        "records.events",
        "records.regular_files",
        "train.plan",
        "train.step",
        "train",
        "data",
        "figures.tables",
        "workers.distributed",
    },
    "workers.processes": {"errors", "errors.user_frames", "records.events"},
    "workers.executor_table": set(),
    "workers.crews": {
        "workers.executor_table",
        "errors",
        "records.events",
        "data",
        "train.plan",
        "train.step",
        "train",
        "workers.fleet",
        "workers.processes",
        "workers.distributed",
    },
    "workers.distributed": {
        "errors",
        "records.events",
        "engine.members",
        "engine.array",
        "models.metrics",
        "train.step",
        "workers.processes",
    },
    "study": {*_HEADLESS, "engine.comparison", "engine.equality", "workers.crews", "figures"},
    "study.executors": {"study", "errors", "records.events", "records.history", "workers.processes", "workers.crews"},
    "figures": {
        "errors.border",
        "errors",
        "records.events",
        "search.grid",
        "records.history",
        "figures.colors",
        "search.averages",
    },
    "study.callbacks": {"errors", "records.events", "search.grid"},
    "ui": {
        "errors",
        "records.events",
        "search.grid",
        "records.history",
        "figures.colors",
        "figures",
        "records.pace",
        "models.recipes",
        "models.study_argument",
        "models.study_config",
        "records.regular_files",
        "models.model_zoo",
        "study",
        "study.executors",
        "errors.user_frames",
        FACE,
    },
    "cli": {
        "errors",
        "records.events",
        "search.grid",
        "records.history",
        "records.pace",
        "errors.plain_text",
        "records.regular_files",
        "records.store",
        "models.study_argument",
        "models.study_config",
        "study",
        "study.executors",
        "workers.executor_table",
        FACE,
    },
    FACE: {*_HEADLESS, "workers.crews", "study", "study.executors", "study.callbacks"},
    "__main__": {"cli"},
}

SINGLE_MODULES = {
    ("optim", "engine.kernels"): {"hfta_nb.engine.kernels.native.adam"},  # a kernel in C that updates flat tensors
    ("data", "engine.members"): {"hfta_nb.engine.members.own_draws", "hfta_nb.engine.members.process_streams"},
    ("models.recipes", "engine.members"): {
        "hfta_nb.engine.members.own_draws",
        "hfta_nb.engine.members.process_streams",
    },
    ("train.step", "engine.kernels"): {
        "hfta_nb.engine.kernels.cuda_graphs"
    },  # captures whatever runs, an array or a plain module
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
    "sklearn": set(),
    "scipy": set(),
    "matplotlib": {"figures"},
}
"""Packages that are slow to import or optional: where each may be imported at the top of a module."""

_STARTING = {"data", "study.executors", "workers.processes", "workers.crews", "workers.distributed"}

ANYWHERE: dict[str, set[str]] = {
    **{name: {"ui"} for name in JUPYTER},
    "matplotlib": {"figures", "study", "ui"},
    "matplotlib.pyplot": set(),
    "pylab": set(),
    "rich": {"cli", "study"},  # study: the progress bar of `fit`
    "ray": {"workers.crews"},
    "grpc": {"workers.crews"},
    "pickle": {"workers.processes", "workers.crews", "data"},  # data: a reader that calls nothing
    "cloudpickle": {"workers.processes"},
    "threading": {*_STARTING, "engine.members", "engine.kernels"},  # the last two: see docs/decisions/0020 and 0022
    "_thread": {"data", "study.executors"},
    "multiprocessing": {"data", "study.executors"},
    "torch.multiprocessing": {"data", "study.executors"},
    "concurrent.futures": {"data", "study.executors"},
    "subprocess": {"data", "workers.processes", "engine.kernels"},  # kernels: a C compiler (0014), trials (0024)
}
"""Packages that belong to some parts alone, however they are imported."""

LOCKS = {"Lock", "RLock"}
"""Locks start nothing: a part that is called from threads may have these of `threading`, and no more, anywhere."""

WITHOUT_TORCH = {
    "errors",
    "records.events",
    "search.grid",
    "records.history",
    "figures.colors",
    "search",
    "search.averages",
    "figures.html",
    "errors.user_frames",
    "figures.tables",
    "records.regular_files",
}
MAY_PRINT = {"cli", "ui"}
