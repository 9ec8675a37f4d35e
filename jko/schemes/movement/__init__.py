"""What a step pays for moving, and where its coupling comes from."""

from jko.schemes.movement.base import AbstractMovement, Excess, MatchedMovement
from jko.schemes.movement.bias import EntropicBias
from jko.schemes.movement.planned import TransportMovement

__all__ = ["AbstractMovement", "EntropicBias", "Excess", "MatchedMovement", "TransportMovement"]
