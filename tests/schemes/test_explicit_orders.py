"""The explicit schemes against the flow itself, integrated by formulas that share nothing with the package."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

import jko
from jko.schemes import AbstractScheme
from tests.oracles.flows import quantities
from tests.oracles.orders import assert_order, fit
from tests.oracles.reductions import Counted
from tests.schemes.problems import METRICS, SIGNS, attention, gap, succeeded, tokens

T1 = 0.4
NODES = (0.0, 0.2, 0.4)
STEPS = (8, 16, 32, 64)
SPACES = {"sphere": jko.Sphere(), "plane": jko.Euclidean()}
SCHEMES: dict[str, tuple[type, int]] = {
    "euler": (jko.ExplicitEuler, 1),
    "exponential": (jko.ExponentialEuler, 1),
    "rk4": (jko.RK4, 4),
}

every_metric = pytest.mark.parametrize("metric", METRICS)
every_sign = pytest.mark.parametrize("sign", SIGNS)
every_scheme = pytest.mark.parametrize("scheme", SCHEMES)
THETA = torch.tensor([0.3, 0.7], dtype=torch.float64)


def table(space: str = "sphere") -> Tensor:
    """Heads that are not symmetric, at the nodes that all grids share; weaker where nothing bounds the particles."""
    base, change = np.random.default_rng(3).standard_normal((2, len(NODES), 2, 3, 3))
    return torch.from_numpy(0.6 * base[:1] + 0.2 * change) * (1.0 if space == "sphere" else 0.6)


def start(space: str) -> jko.ParticleMeasure:
    points = tokens(5, 3, 1) * (1.0 if space == "sphere" else 0.5)
    weights = torch.tensor([0.1, 0.3, 0.2, 0.25, 0.15], dtype=torch.float64)
    return jko.ParticleMeasure(points, weights)


@functools.cache
def limit(metric: str, sign: int, space: str) -> Tensor:
    """The end of the flow: an adaptive method of order 8, restarted at every kink of the heads."""
    measure, D = start(space), table(space)
    x = measure.points.numpy().ravel()
    for k, (a, b) in enumerate(itertools.pairwise(NODES)):

        def velocity(t: float, z: np.ndarray, k: int = k, a: float = a, b: float = b) -> np.ndarray:
            s = (t - a) / (b - a)
            points = torch.from_numpy(z.reshape(5, 3).copy())
            if space == "sphere":
                points = points / points.norm(dim=-1, keepdim=True)
            fields = quantities(points, measure.weights, D[k] * (1 - s) + D[k + 1] * s, THETA, sphere=space == "sphere")
            return sign * fields[metric].numpy().ravel()

        x = solve_ivp(velocity, (a, b), x, method="DOP853", rtol=1e-13, atol=1e-14).y[:, -1]
    return torch.from_numpy(x.reshape(5, 3))


@every_metric
@every_sign
@pytest.mark.parametrize("space", SPACES)
@every_scheme
def test_order(scheme: str, space: str, sign: int, metric: str) -> None:
    kind, order = SCHEMES[scheme]
    energy = jko.AttentionEnergy(jko.TabulatedHeads(NODES, table(space), THETA), sign)
    flow = jko.GradientFlow(energy, METRICS[metric], SPACES[space])
    target = limit(metric, sign, space)
    assert gap(start(space).points, target) > 0.02
    ends = [jko.solve(flow, start(space), kind(T1 / steps), t1=T1).points[-1] for steps in STEPS]
    assert_order([T1 / steps for steps in STEPS], [float((end - target).norm()) for end in ends], order)


def test_the_fit_tells_orders_apart() -> None:
    taus = [0.1 * 0.5**k for k in range(4)]
    assert fit(taus, [3 * tau**4 for tau in taus]) == pytest.approx((4.0, 1.0))
    for wrong in (1.2, 0.8):
        with pytest.raises(AssertionError):
            assert_order(taus, [tau**wrong for tau in taus], 1)
    with pytest.raises(AssertionError):
        assert_order(taus, [0.1, 0.02, 0.06, 0.012], 1)


def test_stages_take_the_heads_of_their_own_times() -> None:
    # With the heads of the start in every stage the order falls to 1.
    D = table()
    heads = jko.TabulatedHeads(NODES, D, THETA)
    flow = jko.GradientFlow(jko.AttentionEnergy(heads), jko.HeadwiseWasserstein())
    frozen = attention(D[0], "headwise", head_weights=THETA)
    y = start("sphere")
    moving, still = (succeeded(jko.RK4(0.1).step(f, y)).measure.points for f in (flow, frozen))
    assert gap(moving, still) > 1e-3


@every_metric
@every_scheme
def test_columns_and_passes(scheme: str, metric: str) -> None:
    kind, _ = SCHEMES[scheme]
    flow = jko.GradientFlow(jko.AttentionEnergy(jko.TabulatedHeads(NODES, table())), METRICS[metric])
    y, tau = start("sphere"), 0.1
    euler = succeeded(jko.ExplicitEuler(tau).step(flow, y))
    step = succeeded(kind(tau).step(flow, y))
    assert set(step.info.columns) == set(euler.info.columns)
    assert step.info.evaluations == (5 if scheme == "rk4" else 2)
    assert step.info.energy_previous == pytest.approx(float(flow.energy.value(y, tau)), rel=1e-14)
    assert step.info.time_part == euler.info.time_part
    still = succeeded(kind(tau).step(attention(table()[0], metric), y))
    assert still.info.evaluations == (4 if scheme == "rk4" else 1)
    assert still.info.time_part == 0
    run = jko.solve(flow, y, kind(tau), t1=0.4)
    assert float(run.records.evaluations.min()) == step.info.evaluations
    assert gap(run.records.energy, run.states.energy[1:]) == 0


def test_passes_are_counted_right() -> None:
    calls: list[None] = []
    heads = jko.TabulatedHeads(NODES, table())
    flow = jko.GradientFlow(jko.AttentionEnergy(heads, reduction=Counted(jko.Auto(), calls)))
    for kind, passes in ((jko.ExplicitEuler, 2), (jko.ExponentialEuler, 2), (jko.RK4, 5)):
        scheme, y = kind(0.1), start("sphere")
        state = scheme.start(flow, y, 0.0)
        calls.clear()
        step = succeeded(scheme.step(flow, y, 0.0, state=state))
        assert len(calls) == passes == step.info.evaluations


@every_scheme
def test_the_displacement_leads_to_the_new_particles(scheme: str) -> None:
    kind, order = SCHEMES[scheme]
    flow, y = attention(table()[0], "weighted"), start("sphere")
    step = succeeded(kind(0.1).step(flow, y))
    xi = step.info.displacement
    assert gap((xi * y.points).sum(-1), torch.zeros(5)) < 1e-15
    reached = gap(jko.Sphere().exp(y.points, xi), step.measure.points)
    # The projection of the Euler step alone is another point than the end of the geodesic.
    assert (reached < 1e-15) == (scheme != "euler")
    assert step.info.largest_displacement == pytest.approx(float(xi.norm(dim=-1).max()), rel=1e-14)
    mobility = flow.energy.evaluate(y, 0.0).heads.mobility
    cost = float((y.weights * (1 / (1 / mobility).mean(0)) * xi.square().sum(-1)).sum())
    # RK4 reports the squared length of its path in the mobility that moves along, which is frozen here.
    assert step.info.squared_distance == pytest.approx(cost, rel=1e-13 if order == 1 else 0.05)
    if order == 4:
        finer = succeeded(kind(0.01).step(flow, y))
        slope2 = float(flow.slope(y, 0.0)) ** 2
        assert finer.info.squared_distance == pytest.approx(0.01**2 * slope2, rel=0.02)


def test_the_exponential_step_is_a_geodesic() -> None:
    # One particle at an angle from an eigenvector: the velocity is known, and so is its great circle.
    D = torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))[None]
    angle, tau = 0.5, 0.3
    y = jko.ParticleMeasure([[math.cos(angle), math.sin(angle)]])
    step = succeeded(jko.ExponentialEuler(tau).step(attention(D, "headwise", -1), y))
    moved = angle - tau * math.sin(angle) * math.cos(angle)
    assert gap(step.measure.points, [[math.cos(moved), math.sin(moved)]]) < 1e-15


@every_scheme
@pytest.mark.parametrize("space", SPACES)
def test_precision_is_kept(scheme: str, space: str, dtype: torch.dtype, device: torch.device) -> None:
    flow = attention(table()[0], "headwise", manifold=SPACES[space])
    kind, _ = SCHEMES[scheme]
    step = succeeded(kind(0.1).step(flow, start(space).to(dtype, device)))
    assert step.measure.dtype == dtype
    exact = succeeded(kind(0.1).step(flow, start(space)))
    assert gap(step.measure.points, exact.measure.points) < 16 * torch.finfo(dtype).eps


@pytest.mark.parametrize("kind", [jko.ExponentialEuler, jko.RK4])
def test_overflow_is_a_status(kind: type) -> None:
    flow = attention(torch.eye(2)[None].double(), "w2", -1, jko.Euclidean())
    y = jko.ParticleMeasure([[3.0, 0.0]])
    for tau in (0.01, 0.5):
        step = kind(tau).step(flow, y)
        assert step.info.status is jko.Status.NON_FINITE
        assert step.measure is y
        assert "largest exponent" in step.info.detail


@pytest.mark.parametrize("kind", [jko.ExponentialEuler, jko.RK4])
def test_bad_input_is_refused(kind: type) -> None:
    flow, y = attention(table()[0]), start("sphere")
    scheme: AbstractScheme = kind(0.1)
    assert scheme.tau == 0.1
    scheme.check(flow)
    with pytest.raises(jko.InvalidInput, match="guess must be None"):
        scheme.step(flow, y, guess=y)
    with pytest.raises(jko.InvalidInput, match="tau"):
        kind(0.0)
    with pytest.raises(jko.InvalidInput, match="tau"):
        scheme.step(flow, y, tau=-1.0)
    with pytest.raises(jko.InvalidInput, match="norm"):
        scheme.step(flow, jko.ParticleMeasure(y.points * 2))
    assert "Euler" in scheme.title or "Runge" in scheme.title
