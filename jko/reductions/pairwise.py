"""Sums of interaction kernels over pairs: the counterpart of the attention sums, behind a contract of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from jko.errors import InvalidInput
from jko.kernels import AbstractKernel, KernelSums
from jko.reductions.auto import Auto
from jko.reductions.base import AbstractReduction, default_block_bytes
from jko.reductions.blocked import Blocked
from jko.reductions.keops import KeOps
from jko.reductions.keops_pairs import keops_derivative, keops_sums, refuse_opaque

__all__ = ["AbstractPairs", "pairs_by"]


class AbstractPairs(ABC):
    """How sums of a kernel over pairs are formed; members differ in speed and memory only, never in the result.

    `targets` has shape (m, d), `sources` (n, d), `weights` (n,); `own` (m,) says which source each target is, -1 where
    it is none, and is None for targets that are no particles of the measure.
    """

    __slots__ = ()

    @abstractmethod
    def sums(
        self, kernel: AbstractKernel, targets: Tensor, sources: Tensor, weights: Tensor, own: Tensor | None, order: int
    ) -> KernelSums:
        """Return values, and derivatives in the targets up to `order`, in one pass over the pairs."""

    @abstractmethod
    def derivative(
        self,
        kernel: AbstractKernel,
        targets: Tensor,
        sources: Tensor,
        weights: Tensor,
        own: Tensor | None,
        moving: tuple[Tensor, Tensor],
    ) -> Tensor:
        """Return the derivative of the gradient, shape (m, d), targets and sources moving along `moving`."""


def pairs_by(reduction: AbstractReduction, kernel: AbstractKernel) -> AbstractPairs:
    """Return how a reduction forms the sums of a kernel.

    Raises:
        InvalidInput: for a reduction that knows attention only, and for KeOps with a function it cannot read.
    """
    if isinstance(reduction, Blocked):
        return _BlockedPairs(reduction)
    if isinstance(reduction, KeOps):
        refuse_opaque(kernel)
        return _KeOpsPairs()
    if isinstance(reduction, Auto):
        return _AutoPairs(reduction)
    raise InvalidInput(
        f"reduction must be Auto(), Blocked() or KeOps() for an interaction kernel, got {reduction.name!r}, which "
        "knows the exponentials of attention only"
    )


@final
@dataclass(frozen=True, slots=True, eq=False)
class _BlockedPairs(AbstractPairs):
    """Blocks of targets against all sources; memory O(n) rows at a time."""

    reduction: Blocked

    def sums(
        self, kernel: AbstractKernel, targets: Tensor, sources: Tensor, weights: Tensor, own: Tensor | None, order: int
    ) -> KernelSums:
        blocks = self._blocks(targets, sources)
        out: list[Tensor] | None = None
        for i in blocks:
            sums = kernel.sums(targets[i], sources, weights, None if own is None else own[i], order)
            if len(blocks) == 1:
                return sums
            parts = [part for part in (sums.value, sums.gradient, sums.curvature) if part is not None]
            # Small results between large buffers would keep the memory of the buffers from being used again.
            if out is None:
                out = [part.new_empty(targets.shape[0], *part.shape[1:]) for part in parts]
            for whole, part in zip(out, parts, strict=True):
                whole[i] = part
        assert out is not None
        return KernelSums(*out)

    def derivative(
        self,
        kernel: AbstractKernel,
        targets: Tensor,
        sources: Tensor,
        weights: Tensor,
        own: Tensor | None,
        moving: tuple[Tensor, Tensor],
    ) -> Tensor:
        out = torch.empty_like(targets)
        for i in self._blocks(targets, sources):
            part = None if own is None else own[i]
            out[i] = kernel.derivative(targets[i], sources, weights, part, moving[0][i], moving[1])
        return out

    def _blocks(self, targets: Tensor, sources: Tensor) -> list[slice]:
        size = self.reduction.block_bytes
        if size is None:
            size = default_block_bytes(targets.device)
        per_row = targets.element_size() * sources.shape[0] * (2 * targets.shape[1] + 4)
        rows = max(1, size // max(1, per_row))
        return [slice(a, a + rows) for a in range(0, max(1, targets.shape[0]), rows)]


@final
@dataclass(frozen=True, slots=True, eq=False)
class _KeOpsPairs(AbstractPairs):
    """Sums that KeOps forms without any array over pairs."""

    def sums(
        self, kernel: AbstractKernel, targets: Tensor, sources: Tensor, weights: Tensor, own: Tensor | None, order: int
    ) -> KernelSums:
        if _lone(targets, sources):
            return _BlockedPairs(Blocked()).sums(kernel, targets, sources, weights, own, order)
        return keops_sums(refuse_opaque(kernel), targets, sources, weights, own, order)

    def derivative(
        self,
        kernel: AbstractKernel,
        targets: Tensor,
        sources: Tensor,
        weights: Tensor,
        own: Tensor | None,
        moving: tuple[Tensor, Tensor],
    ) -> Tensor:
        if _lone(targets, sources):
            return _BlockedPairs(Blocked()).derivative(kernel, targets, sources, weights, own, moving)
        return keops_derivative(refuse_opaque(kernel), targets, sources, weights, own, moving)


@final
@dataclass(frozen=True, slots=True, eq=False)
class _AutoPairs(AbstractPairs):
    """What `Auto` chooses for the sizes and the device at hand; functions that KeOps cannot read stay blocked."""

    reduction: Auto

    def sums(
        self, kernel: AbstractKernel, targets: Tensor, sources: Tensor, weights: Tensor, own: Tensor | None, order: int
    ) -> KernelSums:
        return self.reduction.chosen(
            sources if _readable(kernel) else None,
            lambda member: pairs_by(member, kernel).sums(kernel, targets, sources, weights, own, order),
        )

    def derivative(
        self,
        kernel: AbstractKernel,
        targets: Tensor,
        sources: Tensor,
        weights: Tensor,
        own: Tensor | None,
        moving: tuple[Tensor, Tensor],
    ) -> Tensor:
        return self.reduction.chosen(
            sources if _readable(kernel) else None,
            lambda member: pairs_by(member, kernel).derivative(kernel, targets, sources, weights, own, moving),
        )


def _lone(targets: Tensor, sources: Tensor) -> bool:
    """Whether KeOps would take a lone point for a parameter."""
    return 1 in (targets.shape[0], sources.shape[0])


def _readable(kernel: AbstractKernel) -> bool:
    try:
        refuse_opaque(kernel)
    except InvalidInput:
        return False
    return True
