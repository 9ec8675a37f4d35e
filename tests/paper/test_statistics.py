from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import jko
from jko.paper import Band, Estimate, fit_power_laws, pearson, window_mean


def _paths(values, count=1, noise=0.0, seed=0):
    generator = np.random.default_rng(seed)
    return [torch.from_numpy(value * np.exp(noise * generator.standard_normal(count))) for value in values]


@pytest.mark.parametrize(("a", "b"), [(0.45, -1.0), (0.373, 0.005), (1e-6, 2.5), (3e4, -0.3)])
def test_both_fits_recover_an_exact_power_law(a, b):
    counts = [1, 3, 10, 100]
    fits = fit_power_laws(counts, _paths([a * count**b for count in counts]))
    for law in (fits.nonlinear, fits.logarithmic):
        assert law.a == pytest.approx(a, rel=1e-7)
        assert law.b == pytest.approx(b, abs=1e-8)
        assert law.a_band[0] <= law.a <= law.a_band[1]
        assert law(7) == pytest.approx(a * 7**b, rel=1e-6)
    assert fits.resampled is None


def test_bands_cover_the_planted_law_as_often_as_they_say():
    # Log-normal errors of equal size: the model of the logarithmic regression, so that its coverage is exact.
    counts, hits, rounds = [1, 2, 5, 10, 30, 100], 0, 400
    for seed in range(rounds):
        values = [0.4 * count**-0.9 for count in counts]
        noisy = [float(path[0]) for path in _paths(values, noise=0.0)]
        generator = np.random.default_rng(seed)
        law = fit_power_laws(
            counts, [torch.tensor([value * math.exp(0.2 * generator.standard_normal())]) for value in noisy]
        ).logarithmic
        hits += law.b_band[0] <= -0.9 <= law.b_band[1]
    # 0.95 within four standard deviations of a binomial law.
    assert abs(hits / rounds - 0.95) <= 4 * math.sqrt(0.95 * 0.05 / rounds)


def test_the_nonlinear_band_is_that_of_the_linearized_problem():
    counts = [1, 4, 16, 64]
    values = np.array([0.51, 0.12, 0.034, 0.0061])
    law = fit_power_laws(counts, [torch.tensor([value]) for value in values]).nonlinear
    x = np.array(counts, dtype=float)
    jacobian = np.stack([x**law.b, law.a * x**law.b * np.log(x)], axis=1)
    residual = values - law.a * x**law.b
    # At the minimum the residual is orthogonal to both derivatives.
    assert np.abs(jacobian.T @ residual).max() <= 1e-7
    covariance = np.linalg.inv(jacobian.T @ jacobian) * (residual @ residual) / 2
    wide = 4.302652729911275 * np.sqrt(np.diag(covariance))
    assert law.a_band == pytest.approx((law.a - wide[0], law.a + wide[0]), rel=1e-5)
    assert law.b_band == pytest.approx((law.b - wide[1], law.b + wide[1]), rel=1e-5)


def test_resampled_bands_tell_the_monte_carlo_error():
    counts, a, b = [1, 10, 100], 0.45, -1.0
    fits = fit_power_laws(counts, _paths([a * count**b for count in counts], count=200, noise=0.3, seed=1))
    law = fits.resampled
    assert law.b_band[0] <= b <= law.b_band[1]
    # The slope of three equidistant means is (y3 - y1) / (2 log 10); each log mean has deviation about 0.3 / sqrt(200).
    expected = 2 * 1.96 * 0.3 / math.sqrt(200) * math.sqrt(2) / (2 * math.log(10))
    assert law.b_band[1] - law.b_band[0] == pytest.approx(expected, rel=0.25)
    again = fit_power_laws(counts, _paths([a * count**b for count in counts], count=200, noise=0.3, seed=1))
    assert again.resampled.b_band == law.b_band


def test_what_cannot_be_fitted_is_none():
    assert fit_power_laws([3], _paths([1.0])) is None
    assert fit_power_laws([1, 2, 3], _paths([1.0, 0.5, 0.0])) is None
    assert fit_power_laws([1, 2, 3], _paths([1.0, 0.5, math.nan])) is None
    two = fit_power_laws([1, 10], _paths([1.0, 0.1]))
    assert two.logarithmic.b == pytest.approx(-1)
    assert two.logarithmic.b_band is None
    assert two.nonlinear.a_band is None


def test_pearson_against_numpy_and_exact_values():
    generator = np.random.default_rng(0)
    x, y = generator.standard_normal(9), generator.standard_normal(9)
    assert pearson(x.tolist(), y.tolist()) == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-14)
    assert pearson([1, 2, 4], [3, 5, 9]) == pytest.approx(1)
    assert pearson([1, 2, 4], [-3, -5, -9]) == pytest.approx(-1)
    assert pearson([1, 2], [3, 3]) is None


def test_window_average():
    times = torch.linspace(0, 4, 5, dtype=torch.float64)
    values = torch.stack([times, times**2])
    assert window_mean(times, values, 2.0).tolist() == pytest.approx([3.0, (4 + 9 + 16) / 3])
    assert window_mean(times, values, 0.0).tolist() == pytest.approx([2.0, 6.0])
    # A time that misses the window by rounding is in it.
    assert float(window_mean(times, values[0], 3.0 + 1e-12)) == pytest.approx(3.5)
    with pytest.raises(jko.InvalidInput, match="no time lies in the window t >= 5"):
        window_mean(times, values, 5.0)


def test_bands_and_estimates():
    paths = torch.tensor([[1.0, 2.0], [3.0, 6.0]], dtype=torch.float64)
    band = Band.of(paths)
    assert band.mean.tolist() == [2.0, 4.0]
    assert band.deviation.tolist() == pytest.approx([math.sqrt(2), math.sqrt(8)])
    assert Band.of(paths[:1]).deviation is None

    estimate = Estimate.of(torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64))
    error = math.sqrt(5 / 3) / 2
    assert (estimate.mean, estimate.error, estimate.paths) == (2.5, pytest.approx(error), 4)
    # The two-sided 0.999 quantile of Student's t with 3 degrees of freedom is 12.924.
    assert estimate.contains(2.5 + 12.9 * error)
    assert not estimate.contains(2.5 + 12.95 * error)
    assert Estimate.of(torch.ones(1)).contains(5.0) is None
