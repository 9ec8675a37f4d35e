r"""
A long run that survives
========================

A run can write itself to disk while it goes on, and continue bit for bit after it was cut short. It keeps the clouds
that are asked for, and stops by itself where nothing moves any more.
"""

import math
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import jko

# %%
# A stop condition is a function of what the last step left. ``Stationary(slope)`` ends the run where the metric slope
# has fallen to the given value. ``Save(times=...)`` keeps the clouds at these times, and always the last one; the
# records have every step.

tokens = jko.ParticleMeasure(jko.initial_tokens(24, 2, seed=1))
heads = jko.ConstantHeads(torch.eye(2, dtype=torch.float64)[None])
flow = jko.GradientFlow(jko.AttentionEnergy(heads, sign=-1))
scheme = jko.JKO(tau=0.1)
rest = jko.Stationary(slope=1e-6)
save = jko.Save(times=[0, 5, 10])

whole = jko.solve(flow, tokens, scheme, t1=100.0, save=save, stop=rest)
print(whole)
print("clouds kept at t =", [round(float(t), 6) for t in whole.times])
assert whole.status is jko.Status.STOPPED

# %%
# The same run, cut short
# -----------------------
#
# Now with a folder that is written to after every 50th step. Any function of the last step is a stop condition: this
# one ends the run after 80 steps. It might have been Ctrl-C, an error or a power cut.

scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name) / "run"
checkpoint = jko.Checkpoint(folder, every=50)
part = jko.solve(flow, tokens, scheme, t1=100.0, save=save, stop=lambda last: last.step == 80, checkpoint=checkpoint)
print(part)
print("in the folder:", ", ".join(sorted(path.name for path in folder.iterdir())))

# %%
# ``resume`` needs the flow and the scheme again, and refuses others. The result is that of the unbroken run, to the
# last bit, and so is what ``load`` reads from the folder.

resumed = jko.resume(folder, flow, scheme, stop=rest)
print(resumed)
assert resumed.steps == whole.steps
assert torch.equal(resumed.points, whole.points)
assert torch.equal(jko.load(folder).records.energy, whole.records.energy)

# %%
# Another step size is refused by name.

try:
    jko.resume(folder, flow, jko.JKO(tau=0.05))
except jko.ResumeMismatch as error:
    print(error)
scratch.cleanup()

# %%

figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4.0), layout="constrained")
for solution, style, name in ((whole, "-", "unbroken"), (part, "--", "cut short")):
    slope = solution.states.slope2.sqrt()
    width, color = (4, "#56B4E9") if solution is whole else (1.6, "#D55E00")
    left.semilogy(solution.states.t, slope, style, linewidth=width, color=color, label=name)
left.axhline(rest.slope, color="0.4", linestyle=":", label="stop here")
left.set(xlabel="time $t$", ylabel="metric slope", title="until nothing moves")
left.legend()
for t, points in zip(whole.times, whole.points, strict=True):
    angle = torch.atan2(points[:, 1], points[:, 0])
    right.scatter(t.expand_as(angle), angle, s=14, color="#0072B2")
right.set(xlabel="time $t$", ylabel="angle of the tokens (radians)", title="clouds that were kept")
right.set_ylim(-math.pi, math.pi)
figure.suptitle(r"$W_{m,2}$, sign = $-1$, D = I, $\tau$ = 0.1")
plt.show()
