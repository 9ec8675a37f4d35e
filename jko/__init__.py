"""Minimizing movements (JKO steps) of time-dependent energies over particle measures.

Every public name is loaded on first use, so that `import jko` stays instant and the command line can print its help
without PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jko import verify as verify
    from jko import weighted as weighted
    from jko.cli.sweeping import SweepTable as SweepTable
    from jko.cli.sweeping import sweep as sweep
    from jko.driver import Checkpoint as Checkpoint
    from jko.driver import Save as Save
    from jko.driver import resume as resume
    from jko.driver import solve as solve
    from jko.energies import AttentionEnergy as AttentionEnergy
    from jko.energies import FunctionEnergy as FunctionEnergy
    from jko.energies import InteractionEnergy as InteractionEnergy
    from jko.energies import PotentialEnergy as PotentialEnergy
    from jko.energies import Scaled as Scaled
    from jko.energies import Sum as Sum
    from jko.errors import InvalidInput as InvalidInput
    from jko.errors import JKOError as JKOError
    from jko.errors import MissingDependency as MissingDependency
    from jko.errors import ResumeMismatch as ResumeMismatch
    from jko.errors import RunDamaged as RunDamaged
    from jko.errors import RunFolderError as RunFolderError
    from jko.errors import SolveFailed as SolveFailed
    from jko.flows import AttentionField as AttentionField
    from jko.flows import GradientFlow as GradientFlow
    from jko.flows import VelocityFlow as VelocityFlow
    from jko.heads import ConstantHeads as ConstantHeads
    from jko.heads import ItoHeads as ItoHeads
    from jko.heads import OrnsteinUhlenbeckHeads as OrnsteinUhlenbeckHeads
    from jko.heads import OscillatingHeads as OscillatingHeads
    from jko.heads import TabulatedHeads as TabulatedHeads
    from jko.initial import initial_heads as initial_heads
    from jko.initial import initial_tokens as initial_tokens
    from jko.kernels import FunctionKernel as FunctionKernel
    from jko.kernels import GaussianKernel as GaussianKernel
    from jko.kernels import LogarithmicKernel as LogarithmicKernel
    from jko.kernels import PowerKernel as PowerKernel
    from jko.manifolds import Euclidean as Euclidean
    from jko.manifolds import Sphere as Sphere
    from jko.measure import ParticleMeasure as ParticleMeasure
    from jko.metrics import HeadwiseWasserstein as HeadwiseWasserstein
    from jko.metrics import Wasserstein2 as Wasserstein2
    from jko.metrics import WeightedWasserstein as WeightedWasserstein
    from jko.progress import RichProgress as RichProgress
    from jko.reductions import Auto as Auto
    from jko.reductions import Blocked as Blocked
    from jko.reductions import KeOps as KeOps
    from jko.schemes import JKO as JKO
    from jko.schemes import RK4 as RK4
    from jko.schemes import Anderson as Anderson
    from jko.schemes import DeGiorgi as DeGiorgi
    from jko.schemes import ExplicitEuler as ExplicitEuler
    from jko.schemes import ExponentialEuler as ExponentialEuler
    from jko.schemes import LocalMinimality as LocalMinimality
    from jko.schemes import Splitting as Splitting
    from jko.schemes import TorchOptimizer as TorchOptimizer
    from jko.schemes import TrustNewton as TrustNewton
    from jko.schemes import Uniqueness as Uniqueness
    from jko.solution import Solution as Solution
    from jko.solution import load as load
    from jko.status import Failure as Failure
    from jko.status import Status as Status
    from jko.stopping import Stationary as Stationary
    from jko.transport import ExactOT as ExactOT
    from jko.transport import Matched as Matched
    from jko.transport import Sinkhorn as Sinkhorn

# Public name -> submodule that holds it; an empty string marks a submodule that is public as a whole.
_HOME: dict[str, str] = {
    "Anderson": "schemes",
    "AttentionEnergy": "energies",
    "AttentionField": "flows",
    "Auto": "reductions",
    "Blocked": "reductions",
    "Checkpoint": "driver",
    "ConstantHeads": "heads",
    "DeGiorgi": "schemes",
    "Euclidean": "manifolds",
    "ExactOT": "transport",
    "ExplicitEuler": "schemes",
    "ExponentialEuler": "schemes",
    "Failure": "status",
    "FunctionEnergy": "energies",
    "FunctionKernel": "kernels",
    "GaussianKernel": "kernels",
    "GradientFlow": "flows",
    "HeadwiseWasserstein": "metrics",
    "InteractionEnergy": "energies",
    "InvalidInput": "errors",
    "ItoHeads": "heads",
    "JKO": "schemes",
    "JKOError": "errors",
    "KeOps": "reductions",
    "LocalMinimality": "schemes",
    "LogarithmicKernel": "kernels",
    "Matched": "transport",
    "MissingDependency": "errors",
    "OrnsteinUhlenbeckHeads": "heads",
    "OscillatingHeads": "heads",
    "ParticleMeasure": "measure",
    "PotentialEnergy": "energies",
    "PowerKernel": "kernels",
    "RK4": "schemes",
    "ResumeMismatch": "errors",
    "RichProgress": "progress",
    "RunDamaged": "errors",
    "RunFolderError": "errors",
    "Save": "driver",
    "Scaled": "energies",
    "Sinkhorn": "transport",
    "Solution": "solution",
    "SolveFailed": "errors",
    "Sphere": "manifolds",
    "Splitting": "schemes",
    "Stationary": "stopping",
    "Status": "status",
    "Sum": "energies",
    "SweepTable": "cli.sweeping",
    "TabulatedHeads": "heads",
    "TorchOptimizer": "schemes",
    "TrustNewton": "schemes",
    "Uniqueness": "schemes",
    "VelocityFlow": "flows",
    "Wasserstein2": "metrics",
    "WeightedWasserstein": "metrics",
    "initial_heads": "initial",
    "initial_tokens": "initial",
    "load": "solution",
    "resume": "driver",
    "solve": "driver",
    "sweep": "cli.sweeping",
    "verify": "",
    "weighted": "",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562)."""
    from importlib import import_module

    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("jko")
    elif name not in _HOME:
        raise AttributeError(f"module 'jko' has no attribute {name!r}")
    elif home := _HOME[name]:
        value = getattr(import_module(f"jko.{home}"), name)
    else:
        value = import_module(f"jko.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List what is loaded together with what would be."""
    return sorted({*globals(), *__all__, "__version__"})
