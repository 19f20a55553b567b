"""Writes docs/coverage.md, the list of what is fused and how, from the tables of the contract tests and from test runs.

Usage: python -m tests.coverage_page           writes the page (through `make coverage-page`)
       python -m tests.coverage_page --check   tells whether the page is up to date
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.members.tree import flatten, unflatten
from hfta_nb.engine.padded.rules import PADDED
from tests.contract.across_rows import ROWS as ACROSS
from tests.contract.zoo import timm_models, torchvision_models, transformers_language, transformers_others
from tests.contract.zoo.agree import Sample
from tests.contract.zoo.kinds import KINDS, builder, inputs, members, samples
from tests.contract.zoo.model import Model
from tests.contract.zoo.more_kinds import KINDS as MORE
from tests.contract.zoo.more_kinds import NOT_TESTED

PAGE = Path(__file__).resolve().parent.parent / "docs" / "coverage.md"
MODELS = (
    *torchvision_models.MODELS,
    *timm_models.MODELS,
    *transformers_language.MODELS,
    *transformers_others.MODELS,
)
_MEMBERS, _SAMPLES = 2, 8
_CPU = torch.device("cpu")

HEAD = """\
# Coverage

What is fused, and how. Written by `make coverage-page` from the tables of the contract tests, each row of which is held
to be equal to the plain module trained alone; a test compares this page with what the code does.

- **vmap**: all members in one call, by torch's own batching rules.
- **own rule**: all members in one call, by a rule of this project, because `vmap` lacks the function or runs it badly.
- **member by member**: members run one after another inside this function; everything else is one call.
- **apart**: a whole submodule runs one member at a time, because its control flow depends on its values.

The last two are always reported: `array.explain()` names the function or submodule and the reason.
"""


def page() -> str:
    """The whole page."""
    parts = [
        HEAD,
        f"Made with torch {torch.__version__.partition('+')[0]} on a CPU.\n",
        _section("Module kinds", "Torch's own list of module kinds, with torch's sample inputs.", _kinds()),
        _section("More module kinds", "Those that the list leaves out, or uses that its samples leave out.", _more()),
        "Not tested: " + "; ".join(f"`{name}` ({why})" for name, why in NOT_TESTED.items()) + ".\n",
        _section("Whole models", "Built small, with random weights, from unmodified definitions.", _models()),
        _section("Members of different architecture", _PADDING, _across()),
        _section("Optimizers", "Each hyperparameter is one value, or one per member.", _optimizers()),
        _section("Learning rate schedulers", "Each setting is one value, or one per member.", _lr_schedulers()),
        _section("Between backward and step", "Done for each member by itself.", _transformations()),
    ]
    return "\n".join(parts)


_PADDING = (
    "Narrow members are padded with zeros and masked exactly. Functions with a padding rule: "
    + ", ".join(sorted({f"`{f.__name__}`" for f in PADDED if not getattr(f, "__name__", "__").startswith("__")}))
    + ". All others run at true sizes, once per group of like members.\n\n"
    "Rows of the contract test, and the share of the parameters that is padding:"
)


def _section(title: str, text: str, rows: Iterable[Sequence[str]]) -> str:
    head, *body = list(rows)
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in body)]
    return f"## {title}\n\n{text}\n\n" + "\n".join(lines) + "\n"


def _kinds() -> Iterator[Sequence[str]]:
    yield "kind", "fused by", "functions"
    for kind in KINDS:
        told: dict[str, str] = {}
        for sample in samples(kind, torch.float64, _CPU, True, _SAMPLES):
            told |= _explained(builder(kind, sample), inputs(sample))
        yield (f"`{kind.name}`", *_summary(told))


def _more() -> Iterator[Sequence[str]]:
    yield "kind", "fused by", "functions"
    for kind in MORE:
        torch.manual_seed(0)
        yield (kind.name, *_summary(_explained(kind.build, kind.sample())))


def _explained(build: Callable[[], nn.Module], sample: Sample) -> dict[str, str]:
    """Function or submodule to how it ran."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array = hfta.fuse(members(build, _MEMBERS, torch.float64, _CPU, True), list(range(_MEMBERS)))
        # Members' own inputs, as further inside a model; what they share would be computed once.
        leaves, rebuild = flatten((sample.args, sample.kwargs))
        floating = [isinstance(v, torch.Tensor) and v.is_floating_point() for v in leaves]
        pairs = zip(leaves, floating, strict=True)
        args, kwargs = unflatten(rebuild, [hfta.per_member(torch.stack([v] * _MEMBERS)) if f else v for v, f in pairs])
        try:
            array(*args, **kwargs)
        except hfta.HftaError as error:
            return {"the whole array": f"fails: {error.what}"}
    return _told(array)


def _told(array: FusedArray) -> dict[str, str]:
    return {str(function): str(how) for function, how in array.explain().itertuples(index=False)}


def _summary(told: dict[str, str]) -> tuple[str, str]:
    """In a word, and the functions that `vmap` does not do."""
    if told.get("the whole array", "").startswith("fails"):
        return "not yet", told["the whole array"]
    special = {f: how for f, how in told.items() if how != "vmap" and f != "the whole array"}
    apart = [f for f in special if f.startswith("submodule")]
    single = [f for f, how in special.items() if "member by member" in how or "once per member" in how]
    word = "apart" if apart or "one member at a time" in told.get("the whole array", "") else ""
    ruled = [how for how in special.values() if not how.startswith("vmap")]
    word = word or ("member by member" if single else "own rule" if ruled else "vmap")
    return word, "; ".join(f"`{f}`: {how}" for f, how in sorted(special.items()))


def _models() -> Iterator[Sequence[str]]:
    yield "model", "fused by", "apart"
    for model in sorted(MODELS, key=_by_package):
        yield model.name, "one call, but" if model.apart else "one call", ", ".join(f"`{p}`" for p in model.apart)


def _by_package(model: Model) -> str:
    return model.name.partition(" ")[0]


def _across() -> Iterator[Sequence[str]]:
    yield "members differ in", "padding"
    for row in ACROSS:
        array = hfta.fuse([row.build(**knobs).double() for knobs in row.knobs])
        yield row.name, f"{array.waste():.0%}"


def _optimizers() -> Iterator[Sequence[str]]:
    yield "`torch.optim`", "how"
    for name, ours in _counterparts(torch.optim, hfta.optim, torch.optim.Optimizer):
        yield f"`{name}`", ours


def _lr_schedulers() -> Iterator[Sequence[str]]:
    yield "`torch.optim.lr_scheduler`", "how"
    base = torch.optim.lr_scheduler.LRScheduler
    for name, ours in _counterparts(torch.optim.lr_scheduler, hfta.optim.lr_scheduler, base):
        yield f"`{name}`", ours


def _transformations() -> Iterator[Sequence[str]]:
    yield "`hfta_nb.optim`", "what it does"
    classes = (hfta.optim.ArrayOptimizer,)
    for name in sorted(hfta.optim.__all__):
        item = getattr(hfta.optim, name)
        if not inspect.ismodule(item) and not (inspect.isclass(item) and issubclass(item, classes)):
            yield f"`{name}`", (inspect.getdoc(item) or "").splitlines()[0]


def _counterparts(theirs: Any, ours: Any, base: type) -> Iterator[tuple[str, str]]:
    """Torch's classes by name, and how ours of that name works."""
    for name, kind in sorted(vars(theirs).items()):
        if inspect.isclass(kind) and issubclass(kind, base) and kind is not base and not name.startswith("_"):
            mine = getattr(ours, name, None)
            yield name, "not yet" if mine is None else getattr(mine, "how", "one value per member")


def main() -> int:
    text = page()
    if "--check" in sys.argv:
        return int(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
