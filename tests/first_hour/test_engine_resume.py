"""A user's training loop is saved, ended, and resumed in another process with unchanged results."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.errors import FusionError

LOSS = nn.CrossEntropyLoss()


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)).double()


def made(seed: int) -> tuple[Any, Any, Any, Any]:
    torch.manual_seed(seed)
    array = hfta.fuse([build() for _ in range(3)], seeds=[seed, seed + 1, seed + 2])
    optimizer = hfta.optim.AdamW(array, lr=[1e-3, 3e-3, 1e-2])
    schedule = hfta.optim.lr_scheduler.StepLR(optimizer, step_size=[2, 3, 4], gamma=0.5)
    return array, optimizer, schedule, hfta.optim.GradScaler(array, init_scale=8.0)


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(7)
    x = [torch.randn(12, 8, generator=draw, dtype=torch.float64) for _ in range(count)]
    return [(v, torch.randint(0, 3, (12,), generator=draw)) for v in x]


def train(parts: tuple[Any, Any, Any, Any], given: list[tuple[Tensor, Tensor]]) -> Tensor:
    array, optimizer, schedule, scaler = parts
    losses = []
    for x, y in given:
        optimizer.zero_grad()
        losses.append(array.backward(LOSS, x, y, scale=scaler.scales))
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
    return torch.stack(losses)


NAMES = ("array", "optimizer", "schedule", "scaler")


def test_a_loop_that_was_saved_goes_on_exactly(tmp_path: Path) -> None:
    data = batches(12)
    whole = train(made(0), data)

    first = made(0)
    train(first, data[:5])
    torch.save({n: p.state_dict() for n, p in zip(NAMES, first, strict=True)}, tmp_path / "run.pt")

    second = made(100)  # as in a new process: other weights and streams, until they are loaded
    saved = torch.load(tmp_path / "run.pt")
    for name, part in zip(NAMES, second, strict=True):
        part.load_state_dict(saved[name])
    torch.testing.assert_close(train(second, data[5:]), whole[5:], rtol=1e-10, atol=1e-10)


def test_safetensors_takes_clones_and_the_random_streams(tmp_path: Path) -> None:
    first, second = made(0), made(100)
    train(first, batches(2))
    state = {name: value.clone() for name, value in first[0].state_dict().items()}
    save_file(state | {"_extra_state": first[0].get_extra_state()}, str(tmp_path / "array.safetensors"))
    second[0].load_state_dict(load_file(str(tmp_path / "array.safetensors")))
    x = batches(1)[0][0]
    assert torch.equal(first[0](x), second[0](x))  # with the same dropout, too
    assert torch.equal(first[0](x), second[0](x))


def test_every_entry_has_a_member_axis_and_members_have_plain_keys() -> None:
    array = made(0)[0]
    state = array.state_dict()
    assert list(state) == list(build().state_dict())
    assert all(v.shape[0] == 3 for v in state.values())
    assert list(array[1].state_dict()) == list(build().state_dict())


def test_the_state_dict_refers_to_the_weights() -> None:
    array = made(0)[0]
    state = array.state_dict()
    with torch.no_grad():
        array.get_parameter("0.weight").add_(1)
    state["1.running_mean"].fill_(3)
    assert torch.equal(state["0.weight"], array.get_parameter("0.weight"))
    assert bool((array[2].get_buffer("1.running_mean") == 3).all())
    assert not any(value.requires_grad for value in state.values())
    assert array.state_dict(keep_vars=True)["0.weight"] is array.get_parameter("0.weight")


def test_a_dict_of_an_older_version_is_taken_and_other_keys_are_errors() -> None:
    first, second = made(0)[0], made(100)[0]
    state = first.state_dict()
    streams = first.get_extra_state()
    before = second.get_extra_state()
    second.load_state_dict(dict(state))  # without torch's metadata, where the streams are
    assert torch.equal(second.get_extra_state(), before)
    second.load_state_dict({**state, "_extra_state": streams})
    assert torch.equal(second.get_extra_state(), streams)
    assert torch.equal(second.get_parameter("0.weight"), first.get_parameter("0.weight"))
    with pytest.raises(RuntimeError, match=r"Missing key.*0\.weight"):
        second.load_state_dict({k: v for k, v in state.items() if k != "0.weight"})
    with pytest.raises(RuntimeError, match=r"Unexpected key.*other"):
        second.load_state_dict({**state, "other": streams})
    weight = second.get_parameter("0.weight").detach().clone()
    with pytest.raises(FusionError, match=r"not the random streams.*\[2, 5056\]"):
        second.load_state_dict({**hfta.fuse([build() for _ in range(3)]).state_dict(), "_extra_state": streams[:2]})
    assert torch.equal(second.get_parameter("0.weight"), weight)
    with pytest.raises(FusionError, match="assign=True"):
        second.load_state_dict(state, assign=True)


def test_a_row_of_the_dict_is_a_member() -> None:
    first, second = made(0)[0], made(100)[0]
    row = {name: value[2] for name, value in first.state_dict().items()}
    build().load_state_dict(row)
    second.load_member(0, {**row, "_extra_state": first.get_extra_state()[2]})
    x = batches(1)[0][0]
    assert torch.equal(first(x)[2], second(x)[0])
    assert list(first.unpad(2)(row)) == list(build().state_dict())
    with pytest.raises(FusionError, match="not the random streams"):
        second.load_member(0, {**row, "_extra_state": row["0.weight"]})


def test_an_array_within_a_module_is_saved_with_it() -> None:
    whole, other = nn.ModuleDict({"array": made(0)[0]}), nn.ModuleDict({"array": made(100)[0]})
    other.load_state_dict(whole.state_dict())
    x = batches(1)[0][0]
    assert torch.equal(whole["array"](x), other["array"](x))


@pytest.mark.parametrize("save", [torch.save, pickle.dump])
def test_saving_the_array_itself_says_what_to_save(save: Any, tmp_path: Path) -> None:
    with open(tmp_path / "array.pt", "wb") as file, pytest.raises(FusionError) as error:
        save(made(0)[0], file)
    assert "torch.save(array.state_dict(), path)" in str(error.value)
    assert "array[i].state_dict()" in str(error.value)
