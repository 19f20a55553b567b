"""Each augmentation has its documented effect: on small images, and statistically over many."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks.augmentation import Waits
from hfta_nb.data.augment import clouds, images
from hfta_nb.data.augment.random_numbers import Draws

MANY = 4000


def draws(size: int, number: int = 0, seed: int = 0, device: torch.device | None = None) -> Draws:
    return Draws(seed, 0, number, size, device or torch.device("cpu"))


def pictures(count: int, channels: int = 3, height: int = 6, width: int = 8) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.rand(count, channels, height, width, generator=generator, dtype=torch.float64)


def shifted(picture: Tensor, down: int, right: int, mirrored: bool) -> Tensor:
    """What a crop must give, pixel by pixel ``[C, H, W]``."""
    height, width = picture.shape[1:]
    found = torch.zeros_like(picture)
    for row in range(height):
        for column in range(width):
            r, c = row + down, column + right
            if mirrored:
                r, c = abs(r), abs(c)
                r, c = min(r, 2 * (height - 1) - r), min(c, 2 * (width - 1) - c)
            if 0 <= r < height and 0 <= c < width:
                found[:, row, column] = picture[:, r, c]
    return found


@pytest.mark.parametrize("pixels", [1, 2, 5])
def test_a_crop_is_a_shift_with_nothing_beyond_the_border(pixels: int) -> None:
    x, d = pictures(40), draws(40)
    moved, none = images.random_crop(x, None, pixels, d)
    assert none is None
    moves = (d.uniform("crop", 2) * (2 * pixels + 1)).long() - pixels
    assert moves.min() == -pixels
    assert moves.max() == pixels
    for picture, got, (down, right) in zip(x, moved, moves.T.tolist(), strict=True):
        assert torch.equal(got, shifted(picture, down, right, mirrored=False))


def test_masks_are_cropped_with_their_images_and_both_are_mirrored_at_the_border() -> None:
    x, d = pictures(40, channels=1), draws(40)
    masks = (x[:, 0] * 1000).long()
    moved, moved_masks = images.random_crop(x, masks, 3, d)
    assert torch.equal((moved[:, 0] * 1000).long(), moved_masks)
    moves = (d.uniform("crop", 2) * 7).long() - 3
    for picture, got, (down, right) in zip(x, moved, moves.T.tolist(), strict=True):
        assert torch.equal(got, shifted(picture, down, right, mirrored=True))


def test_every_shift_is_as_likely_as_any_other() -> None:
    x = torch.zeros(MANY, 1, 5, 5)
    x[:, :, 2, 2] = 1
    moved, _ = images.random_crop(x, None, 2, draws(MANY))
    share = moved.mean((0, 1))
    assert torch.allclose(share, torch.full((5, 5), 1 / 25), atol=0.012)


def test_a_flip_flips_as_often_as_asked_and_the_mask_with_it() -> None:
    x = pictures(MANY, channels=1)
    masks = (x[:, 0] * 1000).long()
    seen, seen_masks = images.horizontal_flip(x, masks, 0.3, draws(MANY))
    same = (seen == x).flatten(1).all(1)
    flipped = (seen == x.flip(3)).flatten(1).all(1)
    assert bool((same ^ flipped).all())
    assert abs(float(flipped.double().mean()) - 0.3) < 0.025
    assert torch.equal((seen[:, 0] * 1000).long(), seen_masks)
    assert torch.equal(images.horizontal_flip(x, None, 1.0, draws(MANY))[0], x.flip(3))


def test_a_stronger_setting_does_more_of_the_same() -> None:
    x = pictures(200)
    weak, strong = ((images.horizontal_flip(x, None, p, draws(200))[0] != x).flatten(1).any(1) for p in (0.2, 0.6))
    assert bool((strong | ~weak).all())
    assert strong.sum() > weak.sum()


@pytest.mark.parametrize("channels", [1, 3])
def test_colours_change_by_no_more_than_the_strength_and_stay_in_range(channels: int) -> None:
    x = (0.3 + 0.1 * pictures(MANY, 1, 2, 2)).expand(-1, channels, -1, -1)
    low, high = torch.zeros(()).double(), torch.ones(()).double()
    seen = images.color_jitter(x, 0.2, low, high, draws(MANY))
    brightness = seen.mean((1, 2, 3)) / x.mean((1, 2, 3))
    assert 0.8 - 1e-9 <= float(brightness.min()) < 0.82
    assert 1.18 < float(brightness.max()) <= 1.2 + 1e-9
    assert torch.allclose(images.color_jitter(x, 0.0, low, high, draws(MANY)), x)
    wild = images.color_jitter(2 * pictures(50, channels) - 1, 1.0, -high, high, draws(50))
    assert float(wild.min()) >= -1
    assert float(wild.max()) <= 1


def test_brightness_contrast_and_saturation_are_those_of_their_definition() -> None:
    x, d = 0.4 + 0.2 * pictures(1), draws(1)
    f = (1 + 0.3 * (2 * d.uniform("color", 3)[:, 0] - 1)).tolist()
    want = x * f[0]
    weights = torch.tensor(images.GREY, dtype=torch.float64).view(3, 1, 1)
    want = f[1] * want + (1 - f[1]) * (want * weights).sum(1).mean()
    want = f[2] * want + (1 - f[2]) * (want * weights).sum(1, keepdim=True)
    got = images.color_jitter(x, 0.3, torch.zeros(()).double(), torch.ones(()).double(), d)
    assert torch.allclose(got, want, atol=1e-14)


def test_erasing_fills_one_box_of_some_images() -> None:
    x = 1 + pictures(MANY, 3, 16, 16)
    fill = torch.tensor([-1.0, -2.0, -3.0], dtype=torch.float64)
    seen = images.random_erasing(x, 0.4, fill, draws(MANY))
    erased = (seen < 0).all(1)
    assert bool(((seen == x).all(1) | erased).all())
    assert torch.equal(seen[:, 1][erased], torch.full((int(erased.sum()),), -2.0, dtype=torch.float64))
    hit = erased.flatten(1).any(1)
    assert abs(float(hit.double().mean()) - 0.4) < 0.025
    tall, wide = erased[hit].any(2).sum(1), erased[hit].any(1).sum(1)
    area = erased[hit].flatten(1).sum(1)
    assert torch.equal(tall * wide, area)  # a box
    share = area / 256
    assert 0.015 < float(share.min()) < 0.05
    assert 0.30 < float(share.max()) < 0.37
    assert float((tall / wide).min()) < 0.5
    assert float((tall / wide).max()) > 2


def targets(count: int, classes: int = 5) -> Tensor:
    return torch.eye(classes, dtype=torch.float64)[torch.arange(count) % classes]


def test_mixup_is_the_same_convex_combination_of_images_and_targets() -> None:
    x, y, d = pictures(500), targets(500), draws(500)
    mixed, shares = images.mix(x, y, 0.4, 0.0, d)
    assert torch.allclose(shares.sum(1), torch.ones(500).double())
    partner = d.partners()
    assert sorted(partner.tolist()) == list(range(500))
    lam = images.beta(0.4, d.uniform("mix", 4)[0])
    assert float(lam.min()) >= 0
    assert float(lam.max()) <= 1
    assert torch.allclose(mixed, lam.view(-1, 1, 1, 1) * x + (1 - lam.view(-1, 1, 1, 1)) * x[partner], atol=1e-14)
    assert torch.allclose(shares, lam.unsqueeze(1) * y + (1 - lam.unsqueeze(1)) * y[partner], atol=1e-14)


@pytest.mark.parametrize("alpha", [0.01, 0.2, 1.0, 3.0])
def test_shares_follow_the_beta_distribution(alpha: float) -> None:
    found = images.beta(alpha, draws(MANY).uniform("mix", 4)[0])
    assert bool(torch.isfinite(found).all())
    assert abs(float(found.mean()) - 0.5) < 0.03
    assert float(found.var()) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.05)


def test_cutmix_takes_a_box_of_another_image_and_its_share_of_the_target() -> None:
    x = torch.arange(300, dtype=torch.float64).view(-1, 1, 1, 1).expand(-1, 1, 10, 12).contiguous()
    y, d = torch.eye(300, dtype=torch.float64), draws(300)
    mixed, shares = images.mix(x, y, 0.0, 1.0, d)
    partner = d.partners()
    other = (mixed == partner.view(-1, 1, 1, 1))[:, 0]
    assert bool((other | (mixed == x)[:, 0]).all())
    apart = partner != torch.arange(300)
    own = shares[torch.arange(300), torch.arange(300)][apart]
    assert torch.allclose(own, 1 - other[apart].double().mean((1, 2)))
    tall, wide = other[apart].any(2).sum(1), other[apart].any(1).sum(1)
    assert torch.equal(tall * wide, other[apart].flatten(1).sum(1))
    assert 0.4 < float(own.mean()) < 0.8  # less is taken where a box is cut off at the border


def test_with_both_each_image_has_one_of_the_two() -> None:
    x = torch.arange(400, dtype=torch.float64).view(-1, 1, 1, 1).expand(-1, 1, 10, 10).contiguous()
    mixed, _ = images.mix(x, torch.eye(400).double(), 1.0, 1.0, draws(400))
    kinds = mixed.flatten(1)
    uniform = (kinds == kinds[:, :1]).all(1) & (mixed[:, 0, 0, 0] != torch.arange(400))
    assert 0.35 < float(uniform.double().mean()) < 0.65


def test_noise_on_points_has_its_deviation_and_leaves_normals() -> None:
    x = torch.zeros(50, 200, 6, dtype=torch.float64)
    seen = clouds.point_jitter(x, 0.02, draws(50))
    assert torch.equal(seen[..., 3:], x[..., 3:])
    assert abs(float(seen[..., :3].std()) - 0.02) < 5e-4
    assert float(seen.abs().max()) <= 5 * 0.02


@pytest.mark.parametrize("axis", ["z", "y", "all"])
@pytest.mark.parametrize("channels", [3, 6])
def test_a_rotation_keeps_lengths_angles_and_its_axis(axis: str, channels: int) -> None:
    x = torch.randn(300, 20, channels, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    seen = clouds.point_rotation(x, 40.0, axis, draws(300))
    a, b = x.unflatten(-1, (-1, 3)), seen.unflatten(-1, (-1, 3))
    assert torch.allclose(a.norm(dim=-1), b.norm(dim=-1))
    places, turned = a[:, :, 0], b[:, :, 0]
    assert torch.allclose(places @ places.transpose(1, 2), turned @ turned.transpose(1, 2))
    if axis != "all":
        kept = {"z": 2, "y": 1}[axis]
        assert torch.allclose(places[..., kept], turned[..., kept])
    if channels == 6:  # normals turn with the points
        assert torch.allclose((a[:, :, 0] * a[:, :, 1]).sum(-1), (b[:, :, 0] * b[:, :, 1]).sum(-1))
    turn = torch.linalg.lstsq(places, turned).solution  # one rotation for the whole cloud
    angle = torch.rad2deg(((turn.diagonal(dim1=1, dim2=2).sum(1) - 1) / 2).clamp(-1, 1).acos())
    assert torch.allclose(torch.linalg.det(turn), torch.ones(300).double())
    assert 35 < float(angle.max()) <= 40 + 1e-6
    assert abs(float(angle.mean()) - 20) < 2


def test_draws_depend_on_seed_epoch_and_batch_alone() -> None:
    cpu = torch.device("cpu")
    first = Draws(1, 2, 3, 10, cpu)
    first.partners()  # what was asked before changes nothing
    numbers = first.uniform("flip", 2)
    assert torch.equal(numbers, Draws(1, 2, 3, 10, cpu).uniform("flip", 2))
    assert numbers.shape == (2, 10)
    for other in (Draws(0, 2, 3, 10, cpu), Draws(1, 1, 3, 10, cpu), Draws(1, 2, 4, 10, cpu)):
        assert not torch.equal(numbers, other.uniform("flip", 2))
    assert not torch.equal(numbers, first.uniform("crop", 2))


def everything(device: torch.device) -> None:
    """Each augmentation of images, once."""
    x, y = pictures(8).float().to(device, non_blocking=True), targets(8).float().to(device, non_blocking=True)
    low, high, fill = torch.zeros((), device=device), torch.ones((), device=device), x.mean((0, 2, 3))
    images.random_crop(x, x[:, 0].long(), 2, draws(8, device=device))
    images.horizontal_flip(x, None, 0.5, draws(8, device=device))
    images.color_jitter(x, 0.5, low, high, draws(8, device=device))
    images.random_erasing(x, 0.5, fill, draws(8, device=device))
    images.mix(x, y, 0.2, 0.3, draws(8, device=device))
    cloud = torch.zeros(8, 5, 6, device=device)
    clouds.point_rotation(cloud, 10.0, "all", draws(8, device=device))


def test_torchs_own_generator_is_left_alone_and_nothing_waits_for_the_device(device: torch.device) -> None:
    before = torch.random.get_rng_state()
    with Waits() as waits:
        everything(device)
        clouds.point_jitter(torch.zeros(8, 5, 6, device=device), 0.1, draws(8, device=device))
    assert waits.found == []
    assert torch.equal(before, torch.random.get_rng_state())


def test_no_value_is_needed_on_the_host_and_no_copy_is_waited_for() -> None:
    """A device without values stands for a GPU: what reads one fails."""
    with Waits() as waits:
        everything(torch.device("meta"))
    assert waits.found == []


def test_that_waiting_is_seen() -> None:
    with Waits() as waits:
        x = torch.arange(4)
        x[x > 2]
        bool((x > 2).any())
        x.to("meta")
        x.to("meta", non_blocking=True)
    assert waits.found == ["index", "_local_scalar_dense", "_to_copy"]
