"""The spectrum of one matrix agrees with a float64 SVD, whatever its shape, precision or conditioning."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.errors import CheckpointError
from tenuto_lab.scoring.spectrum import ETA, leading_band, spectrum, unfold


def by_svd(matrix: np.ndarray, eta: float = ETA) -> dict[str, float]:
    """The paper's definitions, straight from numpy's SVD."""
    sigma = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)
    d = len(sigma)
    k = min(d, max(1, math.floor(0.1 * d)))
    total, leading = (sigma**2).sum(), (sigma[:k] ** 2).sum()
    scr = math.log((leading + eta * total) / ((sigma[k:] ** 2).sum() + eta * total))
    rho = math.exp(scr) / (1 + math.exp(scr))
    frobenius = np.linalg.norm(matrix.astype(np.float64))
    return {
        "k": k,
        "frobenius": frobenius,
        "spectral_norm": sigma[0],
        "stable_rank": total / sigma[0] ** 2,
        "scr": scr,
        "rho": rho,
        "g": frobenius * math.sqrt(rho),
    }


def with_singular_values(m: int, n: int, values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    u, _ = np.linalg.qr(rng.standard_normal((m, len(values))))
    v, _ = np.linalg.qr(rng.standard_normal((n, len(values))))
    return (u * values) @ v.T


rng = np.random.default_rng(0)
MATRICES = {
    "random": rng.standard_normal((60, 80)),
    "tall": rng.standard_normal((300, 17)),
    "wide": rng.standard_normal((17, 300)),
    "larger than a slab": rng.standard_normal((30, 5000)),
    "low rank": rng.standard_normal((64, 3)) @ rng.standard_normal((3, 48)),
    "rank one": np.outer(rng.standard_normal(40), rng.standard_normal(50)),
    "condition 1e8": with_singular_values(50, 70, np.logspace(0, -8, 50), rng),
    "condition 1e8, flat lead": with_singular_values(50, 50, np.r_[np.ones(5), np.full(45, 1e-8)], rng),
    "one row": rng.standard_normal((1, 33)),
    "one column": rng.standard_normal((33, 1)),
    "one number": np.array([[-3.0]]),
    "tiny numbers": rng.standard_normal((20, 30)) * 1e-200,
    "huge numbers": rng.standard_normal((20, 30)) * 1e200,
}


@pytest.mark.parametrize("name", MATRICES)
def test_agrees_with_a_float64_svd(name):
    # numpy's own norms overflow where ours do not: compare on a scaled copy, which leaves SCR and ρ as they are.
    matrix = MATRICES[name]
    scale = np.abs(matrix).max()
    expected, got = by_svd(matrix / scale), spectrum(torch.from_numpy(matrix))
    assert got.scr == pytest.approx(expected["scr"], rel=1e-5)
    assert got.rho == pytest.approx(expected["rho"], rel=1e-5)
    assert got.k == expected["k"]
    assert got.stable_rank == pytest.approx(expected["stable_rank"], rel=1e-5)
    for norm in ("frobenius", "spectral_norm", "g"):
        assert getattr(got, norm) == pytest.approx(expected[norm] * scale, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_precision_is_read_exactly(dtype):
    weight = torch.randn(40, 56, generator=torch.Generator().manual_seed(1)).to(dtype)
    expected, got = by_svd(weight.double().numpy()), spectrum(weight)
    assert got.scr == pytest.approx(expected["scr"], rel=1e-9)
    assert got.g == pytest.approx(expected["g"], rel=1e-9)


def test_a_convolution_is_unfolded_to_outputs_by_the_rest():
    kernel = torch.randn(8, 4, 3, 3)
    assert unfold(kernel).shape == (8, 36)
    assert spectrum(kernel) == spectrum(kernel.reshape(8, 36))


def test_a_zero_matrix_has_defined_statistics():
    got = spectrum(torch.zeros(6, 5))
    assert (got.frobenius, got.spectral_norm, got.stable_rank, got.g) == (0, 0, 0, 0)
    assert (got.scr, got.rho) == (0, 0.5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_is_an_error_that_names_the_tensor(bad):
    weight = torch.randn(4, 4)
    weight[1, 2] = bad
    with pytest.raises(CheckpointError, match=r"blocks.3.mlp.fc1.weight holds 1 value"):
        spectrum(weight, name="blocks.3.mlp.fc1.weight")


def test_a_vector_and_an_empty_matrix_are_refused():
    with pytest.raises(ValueError, match="shape"):
        spectrum(torch.randn(5))
    with pytest.raises(CheckpointError, match="bias is empty"):
        spectrum(torch.zeros(0, 4), name="bias")


def test_the_band_is_a_tenth_and_at_least_one():
    assert [leading_band(d) for d in (1, 2, 9, 10, 19, 20, 30, 4096)] == [1, 1, 1, 1, 1, 2, 3, 409]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 24), st.integers(1, 24), st.integers(0, 2**32 - 1), st.floats(-3, 3))
def test_sandwich_lemma(m, n, seed, power):
    """‖W‖_F √(ρ/k) ≤ ‖W‖_2 ≤ ‖W‖_F √ρ, with the unregularised ρ = E_k / ‖W‖_F²."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(m, n, generator=generator, dtype=torch.float64) * 10.0**power
    got = spectrum(weight, eta=0.0) if min(m, n) > 1 else spectrum(weight, eta=1e-15)
    assert got.frobenius * math.sqrt(got.rho / got.k) <= got.spectral_norm * (1 + 1e-9)
    assert got.spectral_norm <= got.frobenius * math.sqrt(got.rho) * (1 + 1e-9)


@pytest.mark.gpu
def test_the_gpu_agrees_with_the_cpu():
    weight = torch.randn(512, 700)
    on_cpu, on_gpu = spectrum(weight), spectrum(weight.cuda())
    assert on_gpu.scr == pytest.approx(on_cpu.scr, rel=1e-9)
    assert on_gpu.g == pytest.approx(on_cpu.g, rel=1e-9)
