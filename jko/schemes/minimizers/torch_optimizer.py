"""Any optimizer of `torch.optim` as the minimizer of a step."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from jko.checks import check_integer
from jko.errors import InvalidInput
from jko.schemes.minimizers.base import AbstractMinimizer, Search, check_rtol
from jko.schemes.minimizers.judge import shorten
from jko.schemes.objective import StepObjective, Trial

__all__ = ["TorchOptimizer"]

_OWN_TOLERANCES = ("tolerance_grad", "tolerance_change")


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class TorchOptimizer(AbstractMinimizer):
    """`torch.optim.LBFGS`, `Adam`, `SGD` or any other optimizer, on the device of the measure.

    The parameters are scaled tangent vectors z = (w b / tau)^(1/2) xi / unit, in which the transport term is a multiple
    of |z|^2 / 2 and entries are of order one whatever tau, the weights and the energy: absolute tolerances and learning
    rates of an optimizer then mean the same for every step. The gradient is set from the analytic one, without an
    autograd graph. The result is judged by the same residual as
    every other minimizer's, and a step that ends above the tolerance says so: first-order optimizers stall between
    1e-6 and 1e-9, because the objective loses its digits before its gradient does.

    Args:
        factory: optimizer class, or any callable (parameters, **options) -> optimizer.
        max_steps: passes over the pairs before it gives up.
        rtol: relative residual that counts as solved; None means 1e-6.
        options: passed to the factory, for instance lr. Optimizers with tolerances of their own (`LBFGS`) get 0 for
            them unless told otherwise: the residual decides when to stop, never a change that looks small.
    """

    factory: Callable[..., torch.optim.Optimizer]
    max_steps: int
    rtol: float
    options: dict[str, Any]

    def __init__(
        self,
        factory: Callable[..., torch.optim.Optimizer],
        *,
        max_steps: int = 200,
        rtol: float | None = None,
        **options: Any,
    ) -> None:
        if not callable(factory):
            raise InvalidInput(f"factory must be an optimizer class such as torch.optim.LBFGS, got {factory!r}")
        object.__setattr__(self, "factory", factory)
        object.__setattr__(self, "max_steps", check_integer(max_steps, "max_steps", least=1))
        object.__setattr__(self, "rtol", 1e-6 if rtol is None else check_rtol(rtol))
        known = inspect.signature(factory).parameters
        own = {name: 0.0 for name in _OWN_TOLERANCES if name in known}
        options = {**own, **options}
        object.__setattr__(self, "options", options)
        _probe(factory, options)

    def tolerance(self, dtype: torch.dtype) -> float:
        return max(self.rtol, 1e-5) if dtype == torch.float32 else self.rtol

    @property
    def max_passes(self) -> int:
        return self.max_steps

    def init(self, search: Search, guess: Tensor | None, memory: Any) -> _Descent:
        objective, origin = search.objective, search.origin
        start = shorten(objective.fixed_point(origin) if guess is None else guess, objective, 0.5)
        scaling = _Scaling.of(objective, origin, start)
        z = torch.nn.Parameter(scaling.parameters(start), requires_grad=True)
        return _Descent(
            scaling, z, self.factory([z], **self.options), guess is None and origin.residual <= objective.rtol
        )

    def step(self, search: Search, state: _Descent) -> bool:
        if state.finished:
            return False
        objective, scaling, z = search.objective, state.scaling, state.z

        def closure() -> float:
            with torch.no_grad():
                trial = search.evaluate(scaling.displacement(z))
                if not trial.finite or trial.residual <= objective.rtol:
                    raise _FinishedError
                z.grad = scaling.gradient(objective.stationarity(trial))
                return scaling.value(trial, z)

        before = z.detach().clone()
        try:
            with torch.enable_grad():
                state.optimizer.step(closure)
        except _FinishedError:
            return False
        # An optimizer that has stopped moving would only repeat the same pass.
        return not torch.equal(before, z.detach())


def _probe(factory: Callable[..., torch.optim.Optimizer], options: dict[str, Any]) -> None:
    """Take one step on one number, so that an optimizer that cannot work is refused before any work."""
    parameter = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))

    def closure() -> float:
        parameter.grad = torch.ones_like(parameter)
        return 1.0

    try:
        with torch.enable_grad():
            factory([parameter], **options).step(closure)
    except Exception as error:
        raise InvalidInput(f"the optimizer refuses its options {options!r}: {error}") from error


class _FinishedError(Exception):
    """Leaves an optimizer from inside its closure: the only exit that every optimizer has."""


@final
@dataclass(slots=True, eq=False)
class _Descent:
    """An optimizer at work on the scaled parameters."""

    scaling: _Scaling
    z: torch.nn.Parameter
    optimizer: torch.optim.Optimizer
    finished: bool


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Scaling:
    """Between tangent displacements (G, n, d) and parameters z; tracers count as much as the lightest particle."""

    objective: StepObjective
    root: Tensor
    masses: Tensor
    unit: float
    offset: float

    @staticmethod
    def of(objective: StepObjective, origin: Trial, start: Tensor) -> _Scaling:
        weights = objective.movement.weights
        masses = torch.where(weights > 0, weights, weights[weights > 0].min())
        root = (masses * objective.movement.mobility / objective.tau).sqrt()[..., None]
        size = float((start * root).to(torch.float64).square().mean().sqrt())
        unit = size if math.isfinite(size) and size > 0 else 1.0
        return _Scaling(objective, root, masses[:, None], unit, math.fsum(origin.objective))

    def parameters(self, xi: Tensor) -> Tensor:
        return (xi * self.root / self.unit).contiguous()

    def displacement(self, z: Tensor) -> Tensor:
        return self.objective.manifold.project_vector(self.objective.movement.base, z * self.unit / self.root)

    def gradient(self, stationarity: Tensor) -> Tensor:
        return (self.masses * stationarity / (self.root * self.unit)).contiguous()

    def value(self, trial: Trial, z: Tensor) -> float:
        """The sum of the groups' objectives, with the potential energy of the tracers, so that line searches agree."""
        value = (math.fsum(trial.objective) - self.offset) / self.unit**2
        tracers = self.objective.movement.weights == 0
        if not bool(tracers.any()):
            return value
        own = (self.masses[:, 0] * trial.potential)[:, tracers].to(torch.float64).sum()
        moved = z[:, tracers].to(torch.float64).square().sum() / 2
        return value + float(own / self.unit**2 + moved)
