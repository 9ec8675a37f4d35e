"""Geometries on particle measures: which velocity a minimizing movement follows."""

from jko.metrics.base import AbstractMetric, Fields
from jko.metrics.headwise import HeadwiseWasserstein
from jko.metrics.mobility_field import MobilityField
from jko.metrics.wasserstein import Wasserstein2
from jko.metrics.weighted import WeightedWasserstein

__all__ = ["AbstractMetric", "Fields", "HeadwiseWasserstein", "MobilityField", "Wasserstein2", "WeightedWasserstein"]
