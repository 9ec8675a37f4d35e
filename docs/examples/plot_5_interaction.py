r"""
Interaction in the plane
========================

Particles that act on each other: a Gaussian kernel gathers them into clusters, and the logarithmic kernel of charges,
held together by a potential, spreads them evenly over a disk.
"""

import matplotlib.pyplot as plt
import torch

import jko

plane = jko.Euclidean()

# %%
# Attraction of short range
# -------------------------
#
# ``InteractionEnergy(kernel)`` is :math:`E(u) = \frac12 \iint W(x, y)\, du\, du`. Energies add up, and numbers scale
# them: the minus sign makes the Gaussian kernel attract, within a few times its scale.

attraction = -1 * jko.InteractionEnergy(jko.GaussianKernel(0.4))
square = 4 * torch.rand(150, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 2
flow = jko.GradientFlow(attraction, jko.Wasserstein2(), plane)
gathering = jko.solve(flow, jko.ParticleMeasure(square), jko.JKO(0.5), t1=24.0, save=jko.Save(times=[0, 4, 24]))
for t, points in zip(gathering.times, gathering.points, strict=True):
    close = (torch.pdist(points) < 0.1).double().mean()
    print(f"t = {float(t):2g}: {100 * float(close):4.1f} % of the pairs are closer than 0.1")
assert (gathering.states.energy.diff() < 0).all()

# %%
# Charges in a bowl
# -----------------
#
# :math:`-\log |x - y|` repels. With :math:`V(x) = |x|^2 / 2` the continuum settles in the uniform distribution on the
# unit disk. The second moment :math:`M` of :math:`n` particles satisfies :math:`M' = 1 - \frac1n - 2M` along the flow,
# and in a step exactly the same with :math:`(M_k - M_{k-1} + W_2^2) / \tau` for :math:`M'` and :math:`M_k` for
# :math:`M`.


def V(x):
    return 0.5 * x.square().sum(-1)


charges = -1 * jko.InteractionEnergy(jko.LogarithmicKernel()) + jko.PotentialEnergy(V)
n, tau = 150, 0.1
start = jko.ParticleMeasure(0.2 * plane.random_point((n,), 2, seed=0))
spreading = jko.solve(jko.GradientFlow(charges, jko.Wasserstein2(), plane), start, jko.JKO(tau), t1=4.0)
moment = spreading.points.square().sum(-1).mean(-1)
rate = (moment.diff() + spreading.records.squared_distance) / tau
assert torch.allclose(rate, 1 - 1 / n - 2 * moment[1:], atol=1e-7)
rest = (1 - 1 / n) / 2
exact = rest + (moment[0] - rest) * torch.exp(-2 * spreading.times)
print(f"second moment at t = 4: {float(moment[-1]):.5f}, of the flow {float(exact[-1]):.5f}, at rest {rest:.5f}")

# %%
# The first step, out of a dense cloud, is not certified: some particle would gain at the place of another. An exact
# transport finds its coupling optimal all the same.

info = jko.JKO(tau).step(jko.GradientFlow(charges, jko.Wasserstein2(), plane), start).info
print("certified", [int(c) for c in spreading.records.certified])
print(f"first step: largest gain {info.coupling.largest_gain:.1e}, coupling optimal: {info.coupling.optimal}")
assert info.coupling.optimal
assert info.certified == 0

# %%

figure, panels = plt.subplots(2, 3, figsize=(9.5, 6.4), layout="constrained")
for row, run, kept, reach, name in (
    (panels[0], gathering, (0, 1, 2), 2.1, "attraction"),
    (panels[1], spreading, (0, 5, 40), 1.2, "charges"),
):
    for axes, k in zip(row, kept, strict=True):
        axes.scatter(*run.points[k].T, s=9, color="#0072B2")
        axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xlabel="$x_1$", ylabel="$x_2$")
        axes.set_title(f"{name}, $t$ = {float(run.times[k]):.3g}", fontsize=10)
for axes in panels[1]:
    axes.add_patch(plt.Circle((0, 0), 1, fill=False, color="#D55E00"))
figure.suptitle(r"$W_2$ flows of interaction energies (circle: edge of the continuum at rest)")

# %%

figure, axes = plt.subplots(figsize=(6, 3.8), layout="constrained")
axes.plot(spreading.times, moment, "o", color="#0072B2", markersize=4, label=rf"JKO, $\tau$ = {tau}")
axes.plot(spreading.times, exact, "-", color="#D55E00", label="exact flow")
axes.axhline(rest, color="0.5", linestyle=":", label=r"at rest, $(1 - 1/n) / 2$")
axes.set(xlabel="time $t$", ylabel="second moment $M$", title=f"Charges in a bowl, $W_2$, n = {n}", ylim=(0, 0.55))
axes.legend()
plt.show()
