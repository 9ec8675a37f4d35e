"""What every member of the transport family promises: gradients, invariances, tracers, refusals, statuses."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transport.problems import COSTS, MANIFOLDS, case, check_gradient, cloud, generator, line, weights

import jko
from jko.errors import InvalidInput
from jko.transport import CouplingProblem, ExactOT, Matched, Sinkhorn, TransportProblem
from jko.transport.derivative import source_gradient, source_weight_gradient

LINE = jko.Euclidean()
EXACT, DEBIASED, PLAIN = ExactOT(), Sinkhorn(0.3), Sinkhorn(0.3, debias=False)
SOLVERS = {"exact": EXACT, "debiased": DEBIASED, "plain": PLAIN}
MEMBERS = {"matched": Matched(), **SOLVERS}
SERVED = [(name, kind) for name in SOLVERS for kind in COSTS if (name, kind) != ("debiased", "one-sided")]


def solved(member, problem, start=None):
    solution = member.solve(problem, start)
    assert solution.status is jko.Status.SUCCESS, solution.detail
    return solution


def between(x, y, x_weights=None, y_weights=None, manifold=LINE) -> TransportProblem:
    return TransportProblem(jko.ParticleMeasure(y, y_weights), jko.ParticleMeasure(x, x_weights), manifold)


def renewed(problem, x_weights=None, y_weights=None) -> TransportProblem:
    """The same problem with other weights."""
    return TransportProblem(
        jko.ParticleMeasure(problem.source.points, problem.source.weights if y_weights is None else y_weights),
        jko.ParticleMeasure(problem.target.points, problem.target.weights if x_weights is None else x_weights),
        problem.manifold,
        problem.mobility,
        problem.target_mobility,
        problem.target_mobility_gradient,
    )


@pytest.mark.parametrize("manifold", MANIFOLDS)
@pytest.mark.parametrize(("name", "kind"), SERVED)
def test_gradients_in_the_targets(name, kind, manifold):
    one = case(manifold, kind)
    gradient = solved(SOLVERS[name], one.problem()).gradient
    check_gradient(
        lambda x: solved(SOLVERS[name], one.problem(x)).value, one.x, one.w[:, None] * gradient, one.manifold
    )


@pytest.mark.parametrize("manifold", MANIFOLDS)
@pytest.mark.parametrize(("name", "kind"), [pair for pair in SERVED if pair[1] != "moving"])
def test_gradients_in_the_sources(name, kind, manifold):
    one = case(manifold, kind)
    problem = one.problem()

    def value(y):
        moved = TransportProblem(
            jko.ParticleMeasure(y, one.a), problem.target, one.manifold, problem.mobility, problem.target_mobility
        )
        return solved(SOLVERS[name], moved).value

    gradient = source_gradient(solved(SOLVERS[name], problem))
    check_gradient(value, one.y, one.a[:, None] * gradient, one.manifold)


@pytest.mark.parametrize("manifold", MANIFOLDS)
@pytest.mark.parametrize(("name", "kind"), SERVED)
def test_derivatives_in_the_weights_of_both_sides(name, kind, manifold):
    problem = case(manifold, kind).problem()
    solution = solved(SOLVERS[name], problem)
    for side, found in ((0, solution.weight_gradient), (1, source_weight_gradient(solution))):
        w = (problem.target, problem.source)[side].weights
        assert float(found.sum()) == pytest.approx(0, abs=1e-13)
        change = torch.randn(w.shape, generator=generator(4), dtype=w.dtype)
        change = change - change.mean()
        h = 1e-5
        ends = [
            solved(SOLVERS[name], renewed(problem, **{("x_weights", "y_weights")[side]: w + k * h * change})).value
            for k in (1, -1, 2, -2)
        ]
        expected = (8 * (ends[0] - ends[1]) - (ends[2] - ends[3])) / (12 * h)
        assert float(found @ change) == pytest.approx(expected, rel=1e-7, abs=1e-7)


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("manifold", MANIFOLDS)
def test_marginals_and_value_of_the_plan(name, manifold):
    problem = case(manifold, n=6, m=9).problem()
    solution = solved(SOLVERS[name], problem)
    plan, a, w = solution.plan(), problem.source.weights, problem.target.weights
    assert plan.shape == (6, 9)
    error = float((plan.sum(1) - a).abs().sum() + (plan.sum(0) - w).abs().sum())
    assert error <= solution.marginal_error + 1e-14
    assert error < 1e-9
    if name != "debiased":
        entropy = 0.0 if name == "exact" else 0.3 * float(torch.xlogy(plan, plan / (a[:, None] * w)).sum())
        assert solution.value == pytest.approx(float((plan * problem.cost().matrix()).sum()) + entropy, abs=1e-9)


@pytest.mark.parametrize("name", MEMBERS)
def test_field_report_h05_a_dead_particle_changes_nothing(name):
    """x = 0, 1, 10 with weights (1/2, 1/2, 0), y = 1/2, 3/2, 5/2 with weights (1/2, 1/2, 0)."""
    member = Sinkhorn(0.05, debias=name == "debiased") if name in ("debiased", "plain") else MEMBERS[name]
    w = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    solution = solved(member, between(line(0, 1, 10), line(0.5, 1.5, 2.5), w, w))
    without = solved(member, between(line(0, 1), line(0.5, 1.5)))
    assert solution.value == pytest.approx(0.25 if name != "plain" else without.value, abs=1e-9)
    assert solution.value == pytest.approx(without.value, abs=1e-13)
    assert bool(torch.isfinite(solution.gradient).all())
    assert torch.allclose(solution.gradient[:2], without.gradient, atol=1e-9)
    assert torch.equal((w[:, None] * solution.gradient)[2], torch.zeros(1, dtype=torch.float64))
    if name != "matched":
        assert bool(torch.isfinite(torch.cat([solution.source_potential, solution.target_potential])).all())
        assert solution.plan()[2].tolist() == solution.plan()[:, 2].tolist() == [0, 0, 0]
    with pytest.raises(InvalidInput, match=r"weights\[1\] = -0.5 is negative"):
        jko.ParticleMeasure(line(0, 1), [1.5, -0.5])


@pytest.mark.parametrize("manifold", MANIFOLDS)
@pytest.mark.parametrize(("name", "kind"), SERVED)
def test_tracers_get_the_limit_for_small_weights(name, kind, manifold):
    one = case(manifold, kind)
    none, small = one.w.clone(), one.w.clone()
    none[2], small[2] = 0, 1e-13
    fields = [solved(SOLVERS[name], renewed(one.problem(), x_weights=w / w.sum())).gradient[2] for w in (none, small)]
    assert torch.allclose(fields[0], fields[1], rtol=1e-6, atol=1e-6)
    assert float(fields[0].abs().max()) > 1e-3


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("manifold", MANIFOLDS)
def test_field_report_h11_at_rest_nothing_pulls(name, manifold):
    """Coincident particles at y = x: finite everywhere, and zero where the term is minimal."""
    for x in (cloud(3, 0, manifold)[[0, 0, 1]], cloud(2, 1, manifold)[[0] * 29 + [1]]):
        solution = solved(MEMBERS[name], between(x, x, manifold=MANIFOLDS[manifold]))
        assert bool(torch.isfinite(solution.gradient).all())
        assert torch.allclose(solution.gradient[0], solution.gradient[1], rtol=0, atol=1e-12)
        if name != "plain":
            assert solution.value == 0
            assert torch.equal(solution.gradient, torch.zeros_like(x))


@pytest.mark.parametrize("name", MEMBERS)
def test_field_report_h08_degenerate_sizes(name):
    member = MEMBERS[name]
    one = line(1.0)
    five = torch.tensor([[1.0, 2.0]] * 5, dtype=torch.float64)
    for x in (one, five):
        solution = solved(member, between(x, x))
        assert solution.value == pytest.approx(0, abs=1e-15)
        assert torch.equal(solution.gradient, torch.zeros_like(x))
    assert solved(member, between(line(0.0), line(2.0))).value == pytest.approx(4, abs=1e-14)
    assert solved(member, between(line(0.0), line(2.0))).gradient.tolist() == [[-4.0]]
    with pytest.raises(InvalidInput, match="no particles"):
        jko.ParticleMeasure(torch.zeros(0, 2))


@pytest.mark.parametrize("name", MEMBERS)
def test_field_report_h14_antipodal_points(name):
    e1 = torch.tensor([[1.0, 0, 0]], dtype=torch.float64)
    solution = solved(MEMBERS[name], between(e1, -e1, manifold=jko.Sphere()))
    assert solution.value == pytest.approx(math.pi**2, abs=1e-12)
    assert bool(torch.isfinite(solution.gradient).all())
    near = torch.tensor([[math.cos(math.pi - 1e-9), math.sin(math.pi - 1e-9), 0.0]], dtype=torch.float64)
    solution = solved(MEMBERS[name], between(near, e1, manifold=jko.Sphere()))
    assert solution.value**0.5 == pytest.approx(math.pi - 1e-9, abs=1e-6)
    assert bool(torch.isfinite(solution.gradient).all())


@pytest.mark.parametrize("name", MEMBERS)
def test_field_report_h12_far_from_the_origin(name):
    member = MEMBERS[name]
    single = [torch.tensor([[value]], dtype=torch.float32) for value in (40003.0, 40000.0)]
    assert solved(member, between(*single)).value == pytest.approx(9, abs=1e-12)
    y = torch.tensor([[0.0], [1.0], [1e8]], dtype=torch.float64)
    exact = name in ("matched", "exact")
    small = member if exact else Sinkhorn(1e-4, debias=name == "debiased")
    bias = 0.0 if name != "plain" else 1e-4 * math.log(3)
    assert solved(small, between(y + 0.1, y)).value == pytest.approx(0.01 + bias, rel=1e-6)
    X = 100 + 0.01 * torch.randn(50, 16, generator=generator(0), dtype=torch.float64)
    Y = X + 0.0025
    x, y = X.float(), Y.float()
    value = solved(member, between(y, x)).value
    if name != "plain":
        assert value == pytest.approx(1e-4, rel=1e-2)
        assert solved(member, between(x, x)).value == 0


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("manifold", MANIFOLDS)
def test_single_precision(name, manifold, device):
    """Solved in double precision whatever comes in; what goes out has the precision of the particles."""
    one = case(manifold, n=5, m=5)
    y = one.problem(dtype=torch.float32).source
    x = y.moved(one.problem(dtype=torch.float32).target.points).to(device=device)
    y = y.to(device=device)
    single = solved(MEMBERS[name], TransportProblem(y, x, one.manifold))
    y, x = (jko.ParticleMeasure(one.manifold.project_point(part.points.double()), part.weights) for part in (y, x))
    double = solved(MEMBERS[name], TransportProblem(y, x, one.manifold))
    assert single.gradient.dtype == torch.float32
    assert single.gradient.device == x.device
    assert single.value == pytest.approx(double.value, rel=1e-6)
    assert torch.allclose(single.gradient.double(), double.gradient, rtol=1e-4, atol=1e-4)
    if name != "matched":
        assert single.target_potential.dtype == torch.float64


@settings(max_examples=15, derandomize=True)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 8), m=st.integers(1, 8), name=st.sampled_from(sorted(SOLVERS)))
def test_permutations_and_rotations(seed, n, m, name):
    for manifold in MANIFOLDS:
        one = case(manifold, n=n, m=m, seed=seed)
        solution = solved(SOLVERS[name], one.problem())
        rotation = torch.linalg.qr(torch.randn(3, 3, generator=generator(seed), dtype=torch.float64)).Q
        order, other = (torch.randperm(k, generator=generator(seed)) for k in (n, m))
        turned = solved(
            SOLVERS[name],
            between(
                (one.x @ rotation.mT)[other], (one.y @ rotation.mT)[order], one.w[other], one.a[order], one.manifold
            ),
        )
        assert turned.value == pytest.approx(solution.value, abs=1e-11)
        assert torch.allclose(turned.gradient, (solution.gradient @ rotation.mT)[other], atol=1e-7)
        back = solved(SOLVERS[name], between(one.y, one.x, one.a, one.w, one.manifold))
        assert back.value == pytest.approx(solution.value, abs=1e-11)
        assert torch.allclose(back.gradient, source_gradient(solution), atol=1e-7)


@pytest.mark.parametrize("name", MEMBERS)
def test_conventions_of_the_factor(name):
    """Field report H10: |x - y|^2 without a factor 1/2, times the mobility of the source."""
    member = MEMBERS[name] if name != "debiased" else Sinkhorn(0.3)
    both = torch.tensor([3.0], dtype=torch.float64)
    y, x = jko.ParticleMeasure(line(1.0)), jko.ParticleMeasure(line(3.0))
    problem = TransportProblem(y, x, LINE, mobility=both, target_mobility=both if name == "debiased" else None)
    solution = solved(member, problem)
    assert solution.value == pytest.approx(12, abs=1e-12)
    assert float(solution.gradient) == pytest.approx(12)
    symmetric = TransportProblem(y, x, LINE, mobility=both, target_mobility=2 * both)
    assert solved(member, symmetric).value == pytest.approx(18, abs=1e-12)


def test_field_report_h03_not_finite_is_refused_before_any_solver():
    good = torch.zeros(4, 2, dtype=torch.float64)
    for bad in (math.nan, math.inf):
        one = good.clone()
        one[2, 1] = bad
        with pytest.raises(InvalidInput, match=r"points\[2, 1\] is"):
            jko.ParticleMeasure(one)
        with pytest.raises(InvalidInput, match=r"points\[0, 0\] is"):
            jko.ParticleMeasure(torch.full((4, 2), bad))
        with pytest.raises(InvalidInput, match=r"weights\[0\] is"):
            jko.ParticleMeasure(good, [bad, 0.5, 0.25, 0.25])
        with pytest.raises(InvalidInput, match=r"mobility\[1\] is"):
            between_with(mobility=torch.tensor([1.0, bad, 1.0]))


def between_with(**more) -> TransportProblem:
    y, x = (jko.ParticleMeasure(cloud(3, seed)) for seed in (0, 1))
    return TransportProblem(y, x, LINE, **more)


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"mobility": torch.ones(2)}, r"mobility has shape \(2,\); it needs \(3,\)"),
        ({"mobility": torch.tensor([1.0, 0.0, 1.0])}, r"mobility\[1\] = 0.0; a mobility is positive"),
        ({"target_mobility": torch.ones(3)}, "needs mobility too"),
        ({"mobility": torch.ones(3), "target_mobility": torch.ones(4)}, r"target_mobility has shape \(4,\)"),
        ({"mobility": torch.ones(3), "target_mobility_gradient": torch.ones(3, 3)}, "whose gradient it is"),
        (
            {
                "mobility": torch.ones(3),
                "target_mobility": torch.ones(3),
                "target_mobility_gradient": torch.ones(3, 2),
            },
            r"has shape \(3, 2\); it needs \(3, 3\)",
        ),
    ],
)
def test_mobilities_that_do_not_fit_are_refused(more, match):
    with pytest.raises(InvalidInput, match=match):
        between_with(**more)


def test_measures_that_do_not_fit_are_refused():
    mu = jko.ParticleMeasure(cloud(3, 0))
    with pytest.raises(InvalidInput, match="the source has batch shape"):
        TransportProblem(jko.ParticleMeasure(torch.zeros(2, 3, 3)), mu, LINE)
    with pytest.raises(InvalidInput, match="same d"):
        TransportProblem(mu, jko.ParticleMeasure(cloud(3, 0, d=2)), LINE)
    with pytest.raises(InvalidInput, match=r"target\.points\[0\] has norm"):
        TransportProblem(
            jko.ParticleMeasure(cloud(3, 0, "sphere")), jko.ParticleMeasure(2 * cloud(3, 0, "sphere")), jko.Sphere()
        )
    with pytest.raises(InvalidInput, match=r"float64 on cpu, the target torch.float32"):
        TransportProblem(mu, mu.to(torch.float32), LINE)


def test_matched_needs_the_same_weights():
    for x in (jko.ParticleMeasure(cloud(4, 0)), jko.ParticleMeasure(cloud(3, 0), weights(3, 0))):
        with pytest.raises(InvalidInput, match="sends particle i to particle i"):
            Matched().solve(TransportProblem(jko.ParticleMeasure(cloud(3, 0)), x, LINE))
    w = weights(6, 1)
    problem = between(cloud(6, 0), cloud(6, 1), w, w)
    solution = solved(Matched(), problem)
    assert torch.equal(solution.plan(), torch.diag(w))
    squares = (problem.source.points - problem.target.points).square().sum(1)
    assert solution.value == pytest.approx(float(w @ squares), rel=1e-14)


def test_titles_say_what_changes_the_result():
    assert len({member.title for member in (*MEMBERS.values(), Sinkhorn(0.1), Sinkhorn(0.1, debias=False))}) == 6
    assert [member.entropic for member in MEMBERS.values()] == [False, False, True, True]
    assert [member.symmetric for member in MEMBERS.values()] == [False, False, True, False]


def test_certificates_of_the_identity_coupling():
    """Two particles that crossed: the exact member decides whatever the size, the entropic one leaves it open."""
    y = line(0, 1)
    half, ones = torch.full((2,), 0.5, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    crossed = CouplingProblem(y, y.flip(0), half, ones, 0 * half, 0.1, LINE, 1e-8)
    stayed = CouplingProblem(y, y + 0.1, half, ones, 0 * half, 0.1, LINE, 1e-8)
    for member, verdict in ((EXACT, False), (DEBIASED, None), (Matched(), False)):
        assert member.certify(crossed).optimal is verdict
        certificate = member.certify(stayed)
        assert certificate.optimal is True
        assert certificate.global_on_support
