"""Least squares and rank correlation agree with known figures, and with scipy and statsmodels where these are."""

import re
from pathlib import Path

import numpy as np
import pytest

from tenuto_lab.judging.least_squares import least_squares, rank_correlation, ranks, student_p, student_quantile


def test_students_t_has_its_tabulated_values() -> None:
    assert student_quantile(0.975, 10) == pytest.approx(2.228139, abs=1e-6)
    assert student_quantile(0.975, 1) == pytest.approx(12.706205, abs=1e-5)
    assert student_p(2.228139, 10) == pytest.approx(0.05, abs=1e-7)
    assert student_p(0.0, 5) == 1 and student_p(40.0, 20) < 1e-15


def test_equal_values_share_their_ranks() -> None:
    assert ranks(np.array([3.0, 1.0, 3.0, 7.0])).tolist() == [2.5, 1.0, 2.5, 4.0]


def test_a_line_is_found_and_noise_is_not() -> None:
    x = np.arange(20.0)
    noise = np.sin(x * 12.9898) * 0.1
    fit = least_squares(2 + 3 * x + noise, [x, np.cos(x * 78.233)])
    assert fit.beta[1] == pytest.approx(3, abs=0.01) and fit.p[1] < 1e-20 and fit.p[2] > 0.01
    assert fit.low[1] < 3 < fit.high[1] and fit.r2 > 0.999


def test_as_scipy_and_statsmodels() -> None:
    scipy, api = pytest.importorskip("scipy.stats"), pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(0)
    a, b, y = rng.normal(size=24), rng.integers(5, size=24).astype(float), rng.normal(size=24)
    want = scipy.spearmanr(a, b)
    assert rank_correlation(a, b) == pytest.approx((want.statistic, want.pvalue))
    fit, other = least_squares(y, [a, b]), api.OLS(y, api.add_constant(np.column_stack([a, b]))).fit()
    for mine, theirs in ((fit.beta, other.params), (fit.error, other.bse), (fit.p, other.pvalues)):
        assert np.allclose(mine, theirs)
    assert np.allclose(np.column_stack([fit.low, fit.high]), other.conf_int()) and fit.r2 == pytest.approx(
        other.rsquared
    )


def test_the_laboratory_needs_neither_scipy_nor_statsmodels() -> None:
    """The extra lab brings neither."""
    sources = Path(__file__).parents[3] / "src"
    imported = re.compile(r"^\s*(?:from|import) (?:scipy|statsmodels)\b|import_module\(\"(?:scipy|statsmodels)", re.M)
    assert not [path for path in sources.rglob("*.py") if imported.search(path.read_text())]
