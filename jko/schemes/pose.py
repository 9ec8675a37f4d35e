"""A step as it is posed: what is known at the old measure and the end time, before anything moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.energies import AbstractEnergy, Evaluation
from jko.flows import GradientFlow
from jko.measure import ParticleMeasure
from jko.metrics import Fields
from jko.schemes.movement import AbstractMovement, MatchedMovement
from jko.schemes.objective import StepObjective, Trial

__all__ = ["Pose"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Pose:
    """What every minimization of one step shares. G groups: the heads of a lifted metric, else one.

    Attributes:
        flow: the gradient flow.
        fields: the fields at the old measure y = u^{k-1} and the END time t_k.
        energy: the energy of the groups.
        evaluation: that energy at y, a batch (G,).
        mobility: b at y, shape (G, n), frozen over the step.
        shares: weights of the groups in averages, float64 on the CPU, shape (G,).
        tau: step size.
        rtol: relative residual that counts as solved.
    """

    flow: GradientFlow
    fields: Fields
    energy: AbstractEnergy
    evaluation: Evaluation
    mobility: Tensor
    shares: Tensor
    tau: float
    rtol: float

    @staticmethod
    def of(
        flow: GradientFlow,
        energy: AbstractEnergy,
        fields: Fields,
        tau: float,
        rtol: float,
        groups: Sequence[int] | None = None,
    ) -> Pose:
        """Pose a step of the energy at the end time from the fields at y; of all groups, or those of the fields."""
        metric, evaluation = flow.metric, fields.evaluation
        energy = metric.energy_of_groups(energy)
        return Pose(
            flow=flow,
            fields=fields,
            energy=energy if groups is None else energy.members(groups),
            evaluation=metric.evaluation_of_groups(evaluation),
            mobility=metric.mobility_of_groups(fields),
            shares=metric.shares_of_groups(evaluation),
            tau=tau,
            rtol=rtol,
        )

    @property
    def matched(self) -> MatchedMovement:
        """The movement in which particle i comes from y_i."""
        return MatchedMovement(self.fields.measure.points, self.mobility, self.fields.measure.weights)

    def objective(self, movement: AbstractMovement) -> StepObjective:
        """Return the objective with this movement."""
        return StepObjective(self.energy, movement, self.flow.manifold, self.fields.t, self.tau, self.rtol)

    def origin(self, objective: StepObjective) -> tuple[Trial, float]:
        """Return the trial at xi = 0 and the passes it took: none where the base points are the old measure."""
        base, y = objective.movement.base, self.fields.measure.points
        if base is y:
            return objective.origin(self.evaluation), 0.0
        zero = torch.zeros_like(base).expand(objective.groups, *base.shape[-2:])
        return objective.evaluate(zero), self.energy.passes

    def reference(self, objective: StepObjective, origin: Trial, weights: Tensor) -> Sequence[float] | None:
        """Return the objective of the old measure, which a result may not exceed; None where it is no candidate."""
        y = self.fields.measure
        if objective.movement.base is y.points:
            return origin.objective
        alike = weights.shape == y.weights.shape and torch.equal(weights, y.weights)
        return self.evaluation.value.tolist() if alike else None

    def moved(self, start: ParticleMeasure, trial: Trial) -> ParticleMeasure:
        """Return the new measure, with the weights of `start`.

        For a lifted metric Exp_y of the displacements averaged over the heads, in the tangent spaces at y.
        """
        if not self.flow.metric.lifted:
            return start.moved(trial.points[0])
        heads = self.fields.evaluation.heads
        weights = None if heads is None or heads.head_weights is None else heads.head_weights.to(trial.xi)
        mean = trial.xi.mean(0) if weights is None else torch.tensordot(weights, trial.xi, dims=1)
        return start.moved(self.flow.manifold.exp(self.fields.measure.points, mean))

    def evaluation_at(self, trial: Trial) -> Evaluation | None:
        """Return the evaluation of the flow's energy at the new measure, where the trial's own pass has given it."""
        if self.flow.metric.lifted or trial.evaluation is None:
            return None
        return self.fields.evaluation if trial.evaluation is self.evaluation else trial.evaluation.member(0)
