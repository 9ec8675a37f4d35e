"""The transport cost as a differentiable function of positions and weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from jko.checks import check_finite, simplex_tolerance
from jko.errors import InvalidInput, SolveFailed
from jko.manifolds import AbstractManifold
from jko.measure import ParticleMeasure
from jko.transport.base import AbstractTransport, TransportProblem
from jko.transport.derivative import source_gradient, source_weight_gradient

__all__ = ["transport_cost"]


def transport_cost(
    x: Tensor,
    y: Tensor,
    x_weights: Tensor | None = None,
    y_weights: Tensor | None = None,
    *,
    transport: AbstractTransport,
    manifold: AbstractManifold,
    mobility: Tensor | None = None,
    target_mobility: Tensor | None = None,
) -> Tensor:
    """Return the transport cost from the measure at y to the one at x, a scalar that autograd differentiates once.

    The derivatives are those of the optimum (envelope theorem): nothing of the iterations is kept. Positions get
    tangent gradients, weights the potentials shifted to sum 0, so that a plain gradient step keeps the
    mass. Mobilities are held fixed and may not ask for a gradient. A particle of weight 0 gets the gradient 0.

    Args:
        x: targets, shape (m, d).
        y: sources, shape (n, d).
        x_weights: shape (m,), sum 1; None is 1/m.
        y_weights: shape (n,), sum 1; None is 1/n.
        transport: the solver; a debiasing one needs `target_mobility` along with `mobility`.
        manifold: the geometry of the distance.
        mobility: b at the sources, shape (n,).
        target_mobility: b at the targets, shape (m,), for the symmetric cost.

    Raises:
        InvalidInput: for one-dimensional arrays, points off the manifold, weights of different sums, a member without
            potentials where weights require gradients.
        SolveFailed: where the solver does not converge; the message says how far it came.
    """
    for points, name in ((x, "x"), (y, "y")):
        if points.ndim != 2:
            raise InvalidInput(
                f"{name} must have shape (n, d), got {tuple(points.shape)}; for n particles on the line write "
                f"{name}[:, None]"
            )
        check_finite(points.detach(), name)
    _check_masses(x_weights, y_weights)
    source, target = (
        ParticleMeasure(points.detach(), None if weights is None else weights.detach())
        for points, weights in ((y, y_weights), (x, x_weights))
    )
    problem = TransportProblem(source, target, manifold, mobility=mobility, target_mobility=target_mobility)
    apply: Callable[..., Tensor] = _TransportCost.apply
    return apply(x, y, x_weights, y_weights, transport, problem)


class _TransportCost(torch.autograd.Function):
    """The optimum with its gradients formed once; backward multiplies them by the incoming gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        y: Tensor,
        x_weights: Tensor | None,
        y_weights: Tensor | None,
        transport: AbstractTransport,
        problem: TransportProblem,
    ) -> Tensor:
        solution = transport.solve(problem)
        if not solution.status.ok:
            raise SolveFailed(
                f"{transport.title}: {solution.status.name}, {solution.detail}", solution=None, status=solution.status
            )
        if any(ctx.needs_input_grad[2:4]) and solution.weight_gradient is None:
            raise InvalidInput(f"{transport.title} has no derivative in weights; use ExactOT() or Sinkhorn(eps)")
        wanted: list[Tensor | None] = [None] * 4
        if ctx.needs_input_grad[0]:
            wanted[0] = problem.target.weights[:, None] * solution.gradient
        if ctx.needs_input_grad[1]:
            wanted[1] = problem.source.weights[:, None] * source_gradient(solution)
        if ctx.needs_input_grad[2] and x_weights is not None and solution.weight_gradient is not None:
            wanted[2] = solution.weight_gradient.to(x_weights)
        if ctx.needs_input_grad[3] and y_weights is not None:
            wanted[3] = source_weight_gradient(solution).to(y_weights)
        ctx.save_for_backward(*wanted, x, y, x_weights, y_weights)
        return x.new_tensor(solution.value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        parts, arguments = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
        once: Callable[..., Tensor] = _Once.apply
        found = [
            None if part is None else once(grad, part, argument)
            for part, argument in zip(parts, arguments, strict=True)
        ]
        return *found, None, None


class _Once(torch.autograd.Function):
    """A derivative times the incoming one, which must not pass for a constant when it is differentiated again."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, part: Tensor, argument: Tensor) -> Tensor:
        return grad.to(part) * part

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        raise InvalidInput("transport_cost has first derivatives only; take differences of its gradient")


def _check_masses(x_weights: Tensor | None, y_weights: Tensor | None) -> None:
    sums = []
    for weights, name in ((y_weights, "y_weights"), (x_weights, "x_weights")):
        if weights is not None:
            check_finite(weights.detach(), name)
        sums.append(1.0 if weights is None else float(weights.detach().to(torch.float64).sum()))
    tolerance = max(1e-9 if w is None else simplex_tolerance(w.dtype) for w in (x_weights, y_weights))
    if abs(sums[0] - sums[1]) > 2 * tolerance:
        raise InvalidInput(
            f"y_weights sum to {sums[0]:.10g} and x_weights to {sums[1]:.10g}; a transport needs the same mass on "
            "both sides, 1; divide by the sums if that is what you mean"
        )
