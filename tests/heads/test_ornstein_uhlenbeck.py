from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from jko.errors import InvalidInput
from jko.heads import OrnsteinUhlenbeckHeads
from jko.initial import initial_heads
from jko.random import symmetric_increments

MANY = 33_334  # times 3 diagonal entries: 1e5 samples


def check_law(sample: torch.Tensor, mean: float, variance: float) -> None:
    """Four standard errors of the mean and of the variance of a Gaussian sample, both sides."""
    sample = sample.flatten()
    assert abs(float(sample.mean()) - mean) < 4 * math.sqrt(variance / len(sample))
    assert abs(float(sample.var()) / variance - 1) < 4 * math.sqrt(2 / len(sample))


def split(matrices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    upper = torch.triu_indices(matrices.shape[-1], matrices.shape[-1], offset=1)
    return matrices.diagonal(dim1=-2, dim2=-1), matrices[..., upper[0], upper[1]]


def test_check_law_fails_on_a_wrong_law() -> None:
    sample = symmetric_increments(0, 0, 1, 1, 20_000, 1.0)
    check_law(sample, 0.0, 1.0)
    for mean, variance in ((0.05, 1.0), (0.0, 1.06), (0.0, 0.94)):
        with pytest.raises(AssertionError):
            check_law(sample, mean, variance)


def test_exact_transition_law() -> None:
    # d theta = kappa (m - theta) dt + sigma dW with kappa = 2, sigma = 0.6, dt = 0.5, m = 0.2, theta_0 = 1.5: in the
    # time kappa t the rate is 1, sigma2 = sigma^2 / (2 kappa) and the step is 1.
    heads = OrnsteinUhlenbeckHeads(
        torch.full((MANY, 3, 3), 1.5),
        mean=torch.full((3, 3), 0.2),
        sigma2=0.6**2 / 4,
        dt=1.0,
        t1=1.0,
        seed=22,
        exact=True,
    )
    diagonal, others = split(heads.at(1.0))
    check_law(diagonal, 0.678243, 0.0778198)
    check_law(others, 0.678243, 0.0778198 / 2)
    assert stats.kstest(diagonal.flatten().numpy(), stats.norm(0.678243, 0.278962).cdf).pvalue > 1e-3
    # What the usual mistakes would give.
    assert abs(float(diagonal.std()) - 0.0778) > 0.1
    assert abs(float(diagonal.mean()) - 0.551819) > 0.1


def test_exact_stationary_law_and_memory() -> None:
    sigma2, mean = 0.09, 0.2
    heads = OrnsteinUhlenbeckHeads(
        torch.full((MANY, 3, 3), 1.5),
        mean=torch.full((3, 3), mean),
        sigma2=sigma2,
        dt=20.0,
        t1=40.0,
        seed=1,
        exact=True,
    )
    for t in (20.0, 40.0):
        diagonal, others = split(heads.at(t))
        check_law(diagonal, mean, sigma2)
        check_law(others, mean, sigma2 / 2)
    short = OrnsteinUhlenbeckHeads(heads.at(20.0), torch.full((3, 3), mean), sigma2, 0.5, 0.5, 2, exact=True)
    before, after = split(heads.at(20.0))[0].flatten(), split(short.at(0.5))[0].flatten()
    correlation, expected = float(torch.corrcoef(torch.stack((before, after)))[0, 1]), math.exp(-0.5)
    assert abs(correlation - expected) < 4 * (1 - expected**2) / math.sqrt(len(before))


def test_exact_steps_compose() -> None:
    D0, mean = torch.full((MANY, 3, 3), -2.0), torch.zeros(3, 3)
    for dt in (0.25, 0.1):
        heads = OrnsteinUhlenbeckHeads(D0, mean, 1.0, dt, 0.5, seed=3, exact=True)
        diagonal, others = split(heads.at(0.5))
        check_law(diagonal, -2 * math.exp(-0.5), 1 - math.exp(-1))
        check_law(others, -2 * math.exp(-0.5), (1 - math.exp(-1)) / 2)


@pytest.mark.parametrize("rate", [1e-6, 1e-12, 1e-17])
def test_slow_reversion_keeps_its_variance(rate: float) -> None:
    # sigma = 0.6 and dt = 0.5 as above, kappa = rate: variance sigma^2 dt = 0.18 up to O(rate).
    dt, sigma2 = 0.5 * rate, 0.6**2 / (2 * rate)
    D0 = initial_heads(4, 3, 0)
    heads = OrnsteinUhlenbeckHeads(D0, sigma2=sigma2, dt=dt, t1=dt, seed=5, exact=True)
    expected = D0 + math.sqrt(0.18) * symmetric_increments(5, 0, 4, 3, 1, 1.0)[0]
    torch.testing.assert_close(heads.at(dt), expected, rtol=0, atol=10 * rate + 1e-14)


def test_variance_of_a_short_step_is_two_sigma2_dt() -> None:
    dt = 1e-10
    heads = OrnsteinUhlenbeckHeads(torch.zeros(MANY, 3, 3), torch.zeros(3, 3), 0.7, dt, dt, seed=6, exact=True)
    diagonal, others = split(heads.at(dt))
    check_law(diagonal, 0.0, 2 * 0.7 * dt)
    check_law(others, 0.0, 0.7 * dt)


def test_stiff_relaxation() -> None:
    one = torch.ones(1, 1, 1)
    exact = OrnsteinUhlenbeckHeads(one, torch.zeros(1, 1), 0.0, 5.0, 100.0, exact=True)
    assert float(exact.at(5.0)) == pytest.approx(0.0067379, abs=5e-8)
    assert float(exact.at(100.0)) == pytest.approx(math.exp(-100), rel=1e-12)
    with pytest.raises(InvalidInput, match=r"dt = 5\.0 explodes.*exact=True or a smaller dt"):
        OrnsteinUhlenbeckHeads(one, torch.zeros(1, 1), 0.0, 5.0, 100.0)
    with pytest.raises(InvalidInput, match="smaller dt"):
        OrnsteinUhlenbeckHeads.from_increments(one, torch.zeros(3, 1, 1, 1), dt=2.5)
    assert float(OrnsteinUhlenbeckHeads(one, torch.zeros(1, 1), 0.0, 2.0, 4.0).at(2.0)) == -1.0


@pytest.mark.parametrize("exact", [False, True])
def test_without_noise_the_path_is_a_geometric_sequence(exact: bool) -> None:
    D0, mean, dt = initial_heads(2, 3, 1), initial_heads(2, 3, 2), 0.125
    heads = OrnsteinUhlenbeckHeads(D0, mean, 0.0, dt, 2.0, exact=exact)
    factor = math.exp(-dt) if exact else 1 - dt
    for k in range(17):
        torch.testing.assert_close(heads.at(k * dt), mean + (D0 - mean) * factor**k, rtol=0, atol=1e-14)


def test_euler_law() -> None:
    # After K steps of v -> (1 - dt)^2 v + 2 sigma2 dt the variance is sigma2 (1 - (1 - dt)^(2K)) / (1 - dt/2).
    dt, sigma2 = 0.5, 0.3
    heads = OrnsteinUhlenbeckHeads(torch.full((MANY, 3, 3), 1.5), torch.full((3, 3), 0.2), sigma2, dt, 2.0, seed=8)
    for k in (1, 2, 4):
        variance = sigma2 * (1 - (1 - dt) ** (2 * k)) / (1 - dt / 2)
        diagonal, others = split(heads.at(k * dt))
        check_law(diagonal, 0.2 + 1.3 * (1 - dt) ** k, variance)
        check_law(others, 0.2 + 1.3 * (1 - dt) ** k, variance / 2)


def test_the_mean_defaults_to_the_identity() -> None:
    D0 = initial_heads(2, 3, 0)
    explicit = OrnsteinUhlenbeckHeads(D0, torch.eye(3), t1=0.1)
    assert torch.equal(OrnsteinUhlenbeckHeads(D0, t1=0.1).at(0.1), explicit.at(0.1))
    per_head = OrnsteinUhlenbeckHeads(D0, torch.eye(3).expand(2, 3, 3), t1=0.1)
    assert torch.equal(per_head.at(0.1), explicit.at(0.1))


def joint_noise(count: int, steps: int, dt: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample increments W and int exp(-(t1 - s)) dW over the steps, exactly, for `count` paths: (steps, count)."""
    both = 1 - math.exp(-dt)
    covariance = np.array([[dt, both], [both, (1 - math.exp(-2 * dt)) / 2]])
    normals = np.random.default_rng(17).standard_normal((steps, count, 2))
    pair = torch.from_numpy(normals @ np.linalg.cholesky(covariance).T)
    return pair[..., 0], pair[..., 1]


def test_euler_converges_strongly_with_order_one_and_the_right_constant() -> None:
    count, finest, sigma2, start, mean = 4000, 64, 0.8, 2.0, 1.0
    increments, convolution = joint_noise(count, finest, 1 / finest)
    exact = torch.full((count,), start - mean, dtype=torch.float64)
    for k in range(finest):
        exact = math.exp(-1 / finest) * exact + math.sqrt(2 * sigma2) * convolution[k]
    exact += mean
    grids, errors = [4, 8, 16, 32, 64], []
    for steps in grids:
        dt = 1 / steps
        coarse = increments.view(steps, finest // steps, count).sum(1)[..., None, None]
        heads = OrnsteinUhlenbeckHeads.from_increments(torch.full((count, 1, 1), start), coarse, dt, sigma2=sigma2)
        error = float((heads.at(1.0).flatten() - exact).square().mean())

        def gap(s: float, dt: float = dt, steps: int = steps) -> float:
            return ((1 - dt) ** (steps - 1 - min(int(s / dt), steps - 1)) - math.exp(s - 1)) ** 2

        noise = sum(integrate.quad(gap, k * dt, (k + 1) * dt)[0] for k in range(steps))
        theory = ((start - mean) * ((1 - dt) ** steps - math.exp(-1))) ** 2 + 2 * sigma2 * noise
        # The error is Gaussian with a mean: its square scatters at most like that of a centered Gaussian.
        assert abs(error / theory - 1) < 4 * math.sqrt(2 / count)
        errors.append(math.sqrt(error))
    fit = stats.linregress(np.log(1 / np.array(grids)), np.log(errors))
    assert abs(fit.slope - 1) < 0.15
    assert fit.rvalue**2 > 0.99


def test_exact_and_euler_paths_of_one_seed_stay_close() -> None:
    D0 = initial_heads(4, 3, 0)
    gaps = []
    for dt in (0.02, 0.01, 0.005):
        exact = OrnsteinUhlenbeckHeads(D0, dt=dt, t1=1.0, seed=9, exact=True)
        euler = OrnsteinUhlenbeckHeads(D0, dt=dt, t1=1.0, seed=9)
        gaps.append(float((exact.at(1.0) - euler.at(1.0)).abs().max()))
    assert all(0 < gap < 2 * dt for gap, dt in zip(gaps, (0.02, 0.01, 0.005), strict=True))


def noise_of(heads: OrnsteinUhlenbeckHeads, dt: float, steps: int) -> torch.Tensor:
    """Recover the Brownian motion at the nodes from an Euler path."""
    nodes = torch.stack([heads.at(k * dt) for k in range(steps + 1)])
    drift = (heads.mean - nodes[:-1]) * dt
    return ((nodes[1:] - nodes[:-1] - drift) / math.sqrt(2 * heads.sigma2)).cumsum(0)


def test_one_path_on_refined_grids() -> None:
    D0 = initial_heads(3, 3, 7)
    fine = symmetric_increments(7, 0, 3, 3, 640, 1 / 640)
    reference = OrnsteinUhlenbeckHeads.from_increments(D0, fine, 1 / 640).at(1.0)
    motions, errors = {}, []
    for steps in (10, 20, 40):
        coarse = fine.view(steps, 640 // steps, 3, 3, 3).sum(1)
        heads = OrnsteinUhlenbeckHeads.from_increments(D0, coarse, 1 / steps)
        motions[steps] = noise_of(heads, 1 / steps, steps)
        errors.append(float((heads.at(1.0) - reference).norm()))
        pairs = coarse.view(steps // 2, 2, 3, 3, 3).sum(1)
        torch.testing.assert_close(pairs, fine.view(steps // 2, -1, 3, 3, 3).sum(1), rtol=0, atol=1e-12)
    torch.testing.assert_close(motions[40][3::4], motions[10], rtol=0, atol=1e-12)
    torch.testing.assert_close(motions[20][1::2], motions[10], rtol=0, atol=1e-12)
    for coarse_error, fine_error in itertools.pairwise(errors):
        assert 1.5 < coarse_error / fine_error < 3.0


def test_the_path_does_not_depend_on_the_steps_that_ask_for_it() -> None:
    heads = OrnsteinUhlenbeckHeads(initial_heads(3, 3, 7), dt=0.025, t1=1.0, seed=7)
    again = OrnsteinUhlenbeckHeads(initial_heads(3, 3, 7), dt=0.025, t1=1.0, seed=7)
    by_step = {tau: [heads.at(k * tau) for k in range(round(1 / tau) + 1)] for tau in (0.1, 0.05, 0.025)}
    for k in range(11):
        assert torch.equal(by_step[0.1][k], by_step[0.05][2 * k])
        assert torch.equal(by_step[0.1][k], by_step[0.025][4 * k])
        # Asked out of order, of another object, at a rounded time.
        assert torch.equal(again.at(math.fsum([1.0] + [-0.1] * k)), by_step[0.1][10 - k])


def test_fewer_heads_and_shorter_paths_are_part_of_larger_ones() -> None:
    D0 = initial_heads(100, 3, 42)
    full = OrnsteinUhlenbeckHeads(D0, t1=1.0, seed=3)
    few = OrnsteinUhlenbeckHeads(D0[:10], t1=1.0, seed=3)
    short = OrnsteinUhlenbeckHeads(D0, t1=0.4, seed=3)
    for t in (0.1, 0.237, 0.4):
        assert torch.equal(full.at(t)[:10], few.at(t))
        assert torch.equal(full.at(t), short.at(t))


def test_seeded_path_is_the_path_of_its_public_increments() -> None:
    D0, weights = initial_heads(3, 2, 0), [0.2, 0.3, 0.5]
    seeded = OrnsteinUhlenbeckHeads(D0, sigma2=0.4, dt=0.02, t1=0.5, seed=5, path=6, head_weights=weights)
    increments = symmetric_increments(5, 6, 3, 2, 25, 0.02)
    given_noise = OrnsteinUhlenbeckHeads.from_increments(D0, increments, 0.02, sigma2=0.4, head_weights=weights)
    assert given_noise.t1 == seeded.t1 == 0.5
    assert torch.equal(given_noise.at(0.5), seeded.at(0.5))
    assert given_noise.head_weights is not None
    assert given_noise.head_weights.tolist() == weights
    assert (seeded.seed, seeded.path, given_noise.seed, given_noise.path) == (5, 6, None, None)


def test_heads_paths_and_seeds_differ() -> None:
    D0 = torch.zeros(2, 3, 3)
    ends = [OrnsteinUhlenbeckHeads(D0, t1=0.1, seed=s, path=p).at(0.1) for s, p in ((0, 0), (0, 1), (1, 0))]
    values = torch.stack(ends).flatten(0, 1)
    for a, b in itertools.combinations(values, 2):
        assert not bool(torch.isclose(a, b, rtol=1e-6).any())


def test_paths_of_different_number_are_independent() -> None:
    ends = []
    for path in range(4):
        heads = OrnsteinUhlenbeckHeads(torch.zeros(3000, 1, 1), dt=1.0, t1=1.0, path=path, exact=True)
        ends.append(heads.at(1.0).flatten())
    off = torch.corrcoef(torch.stack(ends))[~torch.eye(4, dtype=torch.bool)]
    assert float(off.abs().max()) < 4 / math.sqrt(3000)


def test_an_end_between_nodes() -> None:
    D0 = initial_heads(2, 3, 0)
    heads = OrnsteinUhlenbeckHeads(D0, dt=0.3, t1=1.0, seed=2)
    longer = OrnsteinUhlenbeckHeads(D0, dt=0.3, t1=1.2, seed=2)
    assert heads.t1 == 1.0
    assert torch.equal(heads.at(1.0), longer.at(1.0))
    torch.testing.assert_close(heads.at(1.0), (longer.at(0.9) * 2 + longer.at(1.2)) / 3, rtol=0, atol=1e-14)
    with pytest.raises(InvalidInput, match=r"t = 1\.1 lies outside \[0, 1\.0\]"):
        heads.at(1.1)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.integers(1, 5), st.integers(1, 9), st.integers(0, 2**32 - 1), st.floats(0, 1), st.booleans())
def test_symmetric_input_gives_symmetric_values_to_the_last_bit(
    d: int, num_heads: int, seed: int, t: float, exact: bool
) -> None:
    D0, mean = initial_heads(num_heads, d, seed), initial_heads(num_heads, d, seed // 2)
    value = OrnsteinUhlenbeckHeads(D0, mean, 0.37, 0.07, 1.0, seed, exact=exact).at(t)
    assert torch.equal(value, value.mT)


def test_the_plain_part_of_a_nonsymmetric_start_decays() -> None:
    D0 = torch.tensor([[[0.0, 1.0], [-1.0, 0.0]]], dtype=torch.float64)
    value = OrnsteinUhlenbeckHeads(D0, dt=0.1, t1=1.0, seed=1).at(1.0)
    torch.testing.assert_close((value - value.mT) / 2, D0 * 0.9**10, rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sigma2": -1.0}, "sigma2"),
        ({"sigma2": math.inf}, "sigma2"),
        ({"dt": 0.0}, "dt"),
        ({"dt": -0.1}, "dt"),
        ({"t1": 0.0}, "t1"),
        ({"t1": math.inf}, "t1"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**32}, "seed"),
        ({"path": -3}, "path"),
        ({"mean": torch.eye(3)}, r"mean has shape \(3, 3\)"),
        ({"mean": torch.ones(3, 2, 2)}, r"mean has shape \(3, 2, 2\)"),
        ({"mean": torch.full((2, 2), math.nan)}, "mean"),
        ({"dt": 2.001}, "exact=True"),
    ],
)
def test_bad_arguments_are_named(change: dict, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        OrnsteinUhlenbeckHeads(torch.ones(2, 2, 2), **change)


@pytest.mark.parametrize(
    ("increments", "message"),
    [
        (torch.zeros(4, 3, 2, 2), r"dW_sym has shape \(4, 3, 2, 2\)"),
        (torch.zeros(2, 2, 2), r"\(K, 2, 2, 2\)"),
        (torch.zeros(0, 2, 2, 2), "K >= 1"),
        (torch.full((1, 2, 2, 2), math.nan), "finite"),
        (torch.tensor([[0.0, 1.0], [0.0, 0.0]]).expand(1, 2, 2, 2), "symmetric"),
    ],
)
def test_bad_increments_are_refused(increments: torch.Tensor, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        OrnsteinUhlenbeckHeads.from_increments(torch.ones(2, 2, 2), increments)
