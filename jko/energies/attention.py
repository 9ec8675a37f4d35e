"""The interaction energy of multi-head attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from jko.averages import head_average, weighted_heads
from jko.checks import check_jumps, check_sign
from jko.energies.base import (
    PLAIN_STEP,
    AbstractEnergy,
    AbstractHeadAverage,
    Evaluation,
    HeadEvaluation,
    PotentialField,
)
from jko.energies.moments import PairMoments
from jko.energies.shifted import ShiftedHeads
from jko.errors import InvalidInput
from jko.heads import AbstractHeads, FixedHeads, SelectedHeads, check_heads
from jko.measure import ParticleMeasure, check_measure
from jko.memory import check_fits
from jko.reductions import AbstractReduction, PairSums, reduction_or_auto

__all__ = ["AttentionEnergy"]


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class AttentionEnergy(AbstractHeadAverage):
    """E(u, t) = 1/2 mean_h sum_ij w_i w_j exp<x_i, D_h(t) x_j>, Massucco et al. 2026, eq. (20) and (146).

    Args:
        heads: the path t -> D(t) of head matrices.
        sign: +1 minimizes E (the paper's PDE (81) and released code: for D = I tokens repel), -1 minimizes -E
            (the update printed in the paper's Section 6: tokens cluster). D -> -D is not the same thing.
        reduction: how the pair sums are formed.
    """

    heads: AbstractHeads
    sign: int
    reduction: AbstractReduction
    jumps: tuple[float, ...] = field(repr=False)

    def __init__(self, heads: AbstractHeads, sign: int = 1, reduction: AbstractReduction | None = None) -> None:
        check_heads(heads, "heads")
        object.__setattr__(self, "heads", heads)
        object.__setattr__(self, "sign", check_sign(sign))
        object.__setattr__(self, "reduction", reduction_or_auto(reduction))
        object.__setattr__(self, "jumps", check_jumps(heads.jumps))

    @property
    def moves(self) -> bool:
        return self.heads.moves

    @property
    def attention_parts(self) -> tuple[AttentionEnergy, ...]:
        return (self,)

    @property
    def description(self) -> str:
        return f"attention, H = {self.heads.num_heads}, sign = {self.sign:+d}, pair sums: {self.reduction.name}"

    def evaluate(
        self, measure: ParticleMeasure, t: float, *, curvature: bool = False, moments: bool = False
    ) -> Evaluation:
        """Return value, first variation and gradient in ONE pass; on request the curvature, or the heads' moments."""
        D = self._matrices(measure, t)
        if curvature:
            self.check_curvature(measure)
        elif moments:
            self._check_second_moments(measure, "in a run leave the ledger out: ExplicitEuler(tau)")
        shape, members = _batches(measure, D)
        parts = []
        for points, weights, matrices in members:
            parts.append(self._evaluate_heads(points, weights, matrices, curvature=curvature, moments=moments))
        return (_stack(parts, shape) if shape else parts[0]).average()

    def value(self, measure: ParticleMeasure, t: float) -> Tensor:
        D = self._matrices(measure, t)
        shape, members = _batches(measure, D)
        energies = [self._energies(self.reduction.exponential_sums(x, w, D_, first=False), w) for x, w, D_ in members]
        stacked = torch.stack(energies).reshape(*shape, -1)
        return head_average(stacked, self.heads.head_weights, axis=-1)

    def log_value(self, measure: ParticleMeasure, t: float) -> Tensor:
        """Return log E(u, t), shape (*batch,), float64: finite where E itself overflows; the sign is not applied.

        The largest exponent M is taken out by one more coordinate: with x' = (x, 1) and D' = diag(D, -M) the exponents
        are <x, D x> - M, so the same sums serve. Two passes.
        """
        D, theta = self._weighted_matrices(measure, t)
        shape, members = _batches(measure, D)
        return torch.stack([self._log_energy(x, w, D_, theta) for x, w, D_ in members]).reshape(shape)

    def _log_energy(self, points: Tensor, weights: Tensor, D: Tensor, theta: Tensor | None) -> Tensor:
        massive = weights > 0
        wide, masses = points[massive].to(_DOUBLE), weights[massive].to(_DOUBLE)
        largest = self.reduction.largest_exponent(wide, D.to(_DOUBLE))
        lifted = torch.cat([wide, torch.ones_like(wide[:, :1])], -1)
        shifted = torch.nn.functional.pad(D.to(_DOUBLE), (0, 1, 0, 1))
        shifted[..., -1, -1] = -largest
        sums = self.reduction.exponential_sums(lifted, masses, shifted, first=False)
        return largest + head_average(sums.mass @ masses, theta, axis=-1).log() - math.log(2)

    def hessian_product(self, measure: ParticleMeasure, t: float, direction: Tensor) -> Tensor:
        D = self._matrices(measure, t)
        shape, members = _batches(measure, D)
        if direction.shape[-2:] != measure.points.shape[-2:] or direction.ndim > len(shape) + 2:
            raise InvalidInput(
                f"direction has shape {tuple(direction.shape)}, the particles have {tuple(measure.points.shape)}"
            )
        flat = direction.expand(*shape, *direction.shape[-2:]).reshape(-1, *direction.shape[-2:])
        rows = [
            head_average(self._directional(x, w, D_, flat[k]), self.heads.head_weights, axis=-3)
            for k, (x, w, D_) in enumerate(members)
        ]
        return torch.stack(rows).reshape(*shape, *rows[0].shape)

    def at(self, t: float, like: Tensor) -> AttentionEnergy:
        heads = FixedHeads(self.heads.at(t).to(like), self.heads.head_weights)
        return AttentionEnergy(heads, self.sign, self.reduction)

    def by_head(self) -> AbstractEnergy:
        return _HeadsApart(self)

    def first_variation_at(self, targets: Tensor, measure: ParticleMeasure, t: float) -> PotentialField:
        D, weights = self._matrices(measure, t), self.heads.head_weights
        (shape, members), m = _batches(measure, D), targets.shape[-2:]
        places = targets.expand(*shape, *m).reshape(-1, *m)
        fields = [self._field(z, x, w, D_) for z, (x, w, D_) in zip(places, members, strict=True)]
        value = torch.stack([head_average(field.value, weights) for field in fields])
        gradient = torch.stack([head_average(field.gradient, weights, axis=-3) for field in fields])
        return PotentialField(value.reshape(*shape, *value.shape[1:]), gradient.reshape(*shape, *gradient.shape[1:]))

    def _field(self, targets: Tensor, points: Tensor, weights: Tensor, D: Tensor) -> PotentialField:
        sums = self.reduction.cross_sums(targets, points, weights, D)
        value = (sums.mass + sums.mass_transposed) * (self.sign / 2)
        return PotentialField(value, self._head_gradient(sums, D))

    def largest_exponent(self, measure: ParticleMeasure, t: float) -> float:
        D, _ = self._weighted_matrices(measure, t)
        return max(self.reduction.largest_exponent(x, D_) for x, _, D_ in _batches(measure, D)[1])

    def shifted_heads(self, measure: ParticleMeasure, t: float) -> ShiftedHeads:
        D, theta = self._weighted_matrices(measure, t)
        shape, members = _batches(measure, D)
        parts = [ShiftedHeads.of(x, w, D_, self.sign, theta) for x, w, D_ in members]

        def joined(name: str) -> Tensor:
            rows = torch.stack([getattr(part, name) for part in parts])
            return rows.reshape(*shape, *rows.shape[1:])

        return ShiftedHeads(
            mobility=joined("mobility"),
            mobility_exponent=joined("mobility_exponent"),
            gradient=joined("gradient"),
            gradient_exponent=joined("gradient_exponent"),
            head_weights=theta,
        )

    def _weighted_matrices(self, measure: ParticleMeasure, t: float) -> tuple[Tensor, Tensor | None]:
        """The matrices and weights of the heads that have weight."""
        D, theta = self._matrices(measure, t), self.heads.head_weights
        rows = weighted_heads(theta)
        return (D, theta) if rows is None or theta is None else (D[..., rows, :, :], theta[rows])

    def check_curvature(self, measure: ParticleMeasure) -> None:
        check_measure(measure)
        heads, d = self.heads.num_heads, measure.d
        self._check_second_moments(measure, PLAIN_STEP)
        # Two products of entries, their sum, and the choice between them; packed symmetric matrices on both sides.
        maps, hessians = (heads, *2 * (d * (d + 1) // 2,)), (heads, *measure.points.shape, d)
        for name, shape, copies in (
            ("the maps of second moments", maps, 4),
            ("the Hessians of the heads", hessians, 2),
        ):
            check_fits(name, shape, measure.dtype, measure.device, PLAIN_STEP, copies=copies)

    def _check_second_moments(self, measure: ParticleMeasure, way_out: str) -> None:
        shape = (self.heads.num_heads, measure.d * (measure.d + 1) // 2, *measure.points.shape[:-1])
        # Both sides, and the factors that they are summed from.
        check_fits("the second moments", shape, measure.dtype, measure.device, way_out, copies=3)

    def _matrices(self, measure: ParticleMeasure, t: float) -> Tensor:
        check_measure(measure)
        D, points = self.heads.at(t), measure.points
        if D.shape[-1] != points.shape[-1]:
            raise InvalidInput(
                f"heads of shape {tuple(D.shape)} do not fit points of shape {tuple(points.shape)}: "
                "the last axes must agree"
            )
        return D.to(device=points.device, dtype=points.dtype)

    def _evaluate_heads(
        self, points: Tensor, weights: Tensor, D: Tensor, *, curvature: bool = False, moments: bool = False
    ) -> HeadEvaluation:
        sums = self.reduction.exponential_sums(points, weights, D, second=curvature or moments)
        variation = sums.mass if sums.symmetric else (sums.mass + sums.mass_transposed) / 2
        return HeadEvaluation(
            energy=self._energies(sums, weights),
            first_variation=variation if self.sign == 1 else -variation,
            gradient=self._head_gradient(sums, D),
            mobility=sums.mass,
            head_weights=self.heads.head_weights,
            curvature=self._head_curvature(sums, D) if curvature else None,
            moments=PairMoments.of(sums, points, weights) if moments else None,
        )

    def _energies(self, sums: PairSums, weights: Tensor) -> Tensor:
        mass = sums.mass.to(dtype=_DOUBLE)
        if not bool(weights.all()):
            # A tracer adds nothing even where its own mass overflows.
            mass = mass.masked_fill(weights == 0, 0.0)
        return mass @ (weights.to(dtype=_DOUBLE) * (self.sign / 2))

    def _directional(self, points: Tensor, weights: Tensor, D: Tensor, direction: Tensor) -> Tensor:
        return self._head_gradient(self.reduction.directional_sums(points, weights, D, direction), D)

    def _head_gradient(self, sums: PairSums, D: Tensor) -> Tensor:
        """s/2 (D S + D^T S^T) of shape (H, n, d); one product for symmetric D, where both halves agree."""
        assert sums.first is not None
        assert sums.first_transposed is not None
        if sums.symmetric:
            return torch.bmm(D if self.sign == 1 else -D, sums.first).mT
        half = D * (self.sign / 2)
        return torch.baddbmm(half @ sums.first, half.mT, sums.first_transposed).mT

    def _head_curvature(self, sums: PairSums, D: Tensor) -> Tensor:
        """s/2 (D M D^T + D^T M^T D), shape (H, n, d, d), from the second moments M of both sides."""
        assert sums.second is not None
        assert sums.second_transposed is not None
        if sums.symmetric:
            packed = _congruence(D, self.sign) @ sums.second
        else:
            packed = _congruence(D, self.sign / 2) @ sums.second
            packed = packed + _congruence(D.mT, self.sign / 2) @ sums.second_transposed
        return packed[:, _unpacking(D.shape[-1], D.device)].movedim(-1, 1)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _HeadsApart(AbstractEnergy):
    """The heads of an attention energy side by side: E_h on member h of a batch (H, n, d), the head-wise step."""

    attention: AttentionEnergy

    @property
    def moves(self) -> bool:
        return self.attention.moves

    @property
    def description(self) -> str:
        return f"{self.attention.description}, head by head"

    def evaluate(self, measure: ParticleMeasure, t: float, *, curvature: bool = False) -> Evaluation:
        D = self._matrices(measure, t)
        if curvature:
            self.attention.check_curvature(measure)
        heads = self.attention._evaluate_heads(measure.points, measure.weights, D, curvature=curvature)
        return Evaluation(heads.energy, heads.first_variation, heads.gradient, curvature=heads.curvature)

    def hessian_product(self, measure: ParticleMeasure, t: float, direction: Tensor) -> Tensor:
        D = self._matrices(measure, t)
        return self.attention._directional(measure.points, measure.weights, D, direction)

    def first_variation_at(self, targets: Tensor, measure: ParticleMeasure, t: float) -> PotentialField:
        D = self._matrices(measure, t)
        return self.attention._field(targets, measure.points, measure.weights, D)

    def members(self, indices: Sequence[int]) -> _HeadsApart:
        energy = self.attention
        return _HeadsApart(AttentionEnergy(SelectedHeads(energy.heads, tuple(indices)), energy.sign, energy.reduction))

    def largest_exponent(self, measure: ParticleMeasure, t: float) -> float:
        D = self._matrices(measure, t)
        return self.attention.reduction.largest_exponent(measure.points, D)

    def _matrices(self, measure: ParticleMeasure, t: float) -> Tensor:
        D = self.attention._matrices(measure, t)
        if D.ndim != 3 or measure.batch_shape != D.shape[:1]:
            raise InvalidInput(f"head-wise points need shape ({D.shape[-3]}, n, d), got {tuple(measure.points.shape)}")
        return D


_DOUBLE = torch.float64


def _unpacking(d: int, device: torch.device) -> Tensor:
    """Where entry (a, b) of a symmetric matrix stands in its packed upper triangle, shape (d, d)."""
    a, b = torch.triu_indices(d, d, device=device)
    where = torch.empty(d, d, dtype=torch.long, device=device)
    where[a, b] = where[b, a] = torch.arange(len(a), device=device)
    return where


def _congruence(D: Tensor, factor: float) -> Tensor:
    """The matrices (H, p, p) of the linear maps M -> factor D M D^T on packed symmetric matrices."""
    a, b = torch.triu_indices(D.shape[-1], D.shape[-1], device=D.device)
    rows, columns = D[:, a], D[:, b]
    direct = rows[:, :, a] * columns[:, :, b]
    crossed = rows[:, :, b] * columns[:, :, a]
    return factor * torch.where(a == b, direct, direct + crossed)


def _batches(measure: ParticleMeasure, D: Tensor) -> tuple[Sequence[int], list[tuple[Tensor, Tensor, Tensor]]]:
    """The batch shape, and points, weights and heads of each member; one member where there is no batch axis."""
    points, weights = measure.points, measure.weights
    shape: Sequence[int] = points.shape[:-2]
    if D.ndim > 3:
        shape = torch.broadcast_shapes(shape, D.shape[:-3])
    if not shape:
        return shape, [(points, weights, D)]
    if shape == (1,) and D.ndim == 3 and weights.ndim == 1:
        return shape, [(points[0], weights, D)]
    points = points.expand(*shape, *points.shape[-2:]).reshape(-1, *points.shape[-2:])
    weights = weights.expand(*shape, weights.shape[-1]).reshape(-1, weights.shape[-1])
    matrices = D.expand(*shape, *D.shape[-3:]).reshape(-1, *D.shape[-3:])
    return shape, list(zip(points, weights, matrices, strict=True))


def _stack(parts: list[HeadEvaluation], shape: Sequence[int]) -> HeadEvaluation:
    if shape == (1,) and parts[0].moments is None:
        # One group of particles, the usual step: views, no copies.
        part = parts[0]
        curvature = None if part.curvature is None else part.curvature[None]
        fields = (part.energy[None], part.first_variation[None], part.gradient[None], part.mobility[None])
        return HeadEvaluation(*fields, part.head_weights, curvature)

    def stacked(rows: list[Tensor]) -> Tensor:
        return torch.stack(rows).reshape(*shape, *rows[0].shape)

    def joined(name: str) -> Tensor:
        return stacked([getattr(part, name) for part in parts])

    moments = [part.moments for part in parts if part.moments is not None]
    return HeadEvaluation(
        energy=joined("energy"),
        first_variation=joined("first_variation"),
        gradient=joined("gradient"),
        mobility=joined("mobility"),
        head_weights=parts[0].head_weights,
        curvature=None if parts[0].curvature is None else joined("curvature"),
        moments=PairMoments(stacked([m.first for m in moments]), stacked([m.spread for m in moments]))
        if moments
        else None,
    )
