"""The experiments of the paper, collected from finished jobs: numbers, curves, fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from jko.diagnostics import Check
from jko.errors import InvalidInput
from jko.paper.job import Job
from jko.paper.ledgers import Ledgers
from jko.paper.setting import Regime, Setting
from jko.paper.statistics import Band, Estimate, PowerLaws, fit_power_laws, pearson, window_mean
from jko.paper.store import load_job

__all__ = ["HeadsResult", "RegimeResult", "collect", "paper_jobs"]


def paper_jobs(setting: Setting, regimes: Sequence[Regime], heads: Sequence[int]) -> list[Job]:
    """Return the explicit, head-wise runs of the paper: every regime, number of heads and path."""
    return [
        Job(setting, regime, count, path)
        for regime in regimes
        for count in heads
        for path in range(setting.count_paths(regime))
    ]


@final
@dataclass(frozen=True, slots=True, eq=False)
class HeadsResult:
    """All paths of one regime with one number of heads.

    Attributes:
        num_heads: H.
        slope2: G^2 over the paths, at `ledgers.times`.
        log_slope2: log G^2 over the paths: on a logarithmic axis its band is the one that stays positive.
        energy: sE over the paths.
        averages: beginning of a window -> mean of G^2 from there on, one number per path, shape (P,).
        ledgers: the two ledgers.
        cloud_times: times of the mean clouds, shape (S,).
        mean_clouds: each token averaged over the paths and normalized, shape (S, n, d).
        seconds: wall-clock time of the jobs, added up.
    """

    num_heads: int
    slope2: Band
    log_slope2: Band
    energy: Band
    averages: dict[float, Tensor]
    ledgers: Ledgers
    cloud_times: Tensor
    mean_clouds: Tensor
    seconds: float

    @property
    def times(self) -> Tensor:
        """Times of the curves, shape (K + 1,)."""
        return self.ledgers.times

    def estimate(self, window: float) -> Estimate:
        """Return the mean of G^2 over t >= window with its Monte Carlo error."""
        return Estimate.of(self.averages[window])

    def as_data(self) -> dict[str, Any]:
        """Return the numbers as plain data."""
        return {
            "num_heads": self.num_heads,
            "mean_slope2": [{"t_from": window, **self.estimate(window).as_data()} for window in self.averages],
            "final_energy": float(self.energy.mean[-1]),
            "ledger": self.ledgers.as_data(),
            "seconds": self.seconds,
        }


@final
@dataclass(frozen=True, slots=True, eq=False)
class RegimeResult:
    """One regime with every number of heads.

    Attributes:
        setting: the parameters.
        regime: how the heads move.
        entries: one entry per H.
    """

    setting: Setting
    regime: Regime
    entries: tuple[HeadsResult, ...]

    def fits(self, window: float) -> PowerLaws | None:
        """Return a H^b fitted to the mean of G^2 over t >= window; None for a single H."""
        counts = [entry.num_heads for entry in self.entries]
        return fit_power_laws(counts, [entry.averages[window] for entry in self.entries], self.setting.seed)

    def correlations(self, window: float) -> dict[str, float | None]:
        """Return Pearson's r of 1/H and the mean of G^2, as in the authors' code, and that of the logarithms."""
        inverse = torch.tensor([1.0 / entry.num_heads for entry in self.entries], dtype=torch.float64)
        means = torch.stack([entry.averages[window].mean() for entry in self.entries])
        return {
            "linear": pearson(inverse.tolist(), means.tolist()),
            "logarithmic": pearson(inverse.log().tolist(), means.log().tolist()) if bool((means > 0).all()) else None,
        }

    @property
    def checks(self) -> tuple[Check, ...]:
        """What must hold whatever the parameters; at paper size also what the paper states of the exponents."""
        found = []
        allowed = 1e-9 if self.setting.dtype == "float64" else 1e-3
        for entry in self.entries:
            name = f"{self.regime.title}, H = {entry.num_heads}"
            gap = entry.ledgers.gap
            found.append(
                Check(f"{name}: motion part + time part = energy change", gap <= allowed, f"relative gap {gap:.1e}")
            )
            martingale = entry.ledgers.final_martingale
            centered = martingale.contains(0.0)
            if self.regime.random and centered is not None:
                found.append(
                    Check(
                        f"{name}: the martingale term has mean zero within its error",
                        centered,
                        f"{martingale.mean:.2e} +- {martingale.error:.1e} over {martingale.paths} paths",
                    )
                )
        return (*found, *self._paper_checks())

    def _paper_checks(self) -> list[Check]:
        setting = self.setting
        paper = setting.dimension == 3 and setting.sign == 1 and setting.n >= 200 and setting.t1 >= 20
        fits = self.fits(setting.window)
        if not paper or [entry.num_heads for entry in self.entries] != [1, 10, 100] or fits is None:
            return []
        laws = (("non-linear", fits.nonlinear), ("log-log", fits.logarithmic))
        told = "; ".join(f"{name} a = {law.a:.3f}, b = {law.b:.3f}" for name, law in laws)
        if self.regime is Regime.OU:
            held = all(abs(law.b + 1) <= 0.15 for _, law in laws)
            return [Check("OU: mean G^2 falls like H^b with b = -1 within 0.15", held, told)]
        if self.regime is Regime.OSCILLATING_SHARED:
            held = all(0.27 <= law.a <= 0.54 and -0.06 <= law.b <= 0.07 for _, law in laws)
            return [Check("oscillating, shared phases: a in [0.27, 0.54] and b in [-0.06, 0.07]", held, told)]
        mean = self.entries[1].estimate(setting.window).mean
        return [Check("oscillating, spread phases: mean G^2 at H = 10 below 0.01", mean < 0.01, f"{mean:.2e}")]

    def as_data(self) -> dict[str, Any]:
        """Return the numbers as plain data."""
        fits = {window: self.fits(window) for window in self.setting.windows}
        return {
            "regime": self.regime.value,
            "entries": [entry.as_data() for entry in self.entries],
            "fits": [
                {"t_from": window, **fit.as_data(), "pearson": self.correlations(window)}
                for window, fit in fits.items()
                if fit is not None
            ],
        }

    def curves(self) -> dict[str, Tensor]:
        """Return the curves of the figures by name, for a file of tensors."""
        found: dict[str, Tensor] = {}
        for entry in self.entries:
            prefix = f"{self.regime.value}.H{entry.num_heads}"
            found[f"{prefix}.t"] = entry.times
            found[f"{prefix}.cloud_times"] = entry.cloud_times
            found[f"{prefix}.mean_clouds"] = entry.mean_clouds
            bands = {"slope2": entry.slope2, "log_slope2": entry.log_slope2, "energy": entry.energy}
            names = ("change", "slope2", "explicit", "martingale", "balance", "motion", "time", "dissipation")
            bands |= {f"ledger_{name}": getattr(entry.ledgers, name) for name in names}
            for name, band in bands.items():
                found[f"{prefix}.{name}.mean"] = band.mean
                if band.deviation is not None:
                    found[f"{prefix}.{name}.deviation"] = band.deviation
        return found


def collect(folder: Path, setting: Setting, regime: Regime, heads: Sequence[int]) -> RegimeResult:
    """Read the finished jobs of a regime and return what they show.

    Raises:
        RunFolderError: naming a job that is not there.
        InvalidInput: for no number of heads.
    """
    if not heads:
        raise InvalidInput("a regime needs at least one number of heads")
    return RegimeResult(setting, regime, tuple(_entry(folder, setting, regime, count) for count in heads))


def _entry(folder: Path, setting: Setting, regime: Regime, count: int) -> HeadsResult:
    results = [load_job(folder, job) for job in paper_jobs(setting, [regime], [count])]
    times = results[0].states["t"]
    slope2 = torch.stack([result.states["paper_slope2"] for result in results])
    clouds = torch.stack([result.clouds.to(torch.float64) for result in results]).mean(0)
    return HeadsResult(
        num_heads=count,
        slope2=Band.of(slope2),
        log_slope2=Band.of(slope2.log()),
        energy=Band.of(torch.stack([result.states["energy"] for result in results])),
        averages={window: window_mean(times, slope2, window) for window in setting.windows},
        ledgers=Ledgers.of(results),
        cloud_times=results[0].times,
        mean_clouds=clouds / clouds.norm(dim=-1, keepdim=True),
        seconds=sum(result.seconds for result in results),
    )
