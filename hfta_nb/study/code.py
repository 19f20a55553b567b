"""Python source that reproduces a study, or takes a member home."""

from __future__ import annotations

from hfta_nb import data as datasets
from hfta_nb.models.model_zoo.dotted import is_constructor
from hfta_nb.study import search_code, searching
from hfta_nb.study.definition_files import given_options
from hfta_nb.study.study_state import StudyState


def built_in_names() -> list[str]:
    from hfta_nb.models.model_zoo import BUILT_IN

    return [f.name for f in BUILT_IN]


def by_name(study: StudyState) -> bool:
    """Whether another notebook has the family by its name: a built-in one, or a constructor's."""
    return is_constructor(study.family.name) or study.family.name in built_in_names()


def of_study(study: StudyState) -> str:
    """Python source of a cell that reproduces the study."""
    own = not by_name(study)
    named = datasets.known(study.data.name)
    searcher = study.searcher
    lines = ["import hfta_nb as hfta", ""]
    lines[:0] = [] if searcher is None else search_code.imports(searcher)
    if own:
        lines += [f"# the family {study.family.name!r} must be defined in this notebook", ""]
    if not named:
        how = "from_tensors(x, y)" if isinstance(study.data, datasets.Data) else "from_loader(training, validation)"
        lines += [f"# data: {study.data.name!r}, for example hfta.data.{how}", ""]
    lines.append("study = hfta.Study(")
    lines.append(f"    {study.family.name}," if study.family.direct else f"    {study.family.name!r},")
    product, listed = study.grid.product, list(study.grid.listed)
    axes = ", ".join(f"{k!r}: {list(v)!r}" for k, v in (product or {}).items())
    if searcher is not None:
        lines.append(search_code.space(searcher))
    else:
        lines.append(f"    {listed!r}," if product is None else f"    {{{axes}}},")
    lines.append(f"    {study.data.name!r}," if named else "    data,")
    names = [*study.family.own, *(["folds"] if study.data.folds and study.folds is None else [])]
    lines += [f"    {name}={name},  # the study's own, to be defined in this notebook" for name in names]
    lines += [f"    {name}={value!r}," for name, value in given_options(study).items()]
    lines += [] if searcher is None else search_code.methods(searcher)
    if study.population is not None:
        lines.append(f"    population=hfta.{study.population!r},")
    lines.append(")")
    added = [one for one in study.added if not searching.for_trials(one)]  # the search asks for its trials again
    again = [one for one in added if not one.warm]
    if searcher is not None:  # as is the grid, but for what was added before the run
        asked_for = {*searcher.numbers, *range(len(searcher.foreseen))}
        listed = [config for id, config in enumerate(listed) if id not in asked_for]
    elif product is None:
        listed = []
    later = [*listed, *(v for one in again for v in one.variants)]
    lines += [f"study.add({later!r})"] if later else []
    if len(again) < len(added) or any(e.how == "set" for e in study.history.edits):
        lines += ["# not repeated: warm clones and values that were set during the run, see study.lineage()"]
    lines += ["for event in study.run():", "    pass", "study.results()"]
    return "\n".join(lines) + "\n"


def of_result(study: StudyState, variant: int) -> str:
    """Python source that loads a member in another notebook."""
    own = "" if by_name(study) else f", family={study.family.name}"
    return (
        f"import hfta_nb as hfta\n\nmodel = hfta.Study.load({str(study.directory)!r}{own}).member({variant}).module()\n"
    )
