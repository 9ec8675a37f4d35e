"""The objective of one minimizing-movement step: groups of particles under energy plus movement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar, final

import torch
from torch import Tensor

from jko.energies import AbstractEnergy, Evaluation
from jko.manifolds import AbstractManifold
from jko.measure import ParticleMeasure
from jko.numerics import all_finite
from jko.schemes.movement import AbstractMovement
from jko.typing import settle

__all__ = ["RESIDUAL_FLOOR", "StepObjective", "Trial"]

RESIDUAL_FLOOR = 30.0
"""Rounding errors that the residual of a stationary state may be made of, in units of eps: the largest seen was 12."""
_LIGHT = 1e-3
"""What weighs less than this share of the heaviest particle has to meet the tolerance on its own."""
_DRIFT = 5
"""Where the norm of the drift stands among those of a trial."""
_Number = TypeVar("_Number")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """One point of the minimization with everything that its pass gave.

    Axes: G groups (1, or H heads of a lifted metric, each minimizing its own objective), n particles, d coordinates.

    Attributes:
        xi: tangent displacements at the base points z, shape (G, n, d).
        points: Exp_z(xi), shape (G, n, d).
        ambient: ambient gradient of energy and excess there, per unit mass, shape (G, n, d).
        pull: (d Exp_z)^* of the ambient gradient, tangent at z, shape (G, n, d).
        potential: first variation at the points, shape (G, n).
        energy: s E of each group, a list of G numbers.
        cost: T of each group, the squared cost of moving.
        objective: s E + T / (2 tau) of each group.
        residual: relative first-order residual, the largest over groups and tracers; inf where anything is not finite.
        mass_residual: the same with the tracers (weight 0) left out.
        residuals: `residual` and `mass_residual` of each group alone.
        evaluation: the evaluation at the points, of a batch (G,); None where there is none for all groups.
        finite: whether every number of this trial is finite.
    """

    xi: Tensor
    points: Tensor
    ambient: Tensor
    pull: Tensor
    potential: Tensor
    energy: list[float]
    cost: list[float]
    objective: list[float]
    residual: float
    mass_residual: float
    residuals: list[tuple[float, float]]
    evaluation: Evaluation | None
    finite: bool

    def members(self, groups: Sequence[int]) -> Trial:
        """Return the part of these groups."""
        return _joined([self], groups)

    @staticmethod
    def joined(parts: Sequence[tuple[Sequence[int], Trial]]) -> Trial:
        """Return one trial from parts, each with the numbers that its groups have in the whole."""
        numbers = [number for groups, _ in parts for number in groups]
        return _joined([part for _, part in parts], sorted(range(len(numbers)), key=numbers.__getitem__))


@final
@dataclass(frozen=True, slots=True, eq=False)
class StepObjective:
    """Minimize sE(x, t) + T(x) / (2 tau), x = Exp_z(xi), over tangent vectors xi at the base points z of the movement.

    T = sum_i w_i b_i |xi_i|^2 + excess(x). All groups side by side, each with its own base points and mobility.

    Attributes:
        energy: the energy of a batch (G, n, d): for a lifted metric, head h on its own cloud.
        movement: T, with base points z and mobility b.
        manifold: the manifold.
        t: END time t_k of the step.
        tau: step size.
        rtol: the relative residual that counts as solved; it sets the rounding floor of the residual.
        reference: the objective of each group at the old measure, which a result may not exceed; None where the old
            measure is no candidate, having another support.
    """

    energy: AbstractEnergy
    movement: AbstractMovement
    manifold: AbstractManifold
    t: float
    tau: float
    rtol: float
    reference: list[float] | None = None
    _scales: _Scales = field(init=False, repr=False)

    def __post_init__(self) -> None:
        settle(self, _scales=_Scales.of(self.movement, self.tau))

    @property
    def groups(self) -> int:
        """Number of groups."""
        return self.movement.mobility.shape[0]

    def members(self, groups: Sequence[int]) -> StepObjective:
        """Return the step of these groups alone: groups do not see each other within a step."""
        index = list(groups)
        reference = None if self.reference is None else [self.reference[g] for g in index]
        energy, movement = self.energy.members(index), self.movement.members(index)
        return replace(self, energy=energy, movement=movement, reference=reference)

    def origin(self, evaluation: Evaluation) -> Trial:
        """Return the trial at xi = 0 from an evaluation of the groups at the base points, which is at hand."""
        points = self.movement.base.expand(self.groups, *self.movement.base.shape[-2:])
        return self._trial(torch.zeros_like(points), points, evaluation)

    def evaluate(self, xi: Tensor) -> Trial:
        """Return the trial at xi, shape (G, n, d), from one evaluation of the energy."""
        points = self.manifold.exp(self.movement.base, xi)
        if not all_finite(points):
            return self._broken(xi, points)
        measure = ParticleMeasure.of_checked(points, self.movement.weights)
        return self._trial(xi, points, self.energy.evaluate(measure, self.t))

    def fixed_point(self, trial: Trial) -> Tensor:
        """Return -(tau / b) (d Exp_z)^* grad, the map whose fixed points are the stationary displacements."""
        return trial.pull * self._scales.step

    def stationarity(self, trial: Trial) -> Tensor:
        """Return b xi / tau + (d Exp_z)^* grad per unit mass, shape (G, n, d): zero at a minimizer."""
        return trial.xi * self._scales.stiffness + trial.pull

    def hessian_product(self, trial: Trial, eta: Tensor) -> Tensor:
        """Return the derivative of `stationarity` along the tangent eta, shape (G, n, d): exact, one pass."""
        z = self.movement.base
        moving = self.manifold.exp_differential(z, trial.xi, eta)
        measure = ParticleMeasure.of_checked(trial.points, self.movement.weights)
        bent = self.energy.hessian_product(measure, self.t, moving)
        bent = bent + self.movement.excess_product(trial.points, moving) / (2 * self.tau)
        pulled = self.manifold.exp_adjoint(z, trial.xi, bent)
        curved = self.manifold.exp_adjoint_derivative(z, trial.xi, trial.ambient, eta)
        return eta * self._scales.stiffness + pulled + curved

    def _trial(self, xi: Tensor, points: Tensor, evaluation: Evaluation) -> Trial:
        z, ambient, excess = self.movement.base, evaluation.gradient, self.movement.excess(points)
        quadratic = xi * self._scales.stiffness
        pull = force = self.manifold.exp_adjoint(z, xi, ambient)
        fields = [quadratic + pull, quadratic, pull, ambient]
        if excess is not None:
            # The defect weighs the force of the energy against that of all of T, in which no chart occurs.
            gradient = excess.gradient / (2 * self.tau)
            resistance = self.manifold.exp_adjoint(z, xi, gradient)
            fields = [quadratic + resistance + force, quadratic + resistance, force, ambient, quadratic]
            ambient, pull = ambient + gradient, force + resistance
            if self.movement.drift is not None:
                fields.append(self.movement.drift / (2 * self.tau))
        norms = self._scales.norms(torch.stack(fields))
        energies, costs, objective = evaluation.value.tolist(), [], []
        for g, size in enumerate(norms[0][1 if excess is None else 4]):
            # tau^2 sum_i (w_i / b_i) |b_i xi_i / tau|^2 = sum_i w_i b_i |xi_i|^2.
            cost = (self.tau * size) ** 2 + (0.0 if excess is None else excess.value[g])
            costs.append(cost)
            objective.append(energies[g] + cost / (2 * self.tau))
        residuals, every, massive = self._residuals(norms, objective)
        return Trial(
            xi,
            points,
            ambient,
            pull,
            evaluation.first_variation,
            energies,
            costs,
            objective,
            every,
            massive,
            residuals,
            evaluation,
            every < math.inf,
        )

    def _residuals(
        self, norms: list[list[list[float]]], objective: list[float]
    ) -> tuple[list[tuple[float, float]], float, float]:
        """Relative error of the displacement over all particles and over those with mass: per group, and the largest.

        |defect| / max(|cost|, |force|, floor |ambient|, |drift|): the floor keeps a stationary state from chasing the
        rounding of its gradient.
        """
        floor = RESIDUAL_FLOOR * self._scales.eps / self.rtol
        residuals, largest, largest_massive = [], 0.0, 0.0
        for g, value in enumerate(objective):
            every = massive = 0.0
            for k, row in enumerate(norms):
                defect, ambient = row[0][g], row[3][g]
                scale = max(row[1][g], row[2][g], floor * ambient, row[5][g] if len(row) > _DRIFT else 0.0)
                if not (math.isfinite(value) and math.isfinite(defect) and math.isfinite(ambient)):
                    relative = math.inf
                else:
                    relative = defect / scale if scale > 0 else 0.0
                every = max(every, relative)
                # Tracers are the last row where there are any.
                massive = every if not self._scales.tracers or k < len(norms) - 1 else massive
            residuals.append((every, massive))
            largest, largest_massive = max(largest, every), max(largest_massive, massive)
        return residuals, largest, largest_massive

    def _broken(self, xi: Tensor, points: Tensor) -> Trial:
        nan = torch.full_like(xi, math.nan)
        groups = [math.nan] * xi.shape[0]
        residuals = [(math.inf, math.inf)] * xi.shape[0]
        return Trial(
            xi, points, nan, nan, nan[..., 0], groups, groups, groups, math.inf, math.inf, residuals, None, False
        )


def _joined(parts: Sequence[Trial], order: Sequence[int]) -> Trial:
    """The groups of all parts one after the other, taken in this order."""
    index = torch.tensor(order, device=parts[0].xi.device)

    def rows(tensors: list[Tensor]) -> Tensor:
        return torch.cat(tensors).index_select(0, index)

    def numbers(lists: list[list[_Number]]) -> list[_Number]:
        flat = [number for part in lists for number in part]
        return [flat[k] for k in order]

    residuals = numbers([part.residuals for part in parts])
    residual, mass_residual = (max(column) for column in zip(*residuals, strict=True))
    return Trial(
        xi=rows([part.xi for part in parts]),
        points=rows([part.points for part in parts]),
        ambient=rows([part.ambient for part in parts]),
        pull=rows([part.pull for part in parts]),
        potential=rows([part.potential for part in parts]),
        energy=numbers([part.energy for part in parts]),
        cost=numbers([part.cost for part in parts]),
        objective=numbers([part.objective for part in parts]),
        residual=residual,
        mass_residual=mass_residual,
        residuals=residuals,
        evaluation=None,
        finite=residual < math.inf,
    )


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Scales:
    """What all trials of one step share.

    Attributes:
        stiffness: b / tau, shape (G, n, 1).
        step: -tau / b, shape (G, n, 1).
        roots: (w / b)^(1/2), float64, shape (K, 1, G, n, 1): first for all particles, then for those that a norm with
            their own masses would not hear, with masses 1: light ones, and tracers; only where there are any.
        tracers: whether the last of them are tracers.
        eps: the rounding unit of the particles.
    """

    stiffness: Tensor
    step: Tensor
    roots: Tensor
    tracers: bool
    eps: float

    @staticmethod
    def of(movement: AbstractMovement, tau: float) -> _Scales:
        weights, b = movement.weights, movement.mobility[..., None]
        masses = weights.to(torch.float64)
        unheard = [(weights > 0) & (masses < _LIGHT * masses.max()), weights == 0]
        rows = torch.stack([masses, *(mask.to(masses) for mask in unheard if bool(mask.any()))])
        roots = (rows[:, None] / movement.mobility.to(torch.float64)).sqrt()
        eps = float(torch.finfo(b.dtype).eps)
        return _Scales(b / tau, -tau / b, roots[:, None, ..., None], bool(unheard[-1].any()), eps)

    def norms(self, vectors: Tensor) -> list[list[list[float]]]:
        """Norms of vectors (V, G, n, d), numbers (K, V, G); the root goes in before squares, which could overflow."""
        norms: list[list[list[float]]] = torch.linalg.vector_norm(vectors * self.roots, dim=(-2, -1)).tolist()
        return norms
