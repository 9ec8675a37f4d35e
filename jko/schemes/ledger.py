"""The paper's discrete balance of the energy, one row of it for every explicit step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import final

from torch import Tensor

from jko.averages import head_average
from jko.energies import AttentionEnergy, PairMoments
from jko.errors import InvalidInput
from jko.flows import AbstractFlow, FlowState, GradientFlow
from jko.heads import AbstractItoHeads, HeadIncrement
from jko.measure import ParticleMeasure
from jko.schemes.base import StepState

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

    def ready(self, state: StepState) -> StepState:
        """Return a state that carries the moments: the same, or one more pass for one that a plain step left."""
        old = state.flow_state
        if _moments(old) is not None:
            return state
        return replace(state, flow_state=self.state(old.measure, old.t))

    def columns(self, state: FlowState, tau: float, increment: HeadIncrement) -> dict[str, float]:
        """Return the four terms of a step from its old state, which carries the moments over pairs."""
        moments = _moments(state)
        assert moments is not None
        half = self.energy.sign / 2
        first, spread = moments.first.cpu(), moments.spread.cpu()
        return {
            "ledger_drift": half * tau * self._average((first * increment.drift).sum((-2, -1))),
            "ledger_ito": half * tau * self._average(increment.noise_variance / 4 * spread),
            "ledger_dissipation": tau * state.columns["paper_slope2"],
            "ledger_martingale": half * self._average((first * increment.noise).sum((-2, -1))),
        }

    def _average(self, values: Tensor) -> float:
        return float(head_average(values, self.heads.head_weights, axis=-1))


def _moments(state: FlowState) -> PairMoments | None:
    heads = None if state.evaluation is None else state.evaluation.heads
    return None if heads is None else heads.moments
