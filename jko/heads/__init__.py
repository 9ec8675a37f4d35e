"""Head processes: paths t -> D(t) of the matrices of the attention heads."""

from jko.heads.base import AbstractHeads, AbstractItoHeads, HeadIncrement, check_heads
from jko.heads.constant import ConstantHeads
from jko.heads.fixed import FixedHeads
from jko.heads.ito import ItoHeads
from jko.heads.ornstein_uhlenbeck import OrnsteinUhlenbeckHeads
from jko.heads.oscillating import OscillatingHeads
from jko.heads.selected import SelectedHeads
from jko.heads.tabulated import TabulatedHeads

__all__ = [
    "AbstractHeads",
    "AbstractItoHeads",
    "ConstantHeads",
    "FixedHeads",
    "HeadIncrement",
    "ItoHeads",
    "OrnsteinUhlenbeckHeads",
    "OscillatingHeads",
    "SelectedHeads",
    "TabulatedHeads",
    "check_heads",
]
