"""Two ledgers of the energy along explicit runs: the paper's (147), and the one that closes to rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from jko.paper.job import JobResult
from jko.paper.statistics import Band, Estimate

__all__ = ["Ledgers"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Ledgers:
    """Terms integrated from 0 to t, mean and deviation over paths, in units of energy; the sign applied as in sE.

    (147): change + slope2 - explicit - martingale = balance, which is O(dt) and, for H >= 2, also holds the integral of
    dissipation - G^2, since (147) books G^2 where the energy of the head-wise flow falls by the true dissipation.
    The exact one: change = motion + time, step by step, without an Ito correction.

    Attributes:
        times: shape (K + 1,).
        change: sE(u_t, t) - sE(u_0, 0).
        slope2: integral of G^2.
        explicit: integral of the explicit time derivative: drift of the heads and Ito correction.
        martingale: the stochastic residual M_t.
        balance: what (147) leaves over.
        motion: what the particles do to the energy.
        time: what the heads do to it.
        dissipation: integral of the true dissipation, which -motion is up to O(dt).
        gap: the largest |change - motion - time| over paths and times, relative to the largest energy: rounding.
        final_martingale: M_T over the paths.
        final_balance: what (147) leaves over at T.
    """

    times: Tensor
    change: Band
    slope2: Band
    explicit: Band
    martingale: Band
    balance: Band
    motion: Band
    time: Band
    dissipation: Band
    gap: float
    final_martingale: Estimate
    final_balance: Estimate

    @staticmethod
    def of(results: Sequence[JobResult]) -> Ledgers:
        """Return the ledgers of the paths of one regime with one number of heads."""
        energy, dissipation = _states(results, "energy"), _states(results, "dissipation")
        times = results[0].states["t"]
        tau = times.diff()
        change = energy - energy[:, :1]
        slope2 = _integral(_steps(results, "ledger_dissipation"))
        explicit = _integral(_steps(results, "ledger_drift") + _steps(results, "ledger_ito"))
        martingale = _integral(_steps(results, "ledger_martingale"))
        balance = change + slope2 - explicit - martingale
        motion = _integral(energy[:, 1:] - _steps(results, "energy_previous"))
        time = _integral(_steps(results, "time_part"))
        return Ledgers(
            times=times,
            change=Band.of(change),
            slope2=Band.of(slope2),
            explicit=Band.of(explicit),
            martingale=Band.of(martingale),
            balance=Band.of(balance),
            motion=Band.of(motion),
            time=Band.of(time),
            dissipation=Band.of(_integral(dissipation[:, :-1] * tau)),
            gap=float((change - motion - time).abs().max() / energy.abs().max()),
            final_martingale=Estimate.of(martingale[:, -1]),
            final_balance=Estimate.of(balance[:, -1]),
        )

    def as_data(self) -> dict[str, Any]:
        """Return the terms at the final time as plain data."""
        names = ("change", "slope2", "explicit", "motion", "time", "dissipation")
        return {
            **{name: float(getattr(self, name).mean[-1]) for name in names},
            "martingale": self.final_martingale.as_data(),
            "balance": self.final_balance.as_data(),
            "largest_balance": float(self.balance.mean.abs().max()),
            "closing_gap": self.gap,
        }


def _states(results: Sequence[JobResult], name: str) -> Tensor:
    return torch.stack([result.states[name] for result in results])


def _steps(results: Sequence[JobResult], name: str) -> Tensor:
    return torch.stack([result.steps[name] for result in results])


def _integral(increments: Tensor) -> Tensor:
    """From increments (P, K) to their sums (P, K + 1), from 0."""
    return torch.nn.functional.pad(increments.cumsum(-1), (1, 0))
