"""The weighted metric of the paper as plain functions of tensors: no flow, no state.

Shapes: head fields (*batch, H, n, d), mobilities (*batch, H, n), points (*batch, n, d), weights (n,) or (*batch, n)
(None: 1/n), head weights (H,) (None: 1/H). Equation numbers are those of Massucco et al. 2026, "Multi-Headed
Transformer Architectures as Time-dependent Wasserstein Gradient Flows".
"""

from __future__ import annotations

from jko.weighted.constants import EquivalenceConstants, equivalence_constants
from jko.weighted.defects import ValueDefect, symmetry_defect, value_defect
from jko.weighted.distance import WeightedDistance, weighted_distance
from jko.weighted.fields import (
    covariance_defect,
    horizontal_lift,
    metric_speed,
    upper_gradient,
    weighted_gradient,
)
from jko.weighted.mobility import effective_mobility, head_mobility

__all__ = [
    "EquivalenceConstants",
    "ValueDefect",
    "WeightedDistance",
    "covariance_defect",
    "effective_mobility",
    "equivalence_constants",
    "head_mobility",
    "horizontal_lift",
    "metric_speed",
    "symmetry_defect",
    "upper_gradient",
    "value_defect",
    "weighted_distance",
    "weighted_gradient",
]
