"""Statistics of Monte Carlo paths: bands, window averages, power laws in H, correlation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jko.errors import InvalidInput
from jko.random import check_word

__all__ = ["Band", "Estimate", "PowerLaw", "PowerLaws", "fit_power_laws", "pearson", "window_mean"]

_CONFIDENCE = 0.95
_RESAMPLES = 2000


@final
@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """Mean and standard deviation over paths.

    Attributes:
        mean: shape (K,).
        deviation: shape (K,); None for a single path.
    """

    mean: Tensor
    deviation: Tensor | None

    @staticmethod
    def of(paths: Tensor) -> Band:
        """Return the band of paths (P, K)."""
        return Band(paths.mean(0), paths.std(0) if len(paths) > 1 else None)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """A Monte Carlo mean and its standard error.

    Attributes:
        mean: over the paths.
        error: standard error of the mean; None for a single path.
        paths: number of paths.
    """

    mean: float
    error: float | None
    paths: int

    @staticmethod
    def of(values: Tensor) -> Estimate:
        """Return the estimate from one number per path, shape (P,)."""
        count = len(values)
        return Estimate(float(values.mean()), float(values.std()) / math.sqrt(count) if count > 1 else None, count)

    def contains(self, value: float, probability: float = 0.999) -> bool | None:
        """Return whether a value lies in the two-sided confidence interval of the mean; None for a single path."""
        if self.error is None:
            return None
        return abs(self.mean - value) <= _quantile(probability, self.paths - 1) * self.error

    def as_data(self) -> dict[str, Any]:
        """Return plain data."""
        return {"mean": self.mean, "standard_error": self.error, "paths": self.paths}


@final
@dataclass(frozen=True, slots=True, eq=False)
class PowerLaw:
    """k(H) = a H^b, with 95 % bands.

    Attributes:
        a: the factor.
        b: the exponent.
        a_band: confidence interval of a; None without a degree of freedom.
        b_band: confidence interval of b; None without a degree of freedom.
    """

    a: float
    b: float
    a_band: tuple[float, float] | None
    b_band: tuple[float, float] | None

    def __call__(self, count: float) -> float:
        """Return k(H)."""
        return self.a * count**self.b

    def as_data(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "a": self.a,
            "b": self.b,
            "a_band": None if self.a_band is None else list(self.a_band),
            "b_band": None if self.b_band is None else list(self.b_band),
        }


@final
@dataclass(frozen=True, slots=True, eq=False)
class PowerLaws:
    """The same data, fitted in two ways.

    Attributes:
        nonlinear: least squares on the values themselves, as in the authors' code.
        logarithmic: linear regression of log k on log H.
        resampled: the logarithmic fit with the bands that the Monte Carlo error alone gives (percentiles over
            resampled paths); None for fewer than 5 paths.
    """

    nonlinear: PowerLaw
    logarithmic: PowerLaw
    resampled: PowerLaw | None

    def as_data(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "nonlinear": self.nonlinear.as_data(),
            "logarithmic": self.logarithmic.as_data(),
            "resampled": None if self.resampled is None else self.resampled.as_data(),
        }


def window_mean(times: Tensor, values: Tensor, start: float) -> Tensor:
    """Return the average over the records with t >= start: values (*batch, K) at times (K,) to (*batch,).

    Raises:
        InvalidInput: when no time lies in the window.
    """
    inside = times >= start - 1e-9
    if not bool(inside.any()):
        raise InvalidInput(f"no time lies in the window t >= {start!r}; the last one is {float(times[-1])!r}")
    return values[..., inside].mean(-1)


def pearson(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Return Pearson's correlation; None where one side does not vary."""
    first, second = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    first, second = first - first.mean(), second - second.mean()
    scale = math.sqrt(float(first @ first) * float(second @ second))
    return float(first @ second) / scale if scale > 0 else None


def fit_power_laws(counts: Sequence[int], paths: Sequence[Tensor], seed: int = 0) -> PowerLaws | None:
    """Fit a H^b to the means over paths; None for fewer than two H or a mean that is not positive.

    Args:
        counts: H, shape (m,).
        paths: one tensor of one value per path for each H.
        seed: of the resampling.
    """
    x = np.asarray(counts, dtype=np.float64)
    y = np.array([float(values.mean()) for values in paths])
    if len(x) < 2 or not np.isfinite(y).all() or y.min() <= 0:
        return None
    logarithmic = _logarithmic(x, y)
    return PowerLaws(_nonlinear(x, y, logarithmic), logarithmic, _resampled(x, paths, logarithmic, seed))


def _logarithmic(x: NDArray[np.float64], y: NDArray[np.float64]) -> PowerLaw:
    design = np.stack([np.ones_like(x), np.log(x)], axis=1)
    solution = np.linalg.lstsq(design, np.log(y), rcond=None)[0]
    a, b = math.exp(solution[0]), float(solution[1])
    freedom = len(x) - 2
    if freedom < 1:
        return PowerLaw(a, b, None, None)
    residual = np.log(y) - design @ solution
    covariance = np.linalg.inv(design.T @ design) * float(residual @ residual) / freedom
    wide = _quantile(_CONFIDENCE, freedom) * np.sqrt(np.diag(covariance))
    return PowerLaw(a, b, (a * math.exp(-wide[0]), a * math.exp(wide[0])), (b - float(wide[1]), b + float(wide[1])))


def _nonlinear(x: NDArray[np.float64], y: NDArray[np.float64], guess: PowerLaw) -> PowerLaw:
    from scipy.optimize import curve_fit

    def law(count: NDArray[np.float64], a: float, b: float) -> NDArray[np.float64]:
        return a * count**b

    freedom = len(x) - 2
    if freedom < 1:
        return guess
    # In units of the largest value: the stopping rules of the solver are relative to the size of a and b.
    scale = float(y.max())
    best, covariance = curve_fit(law, x, y / scale, p0=(guess.a / scale, guess.b), xtol=1e-12, ftol=1e-12)
    a, b = scale * float(best[0]), float(best[1])
    wide = _quantile(_CONFIDENCE, freedom) * np.sqrt(np.diag(covariance))
    first, second = scale * float(wide[0]), float(wide[1])
    return PowerLaw(a, b, (a - first, a + first), (b - second, b + second))


def _resampled(x: NDArray[np.float64], paths: Sequence[Tensor], fit: PowerLaw, seed: int) -> PowerLaw | None:
    if min(len(values) for values in paths) < 5:
        return None
    generator = np.random.Generator(np.random.Philox(check_word(seed, "seed")))
    means = []
    for values in paths:
        numbers = values.to("cpu", torch.float64).numpy()
        means.append(numbers[generator.integers(len(numbers), size=(_RESAMPLES, len(numbers)))].mean(1))
    logs = np.log(np.stack(means, axis=1))
    centered = np.log(x) - np.log(x).mean()
    exponents = logs @ centered / float(centered @ centered)
    factors = np.exp(logs.mean(1) - exponents * np.log(x).mean())
    ends = (100 * (1 - _CONFIDENCE) / 2, 100 * (1 + _CONFIDENCE) / 2)
    a_low, a_high = (float(value) for value in np.percentile(factors, ends))
    b_low, b_high = (float(value) for value in np.percentile(exponents, ends))
    return PowerLaw(fit.a, fit.b, (a_low, a_high), (b_low, b_high))


def _quantile(probability: float, freedom: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + probability) / 2, freedom))
