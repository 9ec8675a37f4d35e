r"""
A potential in the plane
========================

A quadratic potential has closed forms, for a step and for its flow. So the error of a step and the order of the flow
can be seen.
"""

import math
from itertools import pairwise

import matplotlib.pyplot as plt
import torch

import jko

# %%
# Any function of the points will do as a potential; PyTorch differentiates it. For :math:`V(x) = \lambda |x|^2 / 2` a
# step maps :math:`x` to :math:`x / (1 + \tau\lambda)`, and the flow maps it to :math:`e^{-\lambda t} x`.

rate = 2.0


def V(x):
    return 0.5 * rate * x.square().sum(-1)


plane = jko.Euclidean()
flow = jko.GradientFlow(jko.PotentialEnergy(V), jko.Wasserstein2(), plane)
angles = torch.linspace(0, 2 * math.pi, 49, dtype=torch.float64)[:-1]
ring = torch.stack((angles.cos(), angles.sin()), dim=-1)
start = jko.ParticleMeasure(torch.tensor([2.0, 1.0]) + 0.5 * ring)

# %%
# A step has no error of its own
# ------------------------------
#
# The minimizer is found in two passes, far below the tolerance :math:`10^{-8}` of a step, even where the step is long
# against the time scale :math:`1 / \lambda` = 0.5 of the flow.

for tau in (0.01, 0.1, 1.0, 10.0):
    step = jko.JKO(tau).step(flow, start)
    error = float((step.measure.points - start.points / (1 + tau * rate)).abs().max())
    print(f"tau = {tau:5g}: largest error {error:.1e}, passes {step.info.evaluations}")
    assert error < 1e-11

# %%
# The flow is of first order
# --------------------------
#
# Halving the step halves the error at :math:`t` = 1. The observed order is the base-two logarithm of the ratio of
# successive errors: it should be 1, neither less nor more.

t1, taus = 1.0, [0.2 / 2**k for k in range(6)]
runs = [jko.solve(flow, start, jko.JKO(tau), t1=t1) for tau in taus]
exact = math.exp(-rate * t1) * start.points
errors = [float((run.points[-1] - exact).norm(dim=-1).mean()) for run in runs]
orders = [math.log2(coarse / fine) for coarse, fine in pairwise(errors)]
print("errors", " ".join(f"{error:.2e}" for error in errors))
print("orders", " ".join(f"{order:.3f}" for order in orders))
assert abs(orders[-1] - 1) < 0.02

# %%

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4.2), layout="constrained")
for t, color in zip((0.0, 0.2, 0.4, 1.0), ("#56B4E9", "#0072B2", "#009E73", "#D55E00"), strict=True):
    left.scatter(*runs[0].points[round(t / taus[0])].T, s=12, color=color, label=f"$t$ = {t:g}")
    left.fill(*(math.exp(-rate * t) * start.points).T, fill=False, edgecolor=color, linewidth=0.8)
left.set(xlabel="$x_1$", ylabel="$x_2$", aspect="equal", title=rf"dots: JKO with $\tau$ = {taus[0]:g}; lines: exact")
left.set(xlim=(0, None), ylim=(0, None))
left.legend(loc="upper left")
right.loglog(taus, errors, "o-", color="#0072B2", label="JKO")
right.loglog(taus, [errors[-1] * tau / taus[-1] for tau in taus], ":", color="0.3", label="slope 1")
right.set(xlabel=r"time step $\tau$", ylabel="mean distance to the exact place at $t$ = 1", title="convergence")
right.grid(color="0.9", which="both")
right.legend()
figure.suptitle(r"$W_2$ flow of $V(x) = \lambda |x|^2 / 2$, $\lambda$ = 2")
plt.show()
