r"""
Three metrics, three flows
==========================

The metric decides which flow small steps follow. The weighted metric and the head-wise step follow the same flow for
one head, and different ones for several heads.
"""

import matplotlib.pyplot as plt

import jko
from jko import plotting
from jko.transport import squared_wasserstein

# %%
# Six runs for one head and six for four heads: the minimizing movement and explicit Euler in each metric, from the same
# tokens, with the same time step.

tau, t1 = 0.02, 0.4
tokens = jko.ParticleMeasure(jko.initial_tokens(40, 3, seed=0))
metrics = (jko.Wasserstein2(), jko.WeightedWasserstein(), jko.HeadwiseWasserstein())
schemes = {"JKO": jko.JKO(tau), "explicit": jko.ExplicitEuler(tau)}
runs = {}
for H in (1, 4):
    heads = jko.ConstantHeads(0.5 * jko.initial_heads(H, 3, seed=0))
    for metric in metrics:
        flow = jko.GradientFlow(jko.AttentionEnergy(heads, sign=+1), metric)
        for name, scheme in schemes.items():
            runs[H, metric.title, name] = jko.solve(flow, tokens, scheme, t1=t1)

# %%
# The distance between two runs at each time is the :math:`W_2` distance of their clouds.


def distance(first, second):
    pairs = zip(first.points, second.points, strict=True)
    squares = [squared_wasserstein(jko.ParticleMeasure(x), jko.ParticleMeasure(y), jko.Sphere()) for x, y in pairs]
    return [square**0.5 for square in squares]


curves = {}
for H in (1, 4):
    for metric in metrics:
        same = distance(runs[H, metric.title, "JKO"], runs[H, metric.title, "explicit"])
        curves[H, f"JKO and explicit, both {metric.title}"] = same
    weighted_run = runs[H, "W_{m,2}", "JKO"]
    for other in ("W2", "head-wise"):
        curves[H, f"W_{{m,2}} and {other}, both JKO"] = distance(weighted_run, runs[H, other, "JKO"])
for (H, name), values in curves.items():
    print(f"H = {H}, {name:38} {values[-1]:.1e}")

# %%
# For one head the weighted and the head-wise flow agree, to the tolerance of the steps at least. For four heads they
# part, 20 times as fast as a minimizing movement leaves explicit Euler in the same metric. So a minimizing movement has
# to be compared with the explicit scheme of its own metric.

assert curves[1, "W_{m,2} and head-wise, both JKO"][-1] < 1e-8
same = max(curves[4, f"JKO and explicit, both {metric.title}"][-1] for metric in metrics[1:])
assert curves[4, "W_{m,2} and head-wise, both JKO"][-1] > 20 * same

colors = ("#0072B2", "#D55E00", "#009E73", "#56B4E9", "#000000")
figure, panels = plt.subplots(1, 2, figsize=(9.5, 4.4), layout="constrained", sharey=True)
times = runs[1, "W2", "JKO"].times
for H, axes in zip((1, 4), panels, strict=True):
    named = [(name, values) for (heads, name), values in curves.items() if heads == H]
    for k, (name, values) in enumerate(named):
        label = plotting.math_title(name)
        axes.plot(times, values, "--" if k < 3 else "-", color=colors[k], linewidth=2 if k > 2 else 1.5, label=label)
    axes.set_title("H = 1 head" if H == 1 else f"H = {H} heads")
    axes.set_xlabel("time $t$")
    axes.grid(color="0.9")
panels[0].set_ylabel("$W_2$ between two runs (angle)")
figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
figure.suptitle(rf"Distances between flows, sign = $+1$, $\tau$ = {tau}")
plt.show()
