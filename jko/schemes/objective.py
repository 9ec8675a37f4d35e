"""The objective of one minimizing-movement step in the tangent space at the old measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar, final

import torch
from torch import Tensor

from jko.energies import AbstractEnergy, Evaluation, HeadEvaluation
from jko.manifolds import AbstractManifold
from jko.measure import ParticleMeasure
from jko.numerics import all_finite

__all__ = ["StepProblem", "Trial"]

_RESIDUAL_FLOOR = 30.0
# Relative to the heaviest particle: what weighs less has to meet the tolerance on its own.
_LIGHT = 1e-3
_Number = TypeVar("_Number")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """One point of the minimization with everything that its pass gave.

    Axes: G groups (1, or H heads of a lifted metric, each minimizing its own objective), n particles, d coordinates.

    Attributes:
        xi: tangent displacements at y, shape (G, n, d).
        points: Exp_y(xi), shape (G, n, d).
        ambient: ambient gradient of the energy there, per unit mass, shape (G, n, d).
        pull: (d Exp_y)^* of the ambient gradient, tangent at y, shape (G, n, d).
        potential: first variation at the points, shape (G, n).
        energy: s E of each group, a list of G numbers.
        objective: s E + W^2 / (2 tau) of each group.
        residual: relative first-order residual, the largest over groups and tracers; inf where anything is not finite.
        mass_residual: the same with the tracers (weight 0) left out.
        evaluation: the evaluation at the points (G = 1 of a metric that is not lifted), else None.
        curvature: ambient Hessian of the first variation at the points, (G, n, d, d), where it was asked for.
        residuals: `residual` and `mass_residual` of each group alone.
    """

    xi: Tensor
    points: Tensor
    ambient: Tensor
    pull: Tensor
    potential: Tensor
    energy: list[float]
    objective: list[float]
    residual: float
    mass_residual: float
    evaluation: Evaluation | None
    residuals: list[tuple[float, float]]
    curvature: Tensor | None = None

    @property
    def finite(self) -> bool:
        """Whether every number of this trial is finite."""
        return math.isfinite(self.residual)

    def selected(self, groups: Sequence[int]) -> Trial:
        """Return the part of these groups, without the curvature."""
        return _joined([self], groups)

    @staticmethod
    def joined(parts: Sequence[tuple[Sequence[int], Trial]]) -> Trial:
        """Return one trial from parts, each with the numbers that its groups have in the whole."""
        numbers = [number for groups, _ in parts for number in groups]
        return _joined([part for _, part in parts], sorted(range(len(numbers)), key=numbers.__getitem__))


@final
@dataclass(frozen=True, slots=True, eq=False)
class StepProblem:
    """Minimize sE(Exp_y xi, t) + sum_i w_i b_i |xi_i|^2 / (2 tau) over tangent vectors xi at y.

    For a lifted metric head h minimizes sE_h with b = m_h, all heads side by side.

    Attributes:
        energy: the energy.
        manifold: the manifold.
        measure: y = u^{k-1}.
        t: END time t_k of the step.
        tau: step size.
        mobility: b at y, shape (G, n), frozen over the step.
        lifted: whether each group is a head with its own cloud.
        rtol: the relative residual that counts as solved; it sets the rounding floor of the residual.
        noise: relative accuracy of the forces where it is worse than rounding, such as that of a transport solver.
    """

    energy: AbstractEnergy
    manifold: AbstractManifold
    measure: ParticleMeasure
    t: float
    tau: float
    mobility: Tensor
    lifted: bool
    rtol: float
    noise: float = 0.0
    _scales: _Scales = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_scales", _Scales.of(self.measure.weights, self.mobility, self.tau))

    def heads(self, indices: Sequence[int]) -> StepProblem:
        """Return the step of some heads of a lifted metric alone: heads do not see each other within a step."""
        return replace(self, energy=self.energy.heads_alone(indices), mobility=self.mobility[list(indices)])

    def head(self, index: int) -> StepProblem:
        """Return the step of one head of a lifted metric alone, as one that is not lifted."""
        return replace(self.heads([index]), lifted=False)

    def evaluate(self, xi: Tensor) -> Trial:
        """Return the trial at xi, shape (G, n, d): ONE pass over the pairs."""
        y = self.measure.points
        points = self.manifold.exp(y, xi)
        if not all_finite(points):
            return self._broken(xi, points)
        if self.lifted:
            heads = self.energy.evaluate_heads(points, self.measure.weights, self.t)
            return self.from_heads(xi, points, heads)
        return self.from_evaluation(xi, points, self.energy.evaluate(self.measure.moved(points[0]), self.t))

    def from_heads(self, xi: Tensor, points: Tensor, heads: HeadEvaluation) -> Trial:
        """Return the trial at xi from an evaluation of the heads that is already at hand."""
        trial = self._trial(xi, points, heads.gradient, heads.first_variation, heads.energy, None)
        return trial if heads.curvature is None else replace(trial, curvature=heads.curvature)

    def from_evaluation(self, xi: Tensor, points: Tensor, evaluation: Evaluation) -> Trial:
        """Return the trial at xi from an evaluation at its points that is already at hand."""
        gradient, potential = evaluation.gradient[None], evaluation.first_variation[None]
        trial = self._trial(xi, points, gradient, potential, evaluation.value[None], evaluation)
        return trial if evaluation.curvature is None else replace(trial, curvature=evaluation.curvature[None])

    def fixed_point(self, trial: Trial) -> Tensor:
        """Return -(tau / b) (d Exp_y)^* grad, the map whose fixed points are the stationary displacements."""
        return trial.pull * self._scales.step

    def stationarity(self, trial: Trial) -> Tensor:
        """Return b xi / tau + (d Exp_y)^* grad per unit mass, shape (G, n, d): zero at a minimizer."""
        return trial.xi * self._scales.stiffness + trial.pull

    def hessian_product(self, trial: Trial, eta: Tensor) -> Tensor:
        """Return the derivative of `stationarity` along the tangent eta, shape (G, n, d): exact, one pass."""
        y = self.measure.points
        moving = self.manifold.exp_differential(y, trial.xi, eta)
        if self.lifted:
            bent = self.energy.hessian_product_heads(trial.points, self.measure.weights, self.t, moving)
        else:
            moved = self.measure.moved(trial.points[0])
            bent = self.energy.hessian_product(moved, self.t, moving[0])[None]
        pulled = self.manifold.exp_adjoint(y, trial.xi, bent)
        curved = self.manifold.exp_adjoint_derivative(y, trial.xi, trial.ambient, eta)
        return eta * self._scales.stiffness + pulled + curved

    def _trial(
        self,
        xi: Tensor,
        points: Tensor,
        ambient: Tensor,
        potential: Tensor,
        energy: Tensor,
        evaluation: Evaluation | None,
    ) -> Trial:
        pull = self.manifold.exp_adjoint(self.measure.points, xi, ambient)
        cost = xi * self._scales.stiffness
        norms = self._scales.norms(torch.stack([cost + pull, cost, pull, ambient]))
        energies, costs = energy.tolist(), norms[0][1]
        objective = [e + self.tau / 2 * c * c for e, c in zip(energies, costs, strict=True)]
        if all(math.isfinite(value) for value in objective):
            rows = [list(map(self._relative, *row)) for row in norms]
        else:
            rows = [[math.inf] * len(energies)]
        of_mass = rows[: len(norms) - self._scales.tracers]
        every, massive = ([max(column) for column in zip(*part, strict=True)] for part in (rows, of_mass))
        residuals = list(zip(every, massive, strict=True))
        return Trial(
            xi, points, ambient, pull, potential, energies, objective, max(every), max(massive), evaluation, residuals
        )

    def _relative(self, defect: float, cost: float, force: float, ambient: float) -> float:
        """Relative error of the displacement; a stationary state must not chase the rounding of its gradient."""
        if not math.isfinite(defect) or not math.isfinite(ambient):
            return math.inf
        eps = float(torch.finfo(self.measure.dtype).eps)
        scale = max(cost, force, _RESIDUAL_FLOOR * eps / self.rtol * ambient)
        return defect / scale if scale > 0 else 0.0

    def _broken(self, xi: Tensor, points: Tensor) -> Trial:
        nan = torch.full_like(xi, math.nan)
        groups = [math.nan] * xi.shape[0]
        residuals = [(math.inf, math.inf)] * xi.shape[0]
        return Trial(xi, points, nan, nan, nan[..., 0], groups, groups, math.inf, math.inf, None, residuals)


def _joined(parts: Sequence[Trial], order: Sequence[int]) -> Trial:
    """The groups of all parts one after the other, taken in this order."""
    index = torch.tensor(order, device=parts[0].xi.device)

    def rows(tensors: list[Tensor]) -> Tensor:
        return torch.cat(tensors).index_select(0, index)

    def numbers(lists: list[list[_Number]]) -> list[_Number]:
        flat = [number for part in lists for number in part]
        return [flat[k] for k in order]

    residuals = numbers([part.residuals for part in parts])
    return Trial(
        xi=rows([part.xi for part in parts]),
        points=rows([part.points for part in parts]),
        ambient=rows([part.ambient for part in parts]),
        pull=rows([part.pull for part in parts]),
        potential=rows([part.potential for part in parts]),
        energy=numbers([part.energy for part in parts]),
        objective=numbers([part.objective for part in parts]),
        residual=max(whole for whole, _ in residuals),
        mass_residual=max(massive for _, massive in residuals),
        evaluation=None,
        residuals=residuals,
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
    """

    stiffness: Tensor
    step: Tensor
    roots: Tensor
    tracers: bool

    @staticmethod
    def of(weights: Tensor, mobility: Tensor, tau: float) -> _Scales:
        b, masses = mobility[..., None], weights.to(torch.float64)
        unheard = [(weights > 0) & (masses < _LIGHT * masses.max()), weights == 0]
        rows = torch.stack([masses, *(mask.to(masses) for mask in unheard if bool(mask.any()))])
        roots = (rows[:, None] / mobility.to(torch.float64)).sqrt()
        return _Scales(b / tau, -tau / b, roots[:, None, ..., None], bool(unheard[-1].any()))

    def norms(self, vectors: Tensor) -> list[list[list[float]]]:
        """Norms of vectors (4, G, n, d), numbers (K, 4, G); the root goes in before squares, which could overflow."""
        norms: list[list[list[float]]] = torch.linalg.vector_norm(vectors * self.roots, dim=(-2, -1)).tolist()
        return norms
