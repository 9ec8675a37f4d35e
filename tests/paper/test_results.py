from __future__ import annotations

import itertools

import pytest
import torch

import jko
from jko.paper import Geometry, Job, Regime, Setting, collect, collect_flows, execute, flow_jobs, paper_jobs

TINY = {"n": 8, "t1": 0.4, "heads": (1, 3), "paths": 3, "frames": 5}


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dimension", [2, 3, 5])
def test_every_regime_in_every_dimension(tmp_path, dimension, sign):
    setting = Setting.small(**{**TINY, "t1": 0.2}, dimension=dimension, sign=sign)
    execution = execute(paper_jobs(setting, list(Regime), (3,)), tmp_path, workers=1)
    assert not execution.failed
    for regime in Regime:
        result = collect(tmp_path, setting, regime, (3,))
        (entry,) = result.entries
        assert all(check.held for check in result.checks), [check.detail for check in result.checks]
        assert entry.mean_clouds.shape == (6, setting.n, dimension)
        assert torch.allclose(entry.mean_clouds.norm(dim=-1), torch.ones(6, setting.n, dtype=torch.float64))
        # Without a sign in front of it the motion goes down: sE falls by what the particles do, for either sign.
        assert float(entry.ledgers.motion.mean[-1]) < 0
        assert (entry.slope2.deviation is None) is (not regime.random)


def test_ledgers_against_sums_over_the_run(tmp_path):
    setting = Setting.small(**TINY)
    execute(paper_jobs(setting, [Regime.OU], (3,)), tmp_path, workers=1)
    (entry,) = collect(tmp_path, setting, Regime.OU, (3,)).entries
    ledgers = entry.ledgers
    runs = []
    for path in range(setting.paths):
        heads = setting.make_heads(Regime.OU, 3, path)
        flow = jko.GradientFlow(jko.AttentionEnergy(heads), jko.HeadwiseWasserstein())
        runs.append(jko.solve(flow, setting.measure(), jko.ExplicitEuler(setting.dt, ledger=True), t1=setting.t1))
    energy = torch.stack([run.states.energy for run in runs])
    slope2 = torch.stack([run.states.paper_slope2 for run in runs])
    assert torch.equal(entry.slope2.mean, slope2.mean(0))
    assert torch.equal(entry.slope2.deviation, slope2.std(0))
    assert torch.allclose(ledgers.change.mean, (energy - energy[:, :1]).mean(0), atol=1e-14)
    # The integral of G^2 is a left Riemann sum.
    assert float(ledgers.slope2.mean[-1]) == pytest.approx(float(setting.dt * slope2[:, :-1].sum(-1).mean()))
    assert float(ledgers.martingale.mean[-1]) == pytest.approx(
        float(torch.stack([run.records.ledger_martingale.sum() for run in runs]).mean())
    )
    rest = ledgers.change.mean + ledgers.slope2.mean - ledgers.explicit.mean - ledgers.martingale.mean
    assert torch.allclose(ledgers.balance.mean, rest, atol=1e-13)
    assert torch.allclose(ledgers.change.mean, ledgers.motion.mean + ledgers.time.mean, atol=1e-13)
    assert ledgers.gap <= 1e-13
    assert ledgers.final_martingale.paths == setting.paths
    clouds = torch.stack([run.points[-1] for run in runs]).mean(0)
    assert torch.allclose(entry.mean_clouds[-1], clouds / clouds.norm(dim=-1, keepdim=True))
    averages = slope2[:, runs[0].states.t >= setting.window - 1e-9].mean(-1)
    assert torch.allclose(entry.averages[setting.window], averages)


def test_the_balance_of_one_head_closes_to_first_order(tmp_path):
    # H = 1: no covariance over heads, so (147) leaves O(dt) over along a smooth head path.
    left = []
    for dt in (0.02, 0.01):
        setting = Setting.small(**{**TINY, "dt": dt})
        execute(paper_jobs(setting, [Regime.OSCILLATING_SHARED], (1,)), tmp_path, workers=1)
        (entry,) = collect(tmp_path, setting, Regime.OSCILLATING_SHARED, (1,)).entries
        left.append(abs(entry.ledgers.final_balance.mean))
    assert left[0] / left[1] == pytest.approx(2, abs=0.35)


def test_for_several_heads_the_balance_misses_the_covariance(tmp_path):
    # dt -> 0 leaves G^2 minus the dissipation, which is not small; at a fixed dt the errors of the sums may hide it.
    rest = []
    for dt in (0.01, 0.005, 0.0025):
        setting = Setting.small(n=12, dt=dt, t1=0.8, heads=(3,), sign=-1)
        execute(paper_jobs(setting, [Regime.OSCILLATING_SPREAD], (3,)), tmp_path, workers=1)
        ledgers = collect(tmp_path, setting, Regime.OSCILLATING_SPREAD, (3,)).entries[0].ledgers
        missed = ledgers.slope2.mean[-1] - ledgers.dissipation.mean[-1]
        rest.append(float(ledgers.balance.mean[-1] - missed))
    assert abs(missed) > 10 * abs(rest[-1])
    for coarse, fine in itertools.pairwise(rest):
        assert 1.85 < coarse / fine < 2.15


def test_the_martingale_has_mean_zero(tmp_path):
    # Energies are log-normal with heavy tails on a stiff start: many short paths, all of them from the same state.
    setting = Setting.small(n=4, t1=0.02, paths=100, heads=(2,), window=0.0, frames=1)
    execute(paper_jobs(setting, [Regime.OU], (2,)), tmp_path, workers=1)
    (entry,) = collect(tmp_path, setting, Regime.OU, (2,)).entries
    martingale = entry.ledgers.final_martingale
    assert martingale.error > 0
    assert martingale.contains(0.0)
    assert not martingale.contains(10 * martingale.error)


def test_mean_slope_falls_with_spread_phases_and_stays_with_shared_ones(tmp_path):
    setting = Setting.small(n=16, t1=9.0, dt=0.06, heads=(1, 10), window=5.0, frames=1)
    regimes = (Regime.OSCILLATING_SHARED, Regime.OSCILLATING_SPREAD)
    execute(paper_jobs(setting, regimes, setting.heads), tmp_path, workers=1)
    shared, spread = (collect(tmp_path, setting, regime, setting.heads) for regime in regimes)
    assert shared.entries[0].estimate(5.0).mean == spread.entries[0].estimate(5.0).mean
    assert shared.entries[1].estimate(5.0).mean > 0.1
    assert spread.entries[1].estimate(5.0).mean < 0.1 * shared.entries[1].estimate(5.0).mean
    assert spread.fits(5.0).logarithmic.b < -0.9
    assert abs(shared.fits(5.0).logarithmic.b) < 0.3


def test_comparison_of_flows(tmp_path):
    setting = Setting.small(n=8, t1=0.1, dt=0.02, heads=(1, 3), window=0.02, frames=5)
    regimes = (Regime.OU, Regime.OSCILLATING_SPREAD)
    jobs = flow_jobs(setting, regimes)
    assert not execute(jobs, tmp_path, workers=1).failed
    result = collect_flows(tmp_path, setting, regimes)
    assert result.regimes == regimes
    assert all(check.held for check in result.checks)
    for entry in result.entries:
        assert len(entry.movements) == 6
        assert [float(distance.values[0]) for distance in entry.same_metric] == [0.0, 0.0, 0.0]
        weighted, headwise = entry.same_metric[1:]
        if entry.num_heads == 1:
            # One head: b = m_1, and the two metrics are the same.
            assert torch.allclose(weighted.values, headwise.values, atol=1e-6)
            assert entry.crossing.supremum == pytest.approx(weighted.supremum, abs=1e-6)
        else:
            assert entry.crossing.supremum > 2 * weighted.supremum
    # A run that is missing is left out, not invented.
    gone = Job(setting, Regime.OU, 3, 0, Geometry.WEIGHTED, True)
    (tmp_path / f"{gone.name}.json").unlink()
    entry = collect_flows(tmp_path, setting, [Regime.OU]).entries[1]
    assert entry.movement(Geometry.WEIGHTED, True) is None
    assert entry.crossing is None
    assert len(entry.same_metric) == 2
    with pytest.raises(jko.RunFolderError, match="does not exist"):
        collect(tmp_path, setting, Regime.OSCILLATING_SHARED, (3,))
