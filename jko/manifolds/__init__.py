"""Manifolds: the spaces that particles live in, behind the contract of `AbstractManifold`."""

from __future__ import annotations

from jko.manifolds.base import AbstractManifold
from jko.manifolds.euclidean import Euclidean
from jko.manifolds.sphere import Sphere

__all__ = ["AbstractManifold", "Euclidean", "Sphere"]
