"""From a configuration to measures, heads and metrics: everything is checked here, before any work."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from jko.checks import check_device, check_finite
from jko.config import CommonConfig, HeadsConfig, MeasureConfig
from jko.errors import InvalidInput
from jko.heads import AbstractHeads, ConstantHeads, OrnsteinUhlenbeckHeads, OscillatingHeads, TabulatedHeads
from jko.initial import initial_heads, initial_tokens
from jko.manifolds import AbstractManifold, Euclidean, Sphere
from jko.measure import ParticleMeasure
from jko.memory import check_fits
from jko.metrics import AbstractMetric, HeadwiseWasserstein, Wasserstein2, WeightedWasserstein

__all__ = [
    "METRIC_NAMES",
    "anchored",
    "check_cheaply",
    "check_path_size",
    "check_size",
    "check_steps",
    "check_tokens",
    "make_heads",
    "make_manifold",
    "make_measure",
    "make_metric",
    "resolved",
]

_METRICS: dict[str, type[AbstractMetric]] = {
    "wasserstein2": Wasserstein2,
    "weighted": WeightedWasserstein,
    "headwise": HeadwiseWasserstein,
}
METRIC_NAMES = {metric: name for name, metric in _METRICS.items()}
_MOST_STEPS = 10**7
_CPU = torch.device("cpu")
_DEVICES = ("cpu", "cuda")
_DTYPES = {"float64": torch.float64, "float32": torch.float32}


def resolved(config: Any, dt: float) -> Any:
    """Return the configuration with the defaults that depend on other entries written out."""
    measure, heads = config.measure, config.heads
    if measure.points is None:
        measure = MeasureConfig(n=measure.n or 300, d=measure.d or 3)
    if heads.file is None:
        process = heads.process or "ou"
        values: dict[str, Any] = {"process": process, "num_heads": heads.num_heads or 4}
        if process == "ou":
            values["sigma2"] = 1.0 if heads.sigma2 is None else heads.sigma2
        if process == "oscillating":
            values["phases"] = heads.phases or "spread"
        if process != "constant":
            values["dt"] = heads.dt or dt
        heads = HeadsConfig(**values)
    return config.model_copy(update={"measure": measure, "heads": heads})


def anchored(config: Any) -> Any:
    """Return the configuration with absolute file names: a run may be continued from another working directory."""

    def absolute(table: Any, *names: str) -> Any:
        files = {name: getattr(table, name) for name in names}
        return table.model_copy(update={name: str(Path(file).resolve()) for name, file in files.items() if file})

    update = {"measure": absolute(config.measure, "points"), "heads": absolute(config.heads, "file", "times")}
    return config.model_copy(update=update)


def check_size(config: Any, tau: float, measure: ParticleMeasure, kept: float) -> None:
    """Refuse what would run for days or fill the memory, before any of it is made.

    Args:
        config: with its defaults written out.
        tau: the smallest step size.
        measure: the initial measure.
        kept: number of clouds that a run keeps.

    Raises:
        InvalidInput: with the size and what makes it smaller.
    """
    t1, heads = config.solve.t1, config.heads
    check_steps(t1, tau, "tau")
    if heads.num_heads is not None:
        check_path_size(t1, heads.dt, heads.num_heads, measure.d)
    way_out = "take a larger save_every or tau, or fewer samples"
    shape = (float(kept), measure.n, measure.d)
    check_fits("the clouds that are kept", shape, measure.dtype, measure.device, way_out, copies=2)


def check_cheaply(config: Any, tau: float) -> None:
    """Refuse what can be refused without making anything: sizes out of reach, and files that do not exist.

    Args:
        config: with its defaults written out.
        tau: the smallest step size.

    Raises:
        InvalidInput: with the size and what makes it smaller, or the file.
    """
    measure, heads = config.measure, config.heads
    check_steps(config.solve.t1, tau, "tau")
    if measure.points is None:
        check_tokens(measure.n, measure.d)
        if heads.num_heads is not None:
            check_path_size(config.solve.t1, heads.dt, heads.num_heads, measure.d)
    for name, file in (("points", measure.points), ("heads", heads.file), ("times", heads.times)):
        if file is not None and not Path(file).exists():
            raise InvalidInput(f"{name}: the file {file} does not exist")


def check_steps(t1: float, tau: float, name: str) -> None:
    """Refuse more steps than anybody waits for.

    Raises:
        InvalidInput: with their number; `name` is what the step size is called.
    """
    steps = t1 / tau
    if steps > _MOST_STEPS:
        raise InvalidInput(
            f"{name} = {tau:g} needs {steps:.3g} steps to t1 = {t1:g}, more than {_MOST_STEPS:.0e}; take a larger "
            f"{name} or a smaller t1"
        )


def check_path_size(t1: float, dt: float | None, num_heads: int, d: int) -> None:
    """Refuse a head path that fills the memory; one without a spacing is constant.

    Raises:
        InvalidInput: with its size.
    """
    nodes = 1.0 if dt is None else t1 / dt + 1
    way_out = "fewer heads or a smaller d" if dt is None else "a larger dt, a smaller t1, or fewer heads"
    shape = (nodes, num_heads, d, d)
    check_fits("the matrices of the head path", shape, torch.float64, _CPU, f"take {way_out}", copies=2)


def check_tokens(n: int, d: int) -> None:
    """Refuse tokens of the paper's law that fill the memory.

    Raises:
        InvalidInput: with their size.
    """
    # They are drawn around the 2d vertices +-e_i.
    check_fits("the tokens and the vertices", (n + 4 * d, d), torch.float64, _CPU, "take a smaller n or d")


def make_measure(config: CommonConfig, manifold: AbstractManifold) -> ParticleMeasure:
    """Return the initial measure on its device.

    Raises:
        InvalidInput: for a file that is missing or no array, another shape, non-finite entries, points off the
            manifold, more tokens than the memory holds, or a device that is not there.
    """
    measure, dtype = config.measure, _DTYPES[config.dtype]
    device = _device(config.device)
    if measure.points is None:
        assert measure.n is not None
        assert measure.d is not None
        check_tokens(measure.n, measure.d)
        points = initial_tokens(measure.n, measure.d, config.seed, dtype=dtype, device=device)
    else:
        values = _array(measure.points, "points", ndim=2, form="(n, d)")
        points = torch.from_numpy(values)
        try:
            manifold.check(points, measure.points)
        except InvalidInput as error:
            raise InvalidInput(f"points: {error}") from None
        if points.dtype != dtype:
            # Single precision is off the sphere by more than double precision accepts.
            points = manifold.project_point(points.to(torch.float64)).to(dtype)
        points = points.to(device)
    return ParticleMeasure(points)


def make_heads(config: CommonConfig, d: int, t1: float) -> AbstractHeads:
    """Return the head path on [0, t1] at least.

    Raises:
        InvalidInput: for a file that is missing or no array, shapes that do not fit, or a table that ends early.
    """
    heads = config.heads
    if heads.file is not None:
        return _heads_from_files(heads, d, t1)
    assert heads.num_heads is not None
    D0 = initial_heads(heads.num_heads, d, config.seed)
    if heads.process == "constant":
        return ConstantHeads(D0)
    assert heads.dt is not None
    if heads.process == "oscillating":
        return OscillatingHeads(D0, dt=heads.dt, t1=t1, phases=heads.phases)
    assert heads.sigma2 is not None
    return OrnsteinUhlenbeckHeads(D0, sigma2=heads.sigma2, dt=heads.dt, t1=t1, seed=config.seed, path=config.path)


def make_metric(name: str) -> AbstractMetric:
    """Return the metric of a name in the configuration."""
    return _METRICS[name]()


def make_manifold(name: str) -> AbstractManifold:
    """Return the manifold of a name in the configuration."""
    return Sphere() if name == "sphere" else Euclidean()


def _heads_from_files(heads: HeadsConfig, d: int, t1: float) -> AbstractHeads:
    assert heads.file is not None
    if heads.times is None:
        matrices = _array(heads.file, "heads", ndim=3, form="(H, d, d)", hint="; (K, H, d, d) needs times as well")
        path: AbstractHeads = ConstantHeads(matrices)
    else:
        matrices = _array(heads.file, "heads", ndim=4, form="(K, H, d, d)")
        path = TabulatedHeads(_array(heads.times, "times", ndim=1, form="(K,)"), matrices)
    if path.dimension != d:
        raise InvalidInput(f"heads in {heads.file} have d = {path.dimension}, the points have d = {d}")
    if not math.isinf(path.t1) and t1 > path.t1 * (1 + 1e-9):
        raise InvalidInput(f"t1 = {t1!r} lies beyond the last of the times in {heads.times}, {path.t1!r}")
    return path


def _array(file: str, name: str, *, ndim: int, form: str, hint: str = "") -> np.ndarray[Any, Any]:
    path = Path(file)
    try:
        values = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise InvalidInput(f"{name}: the file {file} does not exist") from None
    except OSError as error:
        raise InvalidInput(f"{name}: {file} cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError):
        # NumPy takes what it cannot parse for a pickle and advises to allow those.
        raise InvalidInput(
            f"{name}: {file} is no .npy file of numbers; write it with numpy.save, an array of shape {form}"
        ) from None
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiu":
        kind = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
        raise InvalidInput(f"{name}: {file} must hold one array of real numbers, got {kind}")
    if values.ndim != ndim or values.size == 0:
        raise InvalidInput(f"{name}: {file} must have shape {form}, got {values.shape}{hint}")
    # Points in single precision are checked as such.
    numbers = np.ascontiguousarray(values, dtype=np.float32 if values.dtype == np.float32 else np.float64)
    check_finite(torch.from_numpy(numbers), f"{name}: {file}")
    return numbers


def _device(name: str) -> torch.device:
    if name.partition(":")[0] not in _DEVICES:
        raise InvalidInput(f"device {name!r} is none of the choices: {', '.join(_DEVICES)}")
    return check_device(name)
