"""Configurations: models of the TOML files, read and checked before any work."""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from jko.errors import InvalidInput

__all__ = [
    "CompareConfig",
    "FlowConfig",
    "HeadsConfig",
    "MeasureConfig",
    "RunConfig",
    "SchemeConfig",
    "SweepConfig",
    "check_config",
    "merge",
    "read_toml",
    "to_toml",
]


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("must be finite")
    return value


def _whole(value: Any) -> Any:
    """A whole number written with a decimal point is one; any other is refused as what it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _no_flag(value: Any) -> Any:
    # Python takes true for 1.
    if isinstance(value, bool):
        raise ValueError("must be 1 or -1")
    return value


MetricName = Literal["wasserstein2", "weighted", "headwise"]
Positive = Annotated[float, Field(gt=0), AfterValidator(_finite)]
Sign = Annotated[Literal[1, -1], BeforeValidator(_no_flag)]
Whole = Annotated[int, Field(lt=2**63), BeforeValidator(_whole)]
Seed = Annotated[int, BeforeValidator(_whole), Field(ge=0, lt=2**32)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class MeasureConfig(_Model):
    """The initial measure: the paper's law of `n` tokens in R^d, or the rows of a NumPy file."""

    n: Whole | None = Field(default=None, ge=1)
    d: Whole | None = Field(default=None, ge=1)
    points: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> MeasureConfig:
        if self.points is not None and (self.n is not None or self.d is not None):
            raise ValueError("points gives n and d: leave them out")
        return self


class HeadsConfig(_Model):
    """The head path: a process started at the paper's law of D_0, or matrices from NumPy files."""

    process: Literal["ou", "oscillating", "constant"] | None = None
    num_heads: Whole | None = Field(default=None, ge=1)
    sigma2: Annotated[float, Field(ge=0), AfterValidator(_finite)] | None = None
    phases: Literal["spread", "shared"] | None = None
    dt: Positive | None = None
    file: str | None = None
    times: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> HeadsConfig:
        made = [name for name in ("process", "num_heads", "sigma2", "phases", "dt") if getattr(self, name) is not None]
        if self.file is not None and made:
            raise ValueError(f"file gives the heads: leave out {', '.join(made)}")
        if self.times is not None and self.file is None:
            raise ValueError("times belongs to file, which is missing")
        process = self.process or "ou"
        for name, owner in (("sigma2", "ou"), ("phases", "oscillating")):
            if getattr(self, name) is not None and process != owner:
                raise ValueError(f'{name} belongs to process = "{owner}", but the process is "{process}"')
        if process == "constant" and self.dt is not None:
            raise ValueError('dt belongs to a process that moves, but the process is "constant"')
        return self


class CompareFlowConfig(_Model):
    """What the runs of a comparison follow."""

    metrics: list[MetricName] = Field(default=["wasserstein2", "weighted", "headwise"], min_length=1)
    sign: Sign = 1
    manifold: Literal["sphere", "euclidean"] = "sphere"


class CompareSolveConfig(_Model):
    """Final time, step sizes, and the number of common times of a comparison."""

    t1: Positive = 1.0
    taus: list[Positive] = Field(default=[0.01, 0.005, 0.0025], min_length=1)
    samples: Whole = Field(default=100, ge=1)


class FlowConfig(_Model):
    """What a single run follows."""

    metric: MetricName = "weighted"
    sign: Sign = 1
    manifold: Literal["sphere", "euclidean"] = "sphere"


class SchemeConfig(_Model):
    """The scheme of a single run."""

    name: Literal["jko", "explicit"] = "jko"
    tau: Positive = 0.01
    rtol: Positive | None = None

    @model_validator(mode="after")
    def _tolerance(self) -> SchemeConfig:
        if self.rtol is not None and self.name == "explicit":
            raise ValueError('rtol belongs to name = "jko": an explicit scheme minimizes nothing')
        return self


class SolveConfig(_Model):
    """Final time of a single run, what it keeps, and how often it writes that."""

    t1: Positive = 1.0
    save_every: Whole = Field(default=1, ge=1)
    save_times: list[Annotated[float, Field(ge=0), AfterValidator(_finite)]] | None = Field(default=None, min_length=1)
    save_clouds: bool = True
    max_steps: Whole | None = Field(default=None, ge=0)
    checkpoint_every: Whole | None = Field(default=None, ge=1)
    checkpoint_seconds: Positive = 30.0

    @model_validator(mode="after")
    def _one_choice(self) -> SolveConfig:
        if (self.save_every != 1) + (self.save_times is not None) + (not self.save_clouds) > 1:
            raise ValueError("give one of save_every, save_times and save_clouds = false")
        if self.save_times is not None and max(self.save_times) > self.t1 * (1 + 1e-9):
            raise ValueError(f"save_times ends at {max(self.save_times)!r}, after t1 = {self.t1!r}")
        return self


class CommonConfig(_Model):
    """What every command takes."""

    seed: Seed = 0
    path: Seed = 0
    device: str = "cpu"
    dtype: Literal["float64", "float32"] = "float64"
    measure: MeasureConfig = MeasureConfig()
    heads: HeadsConfig = HeadsConfig()

    @model_validator(mode="after")
    def _noise(self) -> CommonConfig:
        if self.path and (self.heads.file is not None or (self.heads.process or "ou") != "ou"):
            raise ValueError(f'path = {self.path} numbers the paths of the noise, which only process = "ou" has')
        return self


class CompareConfig(CommonConfig):
    """The configuration of `jko compare`."""

    flow: CompareFlowConfig = CompareFlowConfig()
    solve: CompareSolveConfig = CompareSolveConfig()


class RunConfig(CommonConfig):
    """The configuration of `jko run`."""

    flow: FlowConfig = FlowConfig()
    scheme: SchemeConfig = SchemeConfig()
    solve: SolveConfig = SolveConfig()


class SweepConfig(CommonConfig):
    """The configuration of `jko sweep`: that of `jko run`, with lists of values for some of its keys."""

    flow: FlowConfig = FlowConfig()
    scheme: SchemeConfig = SchemeConfig()
    solve: SolveConfig = SolveConfig()
    sweep: dict[str, Any] = {}


AnyConfig = TypeVar("AnyConfig", bound=BaseModel)


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        InvalidInput: naming the file when it is missing, or the line that is no TOML.
    """
    try:
        # Editors on Windows put a mark before the first key.
        return tomllib.loads(Path(path).read_text("utf-8-sig"))
    except FileNotFoundError:
        raise InvalidInput(f"the configuration {path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the configuration {path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{path} is no TOML: {error}") from None


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with the entries of `over`, table by table; neither is changed."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def check_config(model: type[AnyConfig], data: dict[str, Any], source: str = "") -> AnyConfig:
    """Validate plain data against a model.

    Args:
        model: the model.
        data: the data, as TOML gives it.
        source: where they come from, for the message.

    Raises:
        InvalidInput: in one line: the key, its value, what was expected, and for a key that does not exist the
            nearest one that does.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        if model in (CompareConfig, RunConfig, SweepConfig) and (other := _other_command(model, data)):
            raise InvalidInput(f"{source}: {other}" if source else other) from None
        # A misspelt key explains the rest, so it comes first.
        found = sorted(error.errors(), key=lambda item: item["type"] != "extra_forbidden")
        message = _sentence(model, found[0])
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise InvalidInput(f"{source}: {message}{more}" if source else message + more) from None


def to_toml(config: BaseModel) -> bytes:
    """Write a configuration with every value that is set, defaults included."""
    import tomli_w

    return tomli_w.dumps(config.model_dump(exclude_none=True)).encode()


def _sentence(model: type[BaseModel], item: Any) -> str:
    places = [str(part) for part in item["loc"]]
    key = ".".join(places)
    if item["type"] == "extra_forbidden":
        known = _keys(model, places[:-1])
        return f"unknown key {key} = {_show(item['input'])}; {_hint(model, places, known)}"
    if item["type"] == "value_error":
        return f"[{key}] {item['ctx']['error']}" if isinstance(item["input"], dict) else _value(key, item, "")
    return _value(key, item, _expected(item))


def _hint(model: type[BaseModel], places: list[str], known: list[str]) -> str:
    name = places[-1]
    owners = [table for table in model.model_fields if name in _keys(model, [table])]
    if name in model.model_fields:
        return f"{name} belongs to the top of the file, before the first table"
    if owners:
        return f"{name} belongs to [{owners[0]}]"
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {'.'.join([*places[:-1], near[0]])}?" if near else f"there are {', '.join(sorted(known))}"


def _other_command(model: type[BaseModel], data: dict[str, Any]) -> str:
    """Return the command whose configuration this is, when it is not the one that was asked for."""
    for owner, command, marks in (
        (CompareConfig, "compare", (("flow", "metrics"), ("solve", "taus"), ("solve", "samples"))),
        (SweepConfig, "sweep", (("sweep", ""),)),
        (RunConfig, "run", (("flow", "metric"), ("scheme", ""), ("solve", "save_every"), ("solve", "max_steps"))),
    ):
        for table, key in marks:
            content = data.get(table)
            known = model is owner or (model is SweepConfig and owner is RunConfig)
            if not known and isinstance(content, dict) and (not key or key in content):
                mark = f"[{table}] {key}".strip()
                return f"{mark} belongs to a configuration of `jko {command}`: give the file to that command"
    return ""


def _value(key: str, item: Any, expected: str) -> str:
    wanted = expected or str(item["ctx"]["error"])
    quoted = item["type"] in ("float_type", "int_type") and isinstance(item["input"], str)
    hint = "; write it without quotes" if quoted and _is_number(item["input"]) else ""
    return f"{key} = {_show(item['input'])}: {wanted}{hint}"


def _expected(item: Any) -> str:
    context = item.get("ctx", {})
    texts = {
        "float_type": "must be a number",
        "int_type": "must be a whole number",
        "int_from_float": "must be a whole number",
        "string_type": "must be text in quotes",
        "bool_type": "must be true or false",
        "list_type": "must be a list in brackets",
        "model_type": "must be a table",
        "dict_type": "must be a table",
        "greater_than": f"must be greater than {context.get('gt')}",
        "greater_than_equal": f"must be at least {context.get('ge')}",
        "less_than": f"must be less than {context.get('lt')}",
        "literal_error": f"must be one of {context.get('expected')}",
        "too_short": "must not be empty",
    }
    return texts.get(item["type"], item["msg"])


def _keys(model: type[BaseModel], places: list[str]) -> list[str]:
    for place in places:
        inner = model.model_fields[place].annotation if place in model.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return list(model.model_fields)


def _show(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value, default=str, ensure_ascii=False)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
