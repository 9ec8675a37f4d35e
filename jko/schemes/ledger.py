"""The paper's discrete balance of the energy, one row of it for every explicit step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

from torch import Tensor

from jko.averages import head_average
from jko.energies import AttentionEnergy, PairMoments
from jko.errors import InvalidInput
from jko.flows import AbstractFlow, FlowState, GradientFlow
from jko.heads import AbstractItoHeads
from jko.measure import ParticleMeasure

__all__ = ["Ledger"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Ledger:
    """The balance (147) of Massucco et al. 2026 for sE, its terms taken at the old state as in the paper.

    sE(u^N, T) - sE(u^0, 0) is, up to O(tau) and the gap that the covariance over heads leaves for H >= 2, the sum over
    the steps of `ledger_drift` + `ledger_ito` - `ledger_dissipation` + `ledger_martingale`.
    """

    flow: GradientFlow
    energy: AttentionEnergy
    heads: AbstractItoHeads

    @staticmethod
    def of(flow: AbstractFlow) -> Ledger:
        """Return the ledger of a flow.

        Raises:
            InvalidInput: when the flow is not that of one attention energy, or its heads do not know their increments.
        """
        energy = flow.energy if isinstance(flow, GradientFlow) else None
        if not isinstance(flow, GradientFlow) or not isinstance(energy, AttentionEnergy):
            raise InvalidInput(
                "ledger=True writes the balance (147) of one attention energy, so it needs a GradientFlow of an "
                f"AttentionEnergy; this flow is {type(flow).__name__}" + (f" of {energy.description}" if energy else "")
            )
        if not isinstance(energy.heads, AbstractItoHeads):
            raise InvalidInput(
                f"ledger=True needs heads that know their drift and noise, which {type(energy.heads).__name__} do not; "
                "use ConstantHeads, OscillatingHeads, OrnsteinUhlenbeckHeads (exact=False) or ItoHeads"
            )
        return Ledger(flow, energy, energy.heads)

    def check_times(self, times: Sequence[float]) -> None:
        """Raise InvalidInput unless every step lies on the heads' own grid."""
        for t, end in pairwise(times):
            self.heads.increment(t, end - t)

    def state(self, measure: ParticleMeasure, t: float) -> FlowState:
        """Return the flow's state together with the moments over pairs, from one pass."""
        return self.flow.state(measure, t, moments=True)

    def columns(self, old: FlowState, tau: float) -> tuple[dict[str, float], float]:
        """Return the four terms of a step from its old state, and the passes that they took.

        A state that a plain step left carries no moments over pairs: that is one more pass.
        """
        increment, moments, passes = self.heads.increment(old.t, tau), _moments(old), 0.0
        if moments is None:
            moments, passes = _moments(self.state(old.measure, old.t)), 1.0
            assert moments is not None
        half = self.energy.sign / 2
        first, spread = moments.first.cpu(), moments.spread.cpu()
        columns = {
            "ledger_drift": half * tau * self._average((first * increment.drift).sum((-2, -1))),
            "ledger_ito": half * tau * self._average(increment.noise_variance / 4 * spread),
            "ledger_dissipation": tau * old.columns["paper_slope2"],
            "ledger_martingale": half * self._average((first * increment.noise).sum((-2, -1))),
        }
        return columns, passes

    def _average(self, values: Tensor) -> float:
        return float(head_average(values, self.heads.head_weights, axis=-1))


def _moments(state: FlowState) -> PairMoments | None:
    heads = None if state.evaluation is None else state.evaluation.heads
    return None if heads is None else heads.moments
