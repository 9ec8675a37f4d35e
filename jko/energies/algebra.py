"""Sums and multiples of energies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from jko.checks import check_finite_number, check_jumps, check_kind
from jko.energies.base import AbstractEnergy, AbstractHeadAverage, Evaluation, HeadEvaluation, PotentialField
from jko.energies.shifted import ShiftedHeads
from jko.errors import InvalidInput
from jko.measure import ParticleMeasure, check_measure

__all__ = ["Scaled", "Sum"]


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class Scaled(AbstractEnergy):
    """c(t) E(u, t): an energy times a number or a function of t, of any sign. Mobilities are not scaled.

    Args:
        energy: the energy.
        coefficient: a finite number, or a function t -> number.
        jumps: times at which the function jumps, with the limit from the right as its value there. Those of the energy
            are added.
    """

    energy: AbstractEnergy
    coefficient: float | Callable[[float], float]
    jumps: tuple[float, ...] = field(repr=False)

    def __init__(
        self, energy: AbstractEnergy, coefficient: float | Callable[[float], float], *, jumps: Iterable[float] = ()
    ) -> None:
        check_kind(energy, AbstractEnergy, "energy")
        if not callable(coefficient):
            coefficient = check_finite_number(coefficient, "coefficient")
        object.__setattr__(self, "energy", energy)
        object.__setattr__(self, "coefficient", coefficient)
        own = check_jumps(jumps, moves=callable(coefficient))
        object.__setattr__(self, "jumps", check_jumps((*own, *energy.jumps)))

    def coefficient_at(self, t: float) -> float:
        """Return c(t).

        Raises:
            InvalidInput: when the coefficient function returns something that is not a finite number.
        """
        return (
            check_finite_number(self.coefficient(t), f"coefficient({t:g})")
            if callable(self.coefficient)
            else (self.coefficient)
        )

    @property
    def moves(self) -> bool:
        return self.energy.moves or callable(self.coefficient)

    @property
    def attention_parts(self) -> tuple[AbstractHeadAverage, ...]:
        return self.energy.attention_parts

    @property
    def description(self) -> str:
        factor = "c(t)" if callable(self.coefficient) else f"{self.coefficient:g}"
        return f"{factor} * ({self.energy.description})"

    def evaluate(self, measure: ParticleMeasure, t: float, *, curvature: bool = False) -> Evaluation:
        c = self.coefficient_at(t)
        part = self.energy.evaluate(measure, t, curvature=curvature)
        return Evaluation(
            value=_times(c, part.value),
            first_variation=_times(c, part.first_variation),
            gradient=_times(c, part.gradient),
            heads=None if part.heads is None else _scaled_heads(part.heads, c),
            curvature=None if part.curvature is None else _times(c, part.curvature),
        )

    def check_curvature(self, measure: ParticleMeasure) -> None:
        self.energy.check_curvature(measure)

    def value(self, measure: ParticleMeasure, t: float) -> Tensor:
        return _times(self.coefficient_at(t), self.energy.value(measure, t))

    def hessian_product(self, measure: ParticleMeasure, t: float, direction: Tensor) -> Tensor:
        return _times(self.coefficient_at(t), self.energy.hessian_product(measure, t, direction))

    def at(self, t: float, like: Tensor) -> AbstractEnergy:
        return Scaled(self.energy.at(t, like), self.coefficient_at(t))

    def by_head(self) -> AbstractEnergy:
        return self._of(self.energy.by_head())

    def members(self, indices: Sequence[int]) -> AbstractEnergy:
        return self._of(self.energy.members(indices))

    def _of(self, energy: AbstractEnergy) -> Scaled:
        """The same multiple of another energy."""
        return Scaled(energy, self.coefficient, jumps=self.jumps if callable(self.coefficient) else ())

    def first_variation_at(self, targets: Tensor, measure: ParticleMeasure, t: float) -> PotentialField | None:
        return _scaled_field(self.energy.first_variation_at(targets, measure, t), self.coefficient_at(t))

    @property
    def passes(self) -> float:
        return self.energy.passes

    def largest_exponent(self, measure: ParticleMeasure, t: float) -> float:
        return self.energy.largest_exponent(measure, t)

    def shifted_heads(self, measure: ParticleMeasure, t: float) -> ShiftedHeads | None:
        heads = self.energy.shifted_heads(measure, t)
        return None if heads is None else heads.scaled(self.coefficient_at(t))


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class Sum(AbstractEnergy):
    """The sum of energies. With exactly one attention part, E = mean_h (E_h + the other parts) defines its heads."""

    terms: tuple[AbstractEnergy, ...]
    jumps: tuple[float, ...] = field(repr=False)

    def __init__(self, terms: Iterable[AbstractEnergy]) -> None:
        terms = tuple(terms) if isinstance(terms, Iterable) else (terms,)
        if not terms:
            raise InvalidInput("Sum needs at least one energy, got none")
        for term in terms:
            check_kind(term, AbstractEnergy, "every term of a sum of energies")
        flat = [inner for term in terms for inner in (term.terms if isinstance(term, Sum) else (term,))]
        object.__setattr__(self, "terms", tuple(flat))
        object.__setattr__(self, "jumps", check_jumps(jump for term in flat for jump in term.jumps))

    @property
    def moves(self) -> bool:
        return any(term.moves for term in self.terms)

    @property
    def attention_parts(self) -> tuple[AbstractHeadAverage, ...]:
        return tuple(part for term in self.terms for part in term.attention_parts)

    @property
    def description(self) -> str:
        return " + ".join(term.description for term in self.terms)

    def evaluate(self, measure: ParticleMeasure, t: float, *, curvature: bool = False) -> Evaluation:
        parts = [term.evaluate(measure, t, curvature=curvature) for term in self.terms]
        with_heads = [part for part in parts if part.heads is not None]
        single = len(self.attention_parts) == 1 and len(with_heads) == 1
        return Evaluation(
            value=_added([part.value for part in parts]),
            first_variation=_added([part.first_variation for part in parts]),
            gradient=_added([part.gradient for part in parts]),
            heads=_shifted_heads(parts) if single else None,
            curvature=_added_or_none([part.curvature for part in parts]),
        )

    def check_curvature(self, measure: ParticleMeasure) -> None:
        for term in self.terms:
            term.check_curvature(measure)

    def value(self, measure: ParticleMeasure, t: float) -> Tensor:
        return _added([term.value(measure, t) for term in self.terms])

    def hessian_product(self, measure: ParticleMeasure, t: float, direction: Tensor) -> Tensor:
        return _added([term.hessian_product(measure, t, direction) for term in self.terms])

    def at(self, t: float, like: Tensor) -> AbstractEnergy:
        return Sum(term.at(t, like) for term in self.terms)

    def by_head(self) -> AbstractEnergy:
        if len(self.attention_parts) != 1:
            raise InvalidInput(
                f"the head-wise step needs exactly one attention energy, this sum has {len(self.attention_parts)}"
            )
        # E = mean_h (E_h + the other terms): every head carries all of them.
        return Sum(term.by_head() if term.attention_parts else term for term in self.terms)

    def members(self, indices: Sequence[int]) -> AbstractEnergy:
        return Sum(term.members(indices) for term in self.terms)

    def first_variation_at(self, targets: Tensor, measure: ParticleMeasure, t: float) -> PotentialField | None:
        return _added_fields([term.first_variation_at(targets, measure, t) for term in self.terms])

    @property
    def passes(self) -> float:
        return max(term.passes for term in self.terms)

    def largest_exponent(self, measure: ParticleMeasure, t: float) -> float:
        return max(term.largest_exponent(measure, t) for term in self.terms)

    def shifted_heads(self, measure: ParticleMeasure, t: float) -> ShiftedHeads | None:
        check_measure(measure)
        if len(self.attention_parts) != 1:
            return None
        (lead,) = (term for term in self.terms if term.attention_parts)
        others = [term for term in self.terms if term is not lead]
        heads = lead.shifted_heads(measure, t)
        if heads is None or not others:
            return heads
        return heads.shifted_by(_added([term.gradient(measure, t) for term in others]))


def _added(values: list[Tensor]) -> Tensor:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def _added_or_none(values: list[Tensor | None]) -> Tensor | None:
    known = [value for value in values if value is not None]
    return _added(known) if len(known) == len(values) else None


def _added_fields(fields: list[PotentialField | None]) -> PotentialField | None:
    known = [field for field in fields if field is not None]
    if len(known) < len(fields):
        return None
    return PotentialField(_added([field.value for field in known]), _added([field.gradient for field in known]))


def _scaled_field(field: PotentialField | None, c: float) -> PotentialField | None:
    return None if field is None else PotentialField(_times(c, field.value), _times(c, field.gradient))


def _times(c: float, values: Tensor) -> Tensor:
    """Return c times values: an energy that is switched off is 0 even where its exp overflows."""
    return c * values if c != 0 else torch.zeros_like(values)


def _scaled_heads(heads: HeadEvaluation, c: float) -> HeadEvaluation:
    return replace(
        heads,
        energy=_times(c, heads.energy),
        first_variation=_times(c, heads.first_variation),
        gradient=_times(c, heads.gradient),
        curvature=None if heads.curvature is None else _times(c, heads.curvature),
    )


def _shifted_heads(parts: list[Evaluation]) -> HeadEvaluation:
    """Heads of E = mean_h (E_h + rest): every head carries the whole rest."""
    heads = next(part.heads for part in parts if part.heads is not None)
    others = [part for part in parts if part.heads is None]
    for part in others:
        heads = replace(
            heads,
            energy=heads.energy + part.value[..., None],
            first_variation=heads.first_variation + part.first_variation[..., None, :],
            gradient=heads.gradient + part.gradient[..., None, :, :],
            curvature=_added_or_none(
                [heads.curvature, None if part.curvature is None else part.curvature[..., None, :, :, :]]
            ),
        )
    return heads
