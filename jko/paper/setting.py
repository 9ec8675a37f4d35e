"""The settings of the paper's numerical section, as objects."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, final

import torch

from jko.checks import check_device, check_integer, check_positive
from jko.errors import InvalidInput
from jko.heads import AbstractHeads, OrnsteinUhlenbeckHeads, OscillatingHeads
from jko.initial import initial_heads, initial_tokens
from jko.measure import ParticleMeasure
from jko.random import check_word

__all__ = ["SNAPSHOTS", "Regime", "Setting"]

SNAPSHOTS = (0.0, 0.8, 0.9, 1.0)
"""Snapshots of the paper as fractions of the final time: t = 0, 16, 18, 20 for T = 20."""

_DTYPES = {"float64": torch.float64, "float32": torch.float32}


class Regime(Enum):
    """How the heads move; the value names it in files and options."""

    OU = "ou"
    OSCILLATING_SHARED = "oscillating-shared"
    OSCILLATING_SPREAD = "oscillating-spread"

    @property
    def random(self) -> bool:
        """Whether the paths differ: an oscillating run is deterministic, so it has one path."""
        return self is Regime.OU

    @property
    def title(self) -> str:
        """Name for tables and figures."""
        return {
            Regime.OU: "Ornstein–Uhlenbeck",
            Regime.OSCILLATING_SHARED: "oscillating, shared phases",
            Regime.OSCILLATING_SPREAD: "oscillating, spread phases",
        }[self]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """One set of parameters for all experiments.

    The tokens, D_0 and the noise have seeded streams of their own (the authors' generators are not reproduced). All
    Monte Carlo paths start from the same tokens and the same D_0, as in the authors' code; their noise is independent.

    Args:
        n: number of tokens.
        dimension: d; the tokens live on S^(d-1).
        dt: step of the scheme and of the head path.
        t1: final time, a multiple of dt.
        heads: numbers of heads H, increasing.
        paths: Monte Carlo paths of random heads.
        window: mean G^2 is taken over t >= window.
        frames: about how many clouds a run keeps after the initial one.
        sign: +1 descends E (tokens move along -V: the authors' code), -1 descends -E (the printed update).
        sigma2: stationary variance of a diagonal entry of the OU heads.
        seed: seed of everything that is random.
        dtype: "float64" or "float32".
        device: where the tokens live.

    Raises:
        InvalidInput: for a number outside its range, or a t1 that is no multiple of dt.
    """

    n: int = 300
    dimension: int = 3
    dt: float = 0.01
    t1: float = 20.0
    heads: tuple[int, ...] = (1, 10, 100)
    paths: int = 20
    window: float = 2.5
    frames: int = 100
    sign: int = 1
    sigma2: float = 1.0
    seed: int = 0
    dtype: str = "float64"
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name, least in (("n", 1), ("dimension", 2), ("paths", 1), ("frames", 1)):
            check_integer(getattr(self, name), name, least=least)
        for name in ("dt", "t1"):
            check_positive(getattr(self, name), name)
        check_positive(self.window, "window", zero=True)
        check_positive(self.sigma2, "sigma2", zero=True)
        check_word(self.seed, "seed")
        counts = [check_integer(count, "heads", least=1) for count in self.heads]
        if not counts or sorted(set(counts)) != counts:
            raise InvalidInput(f"heads must be increasing numbers of heads such as 1,10,100, got {self.heads!r}")
        if self.sign not in (1, -1):
            raise InvalidInput(f"sign must be +1 or -1, got {self.sign!r}")
        if self.dtype not in _DTYPES:
            raise InvalidInput(f"dtype must be float64 or float32, got {self.dtype!r}")
        check_device(self.device)
        if not math.isfinite(self.t1 / self.dt):
            raise InvalidInput(f"dt = {self.dt!r} is too small for t1 = {self.t1!r}; take a larger dt")
        if abs(self.t1 / self.dt - self.steps) > 1e-9 * self.steps or self.steps == 0:
            nearest = self.t1 / max(self.steps, 1)
            raise InvalidInput(
                f"t1 = {self.t1!r} must be a multiple of dt = {self.dt!r}; the nearest dt is {nearest!r}"
            )
        if self.window >= self.t1:
            raise InvalidInput(f"window = {self.window!r} must lie before t1 = {self.t1!r}: it begins the averages")

    @staticmethod
    def as_printed(**changes: Any) -> Setting:
        """Return the parameters of the text: n = 300, dt = 0.01, T = 20, 20 paths; averages over t >= 2.5."""
        return Setting(**changes)

    @staticmethod
    def as_released(**changes: Any) -> Setting:
        """Return the defaults of the authors' code: n = 200, dt = 0.005, T = 20, 10 paths; averages over t >= T/2."""
        return Setting(**{"n": 200, "dt": 0.005, "paths": 10, "window": changes.get("t1", 20.0) / 2, **changes})

    @staticmethod
    def small(**changes: Any) -> Setting:
        """Return parameters for seconds."""
        values = {"n": 20, "dt": 0.02, "t1": 2.0, "heads": (1, 4, 16), "paths": 3, "frames": 20, **changes}
        return Setting(**{"window": values["t1"] / 4, **values})

    @property
    def steps(self) -> int:
        """Number of steps of a run."""
        return round(self.t1 / self.dt)

    @property
    def keep_every(self) -> int:
        """Number of steps from one kept cloud to the next."""
        return max(1, round(self.steps / self.frames))

    @property
    def windows(self) -> tuple[float, ...]:
        """Beginnings of the windows that G^2 is averaged over: the setting's own first, then those of both codes."""
        others = {2.5 * self.t1 / 20, self.t1 / 2, 0.0} - {self.window}
        return (self.window, *sorted(others))

    def count_paths(self, regime: Regime) -> int:
        """Return the number of Monte Carlo paths of a regime."""
        return self.paths if regime.random else 1

    def measure(self) -> ParticleMeasure:
        """Return the initial tokens."""
        points = initial_tokens(self.n, self.dimension, self.seed, dtype=_DTYPES[self.dtype], device=self.device)
        return ParticleMeasure(points)

    def make_heads(self, regime: Regime, num_heads: int, path: int) -> AbstractHeads:
        """Return the head path of one Monte Carlo path."""
        initial = initial_heads(num_heads, self.dimension, self.seed)
        if regime is Regime.OU:
            return OrnsteinUhlenbeckHeads(
                initial, sigma2=self.sigma2, dt=self.dt, t1=self.t1, seed=self.seed, path=path
            )
        phases = "shared" if regime is Regime.OSCILLATING_SHARED else "spread"
        return OscillatingHeads(initial, dt=self.dt, t1=self.t1, phases=phases)

    def as_data(self) -> dict[str, Any]:
        """Return the parameters as plain data."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**values, "heads": list(self.heads)}
