"""
A first minimizing movement
===========================

Tokens on the sphere lower the energy of attention. One step first, with what it says about itself, and then a flow of
many steps with its records.
"""

import jko
from jko import plotting

# %%
# A problem has three parts: a particle measure, an energy, and a metric. Here they are 80 tokens in six noisy clusters
# on the sphere of :math:`\mathbb{R}^3`, the energy of attention with two heads, and the weighted metric
# :math:`W_{m,2}`. The sign says what goes down: :math:`E` for ``sign=+1``, and :math:`-E` for ``sign=-1``.

tokens = jko.ParticleMeasure(jko.initial_tokens(80, 3, seed=0))
heads = jko.ConstantHeads(0.5 * jko.initial_heads(2, 3, seed=0))
energy = jko.AttentionEnergy(heads, sign=-1)
flow = jko.GradientFlow(energy, metric=jko.WeightedWasserstein())

# %%
# One step
# --------
#
# A step of size :math:`\tau` minimizes :math:`-E(u) + W_{m,2}^2(u, u^0) / (2 \tau)` over the places of the particles.
# It returns the new measure and its certificate. ``residual`` is the relative error in the first-order condition of the
# minimum, ``evaluations`` counts the passes over all pairs of tokens, and ``certified`` is 1 where the step also went
# down and nobody would rather be at the place of another token.

tau = 0.1
step = jko.JKO(tau).step(flow, tokens)
info = step.info
after = float(energy.value(step.measure, 0.0))
print(f"-E before {info.energy_previous:.6f}, after {after:.6f}")
print(f"-E + W^2 / (2 tau) after the step {after + info.squared_distance / (2 * tau):.6f}")
print(f"residual {info.residual:.1e}, certified {info.certified:g}, passes {info.evaluations:g}")
assert info.status.ok
assert info.residual < 1e-8
assert after + info.squared_distance / (2 * tau) < info.energy_previous

# %%
# A flow
# ------
#
# ``solve`` takes step after step. ``states`` has a row for each of the 21 times, ``records`` one for each of the 20
# steps, and ``measure(k)`` is the cloud at the time ``times[k]``.

solution = jko.solve(flow, tokens, jko.JKO(tau), t1=2.0)
records = solution.records
print(solution)
print(f"largest residual {float(records.residual.max()):.1e}, certified steps {int(records.certified.sum())} of 20")
print(f"passes per step {float(records.evaluations.mean()):.1f}, energy {float(records.energy[-1]):.4f}")

figure = plotting.snapshot_figure(
    {"JKO": solution},
    manifold=jko.Sphere(),
    title=r"$W_{m,2}$, sign = $-1$, H = 2, $\tau$ = 0.1",
    fractions=(0, 0.5, 1),
)
figure

# %%
# The energy falls in every step. ``plotting.save_figure(figure, "tokens")`` writes a figure as PNG and PDF.

figure = plotting.run_figure(solution)
assert (solution.states.energy.diff() < 0).all()
figure
