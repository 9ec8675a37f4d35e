r"""
Unequal weights and another number of particles
===============================================

The distance in a step needs a coupling. ``ExactOT()`` finds it for any weights and for another number of particles;
``Sinkhorn(eps)`` smooths it, at a price that is easy to see.
"""

from itertools import pairwise

import matplotlib.pyplot as plt
import torch

import jko

# %%
# Sixty particles of unequal weight in the plane, heavier to the right, drift with constant velocity: the potential is
# linear, so that nothing but the transport term can change the shape of the cloud.

drift = torch.tensor([3.0, 0.0], dtype=torch.float64)


def V(x):
    return -x @ drift


plane = jko.Euclidean()
flow = jko.GradientFlow(jko.PotentialEnergy(V), jko.Wasserstein2(), plane)
points = plane.random_point((60,), 2, seed=0)
cloud = jko.ParticleMeasure(points, points[:, 0].softmax(0))
tau, steps = 0.5, 4

# %%
# Fewer particles
# ---------------
#
# A ``guess`` with nine particles of equal weight starts the first step; the run goes on with nine. So the first step
# says how nine particles stand for sixty, and the others move them.

guess = jko.ParticleMeasure(cloud.points[:9])
few = jko.solve(flow, cloud, jko.JKO(tau, transport=jko.ExactOT()), t1=steps * tau, guess=guess)
print("particles", [few.measure(k).n for k in range(steps + 1)])
print("squared distance", " ".join(f"{square:.4f}" for square in few.records.squared_distance))
assert (few.records.certified == 1).all()
moved = few.measure(1).points.mean(0) - cloud.weights @ cloud.points
print("mean moved by", [round(x, 12) for x in moved.tolist()])
assert torch.allclose(moved, tau * drift)

# %%
# The entropic bias
# -----------------
#
# The plain entropic term contracts the cloud in every step, whatever its size :math:`\tau` is: a smooth cloud loses
# :math:`\varepsilon / 2` of variance in each coordinate. This one loses less, the more so when its particles have met
# in clumps. The debiased term, the default, leaves the shape alone here.

eps = 0.3
transports = {
    "exact": jko.ExactOT(),
    "Sinkhorn, debiased": jko.Sinkhorn(eps),
    "Sinkhorn, plain": jko.Sinkhorn(eps, debias=False),
}
runs = {name: jko.solve(flow, cloud, jko.JKO(tau, transport=term), t1=steps * tau) for name, term in transports.items()}
centered = {name: run.points - (run.weights @ run.points)[:, None] for name, run in runs.items()}
variance = {name: (y.square().sum(-1) @ cloud.weights / 2).tolist() for name, y in centered.items()}
for name, values in variance.items():
    print(f"{name:20} variance", " ".join(f"{value:.4f}" for value in values))
assert abs(variance["Sinkhorn, debiased"][-1] - variance["exact"][0]) < 1e-6
assert all(0 < old - new <= eps / 2 for old, new in pairwise(variance["Sinkhorn, plain"]))

# %%

figure, axes = plt.subplots(figsize=(9.5, 4.6), layout="constrained")
axes.scatter(*cloud.points.T, s=900 * cloud.weights, color="0.7", label="$t$ = 0: 60 particles, area = weight")
for k, color in ((1, "#0072B2"), (steps, "#D55E00")):
    axes.scatter(*few.measure(k).points.T, s=100, color=color, label=f"$t$ = {k * tau:g}: 9 particles")
axes.set(xlabel="$x_1$", ylabel="$x_2$", aspect="equal", title=rf"$W_2$ flow of $V(x) = -3 x_1$, $\tau$ = {tau}")
figure.legend(loc="outside lower center", ncols=3, frameon=False)

# %%

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4.2), layout="constrained")
left.scatter(*centered["exact"][-1].T, s=900 * cloud.weights, color="0.7", label="exact, area = weight")
left.scatter(*centered["Sinkhorn, plain"][-1].T, marker="x", color="#D55E00", label="Sinkhorn, plain")
left.set(xlabel="$x_1$ from the mean", ylabel="$x_2$ from the mean", aspect="equal", ylim=(-2.3, 2.9))
left.set_title(f"shape at $t$ = {steps * tau:g}")
left.legend(loc="upper left")
styles = (("-", "0.75", 5), ("--", "#0072B2", 1.8), ("s-", "#D55E00", 1.8))
for (name, values), (style, color, width) in zip(variance.items(), styles, strict=True):
    right.plot(few.times, values, style, color=color, linewidth=width, label=name)
right.set(xlabel="time $t$", ylabel="variance per coordinate", ylim=(0, 1), title="contraction")
right.legend(loc="lower left")
figure.suptitle(rf"$W_2$ flow of $V(x) = -3 x_1$, $\tau$ = {tau}, $\varepsilon$ = {eps}")
plt.show()
