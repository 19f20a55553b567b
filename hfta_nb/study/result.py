"""The result of one variant."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hfta_nb.data import leaves, tree_map
from hfta_nb.data.augment import Augmenting
from hfta_nb.engine.array.access import HeldLoss, take_losses
from hfta_nb.errors import DataError, StoreError, StudyError
from hfta_nb.errors.border import PATH, TEXT, Kind, takes, whole
from hfta_nb.errors.plain_text import visible
from hfta_nb.models.recipes.lightning import unwrapped
from hfta_nb.models.recipes.preserve_rng import preserve_rng
from hfta_nb.models.weights import own_tensors
from hfta_nb.search.grid import Variant, show
from hfta_nb.study import code, keeping, model_card, module_files, scripts
from hfta_nb.study.study_state import StudyState
from hfta_nb.train.pending_group import weights_at
from hfta_nb.train.plan import Group
from hfta_nb.train.step import unpacked_states

_TENSORS = Kind("not inputs", "a tensor, or a tuple or dict of tensors",
                lambda x: all(isinstance(t, torch.Tensor) and not t.is_meta for t in leaves(x)))  # fmt: skip
MOMENT = Kind("no moment", '"best", "last" or the number of an epoch', lambda v: isinstance(v, str) or whole(v))


class Result:
    """The result of one variant.

    Attributes:
        study: it is part of.
        variant: its number, configuration and seed.
    """

    def __init__(self, study: StudyState, variant: Variant) -> None:
        self.study, self.variant = study, variant

    @property
    def config(self) -> dict[str, Any]:
        """Its value on each axis of the grid."""
        return dict(self.variant.config)

    @property
    def metrics(self) -> dict[str, float]:
        """Every metric at its best epoch."""
        member = self.study.history.members.get(self.variant.id)
        return {m: member.at_best(m) for m in self.study.metrics} if member else {}

    @property
    def checkpoints(self) -> list[str | int]:
        """Which weights of it are kept: what `module` takes as `at`."""
        store = self.study.store
        others = store.weights_of(self.variant.id)
        rungs = sorted(int(moment) for moment in others if moment.isdigit())
        best = [keeping.BEST] if store.weights_path(self.variant.id).exists() else []
        return [*best, *rungs, *(keeping.LAST for moment in others if moment == keeping.LAST)]

    @takes(StoreError, at=MOMENT)
    def module(self, at: str | int = keeping.BEST) -> nn.Module:
        """Its weights in a plain module, in eval mode: nothing of hfta_nb in it.

        Args:
            at: "best", those of its best epoch. "last", those with which it ended or was paused; where it diverged or
                failed, those of its last validation with a finite loss. An epoch at which there was a rung. The last
                two as far as the study keeps them (``keep_checkpoints=["best", "last", "rungs"]``).

        Raises:
            StoreError: no such weights were saved (yet).
        """
        module = self._restored(at)
        take_losses(module)
        return unwrapped(module).eval()

    @takes(StoreError, at=MOMENT)
    def loss(self, at: str | int = keeping.BEST) -> Any:
        """Its loss; one with parameters, as it was trained with the member, in a plain module.

        Args:
            at: as for `module`.

        Returns:
            The loss; of a family with phases, the losses by phase.

        Raises:
            StoreError: no such weights were saved (yet).

        Example:
            >>> import hfta_nb as hfta
            >>> study = hfta.Study("mlp", {"lr": [1e-3]}, "iris", epochs=1)
            >>> callable(study.member(0).loss())
            True
        """
        family, data = self.study.family, self.study.data
        given = {p.name: p.loss for p in family.phases} or {"": family.loss_for(data)}
        trained = take_losses(self._restored(at)) if any(isinstance(v, HeldLoss) for v in given.values()) else {}
        own = {k: trained[v.name] if isinstance(v, HeldLoss) else v for k, v in given.items()}
        return own if family.phases else own[""]

    def _restored(self, at: str | int) -> nn.Module:
        """A member as it was saved, with losses that have parameters."""
        study = self.study
        group, index = self._place()
        name = self._name(at)
        weights = study.store.read_weights(name)
        with preserve_rng():
            module = own_tensors(study.family.member(**group.arguments[index]).to(study.dtype))
        try:
            module.load_state_dict(unpacked_states(weights, module))
        except RuntimeError as error:
            raise StoreError(
                f"the saved weights don't fit the family ({error})",
                where=str(study.store.weights_path(name)),
            ) from error
        return module

    @takes(StoreError, folder=PATH, at=MOMENT)
    def save_pretrained(self, folder: str | Path, at: str | int = keeping.BEST, **options: Any) -> Path:
        """Write its module by the module's own `save_pretrained`, as models of transformers have it: the weights as
        safetensors, and the configuration. ``from_pretrained(folder)`` reads it, without hfta_nb.

        Args:
            folder: is made, if need be.
            at: as for `module`.
            options: of the module's own `save_pretrained`.

        Returns:
            The folder.

        Raises:
            StoreError: no such weights were saved (yet), the module has no such method, or the folder can't be written.
        """
        module = self.module(at)
        save = getattr(module, "save_pretrained", None)
        if save is None:
            raise StoreError("has no save_pretrained", where=type(module).__name__, got=type(module),
                             accepted="a model of transformers, or another with this method",
                             remedy="safetensors.torch.save_file(member.module().state_dict(), path)")  # fmt: skip
        try:
            save(folder, **options)
        except OSError as error:
            raise StoreError(f"can't be written ({error})", where=str(folder)) from error
        return Path(folder)

    @takes(DataError, x=_TENSORS)
    def inputs(self, x: Any) -> Any:
        """Inputs as its module is to get them: images that are kept as bytes as floats, standardised as the data set
        says, or normalised where the member was (``normalize=True``).

        Args:
            x: as in the study's data, ``[N, ...]``; a tuple or dict of tensors where the data have one.

        Returns:
            The same in the study's dtype, on the CPU.
        """
        study = self.study
        data = study.data.to(torch.device("cpu"), study.dtype)
        x = tree_map(lambda t: t.to("cpu", study.dtype) if t.is_floating_point() else t.cpu(), x)
        prepared = Augmenting(data, torch.device("cpu"), study.dtype).of([self.row], [0])
        return data.floats(x, study.dtype) if prepared is None else prepared.validation(x, None, False)[0]

    @takes(StudyError, path=PATH, format=TEXT.or_none, at=MOMENT)
    def export(self, path: str | Path, format: str | None = None, at: str | int = keeping.BEST) -> Path:
        """Write its module for other programs, and a model card beside it.

        The file takes batches of any size. It is run on two batches and compared with the module: ONNX by onnxruntime
        where that is installed. The card, of the same name with ".md", has the configuration, metrics, data, seeds,
        versions, what the inputs are, how to load the file, and how it compared.

        Args:
            path: of the file, which is replaced.
            format: "onnx", "torch.export" or "safetensors" (the weights alone); by default as the path ends: ".onnx",
                ".pt2", ".safetensors".
            at: as for `module`.

        Returns:
            The path.

        Raises:
            StoreError: no such weights were saved (yet), or the file can't be written.
            StudyError: a package is not installed (``pip install 'hfta_nb[export]'`` for ONNX), the module can't be
                written in this format, or what was written gives other outputs.

        Example:
            >>> import hfta_nb as hfta, tempfile
            >>> study = hfta.Study("mlp", {"lr": [1e-3, 1e-2]}, "iris", epochs=1)
            >>> results = study.fit(progress=False)
            >>> study.best().export(tempfile.mkdtemp() + "/best.safetensors").name
            'best.safetensors'
        """
        place = Path(path).absolute()
        kind = module_files.format_of(place, format)
        module, data, dtype = self.module(at), self.study.data, self.study.dtype

        def batch(size: int) -> Any:
            x = data.sample(size, dtype=dtype)
            return tree_map(lambda t: t[torch.arange(size) % len(t)], x)

        checked = module_files.write(self._untrained, module, batch, place, kind)
        model_card.write(self.study, self.variant, at, place, kind, checked, batch(1))
        return place

    def _untrained(self) -> nn.Module:
        group, index = self._place()
        with preserve_rng():
            module = self.study.family.member(**group.arguments[index]).to(self.study.dtype)
        take_losses(module)
        return module

    @takes(StudyError, path=PATH)
    def script(self, path: str | Path) -> Path:
        """Write a plain PyTorch training script that reproduces its run, without hfta_nb.

        The script has the source of the model and the loss (installed packages are imported), the seeds, the optimizer,
        the lr schedule and the loop; the data are beside it, as safetensors. Run it with ``python``: it prints the
        losses of each epoch as a line of JSON.

        Args:
            path: of the script, which ends in ".py"; it is replaced, as are the data beside it.

        Returns:
            The path.

        Raises:
            StudyError: something in its run has no plain script, such as a change that was made while it trained, data
                that are read batch by batch, augmentation, or a function without source. The message names it.
            StoreError: the files can't be written.

        Example:
            >>> import hfta_nb as hfta, tempfile
            >>> study = hfta.Study("mlp", {"lr": [1e-3, 1e-2]}, "iris", epochs=1)
            >>> results = study.fit(progress=False)
            >>> study.best().script(tempfile.mkdtemp() + "/train.py").name
            'train.py'
        """
        return scripts.write(self.study, self.variant, Path(path).absolute())

    def to_code(self) -> str:
        """Python source that loads it in another notebook."""
        return code.of_result(self.study, self.variant.id)

    def _name(self, at: str | int) -> int | str:
        """The name in the store of the weights of a moment."""
        if at == keeping.BEST:
            return self.variant.id
        if at in (kept := self.checkpoints) and not isinstance(at, bool):
            return weights_at(self.variant.id, at)
        raise StoreError("these weights are not kept", where=f"module of #{self.variant.id}", got=at,
                         accepted=", ".join(map(repr, kept)) or "none yet",
                         remedy='a study keeps them with keep_checkpoints=["best", "last", "rungs"]')  # fmt: skip

    @property
    def row(self) -> Mapping[str, Any]:
        """Its values of all training axes."""
        group, place = self._place()
        return group.rows[place]

    def _place(self) -> tuple[Group, int]:
        """Its group, and its place there."""
        groups = self.study.plan_groups
        return next((g, i) for g in groups for i, v in enumerate(g.variants) if v.id == self.variant.id)

    def _repr_html_(self) -> str:
        from hfta_nb.figures.html import pairs

        rows = [(name, show(value)) for name, value in (*self.config.items(), *self.metrics.items())]
        return pairs(f"Member #{self.variant.id} of {self.study.name}", rows)

    def __repr__(self) -> str:
        shown = ", ".join(f"{k} {show(v)}" for k, v in self.metrics.items() if k.startswith("val_"))
        return visible(f"Result({self.variant.label}; {shown or 'not trained yet'})")
