"""Checks of what a step with a transport solver is given."""

from __future__ import annotations

from jko.errors import InvalidInput
from jko.flows import GradientFlow
from jko.measure import ParticleMeasure, check_measure
from jko.metrics import Fields, MobilityField, Wasserstein2, WeightedWasserstein
from jko.transport import AbstractTransport

__all__ = ["check_coupled", "check_guess", "mobility_field"]


def check_coupled(transport: AbstractTransport, flow: GradientFlow) -> None:
    """Refuse a flow that the transport cannot serve.

    Raises:
        InvalidInput: for a lifted metric, or for a symmetric cost whose mobility is not known away from the particles.
    """
    if flow.metric.lifted:
        raise InvalidInput(
            f"the {flow.metric.title} step has a coupling per head; it takes Matched() transport only, got "
            f"{transport.title}"
        )
    if transport.symmetric and not _is_plain(flow) and not _has_field(flow):
        raise InvalidInput(
            f"{transport.title} needs the mobility as a function of position, and {flow.metric.title} gives it at the "
            "particles only; use Wasserstein2(), WeightedWasserstein() with the heads of one attention energy, or "
            "a transport without debiasing"
        )


def check_guess(flow: GradientFlow, measure: ParticleMeasure, guess: ParticleMeasure | None) -> ParticleMeasure | None:
    """Return the guess on the device and in the precision of the measure.

    Raises:
        InvalidInput: for a guess that is no measure on the flow's manifold.
    """
    if guess is None:
        return None
    check_measure(guess, "guess")
    if guess.batch_shape or guess.d != measure.d:
        raise InvalidInput(
            f"guess has points of shape {tuple(guess.points.shape)}; it must be one cloud of shape (m, {measure.d})"
        )
    flow.manifold.check(guess.points, "guess")
    return guess.to(dtype=measure.dtype, device=measure.device)


def mobility_field(transport: AbstractTransport, flow: GradientFlow, fields: Fields) -> MobilityField | None:
    """Return the mobility as a function of position where the transport's cost is symmetric in it, else None."""
    if not transport.symmetric or _is_plain(flow):
        return None
    (part,) = flow.energy.attention_parts
    return MobilityField(part, fields.measure, fields.t)


def _is_plain(flow: GradientFlow) -> bool:
    return isinstance(flow.metric, Wasserstein2)


def _has_field(flow: GradientFlow) -> bool:
    return isinstance(flow.metric, WeightedWasserstein) and flow.metric.mobility_function is None
