from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from jko.energies import InteractionEnergy
from jko.errors import InvalidInput
from jko.kernels import FunctionKernel, GaussianKernel, LogarithmicKernel, PowerKernel
from jko.measure import ParticleMeasure
from jko.reductions import Auto, Blocked, KeOps
from tests.oracles.attention import assert_close
from tests.oracles.reductions import Counted
from tests.reductions.test_keops import with_keops

F64 = torch.float64
PAIR = ParticleMeasure([[0.0, 0.0], [3.0, 4.0]], [0.25, 0.75])


@pytest.mark.parametrize(
    ("kernel", "between", "itself", "slope"),
    [
        (PowerKernel(2), 25.0, 0.0, 10.0),
        (PowerKernel(1), 5.0, 0.0, 1.0),
        (PowerKernel(-1), 0.2, 0.0, -1 / 25),
        (LogarithmicKernel(), math.log(5), 0.0, 1 / 5),
        (GaussianKernel(5.0), math.exp(-0.5), 1.0, -math.exp(-0.5) / 5),
    ],
)
def test_two_particles(kernel: Any, between: float, itself: float, slope: float) -> None:
    evaluation = InteractionEnergy(kernel).evaluate(PAIR, 0.0)
    w = PAIR.weights
    assert_close(evaluation.value, w[0] * w[1] * between + (w @ w) * itself / 2, 1e-15)
    assert_close(evaluation.first_variation, w.flip(0) * between + w * itself, 1e-15)
    direction = torch.tensor([0.6, 0.8], dtype=F64)
    expected = torch.stack([-w[1] * slope * direction, w[0] * slope * direction])
    assert_close(evaluation.gradient, expected, 1e-15)


def test_splitting_a_particle_changes_nothing_for_a_smooth_kernel() -> None:
    split = ParticleMeasure(PAIR.points[[0, 1, 1]], [0.25, 0.5, 0.25])
    for kernel in (GaussianKernel(2.0), PowerKernel(1), PowerKernel(3)):
        energy = InteractionEnergy(kernel)
        one, two = energy.evaluate(PAIR, 0.0), energy.evaluate(split, 0.0)
        assert_close(two.value, one.value, 1e-15)
        assert_close(two.gradient, one.gradient[[0, 1, 1]], 1e-15)
    assert float(InteractionEnergy(LogarithmicKernel()).value(split, 0.0)) == -math.inf


def test_refusals() -> None:
    with pytest.raises(InvalidInput, match="wrap a function W"):
        InteractionEnergy(lambda x, y: x)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"kernel must be an instance of AbstractKernel such as GaussianKernel"):
        InteractionEnergy("Gaussian")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"reduction must be an instance of AbstractReduction such as Auto"):
        InteractionEnergy(GaussianKernel(1.0), Blocked)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="knows the exponentials of attention only"):
        InteractionEnergy(GaussianKernel(1.0), Counted(Blocked(), []))
    skew = InteractionEnergy(FunctionKernel(lambda x, y: (x * y).sum(-1) + x[..., 0]))
    for call in (skew.evaluate, skew.value):
        with pytest.raises(InvalidInput, match="not symmetric"):
            call(PAIR, 0.0)


def test_default_and_forced_reductions() -> None:
    assert isinstance(InteractionEnergy(GaussianKernel(1.0)).reduction, Auto)
    energy = InteractionEnergy(GaussianKernel(1.0), Blocked(4096))
    assert energy.description.endswith("pair sums: blocked")


@with_keops
def test_keops_gives_the_same_energy() -> None:
    generator = torch.Generator().manual_seed(0)
    mu = ParticleMeasure(torch.randn(40, 3, generator=generator, dtype=F64), [0.05] * 20 + [0.0] * 20)
    lazy, blocked = (InteractionEnergy(LogarithmicKernel(), member) for member in (KeOps(), Blocked()))
    actual, expected = (energy.evaluate(mu, 0.0, curvature=True) for energy in (lazy, blocked))
    for part in ("value", "first_variation", "gradient", "curvature"):
        assert_close(getattr(actual, part), getattr(expected, part), 1e-12)
    products = [energy.hessian_product(mu, 0.0, mu.points.flip(-1)) for energy in (lazy, blocked)]
    assert_close(products[0], products[1], 1e-12)
    assert lazy.description == "interaction log|x - y|, pair sums: KeOps"
    with pytest.raises(InvalidInput, match="Python function"):
        InteractionEnergy(FunctionKernel(lambda x, y: (x * y).sum(-1)), KeOps())
