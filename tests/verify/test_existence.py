from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy.integrate import quad

import jko
from jko import verify
from jko.verify import Verdict, continuity
from jko.verify.orders import fit_order
from jko.verify.probes import bump_integrals, default_probes
from jko.verify.problems import attention_flow, bounded_heads, smooth_heads, tokens
from jko.verify.study import Study

TAUS = (0.05, 0.025, 0.0125)
KEYS = ["energy-inequality", "a-priori-bound", "hoelder", "de-giorgi", "convergence"]


def flow(metric=None, sign: int = 1, count: int = 2) -> jko.GradientFlow:
    return attention_flow(bounded_heads(count, 0, 1.0), metric or jko.WeightedWasserstein(), sign)


def verdicts(findings) -> dict[str, Verdict]:
    return {finding.key: finding.verdict for finding in findings}


@pytest.mark.parametrize("sign", [1, -1])
def test_existence_on_a_flow_of_the_users(sign):
    findings = verify.existence(flow(sign=sign), tokens(6, 1), TAUS, 0.1, order=1.0)
    assert verdicts(findings) == dict.fromkeys(KEYS, Verdict.HOLDS)
    json.dumps([finding.as_data() for finding in findings], allow_nan=False)
    assert f"sign = {sign:+d}" in findings[0].figure.title


def test_a_quadratic_potential_has_its_closed_forms():
    # One step is x -> x / (1 + tau), so with m = sum w |x_0|^2 / 2 everything is a geometric sum.
    energy = jko.PotentialEnergy(lambda x: x.square().sum(-1) / 2)
    plane = jko.GradientFlow(energy, jko.Wasserstein2(), jko.Euclidean())
    measure = jko.ParticleMeasure(torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64))
    study = Study.of(plane, measure, (0.5, 0.25), 0.5)
    run = study.runs[0]
    m = 5 / 4
    assert float(study.costs(run)[0]) == pytest.approx(m * (0.5 / 1.5) ** 2 / 0.5)
    assert study.dissipation_bound(run) == pytest.approx(m * (1 - 1 / 1.5**2))
    findings = {f.key: f for f in verify.existence(plane, measure, (0.5, 0.25, 0.125), 0.5)}
    assert all(finding.verdict is Verdict.HOLDS for finding in findings.values())
    defect = findings["de-giorgi"].measurements[0]
    assert abs(defect.value) <= defect.tolerance < 1e-6


def test_a_wrong_cost_is_caught(monkeypatch):
    right = Study.costs
    monkeypatch.setattr(Study, "costs", lambda self, run: 2.5 * right(self, run))
    found = verdicts(verify.existence(flow(), tokens(6, 1), TAUS, 0.1))
    for key in ("energy-inequality", "a-priori-bound", "de-giorgi"):
        assert found[key] is Verdict.FAILS


def test_a_wrong_mobility_in_the_hoelder_estimate_is_caught(monkeypatch):
    monkeypatch.setattr(Study, "smallest_mobility", lambda self, run: 10.0)
    assert verdicts(verify.existence(flow(), tokens(6, 1), TAUS, 0.1))["hoelder"] is Verdict.FAILS


def test_a_wrong_order_is_caught():
    findings = verify.existence(flow(), tokens(6, 1), TAUS, 0.1, order=2.0)
    assert verdicts(findings)["convergence"] is Verdict.FAILS


@pytest.mark.parametrize("taus", [(0.1,), (0.05, 0.1), (0.1, 0.04), (0.03, 0.015)])
def test_step_sizes_must_fit_together(taus):
    with pytest.raises(jko.InvalidInput):
        verify.existence(flow(), tokens(3, 1), taus, 0.1)


@pytest.mark.parametrize("metric", [jko.Wasserstein2(), jko.WeightedWasserstein(), jko.HeadwiseWasserstein()])
def test_weak_form_of_a_flow_of_the_users(metric):
    moving = attention_flow(smooth_heads(2, 0, 1.0), metric, -1)
    (finding,) = verify.weak_form(moving, tokens(6, 1, weighted=True), (0.02, 0.01), 0.1)
    assert finding.verdict is Verdict.HOLDS
    assert finding.measurements[0].value > 1e-3


def test_weak_form_catches_another_equation(monkeypatch):
    right = continuity._pull

    def wrong(*arguments):
        pull, places = right(*arguments)
        return 0.9 * pull, places

    monkeypatch.setattr(continuity, "_pull", wrong)
    (finding,) = verify.weak_form(flow(), tokens(6, 1), (0.02, 0.01), 0.1)
    assert finding.verdict is Verdict.FAILS


def test_weak_form_needs_steps():
    with pytest.raises(jko.InvalidInput, match="at least one step size"):
        verify.weak_form(flow(), tokens(3, 1), (), 0.1)


@pytest.mark.parametrize(
    ("manifold", "d"), [(jko.Sphere(), 2), (jko.Sphere(), 3), (jko.Sphere(), 5), (jko.Euclidean(), 2)]
)
def test_probes_have_their_gradients_and_hessian_bounds(manifold, d):
    x = manifold.random_point((4000,), d, 0)
    v = manifold.project_vector(x, manifold.random_point((4000,), d, 1))
    v = v / v.norm(dim=-1, keepdim=True)
    for probe in default_probes(manifold, d):
        point = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(probe.value(point).sum(), point)
        torch.testing.assert_close(probe.gradient(x), gradient, rtol=1e-12, atol=1e-12)
        h = 1e-3
        ahead, behind = (probe.value(manifold.exp(x, side * h * v)) for side in (1, -1))
        second = (ahead + behind - 2 * probe.value(x)) / h**2
        largest = float(second.abs().max())
        assert 0.5 * probe.hessian_bound < largest <= probe.hessian_bound + 1e-5, probe.name


def test_bump_integrals():
    times = torch.linspace(0.5, 2.0, 31, dtype=torch.float64)
    exact, _ = quad(lambda t: np.exp(1 - 1 / (1 - ((t - 1.25) / 0.75) ** 2)), 0.5, 2.0, epsabs=1e-13)
    assert float(bump_integrals(times).sum()) == pytest.approx(exact, rel=1e-6)
    assert (bump_integrals(times) >= 0).all()


def test_fitted_orders():
    order = fit_order([0.4, 0.2, 0.1], [0.16, 0.04, 0.01])
    assert (order.slope, order.last, order.quality) == pytest.approx((2, 2, 1))
    for errors in ([0.1, 0.0], [0.1, float("nan")], [0.1]):
        assert np.isnan(fit_order([0.2, 0.1][: len(errors)], errors).slope)
