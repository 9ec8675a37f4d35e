"""What moves the particles."""

from jko.flows.base import AbstractFlow, FlowState
from jko.flows.gradient import GradientFlow

__all__ = ["AbstractFlow", "FlowState", "GradientFlow"]
