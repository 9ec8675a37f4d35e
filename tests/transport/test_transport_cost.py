"""The transport cost under autograd: scaling and sign, positions and weights, nothing of the iterations."""

from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck
from transport.problems import COSTS, MANIFOLDS, case, cloud, line, mobility, weights

import jko
from jko.errors import InvalidInput, SolveFailed
from jko.transport import ExactOT, Matched, Sinkhorn, transport_cost

LINE = jko.Euclidean()
SOLVERS = {
    "exact": ExactOT(),
    "debiased": Sinkhorn(0.3, tolerance=1e-12),
    "plain": Sinkhorn(0.3, debias=False, tolerance=1e-12),
}
MEMBERS = {"matched": Matched(), **SOLVERS}


def leaf(values: torch.Tensor) -> torch.Tensor:
    return values.detach().clone().requires_grad_()


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("factor", [1, -1, 3])
def test_field_report_h04_scaling_and_sign_arrive_in_the_gradient(name, factor):
    """x = 0, 1, y = 2, 4, F = W_2^2 / (2 tau) with tau = 1/4: (-4, -6), (4, 6) for -F, (-12, -18) for 3 F."""
    x, y = leaf(line(0, 1)), leaf(line(2, 4))
    # The bias of a small eps is a constant here, to all digits.
    member = Sinkhorn(1e-2, debias=name == "debiased") if name in ("plain", "debiased") else MEMBERS[name]
    F = factor * transport_cost(x, y, transport=member, manifold=LINE) / (2 * 0.25)
    bias = 2e-2 * math.log(2) if name == "plain" else 0.0
    assert float(F.detach()) == pytest.approx(factor * (13 + bias), abs=1e-9)
    in_x, in_y = torch.autograd.grad(F, (x, y))
    assert in_x[:, 0].tolist() == pytest.approx([-4 * factor, -6 * factor], abs=1e-9)
    assert in_y[:, 0].tolist() == pytest.approx([4 * factor, 6 * factor], abs=1e-9)


@pytest.mark.parametrize("manifold", MANIFOLDS)
@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name in SOLVERS for kind in COSTS[:3] if (name, kind) != ("debiased", "one-sided")],
)
def test_gradients_in_positions_and_weights(name, kind, manifold):
    one = case(manifold, kind, n=4, m=3)
    b = None if kind == "plain" else mobility(one.y)
    target_b = mobility(one.x) if kind == "symmetric" else None

    def cost(x, y, x_logits, y_logits):
        # What leaves the manifold is projected back, so that differences in every direction make sense.
        return transport_cost(
            one.manifold.project_point(x),
            one.manifold.project_point(y),
            torch.softmax(x_logits, 0),
            torch.softmax(y_logits, 0),
            transport=SOLVERS[name],
            manifold=one.manifold,
            mobility=b,
            target_mobility=target_b,
        )

    inputs = (leaf(one.x), leaf(one.y), leaf(one.w.log()), leaf(one.a.log()))
    assert gradcheck(cost, inputs, eps=1e-5, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("manifold", MANIFOLDS)
def test_gradients_of_the_matched_cost(manifold):
    one = case(manifold, n=4, m=4)
    b = mobility(one.y)

    def cost(x, y):
        x, y = one.manifold.project_point(x), one.manifold.project_point(y)
        return transport_cost(x, y, one.w, one.w, transport=Matched(), manifold=one.manifold, mobility=b)

    assert gradcheck(cost, (leaf(one.x), leaf(one.y)), eps=1e-5, atol=1e-7, rtol=1e-6)
    with pytest.raises(InvalidInput, match="matched has no derivative in weights"):
        transport_cost(one.x, one.y, leaf(one.w), one.w, transport=Matched(), manifold=one.manifold)


def test_gradcheck_can_fail():
    x, y = leaf(cloud(3, 0)), cloud(3, 1)

    def wrong(points):
        return transport_cost(points, y, transport=ExactOT(), manifold=LINE) + points.detach().sum()

    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        gradcheck(wrong, (x,), eps=1e-5)


@pytest.mark.parametrize("name", MEMBERS)
def test_field_report_h05_dead_particles_get_no_gradient(name):
    w = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    x, y = leaf(line(0, 1, 10)), leaf(line(0.5, 1.5, 2.5))
    transport_cost(x, y, w, w, transport=MEMBERS[name], manifold=LINE).backward()
    for points in (x, y):
        assert bool(torch.isfinite(points.grad).all())
        assert float(points.grad[2]) == 0


@pytest.mark.parametrize("name", MEMBERS)
def test_field_report_h11_at_rest(name):
    for points in (cloud(3, 0)[[0, 0, 1]], cloud(2, 1)[[0] * 29 + [1]]):
        x, y = leaf(points), leaf(points)
        transport_cost(x, y, transport=MEMBERS[name], manifold=LINE).backward()
        assert bool(torch.isfinite(x.grad).all())
        if name != "plain":
            assert torch.equal(x.grad, torch.zeros_like(x))
            assert torch.equal(y.grad, torch.zeros_like(x))


def test_field_report_h01_unequal_masses_are_refused_with_both_sums():
    half, more = torch.full((2,), 0.5, dtype=torch.float64), torch.full((2,), 0.6, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"y_weights sum to 1.2 and x_weights to 1;"):
        transport_cost(line(0, 1), line(0, 1), half, more, transport=ExactOT(), manifold=LINE)
    with pytest.raises(ValueError, match=r"y_weights sum to 1 and x_weights to 1.2;"):
        transport_cost(line(0, 1), line(0, 1), more, transport=ExactOT(), manifold=LINE)
    # Masses that agree and are no probabilities.
    with pytest.raises(InvalidInput, match=r"weights sum to 1\.2, not 1"):
        transport_cost(line(0, 1), line(0, 1), more, more, transport=ExactOT(), manifold=LINE)


def test_field_report_h01_weights_of_single_precision():
    x = torch.arange(5, dtype=torch.float64)[:, None]
    fifth = torch.full((5,), 0.2)
    for member in (ExactOT(), ExactOT(1000), Sinkhorn(0.05)):
        value = transport_cost(x + 0.5, x, None, fifth, transport=member, manifold=LINE)
        assert float(value) == pytest.approx(0.25, abs=1e-6)
        single = transport_cost(x.float() + 0.5, x.float(), fifth, fifth, transport=member, manifold=LINE)
        assert single.dtype == torch.float32
        assert float(single) == pytest.approx(0.25, abs=1e-6)


@pytest.mark.parametrize("shape", [(4,), (2, 4, 1), ()])
def test_field_report_h09_arrays_that_are_no_cloud_are_refused(shape):
    good = line(1, 2, 3, 4)
    bad = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)
    for x, y, name in ((bad, good, "x"), (good, bad, "y")):
        with pytest.raises(InvalidInput, match=rf"{name} must have shape \(n, d\)"):
            transport_cost(x, y, transport=ExactOT(), manifold=LINE)


def test_field_report_h09_rows_are_particles():
    for member in MEMBERS.values():
        column = transport_cost(line(0, 1, 2, 3), line(1, 2, 3, 4), transport=ExactOT(), manifold=LINE)
        assert float(column) == pytest.approx(1)
        row = transport_cost(line(0, 1, 2, 3).mT, line(1, 2, 3, 4).mT, transport=member, manifold=LINE)
        assert float(row) == pytest.approx(4)
    two = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    with pytest.raises(InvalidInput, match="S\\^0 is two points"):
        transport_cost(two, two, transport=ExactOT(), manifold=jko.Sphere())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_field_report_h03_the_first_bad_entry_is_named(bad):
    x = torch.zeros(4, 2, dtype=torch.float64)
    x[2, 1] = bad
    good = torch.zeros(3, 2, dtype=torch.float64)
    for member in (ExactOT(), Sinkhorn(1.0)):
        with pytest.raises(InvalidInput, match=r"x\[2, 1\] is"):
            transport_cost(x, good, transport=member, manifold=LINE)
        with pytest.raises(InvalidInput, match=r"y\[2, 1\] is"):
            transport_cost(good, x, transport=member, manifold=LINE)
        with pytest.raises(InvalidInput, match=r"x_weights\[1\] is"):
            transport_cost(good, good, torch.tensor([0.5, bad, 0.5]), transport=member, manifold=LINE)


def test_field_report_h02_no_value_without_convergence():
    x, y = leaf(cloud(30, 0)), cloud(20, 1)
    for member in (ExactOT(1), Sinkhorn(1e-3, max_iterations=2)):
        with pytest.raises(SolveFailed, match="NOT_CONVERGED") as caught:
            transport_cost(x, y, transport=member, manifold=LINE)
        assert caught.value.status is jko.Status.NOT_CONVERGED
        assert caught.value.solution is None


def test_nothing_of_the_iterations_is_kept():
    """The graph is one node on the arguments, and it holds the gradients alone."""
    one = case(n=40, m=30)
    x, w = leaf(one.x), leaf(one.w)
    for eps in (1.0, 1e-3):
        value = transport_cost(x, one.y, w, one.a, transport=Sinkhorn(eps), manifold=LINE)
        nodes = [node for node, _ in value.grad_fn.next_functions if node is not None]
        assert [type(node).__name__ for node in nodes] == ["AccumulateGrad", "AccumulateGrad"]
        kept = [part for part in value.grad_fn.saved_tensors if part is not None]
        # The gradients in x and w, and the four arguments.
        assert sorted(part.numel() for part in kept) == [30, 30, 40, 90, 90, 120]


def test_derivatives_of_the_gradient_are_refused():
    x = leaf(cloud(3, 0))
    value = transport_cost(x, cloud(3, 1), transport=Sinkhorn(1.0), manifold=LINE)
    (gradient,) = torch.autograd.grad(value, x, create_graph=True)
    with pytest.raises(InvalidInput, match="first derivatives only"):
        (gradient.sum() + x.sum()).backward()


def test_grad_mode_does_not_matter(dtype, device):
    x, y = (cloud(4, seed).to(device=device, dtype=dtype) for seed in (0, 1))
    w = weights(4, 2).to(device=device, dtype=dtype)
    with torch.no_grad():
        quiet = transport_cost(leaf(x), y, w, transport=Sinkhorn(0.3), manifold=LINE)
    loud = transport_cost(leaf(x), y, w, transport=Sinkhorn(0.3), manifold=LINE)
    assert not quiet.requires_grad
    assert torch.equal(quiet, loud.detach())
    assert loud.dtype == dtype
    assert loud.device == x.device


def test_the_gradient_in_the_weights_keeps_a_plain_step_on_the_simplex():
    """x = 0, 1 against y = 0, 3: W_2^2 = 2.2, and moving mass e from 0 to 1 costs e (-1/2, 1/2) (1, -1)."""
    x, y, w = line(0, 1), line(0, 3), leaf(torch.tensor([0.3, 0.7], dtype=torch.float64))
    value = transport_cost(x, y, w, transport=ExactOT(), manifold=LINE)
    assert float(value.detach()) == pytest.approx(2.2, abs=1e-12)
    (gradient,) = torch.autograd.grad(value, w)
    assert gradient.tolist() == pytest.approx([-0.5, 0.5], abs=1e-12)


@pytest.mark.parametrize("name", SOLVERS)
def test_gradients_in_the_weights_sum_to_zero(name):
    one = case("sphere", "plain", n=5, m=4)
    x_weights, y_weights = leaf(one.w), leaf(one.a)
    value = transport_cost(one.x, one.y, x_weights, y_weights, transport=SOLVERS[name], manifold=one.manifold)
    for gradient in torch.autograd.grad(value, (x_weights, y_weights)):
        assert float(gradient.abs().max()) > 1e-3
        assert float(gradient.sum()) == pytest.approx(0, abs=1e-13)
