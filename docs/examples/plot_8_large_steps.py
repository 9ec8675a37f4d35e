r"""
When is a step too large?
=========================

A step may be solved to the last digit and still not be what was meant: a saddle, one minimum of several, or a minimum
only as long as particles stay whole. Three checks look for that.
"""

import math

import matplotlib.pyplot as plt
import torch

import jko

# %%
# Checks are asked for with the scheme, and add their columns to the records. ``certified`` is 1 where all were shown.
#
# - ``LocalMinimality`` finds the smallest eigenvalue of the step's Hessian: 1 for a flat energy, negative at a saddle.
# - ``Splitting`` searches the whole sphere for a place where part of a particle would rather be; its gain is 0 where
#   there is none.
# - ``Uniqueness`` is a sufficient condition for no other stationary point nearby: shown where its margin is positive.

checks = (jko.LocalMinimality(), jko.Splitting(samples=300, iterations=40), jko.Uniqueness())


def examine(points, beta, taus):
    """Take one step of each size from the same tokens, which repel each other."""
    heads = jko.ConstantHeads(beta * torch.eye(3, dtype=torch.float64)[None])
    flow = jko.GradientFlow(jko.AttentionEnergy(heads, sign=+1), jko.Wasserstein2())
    infos = [jko.JKO(tau, checks=checks).step(flow, jko.ParticleMeasure(points)).info for tau in taus]
    print("   tau  eigenvalue  splitting gain  uniqueness  certified")
    for tau, info in zip(taus, infos, strict=True):
        print(
            f"{tau:6.3f}  {info.smallest_eigenvalue:10.3f}  {info.splitting_gain:14.1e}"
            f"  {info.uniqueness_margin:10.2f}  {info.certified:9g}"
        )
    assert all(info.residual < 1e-8 for info in infos)
    return infos


# %%
# Coincident tokens
# -----------------
#
# Eight tokens at one place, D = I: they are at rest, and every step leaves them there with residual 0. The eigenvalue
# is :math:`1 - \tau e`. Beyond :math:`\tau = 1 / e` the place is a saddle of the step, and mass would leave it.

beta = 1.0
threshold = 1 / (beta * math.exp(beta))
factors = (0.05, 0.1, 0.2, 0.6, 0.9, 1.1, 1.5)
together = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64).expand(8, 3)
coincident = examine(together, beta, [factor * threshold for factor in factors])
for factor, info in zip(factors, coincident, strict=True):
    assert abs(info.smallest_eigenvalue - (1 - factor)) < 1e-9
    assert (info.splitting_gain > 1e-6) == (factor > 1)

# %%
# Tokens in clusters
# ------------------
#
# Twelve tokens in clusters, D = 2 I. The largest steps are local minima among whole particles, by their positive
# eigenvalue, but not among all measures: mass would leave its particle. The uniqueness condition fails for all of these
# steps. It is only sufficient, and crude for stiff heads, so that this alone says little against a step.

taus = (0.02, 0.1, 0.2, 0.3, 0.4, 0.8)
clusters = examine(jko.initial_tokens(12, 3, seed=0), 2.0, taus)
assert clusters[-1].smallest_eigenvalue > 0
assert clusters[-1].splitting_gain > 1e-3
assert all(info.uniqueness_margin < 0 for info in clusters)

# %%

figure, panels = plt.subplots(2, 2, figsize=(9.5, 5.8), layout="constrained", sharex="col")
for column, infos, steps, name in (
    (panels[:, 0], coincident, [factor * threshold for factor in factors], "coincident tokens, D = I"),
    (panels[:, 1], clusters, taus, "tokens in clusters, D = 2 I"),
):
    upper, lower = column
    upper.plot(steps, [info.smallest_eigenvalue for info in infos], "o-", color="#0072B2", label="smallest eigenvalue")
    margins = [info.uniqueness_margin for info in infos]
    upper.plot(steps, margins, "s--", color="#D55E00", label="uniqueness margin, cut at $-1$")
    upper.axhline(0, color="0.4", linewidth=0.8)
    upper.set(title=name, ylim=(-1.15, 1.15))
    lower.plot(steps, [info.splitting_gain for info in infos], "o-", color="#009E73", label="splitting gain (energy)")
    lower.set_xlabel(r"time step $\tau$")
for axes in panels[:, 0]:
    axes.axvline(threshold, color="0.4", linestyle=":", label=r"$\tau = 1 / e$")
panels[0, 0].set_ylabel("positive: shown")
panels[1, 0].set_ylabel("0: nothing would split")
(curves, names), (gains, gain_names) = (panels[row, 0].get_legend_handles_labels() for row in (0, 1))
figure.legend(curves + gains[:1], names + gain_names[:1], loc="outside lower center", ncols=4, frameon=False)
figure.suptitle("One step of repelling tokens, $W_2$, sign = $+1$")
plt.show()
