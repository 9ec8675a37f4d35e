"""What to say when exponentials overflow or underflow."""

from __future__ import annotations

import math

import torch

__all__ = ["explain_overflow"]


def explain_overflow(exponent: float, dtype: torch.dtype) -> str:
    """Name the largest exponent and the bounds beyond which exp is inf or 0 in this precision."""
    limits = torch.finfo(dtype)
    above, below = math.log(limits.max), math.log(limits.smallest_normal * limits.eps)
    # Mobilities are sums of exponentials: where all of them underflow, the velocity is 0 / 0.
    exponents = f"largest exponent {exponent:.6g}"
    return f"{exponents}; exp overflows {dtype} above {above:.4g} and underflows to 0 below {below:.4g}"
