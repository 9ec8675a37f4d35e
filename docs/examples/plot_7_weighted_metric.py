r"""
The weighted metric as functions
================================

``jko.weighted`` has the geometry of the paper as plain functions of tensors, without a flow: mobilities, the difference
between two velocities, and the weighted distance with its geodesic.
"""

# sphinx_gallery_thumbnail_number = 2
import math

import matplotlib.pyplot as plt
import torch

import jko
from jko import weighted
from jko.transport import squared_wasserstein

# %%
# Mobilities
# ----------
#
# Every head has its mobility :math:`m_h(x)`, the denominator of its softmax, at the tokens or anywhere else. The metric
# sees their harmonic mean :math:`b`. Two heads on the circle, the first of which is strong:

D = torch.tensor([[[2.0, 0.0], [0.0, 0.5]], [[-1.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)


def place(angle):
    return torch.stack((torch.cos(angle), torch.sin(angle)), dim=-1)


spots = torch.linspace(-0.3, 1.2, 12, dtype=torch.float64)
tokens = jko.ParticleMeasure(place(spots))
angle = torch.linspace(-math.pi, math.pi, 361, dtype=torch.float64)
m = weighted.head_mobility(tokens.points, D, at=place(angle))
b = weighted.effective_mobility(m)
assert ((m.amin(0) <= b) & (b <= m.amax(0))).all()

figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
for h, color in enumerate(("#56B4E9", "#009E73")):
    axes.semilogy(angle, m[h], color=color, label=f"$m_{h + 1}$")
axes.semilogy(angle, b, color="black", linewidth=2, label="$b$, their harmonic mean")
axes.plot(spots, torch.full_like(spots, 0.15), "|", color="#D55E00", markersize=12, label="tokens")
axes.set(xlabel="angle of $x$ (radians)", ylabel="mobility", ylim=(0.1, 20), title="Mobilities on the circle, H = 2")
axes.grid(color="0.9")
axes.legend(loc="upper left", ncols=2)

# %%
# The covariance defect :math:`\operatorname{Cov}_h(1 / m_h, DK_h)` separates the velocity of the minimizing movements
# in :math:`W_{m,2}` from the transformer's. The functions and the flows agree on it.

energy = jko.AttentionEnergy(jko.ConstantHeads(D))
at_tokens = weighted.head_mobility(tokens.points, D)
gradient = jko.Sphere().project_vector(tokens.points, energy.evaluate(tokens, 0.0).heads.gradient)
defect = weighted.covariance_defect(gradient, at_tokens)
velocities = [
    jko.GradientFlow(energy, metric).velocity(tokens, 0.0)
    for metric in (jko.WeightedWasserstein(), jko.HeadwiseWasserstein())
]
assert torch.allclose(defect, velocities[0] - velocities[1])
print(f"length of the defect {float(weighted.metric_speed(defect, at_tokens)):.4f}, of the velocity in W_m,2 ", end="")
print(f"{float(weighted.metric_speed(velocities[0], at_tokens)):.4f}")

# %%
# Distance and geodesic
# ---------------------
#
# The mobility depends on the cloud, which may therefore change its shape on the way to travel cheaply. Fifteen
# particles on the sphere go from one place to another, with one head :math:`D = \pm 2 I`. For the plus sign a dense
# cloud is expensive, for the minus sign it is cheap.

generator = torch.Generator().manual_seed(0)
spread = 0.2 * torch.randn(15, 2, dtype=torch.float64, generator=generator)


def cloud(longitude):
    lon, lat = spread[:, 0] + longitude, spread[:, 1]
    return torch.stack((lon.cos() * lat.cos(), lon.sin() * lat.cos(), lat.sin()), dim=-1)


start, end = cloud(-0.8), cloud(0.8)
w2 = squared_wasserstein(jko.ParticleMeasure(start), jko.ParticleMeasure(end), jko.Sphere()) ** 0.5
figure, panels = plt.subplots(1, 2, figsize=(9.5, 4.2), layout="constrained", sharey=True)
for axes, beta in zip(panels, (2.0, -2.0), strict=True):
    D = beta * torch.eye(3, dtype=torch.float64)[None]
    found = weighted.weighted_distance(start, end, D)
    bounds = weighted.equivalence_constants(D)
    low, high = float(bounds.lower * w2), float(bounds.upper * w2)
    print(f"D = {beta:+g} I: {low:.4f} <= W_m,2 = {found.value:.4f} <= {high:.4f}")
    assert found.status.ok
    assert low <= found.value <= high
    path = found.path
    longitude, latitude = torch.atan2(path[..., 1], path[..., 0]), path[..., 2].asin()
    axes.plot(longitude, latitude, color="0.6", linewidth=1)
    for k, color in ((0, "#56B4E9"), (8, "#D55E00"), (16, "#0072B2")):
        axes.plot(longitude[k], latitude[k], "o", markersize=5, color=color, label=f"$s$ = {k / 16:g}")
    axes.set(xlabel="longitude (radians)", title=rf"D = ${beta:+g}\,$I, $W_{{m,2}}$ = {found.value:.3f}")
panels[0].set_ylabel("latitude (radians)")
figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
figure.suptitle(f"Geodesics of $W_{{m,2}}$ between two clouds, $W_2$ = {w2:.3f}")
plt.show()
