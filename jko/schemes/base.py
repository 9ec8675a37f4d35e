"""The contract of a time-discrete scheme: one step, its diagnostics, and what the next step may reuse."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, final

from torch import Tensor

from jko.flows import AbstractFlow, FlowState
from jko.measure import ParticleMeasure
from jko.schemes.checks import CheckResult
from jko.status import Status
from jko.storable import storable
from jko.transport import CouplingCertificate
from jko.typing import default, settle

__all__ = ["AbstractScheme", "Step", "StepInfo", "StepState"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class StepInfo:
    """What is known about one step.

    The numbers in `columns` are also attributes: `info.residual`, `info.squared_distance`, and so on.

    Attributes:
        status: the outcome; anything but SUCCESS means that the step was not taken.
        columns: the step's columns of the records. `energy_previous` = sE(u^{k-1}, t_k), `squared_distance` in the
            flow's metric, `head_energy` = s mean_h E_h(Exp_y xi_h) (head-wise steps), `time_part` =
            sE(u^{k-1}, t_k) - sE(u^{k-1}, t_{k-1}), `largest_displacement`, `residual`, `evaluations` (passes over the
            pairs, all counted, one over k of H heads as k / H), `certified` (1 or 0).
        displacement: tangent vectors at the old particles, (n, d), or (H, n, d) for the head-wise step, in which
            a head of weight 0 takes no step.
        largest_displacement: the largest |xi_i|.
        trial: the best point of a step that failed, else None.
        coupling: what was shown about the coupling; None for schemes without a transport term.
        checks: results of the further checks that were asked for, by name.
        detail: particulars of a failure or of a certificate that was not given.
    """

    status: Status
    columns: Mapping[str, float]
    displacement: Tensor
    largest_displacement: float
    trial: ParticleMeasure | None = None
    coupling: CouplingCertificate | None = None
    checks: Mapping[str, CheckResult] = field(default_factory=dict)
    detail: str = ""

    def __post_init__(self) -> None:
        settle(self, columns=MappingProxyType(dict(self.columns)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the columns as plain data, since a read-only view cannot be."""
        values = {part.name: getattr(self, part.name) for part in fields(self)}
        return _rebuilt, ({**values, "columns": dict(self.columns)},)

    def __getattr__(self, name: str) -> Any:
        """Read a column as an attribute."""
        try:
            return object.__getattribute__(self, "columns")[name]
        except KeyError:
            raise AttributeError(f"this step has no column {name!r}; it has {sorted(self.columns)}") from None


@final
@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One step of a scheme.

    Attributes:
        measure: u^k; the old measure where the step failed.
        info: diagnostics of this step.
        state: the flow at (u^k, t_k) and what the minimizer carries over; pass it to the next `step`.
    """

    measure: ParticleMeasure
    info: StepInfo
    state: StepState


@storable
@final
@dataclass(frozen=True, slots=True, eq=False)
class StepState:
    """What the next step reuses: the flow at the new measure and time, and what only the scheme itself understands."""

    flow: AbstractFlow
    flow_state: FlowState
    memory: Any = None

    def at(self, t: float) -> StepState:
        """Return the state with its time set to the driver's grid, which may differ from t_{k-1} + tau by rounding."""
        return self if self.flow_state.t == t else replace(self, flow_state=replace(self.flow_state, t=t))


class AbstractScheme(ABC):
    """A time-discrete scheme. The driver calls `start` once and `step` for every interval.

    Attributes:
        tau: the step size, in units of time; a field of every member.
    """

    __slots__ = ()

    tau: float

    @property
    @abstractmethod
    def title(self) -> str:
        """Name for figures and tables."""

    @abstractmethod
    def check(self, flow: AbstractFlow) -> None:
        """Raise InvalidInput when the scheme cannot follow this flow, saying why."""

    @default  # noqa: B027 (most schemes take every grid)
    def check_times(self, flow: AbstractFlow, times: Sequence[float]) -> None:
        """Raise InvalidInput when a step between neighbors of `times` is none that the scheme can take."""

    @abstractmethod
    def start(self, flow: AbstractFlow, measure: ParticleMeasure, t: float) -> StepState:
        """Return the state at the initial measure: one pass."""

    @abstractmethod
    def step(
        self,
        flow: AbstractFlow,
        measure: ParticleMeasure,
        t: float = 0.0,
        tau: float | None = None,
        state: StepState | None = None,
        guess: ParticleMeasure | None = None,
    ) -> Step:
        """Take one step from t (its START) to t + tau.

        Args:
            flow: what to follow.
            measure: u^{k-1}, unbatched, on the flow's manifold.
            t: start of the step.
            tau: step size; None means the scheme's own.
            state: `Step.state` of the previous step; it must belong to (flow, measure, t).
            guess: where a minimizer starts; None lets it choose. Explicit schemes refuse it.

        Raises:
            InvalidInput: for a batched measure, points off the manifold, tau <= 0, or an unfit flow. A step that
                fails numerically does not raise: its status says so.
        """


def _rebuilt(values: dict[str, Any]) -> StepInfo:
    return StepInfo(**values)
