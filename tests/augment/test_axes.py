"""The axes of augmentation of a family and its data."""

from __future__ import annotations

from torch import nn

import hfta_nb as hfta
from hfta_nb.data import augment


def test_every_named_data_set_is_of_the_kind_that_its_name_says() -> None:
    from hfta_nb.data.augment.augmentable import NAMED, kind_of

    for name in hfta.data.names():
        data = hfta.data.load(name)
        assert kind_of(data) == NAMED.get(name, (None, ""))[0], name
        if name in NAMED:
            assert data.task == NAMED[name][1]
        assert augment.axes_for(name) == augment.axes_for(data)
    assert set(NAMED) <= {*hfta.data.names(), *hfta.data.kinds()}


def test_an_axis_of_the_familys_own_is_not_an_augmentation() -> None:
    @hfta.family(data="digits")
    def mixed(in_features: int = 64, num_classes: int = 10, mixup: int = 4) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(in_features, mixup), nn.Linear(mixup, num_classes))

    assert mixed.specs["mixup"].default == 4
    study = hfta.Study(mixed, {"mixup": [4, 8]}, "digits", device="cpu", padding="never")
    assert len(study.plan_groups) == 2
    assert all("mixup" not in row for g in study.plan_groups for row in g.rows)
