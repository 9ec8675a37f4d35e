"""The output of multi-head attention as a vector field: any queries, keys and values, no energy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from jko.averages import head_average, weighted_heads
from jko.checks import check_jumps, check_sign
from jko.errors import InvalidInput
from jko.flows.fields import AbstractField
from jko.heads import AbstractHeads, check_heads
from jko.measure import ParticleMeasure, check_measure
from jko.reductions import AbstractReduction, reduction_or_auto, shifted_sums, within_range

__all__ = ["AttentionField"]


@final
@dataclass(frozen=True, slots=True, eq=False, init=False)
class AttentionField(AbstractField):
    """-sign mean_h V_h, V_h(x_i) = sum_j A^h_ij V_h x_j with the softmax A^h_ij of <x_i, D_h x_j> + log w_j.

    This is the transformer (2) of Massucco et al. 2026 for any matrices. Where every D_h is symmetric and V_h = D_h it
    is the limit velocity of the head-wise metric; else no energy need stand behind it, so only explicit schemes follow
    it. `weighted.symmetry_defect` and `weighted.value_defect` measure how far heads are from that case.

    Args:
        heads: the path t -> D(t) of the products of queries and keys.
        values: the path t -> V(t) of value matrices, of the same H and d; None means the heads themselves. Averages
            over heads use the weights of `heads`.
        sign: +1 moves along -V (for V = D = I tokens repel), -1 along +V (they cluster).
        reduction: how the pair sums are formed.

    Raises:
        InvalidInput: for values whose H, d or head weights differ from those of the heads.
    """

    heads: AbstractHeads
    values: AbstractHeads | None
    sign: int
    reduction: AbstractReduction
    jumps: tuple[float, ...] = field(repr=False)

    def __init__(
        self,
        heads: AbstractHeads,
        values: AbstractHeads | None = None,
        sign: int = 1,
        reduction: AbstractReduction | None = None,
    ) -> None:
        for path, name in ((heads, "heads"), (heads if values is None else values, "values")):
            check_heads(path, name)
        if values is not None:
            _check_values(heads, values)
        object.__setattr__(self, "heads", heads)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "jumps", check_jumps((*heads.jumps, *(() if values is None else values.jumps))))
        object.__setattr__(self, "sign", check_sign(sign))
        object.__setattr__(self, "reduction", reduction_or_auto(reduction))

    @property
    def moves(self) -> bool:
        return self.heads.moves or (self.values is not None and self.values.moves)

    @property
    def title(self) -> str:
        return f"softmax attention, sign = {self.sign:+d}"

    def check_times(self, t0: float, t1: float) -> None:
        for path in (self.heads, self.values):
            if path is not None:
                path.at(t0)
                path.at(t1)

    def evaluate(self, measure: ParticleMeasure, t: float) -> Tensor:
        shape, members = self._members(measure, t)
        rows = [self._output(*member) for member in members]
        return torch.stack(rows).reshape(*shape, measure.n, measure.d)

    def largest_exponent(self, measure: ParticleMeasure, t: float) -> float:
        return max(self.reduction.largest_exponent(x, D) for x, _, D, _ in self._members(measure, t)[1])

    def _members(
        self, measure: ParticleMeasure, t: float
    ) -> tuple[torch.Size, list[tuple[Tensor, Tensor, Tensor, Tensor]]]:
        """The shape of the batch, and points, weights, heads and values of each member of it."""
        check_measure(measure)
        D = self._matrices(self.heads, measure, t)
        V = D if self.values is None else self._matrices(self.values, measure, t)
        shape = torch.broadcast_shapes(measure.batch_shape, D.shape[:-3], V.shape[:-3])
        points = measure.points.expand(*shape, measure.n, measure.d).reshape(-1, measure.n, measure.d)
        weights = measure.weights.expand(*shape, measure.n).reshape(-1, measure.n)
        heads, values = (M.expand(*shape, *M.shape[-3:]).reshape(-1, *M.shape[-3:]) for M in (D, V))
        return shape, list(zip(points, weights, heads, values, strict=True))

    def _output(self, points: Tensor, weights: Tensor, D: Tensor, V: Tensor) -> Tensor:
        sums = self.reduction.exponential_sums(points, weights, D)
        assert sums.first is not None
        means = sums.first / sums.mass[:, None, :]
        if not within_range(sums.mass):
            # The same quotient with the largest exponent of every target taken out of both sums.
            shifted = shifted_sums(points, weights, D)
            means = (shifted.first / shifted.mass[:, None, :]).to(means)
        theta = self.heads.head_weights
        # Heads of weight 0 are not among the matrices.
        return -self.sign * head_average((V @ means).mT, None if theta is None else theta[theta != 0], axis=-3)

    def _matrices(self, path: AbstractHeads, measure: ParticleMeasure, t: float) -> Tensor:
        M = path.at(t)
        if M.shape[-1] != measure.d:
            raise InvalidInput(
                f"heads of shape {tuple(M.shape)} do not fit points of shape {tuple(measure.points.shape)}: the last "
                "axes must agree"
            )
        rows = weighted_heads(self.heads.head_weights)
        M = M if rows is None else M[..., rows, :, :]
        return M.to(device=measure.device, dtype=measure.dtype)


def _check_values(heads: AbstractHeads, values: AbstractHeads) -> None:
    shapes = [(path.num_heads, path.dimension) for path in (heads, values)]
    if shapes[0] != shapes[1]:
        raise InvalidInput(f"values have (H, d) = {shapes[1]}, but the heads have {shapes[0]}: one value matrix a head")
    if values.head_weights is not None and (
        heads.head_weights is None or not torch.equal(values.head_weights, heads.head_weights)
    ):
        raise InvalidInput("values have head weights of their own; give the weights to the heads, which decide")
