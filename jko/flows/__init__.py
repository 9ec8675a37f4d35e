"""What moves the particles."""

from jko.flows.attention_field import AttentionField
from jko.flows.base import AbstractFlow, FlowState
from jko.flows.fields import AbstractField
from jko.flows.gradient import GradientFlow
from jko.flows.velocity import VelocityFlow

__all__ = ["AbstractField", "AbstractFlow", "AttentionField", "FlowState", "GradientFlow", "VelocityFlow"]
