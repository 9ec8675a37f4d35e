"""The potential of one side from that of the other, and the gradient in the particles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.transport.cost import GroundCost

__all__ = ["EntropicField", "entropic_field"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class EntropicField:
    """At every particle of one side, tracers included.

    Attributes:
        potential: u_j = -eps log sum_i b_i exp((v_i - c_ji) / eps), shape (n,).
        gradient: its gradient as a function of position, sum_i P_ji / a_j grad_{y_j} c_ji, shape (n, d).
    """

    potential: Tensor
    gradient: Tensor


def entropic_field(cost: GroundCost, v: Tensor, weights: Tensor, eps: float) -> EntropicField:
    """Return the potential and its gradient at the sources of a cost, from v and the weights of its targets.

    One pass over the pairs in blocks; time O(n m d), memory O(n d) and a block.
    """
    massive = weights > 0
    if not bool(massive.all()):
        every = torch.arange(cost.shape[0], device=v.device)
        cost, v, weights = cost.restricted(every, massive), v[massive], weights[massive]
    bias = v / eps + weights.log()
    potential, gradient = torch.empty_like(cost.source[:, 0]), torch.empty_like(cost.source)
    for rows in cost.blocks():
        squares = cost.squares(rows)
        plan = cost.scaled(squares.clone(), rows).div_(-eps).add_(bias)
        largest = plan.amax(1)
        sums = plan.sub_(largest[:, None]).exp_().sum(1)
        potential[rows] = -eps * (largest + sums.log())
        gradient[rows] = cost.gradient(rows, plan.div_(sums[:, None]), squares)
    return EntropicField(potential, gradient)
