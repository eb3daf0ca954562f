"""Loaders of networks that others trained, on small files of the same formats made here."""

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, DPMSolverMultistepScheduler
from torch import Tensor, nn

import tenuto
from benchmarks.networks_of_others import faces
from benchmarks.networks_of_others.case import Case
from benchmarks.networks_of_others.levels import betas_of, cosine_betas, vp_betas
from benchmarks.networks_of_others.solvers import SOLVERS, solvers_for
from benchmarks.networks_of_others.tfjs import read_tensors
from tenuto.errors import UsageError


class Gaussian(nn.Module):
    """The best denoiser of samples around zero: its noise is known in closed form."""

    def __init__(self, betas: tuple[float, ...]) -> None:
        super().__init__()
        self.levels = nn.Parameter(torch.cumprod(1 - torch.tensor(betas), dim=0), requires_grad=False)
        self.calls = 0

    def forward(self, x: Tensor, timesteps: Tensor) -> Tensor:
        self.calls += 1
        at = self.levels[timesteps.long()][:, None, None]
        return (1 - at).sqrt() * x / (at * 0.25 + 1 - at)


@pytest.fixture
def case() -> Case:
    betas = cosine_betas(100)
    return Case("made up", "a Gaussian", "none", Gaussian(betas), (4, 4), betas, clipped=True)


def written(folder: Path, tensors: dict[str, np.ndarray]) -> Path:
    """A TensorFlow.js model of these tensors, quantised to 8 bits, in shards of 100 bytes."""
    data, entries = b"", []
    for name, value in tensors.items():
        low, scale = float(value.min()), float(value.max() - value.min()) / 255 or 1.0
        data += np.round((value - low) / scale).astype(np.uint8).tobytes()
        quantised = {"dtype": "uint8", "min": low, "scale": scale}
        entries.append({"name": name, "shape": value.shape, "dtype": "float32", "quantization": quantised})
    paths = [f"shard{i}.bin" for i in range(-(-len(data) // 100))]
    for i, path in enumerate(paths):
        (folder / path).write_bytes(data[i * 100 : (i + 1) * 100])
    (folder / "model.json").write_text(json.dumps({"weightsManifest": [{"paths": paths, "weights": entries}]}))
    return folder


def test_quantised_tensors_are_read_over_the_borders_of_shards(tmp_path: Path) -> None:
    values = np.linspace(-1, 1, 150, dtype=np.float32).reshape(10, 15)
    found = read_tensors(written(tmp_path, {"a": values, "b": np.float32([2, 4])}))
    np.testing.assert_allclose(found["a"], values, atol=1 / 255)
    np.testing.assert_allclose(found["b"], [2, 4], atol=1e-6)


def test_a_cut_shard_is_an_error_that_names_the_tensor(tmp_path: Path) -> None:
    written(tmp_path, {"a": np.zeros(90, np.float32), "b": np.zeros(20, np.float32)})
    (tmp_path / "shard1.bin").write_bytes(b"")
    with pytest.raises(UsageError, match="end before b"):
        read_tensors(tmp_path)
    with pytest.raises(UsageError, match="model.json"):
        read_tensors(tmp_path / "elsewhere")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> tuple[faces.FacesUNet, dict[str, np.ndarray]]:
    """The U-Net with few channels, and tensors as its file would hold them."""
    monkeypatch.setattr(faces, "WIDTHS", (8, 16))
    monkeypatch.setattr(faces, "ATTENDED", (False, True))
    module = faces.FacesUNet().eval().requires_grad_(False)
    numbers: dict[str, Iterator[int]] = {kind: count(first) for kind, first in faces.FIRST.items()}
    tensors, inside = {}, ""
    for name, layer in module.named_modules():
        if isinstance(layer, faces.Attention):
            inside = f"attention_block_{next(numbers['attention_block'])}/"
        for key, theirs in faces.names(layer, numbers).items():
            value = layer.get_parameter(key).numpy()
            value = value.transpose(2, 3, 1, 0) if value.ndim == 4 else value.T
            path = inside + theirs.replace("MatMul", "Tensordot") if ".attention." in name else theirs
            tensors[faces.PREFIX + path] = value
    return module, tensors


def test_every_tensor_finds_its_layer_and_comes_back_as_it_was(small) -> None:
    module, tensors = small
    found = faces.renamed(module, {**tensors, faces.PREFIX + "a/shape": np.zeros(1)})
    assert found.keys() == module.state_dict().keys()
    assert all(torch.equal(value, found[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize(
    "name", ["conv2d_68/BiasAdd/ReadVariableOp", "attention_block_11/dense_75/BiasAdd/ReadVariableOp"]
)
def test_a_tensor_missing_or_left_over_or_of_another_shape_is_named(small, name) -> None:
    module, tensors = small
    theirs = next(key for key in tensors if key.endswith(name.split("/", 1)[-1] if "attention" in name else name))
    with pytest.raises(UsageError, match="holds no"):
        faces.renamed(module, {key: value for key, value in tensors.items() if key != theirs})
    with pytest.raises(UsageError, match="No layer takes odd"):
        faces.renamed(module, {**tensors, faces.PREFIX + "odd/ReadVariableOp": np.zeros(1, np.float32)})
    with pytest.raises(UsageError, match="has shape"):
        faces.renamed(module, {**tensors, theirs: np.zeros(1, np.float32)})


def test_a_convolution_of_stride_2_pads_at_the_far_side_as_keras_does() -> None:
    down = faces.Down(1).requires_grad_(False)
    down.weight.copy_(torch.arange(9.0).reshape(1, 1, 3, 3))
    down.bias.zero_()
    x = torch.zeros(1, 1, 4, 4)
    x[0, 0, 0, 0] = 1  # the first pixel is under the first weight, not under the middle one
    assert down(x)[0, 0].tolist() == [[0, 0], [0, 0]]
    x[0, 0, 1, 1] = 1
    assert down(x)[0, 0].tolist() == [[4, 0], [0, 0]]


def test_the_network_keeps_the_shape_and_heeds_the_time(small) -> None:
    module, _ = small
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    early, late = (module(x, torch.full((2,), t)) for t in (3, 90))
    assert early.shape == x.shape and not torch.allclose(early, late)


def test_a_scheduler_has_the_networks_levels_and_clips_as_its_own_sampler_does(case: Case) -> None:
    ddim, solver = case.scheduler(), case.scheduler(DPMSolverMultistepScheduler, use_karras_sigmas=True)
    for scheduler in (ddim, solver):
        torch.testing.assert_close(scheduler.alphas_cumprod, case.network.levels)
    assert ddim.config.clip_sample and not ddim.config.thresholding
    assert solver.config.thresholding and solver.config.sample_max_value == 1 and solver.config.use_karras_sigmas


def test_a_clipped_step_is_that_of_the_networks_own_sampler(case: Case) -> None:
    """x' = (√ā' − √(ā (1 − ā') / (1 − ā))) clipped + √((1 − ā') / (1 − ā)) x, after the faces' worker.js."""
    scheduler = case.scheduler()
    scheduler.set_timesteps(100)
    now, after = (float(case.network.levels[t]) for t in (60, 59))
    x, noise = (3 * torch.randn(1, 4, 4, generator=torch.Generator().manual_seed(i)) for i in (0, 1))
    clipped = ((x - (1 - now) ** 0.5 * noise) / now**0.5).clamp(-1, 1)
    assert (clipped.abs() == 1).any()
    kept = ((1 - after) / (1 - now)) ** 0.5
    expected = (after**0.5 - now**0.5 * kept) * clipped + kept * x
    torch.testing.assert_close(scheduler.step(noise, 60, x, return_dict=False)[0], expected)


@pytest.mark.parametrize("kind", [DDIMScheduler, DPMSolverMultistepScheduler])
def test_any_scheduler_draws_and_tenuto_evaluates_fewer_steps(case: Case, kind) -> None:
    pipeline = case.pipeline(case.scheduler(kind))
    full = case.draw(pipeline, 20, seeds=[0, 1], samples=2)
    assert case.network.calls == 20 and full.abs().max() <= 1
    torch.testing.assert_close(case.draw(pipeline, 20, seeds=[1], samples=2), full[2:])
    case.network.calls = 0
    with tenuto.accelerated(pipeline, budget=0.4):
        held = case.draw(pipeline, 20, seeds=[0, 1], samples=2)
    assert case.network.calls < 12
    assert (held - full).abs().max() < 0.2


def test_betas_give_back_the_levels_of_a_process() -> None:
    wanted = np.array([0.9, 0.5, 0.01])
    np.testing.assert_allclose(np.cumprod(1 - np.array(betas_of(wanted))), wanted)
    kept = np.cumprod(1 - np.array(vp_betas()))
    np.testing.assert_allclose(kept[[499, 999]], np.exp([-0.5 * 0.1 - 0.125 * 19.9, -0.1 - 0.5 * 19.9]))


def test_the_times_of_karras_levels_are_those_of_the_noise_and_not_rounded(case: Case) -> None:
    scheduler = SOLVERS["UniPC 2, Karras"](case)
    scheduler.set_timesteps(10)
    assert (scheduler.timesteps != scheduler.timesteps.round()).any() and scheduler.timesteps[0] == 99
    kept = scheduler.alphas_cumprod.double().numpy()
    ratio = np.log((1 - kept) / kept) / 2
    found = np.interp(scheduler.timesteps.numpy(), np.arange(100), ratio)
    np.testing.assert_allclose(found, scheduler.sigmas[:-1].log().numpy(), atol=1e-3)


def test_every_solver_draws_with_as_many_evaluations_as_asked_and_converges(case: Case) -> None:
    truth = case.draw(case.pipeline(), 100, seeds=[0], samples=4)
    for name, scheduler in solvers_for(case).items():
        case.network.calls = 0
        made = case.draw(case.pipeline(scheduler(case)), 25, seeds=[0], samples=4)
        assert case.network.calls == 25, name
        assert (made - truth).abs().max() < 0.2, name
