"""The paper's discrete balance (147): its terms by formulas, against the released code, and what they add up to."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import jko
import jko.heads
from jko.random import symmetric_increments
from tests.equivalence.test_explicit_reference import REFERENCE, _heads
from tests.oracles.attention import average, exponents, head_energies, problem
from tests.oracles.flows import quantities
from tests.oracles.orders import assert_order
from tests.oracles.reductions import Counted
from tests.schemes.problems import METRICS, SIGNS, gap, succeeded, tokens

LEDGER = ("ledger_drift", "ledger_ito", "ledger_dissipation", "ledger_martingale")
THETA = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)


def flow_of(heads: Any, metric: str = "headwise", sign: int = 1, **options: Any) -> jko.GradientFlow:
    return jko.GradientFlow(jko.AttentionEnergy(heads, sign, **options), METRICS[metric], jko.Sphere())


def running(column: Tensor) -> Tensor:
    return torch.cat([torch.zeros(1, dtype=torch.float64), column.cumsum(0)])


@functools.cache
def reference(name: str) -> tuple[dict[str, np.ndarray], jko.heads.AbstractHeads, jko.Solution]:
    data = dict(np.load(REFERENCE / f"explicit_{name}.npz"))
    heads, dt = _heads(name, data), float(data["dt"])
    scheme = jko.ExplicitEuler(dt, ledger=True)
    return data, heads, jko.solve(flow_of(heads), jko.ParticleMeasure(data["x0"]), scheme, t1=float(data["T"]))


@pytest.mark.parametrize("name", ["frozen", "oscillating", "ou"])
def test_running_integrals_of_the_released_code(name: str) -> None:
    data, _, run = reference(name)
    records = run.records
    assert gap(running(records.ledger_drift + records.ledger_ito), torch.from_numpy(data["int_dEdt"])) < 1e-11
    assert gap(running(records.ledger_dissipation), torch.from_numpy(data["int_G2"])) < 1e-11
    if name != "ou":
        assert gap(running(records.ledger_martingale), torch.from_numpy(data["martingale"])) == 0
        assert float(records.ledger_ito.abs().max()) == 0
    assert (float(records.ledger_drift.abs().max()) == 0) == (name == "frozen")


def pairing(kernel: Tensor, x: Tensor, matrices: Tensor) -> float:
    """1/(2 H n^2) sum of K <x_i, M_h x_j>."""
    return float((kernel * torch.einsum("id,hde,je->hij", x, matrices, x)).sum()) / (2 * kernel.numel())


def test_the_martingale_is_that_of_the_left_point() -> None:
    # Formula (147) has particles and heads of the old state. The released code forms the bilinear form with the NEW
    # particles, under the kernel of the old ones: also a martingale, since the new particles know nothing of the noise
    # of their step, and O(dt) away.
    data, heads, run = reference("ou")
    noise = math.sqrt(float(data["noise_var"])) * torch.from_numpy(data["dW_sym"])
    left, released = [], []
    for k, increment in enumerate(noise):
        x, moved = run.points[k], run.points[k + 1]
        kernel = exponents(x, heads.at(float(run.times[k]))).exp()
        left.append(pairing(kernel, x, increment))
        released.append(pairing(kernel, moved, increment))
    assert gap(run.records.ledger_martingale, left) < 1e-13
    assert gap(running(torch.tensor(released, dtype=torch.float64)), torch.from_numpy(data["martingale"])) < 1e-11
    difference = gap(running(run.records.ledger_martingale), torch.from_numpy(data["martingale"]))
    assert 1e-4 < difference < 0.02 * float(np.abs(data["martingale"]).max())


def drift(D: Tensor, t: float) -> Tensor:
    return torch.stack([(0.3 + t) * M.mT @ M - M for M in D])


def diffusion(D: Tensor, t: float) -> Tensor:
    return (0.2 + t + torch.linalg.matrix_norm(D))[:, None, None]


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("d", [2, 3, 5])
def test_terms_by_their_definition(d: int, symmetric: bool, sign: int) -> None:
    # Points that are no unit vectors, unequal weights with tracers, heads with weights: the Ito term is half the trace
    # of the Hessian of the energy in D over the covariance of the noise.
    p = problem(6, d, 3, symmetric=symmetric, weights="tracers", seed=4)
    dt = 0.05
    heads = jko.ItoHeads(p.D, drift, diffusion, dt=dt, t1=2 * dt, seed=3, head_weights=THETA)
    flow = jko.GradientFlow(jko.AttentionEnergy(heads, sign), jko.Wasserstein2(), jko.Euclidean())
    measure = jko.ParticleMeasure(p.points, p.weights)
    columns = succeeded(jko.ExplicitEuler(dt, ledger=True).step(flow, measure, t=dt)).info.columns
    D = heads.at(dt)

    def energies(matrices: Tensor) -> Tensor:
        return head_energies(p.points, p.weights, matrices)

    def along(direction: Tensor) -> Tensor:
        return torch.autograd.functional.jvp(energies, D, direction)[1]

    f, g = drift(D, dt), diffusion(D, dt)[:, 0, 0]
    dW = symmetric_increments(3, 0, 3, d, 2, dt)[1]
    trace = torch.zeros(3, dtype=torch.float64)
    for a, b in itertools.combinations_with_replacement(range(d), 2):
        basis = torch.zeros(d, d, dtype=torch.float64)
        basis[a, b] = basis[b, a] = 1.0 if a == b else math.sqrt(0.5)
        form = torch.einsum("id,de,je->ij", p.points, basis, p.points)
        kernel = exponents(p.points, D).exp()
        trace += torch.einsum("i,hij,j->h", p.weights, kernel * form**2, p.weights) / 2
    expected = {
        "ledger_drift": sign * dt * average(along(f), THETA),
        "ledger_ito": sign * dt * average(g.square() * trace / 2, THETA),
        "ledger_dissipation": dt * quantities(p.points, p.weights, D, THETA, sphere=False)["paper_slope2"],
        "ledger_martingale": sign * average(along(g[:, None, None] * dW), THETA),
    }
    for name, value in expected.items():
        assert columns[name] == pytest.approx(float(value), rel=1e-12, abs=1e-14), name
        assert abs(float(value)) > 1e-4


def balance_error(run: jko.Solution, *, corrected: bool) -> float:
    """Growth of the energy minus the sum of the ledger; corrected: with the dissipation that really takes place."""
    records, states = run.records, run.states
    total = records.ledger_drift + records.ledger_ito - records.ledger_dissipation + records.ledger_martingale
    if corrected:
        tau = states.t.diff()
        total = total + records.ledger_dissipation - tau * states.dissipation[:-1]
    return float(states.energy[-1] - states.energy[0] - total.sum())


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("count", [1, 3])
def test_the_balance_closes_to_first_order(count: int, sign: int) -> None:
    # For several heads it does so only with the true dissipation: G^2 is another number.
    D0, taus = jko.initial_heads(count, 3, 2) * 0.6, [0.04, 0.02, 0.01, 0.005]
    mu = jko.ParticleMeasure(tokens(8, 3, 1))
    runs = []
    for tau in taus:
        heads = jko.OscillatingHeads(D0, dt=tau, t1=0.4)
        runs.append(jko.solve(flow_of(heads, sign=sign), mu, jko.ExplicitEuler(tau, ledger=True), t1=0.4))
    corrected = [abs(balance_error(run, corrected=True)) for run in runs]
    assert_order(taus, corrected, 1)
    printed = [abs(balance_error(run, corrected=False)) for run in runs]
    if count == 1:
        assert printed == pytest.approx(corrected, rel=1e-6)
    else:
        gaps = [
            abs(float((r.records.ledger_dissipation - r.states.t.diff() * r.states.dissipation[:-1]).sum()))
            for r in runs
        ]
        assert min(gaps) > 0.5 * max(gaps) > 1e-4
        assert printed[-1] == pytest.approx(gaps[-1], abs=1.5 * corrected[-1])


def test_the_martingale_has_mean_zero_and_the_ito_term_none_to_spare() -> None:
    # E(D_T) - E(D_0) - drift - Ito at particles that hardly move: both means vanish, and without the Ito term they
    # would not. One head a path: the paths are the heads of one run.
    paths, steps, dt = 8000, 4, 0.01
    D0 = torch.diag(torch.tensor([1.0, 0.5], dtype=torch.float64)).expand(paths, 2, 2)
    heads = jko.OrnsteinUhlenbeckHeads(D0, dt=dt, t1=steps * dt, seed=8)
    flow, mu = flow_of(heads), jko.ParticleMeasure(tokens(3, 2, 1))
    run = jko.solve(flow, mu, jko.ExplicitEuler(dt, ledger=True), t1=steps * dt)
    records = run.records
    variance = 0.0
    for k in range(steps):
        before, after = (head_energies(run.points[k], mu.weights, heads.at((k + j) * dt)) for j in (0, 1))
        variance += float((after - before).var()) / paths
    deviation = math.sqrt(variance)
    assert abs(float(records.ledger_martingale.sum())) < 4 * deviation
    jump = records.time_part - records.ledger_drift - records.ledger_ito
    assert abs(float(jump.sum())) < 4 * deviation + 0.05 * float(records.ledger_ito.sum())
    assert float(records.ledger_ito.sum()) > 8 * deviation


def test_the_ledger_takes_no_pass_of_its_own() -> None:
    heads = jko.OscillatingHeads(jko.initial_heads(2, 3, 1) * 0.3, dt=0.1, t1=1.0)
    calls: list[None] = []
    flow = flow_of(heads, reduction=Counted(jko.Auto(), calls))
    y = jko.ParticleMeasure(tokens(5))
    plain, kept = jko.ExplicitEuler(0.1), jko.ExplicitEuler(0.1, ledger=True)
    runs = {}
    for scheme in (plain, kept):
        calls.clear()
        runs[scheme.ledger] = jko.solve(flow, y, scheme, t1=0.5)
        assert len(calls) == 1 + int(runs[scheme.ledger].records.evaluations.sum()) == 11
    assert set(runs[True].records) - set(runs[False].records) == set(LEDGER)
    assert gap(runs[True].points, runs[False].points) == 0
    for name in runs[False].records:
        if name != "status":
            assert gap(getattr(runs[True].records, name), getattr(runs[False].records, name)) < 1e-15
    # A state that a plain step left behind is completed, by one pass more.
    first = succeeded(plain.step(flow, y))
    second = succeeded(kept.step(flow, first.measure, 0.1, state=first.state))
    expected = {n: float(runs[True].records[n][1]) for n in second.info.columns}
    assert second.info.columns == pytest.approx({**expected, "evaluations": expected["evaluations"] + 1})


def test_steps_of_several_nodes() -> None:
    D0, dt = jko.initial_heads(2, 3, 1) * 0.3, 0.05
    heads = jko.OrnsteinUhlenbeckHeads(D0, dt=dt, t1=0.4, seed=1)
    y = jko.ParticleMeasure(tokens(5))
    columns = succeeded(jko.ExplicitEuler(0.2, ledger=True).step(flow_of(heads), y)).info.columns
    noise = math.sqrt(2.0) * symmetric_increments(1, 0, 2, 3, 8, dt)[:4].sum(0)
    assert columns["ledger_martingale"] == pytest.approx(
        pairing(exponents(y.points, D0).exp(), y.points, noise), rel=1e-12
    )


class TestRefusals:
    def never(self, heads: Any, t1: float = 0.4, t0: float = 0.0, wrap: Any = None) -> None:
        calls: list[None] = []
        energy = jko.AttentionEnergy(heads, reduction=Counted(jko.Auto(), calls))
        flow = jko.GradientFlow(energy if wrap is None else wrap(energy), jko.Wasserstein2())
        y = jko.ParticleMeasure(tokens(5))
        try:
            jko.solve(flow, y, jko.ExplicitEuler(0.1, ledger=True), t0=t0, t1=t1)
        finally:
            assert not calls, "refused only after work"

    def test_heads_without_increments(self) -> None:
        D = jko.initial_heads(2, 3, 1)
        with pytest.raises(jko.InvalidInput, match="TabulatedHeads do not"):
            self.never(jko.TabulatedHeads([0.0, 1.0], torch.stack([D, D])))

    def test_exact_transitions(self) -> None:
        with pytest.raises(jko.InvalidInput, match="exact=True"):
            self.never(jko.OrnsteinUhlenbeckHeads(jko.initial_heads(2, 3, 1), dt=0.1, t1=1.0, exact=True))

    @pytest.mark.parametrize("kind", [jko.OrnsteinUhlenbeckHeads, jko.OscillatingHeads])
    @pytest.mark.parametrize(
        ("dt", "t0", "t1"), [(0.2, 0.0, 0.4), (0.1, 0.05, 0.45), (0.1, 0.0, 0.35), (0.03, 0.0, 0.4)]
    )
    def test_steps_off_the_heads_own_grid(self, kind: Any, dt: float, t0: float, t1: float) -> None:
        with pytest.raises(jko.InvalidInput, match="no node of the head path"):
            self.never(kind(jko.initial_heads(2, 3, 1), dt=dt, t1=0.9), t0=t0, t1=t1)

    def test_other_energies(self) -> None:
        heads = jko.ConstantHeads(jko.initial_heads(2, 3, 1))
        with pytest.raises(jko.InvalidInput, match="AttentionEnergy"):
            self.never(heads, wrap=lambda energy: 2.0 * energy)
        flow = jko.VelocityFlow(jko.AttentionField(heads))
        with pytest.raises(jko.InvalidInput, match="VelocityFlow"):
            jko.solve(flow, jko.ParticleMeasure(tokens(5)), jko.ExplicitEuler(0.1, ledger=True), t1=0.2)
        with pytest.raises(jko.InvalidInput, match="VelocityFlow"):
            jko.ExplicitEuler(0.1, ledger=True).step(flow, jko.ParticleMeasure(tokens(5)))

    def test_other_flags(self) -> None:
        with pytest.raises(jko.InvalidInput, match="ledger must be True or False"):
            jko.ExplicitEuler(0.1, ledger="yes")

    def test_a_single_step(self) -> None:
        flow = flow_of(jko.OscillatingHeads(jko.initial_heads(2, 3, 1), dt=0.1, t1=1.0))
        with pytest.raises(jko.InvalidInput, match="nearest is"):
            jko.ExplicitEuler(0.1, ledger=True).step(flow, jko.ParticleMeasure(tokens(5)), tau=0.05)
