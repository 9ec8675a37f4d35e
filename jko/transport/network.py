"""Exact transport between weight vectors on a finite cost matrix: assignment or network simplex, with its duals."""

from __future__ import annotations

import io
import sys
import warnings
from dataclasses import dataclass
from importlib import import_module
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from jko.reductions.keops_probe import silenced

__all__ = ["ExactPlan", "assigned", "assignment", "is_assignment", "network_simplex"]

_OPTIMAL = 1
_UNIFORM = 1e-12
_ROUNDING = 1e-14
_SMALL = 64
_MAX_PIVOTS = 10_000_000

_Floats = NDArray[np.float64]
_Indices = NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True, eq=False)
class ExactPlan:
    """A plan by its entries, and potentials with u_j + v_i <= c_ji, equal on the plan up to rounding.

    Attributes:
        rows: indices of sources, shape (k,).
        columns: indices of targets, shape (k,).
        masses: shape (k,).
        u: potential of the sources, shape (n,).
        v: potential of the targets, shape (m,).
        failure: why the plan is unfinished; empty where it is optimal.
    """

    rows: _Indices
    columns: _Indices
    masses: _Floats
    u: _Floats
    v: _Floats
    failure: str = ""


def is_assignment(matrix: _Floats, a: _Floats, b: _Floats) -> bool:
    """Whether an assignment is the faster solver: equal weights, and few particles or most of them at home."""
    if a.size != b.size or float(np.ptp(np.concatenate([a, b]))) > _UNIFORM / a.size:
        return False
    return a.size <= _SMALL or bool(np.mean(matrix.diagonal() <= matrix.min(1)) > 0.5)


def assigned(matrix: _Floats) -> tuple[_Indices, _Indices]:
    """Solve n sources against n targets of equal weight, without potentials: which rows go to which columns."""
    from scipy.optimize import linear_sum_assignment

    # Potentials change no assignment; these make the identity free, which is where most clouds are close to.
    rows, columns = linear_sum_assignment(matrix - matrix.diagonal())
    return rows, columns


def assignment(matrix: _Floats) -> ExactPlan:
    """Solve n sources against n targets of equal weight."""
    n = matrix.shape[0]
    rows, columns = assigned(matrix)
    # Costs of sending j elsewhere than to its partner, by which the potential of a target is a shortest path.
    detour = matrix - matrix[rows, columns][:, None]
    v = np.zeros(n)
    slack = _ROUNDING * float(np.abs(matrix).max())
    for _ in range(n):
        shorter = np.minimum(v, (detour + v[columns][:, None]).min(0))
        done = float((v - shorter).max()) <= slack
        v = shorter
        if done:
            break
    return ExactPlan(rows, columns, np.full(n, 1 / n), (matrix - v).min(1), v)


def network_simplex(matrix: _Floats, a: _Floats, b: _Floats, max_pivots: int | None = None) -> ExactPlan:
    """Solve any weights by the network simplex of POT; weights of 0 are left out and get potentials afterwards.

    None is 10 million pivots.
    """
    ot = _pot()
    rows, columns = a > 0, b > 0
    part = np.ascontiguousarray(matrix[np.ix_(rows, columns)])
    # Weights of single precision do not sum to 1 in double, and the solver would call that infeasible.
    masses = a[rows] / a[rows].sum(), b[columns] / b[columns].sum()
    with warnings.catch_warnings():
        # What POT warns of is in its code.
        warnings.simplefilter("ignore")
        plan, log = ot.emd(*masses, part, numItermax=max_pivots or _MAX_PIVOTS, log=True)
    failure = "" if log["result_code"] == _OPTIMAL else str(log["warning"])
    # The duals of the solver are feasible up to accumulated rounding only.
    v = (matrix[rows] - log["u"][:, None]).min(0)
    u = (matrix[:, columns] - v[columns]).min(1)
    at = np.nonzero(plan)
    return ExactPlan(np.flatnonzero(rows)[at[0]], np.flatnonzero(columns)[at[1]], plan[at], u, v, failure)


def _pot() -> Any:
    if "ot" not in sys.modules:
        # Where GeomLoss is installed POT imports it, and with it KeOps, which prints.
        with silenced(io.StringIO()):
            return import_module("ot")
    return sys.modules["ot"]
