"""`jko paper`: the numerical section of the paper."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

import typer

from jko.cli import options as o
from jko.cli.exits import EXIT_NUMERICAL, EXIT_STATEMENT, INTERRUPTED, uninterrupted

if TYPE_CHECKING:
    from jko.cli.folder import Folder
    from jko.paper import Execution, FlowsResult, Regime, RegimeResult, Setting

__all__ = ["paper"]

_SIZE = "Size"
_MOST_RUNS = 100_000


class _What(StrEnum):
    FIG1 = "fig1"
    FIG2 = "fig2"
    FIG3 = "fig3"
    ALL = "all"
    COMPARISON = "comparison"


class _Phases(StrEnum):
    SHARED = "shared"
    SPREAD = "spread"


class _Animation(StrEnum):
    GIF = "gif"
    MP4 = "mp4"


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """What is asked for, checked."""

    what: _What
    setting: Setting
    regimes: tuple[Regime, ...]
    animation: _Animation | None
    workers: int | None

    @property
    def heads(self) -> tuple[int, ...]:
        """Clouds and ledgers are shown for the largest H alone."""
        single = self.what in (_What.FIG1, _What.FIG3)
        return self.setting.heads[-1:] if single else self.setting.heads

    @property
    def regime_names(self) -> list[str]:
        """The regimes as files name them."""
        return [regime.value for regime in self.regimes]


def paper(
    what: Annotated[_What, typer.Argument(help="Figure 1, 2 or 3, all three, or JKO against explicit.")],
    as_printed: Annotated[
        bool,
        typer.Option(
            "--as-printed", help="Sizes of the text: n 300, dt 0.01, 20 paths (default).", rich_help_panel=_SIZE
        ),
    ] = False,
    as_released: Annotated[
        bool,
        typer.Option(
            "--as-released",
            help="Sizes of the authors' code: n 200, dt 0.005, 10 paths, mean over t >= T/2.",
            rich_help_panel=_SIZE,
        ),
    ] = False,
    small: Annotated[bool, typer.Option("--small", help="Seconds.", rich_help_panel=_SIZE)] = False,
    n: Annotated[
        int | None, typer.Option("--n", "-n", metavar="N", help="Number of tokens.", rich_help_panel=_SIZE)
    ] = None,
    dimension: Annotated[
        int | None,
        typer.Option("--dimension", "-d", metavar="D", help="2 for the circle; 3 unless given.", rich_help_panel=_SIZE),
    ] = None,
    dt: Annotated[
        float | None, typer.Option(metavar="DT", help="Step of tokens and heads.", rich_help_panel=_SIZE)
    ] = None,
    t1: Annotated[float | None, typer.Option(metavar="T", help="Final time (20).", rich_help_panel=_SIZE)] = None,
    paths: Annotated[
        int | None, typer.Option(metavar="P", help="Monte Carlo paths of OU heads.", rich_help_panel=_SIZE)
    ] = None,
    heads: Annotated[
        str | None, typer.Option(metavar="H,H,...", help="Numbers of heads (1,10,100).", rich_help_panel=_SIZE)
    ] = None,
    sign: Annotated[
        int | None,
        typer.Option(metavar="+1|-1", help="+1 descends E: the authors' code (unless given). -1: the printed update."),
    ] = None,
    phases: Annotated[
        _Phases | None,
        typer.Option(
            help="Phases of oscillating heads: shared, as in the published figure (unless given), or spread, as in the "
            "formula. The comparison shows both."
        ),
    ] = None,
    animate: Annotated[
        _Animation | None, typer.Option(help="Animate the clouds of Figure 1; mp4 needs ffmpeg, gif nothing.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", metavar="J", help="Runs at a time (one per core unless given).")
    ] = None,
    seed: o.Seed = None,
    device: o.Device = None,
    dtype: o.Dtype = None,
    out: o.Out = None,
    overwrite: o.Overwrite = False,
    as_json: o.JsonOutput = False,
    verbose: o.Verbose = False,
    quiet: o.Quiet = False,
) -> int:
    """Reproduce the numerical section of the paper: Ornstein-Uhlenbeck and oscillating heads, many paths.

    Leaves figures, summary.json, the curves, and every finished run in a folder: jko-paper, or --out. The same command
    again goes on where it stopped. At paper size it takes minutes to hours; --small takes seconds.
    """
    from jko.checks import check_integer
    from jko.errors import InvalidInput
    from jko.plotting import check_animation

    target = Path("jko-paper") if out is None else out
    if animate is not None:
        if what is _What.COMPARISON:
            raise InvalidInput("--animate moves the clouds of Figure 1, which the comparison does not have")
        check_animation(target / f"clouds.{animate}")
    given = o.given(
        n=n, dimension=dimension, dt=dt, t1=t1, paths=paths, sign=sign, **o.common_data(seed, device, dtype)
    )
    if heads is not None:
        given["heads"] = _numbers(heads)
    setting = _setting(what, as_printed, as_released, small, given)
    workers = None if jobs is None else check_integer(jobs, "jobs", least=1)
    plan = _Plan(what, setting, _regimes(what, phases), animate, workers)
    return _paper(plan, target, overwrite, as_json, verbose, quiet)


def _numbers(heads: str) -> tuple[int, ...]:
    from jko.errors import InvalidInput

    try:
        return tuple(int(part) for part in heads.split(","))
    except ValueError:
        raise InvalidInput(f"--heads takes whole numbers such as 1,10,100, got {heads!r}") from None


def _setting(what: _What, as_printed: bool, as_released: bool, small: bool, given: dict[str, Any]) -> Setting:
    from jko.errors import InvalidInput
    from jko.paper import Setting

    if as_printed + as_released + small > 1:
        raise InvalidInput("--as-printed, --as-released and --small exclude each other")
    if small:
        tiny = {"n": 12, "t1": 0.4, "heads": (1, 4)} if what is _What.COMPARISON else {}
        setting = Setting.small(**{**tiny, **given})
    else:
        setting = Setting.as_released(**given) if as_released else Setting.as_printed(**given)
    _check_size(setting)
    return setting


def _check_size(setting: Setting) -> None:
    """Refuse what would run for days or fill the memory, before any of it is made."""
    from jko.cli import problem
    from jko.errors import InvalidInput

    problem.check_tokens(setting.n, setting.dimension)
    problem.check_steps(setting.t1, setting.dt, "dt")
    problem.check_path_size(setting.t1, setting.dt, setting.heads[-1], setting.dimension)
    runs = setting.paths * len(setting.heads)
    if runs > _MOST_RUNS:
        raise InvalidInput(
            f"{setting.paths} paths for each of {len(setting.heads)} numbers of heads are {runs} runs, more than "
            f"{_MOST_RUNS}; take fewer"
        )


def _regimes(what: _What, phases: _Phases | None) -> tuple[Regime, ...]:
    from jko.paper import Regime

    if what is _What.COMPARISON and phases is None:
        return (Regime.OU, Regime.OSCILLATING_SHARED, Regime.OSCILLATING_SPREAD)
    spread = phases is _Phases.SPREAD
    return (Regime.OU, Regime.OSCILLATING_SPREAD if spread else Regime.OSCILLATING_SHARED)


def _paper(plan: _Plan, out: Path, overwrite: bool, as_json: bool, verbose: bool, quiet: bool) -> int:
    from pydantic import create_model

    from jko.cli import screen
    from jko.cli.folder import Folder
    from jko.paper import RichWork, execute, flow_jobs, paper_jobs

    data = {"what": str(plan.what), "regimes": plan.regime_names, **plan.setting.as_data()}
    if plan.animation is not None:
        data["animation"] = str(plan.animation)
    fields: dict[str, Any] = {name: (type(value), ...) for name, value in data.items()}
    config = create_model("PaperConfig", **fields)(**data)
    setting = plan.setting
    earlier = {} if overwrite else _earlier_files(out, plan)
    # Figures of one setting stand side by side; "regimes" is another number of them, "regimes[1]" another one.
    folder = Folder.claim(out, "paper", config, overwrite=overwrite, adds={"what", "regimes", "animation"}.__contains__)
    if folder.finished:
        return folder.tell(as_json)
    wanted = (
        flow_jobs(setting, plan.regimes)
        if plan.what is _What.COMPARISON
        else paper_jobs(setting, plan.regimes, plan.heads)
    )
    with folder.watched(), screen.logging_to_stderr(verbose):
        progress = RichWork() if sys.stderr.isatty() and not quiet else None
        try:
            execution = execute(wanted, folder.path / "jobs", workers=plan.workers, progress=progress)
        except KeyboardInterrupt:
            return _interrupted(folder, plan, earlier)
        for failed in execution.failed:
            print(f"{failed.job.name}: {failed.detail}", file=sys.stderr)
        with uninterrupted():
            held = _finish(plan, folder, execution, earlier, as_json)
    if not quiet:
        print(
            f"Results in {folder.path}: summary.json, figures (PNG and PDF), {execution.computed} runs of "
            f"{execution.seconds:.0f} s, {execution.skipped} that were there",
            file=sys.stderr,
        )
    if execution.failed:
        return EXIT_NUMERICAL
    return 0 if held else EXIT_STATEMENT


def _earlier_files(out: Path, plan: _Plan) -> dict[str, list[str]]:
    """Figures of the same setting and phases that the folder holds, and their regimes: another figure leaves them."""
    from jko.errors import RunFolderError
    from jko.runs import compare_files, read_inventory

    try:
        run = read_inventory(out)
    except RunFolderError:
        return {}
    if not isinstance(run, dict) or run.get("kind") != "paper" or run.get("setting") != plan.setting.as_data():
        return {}
    shown, now = run.get("regimes"), set(plan.regime_names)
    if not isinstance(shown, dict):
        return {}
    written = {name: digest for name, digest in run.get("written", {}).items() if name in shown}
    lost = {name: line for name in written for line in compare_files(out, {name: written[name]})}
    for line in lost.values():
        print(f"{line}; ask for that figure again", file=sys.stderr)
    # The comparison shows more regimes than the figures.
    return {
        name: regimes
        for name, regimes in shown.items()
        if name not in lost and (now <= set(regimes) or now >= set(regimes))
    }


def _interrupted(folder: Folder, plan: _Plan, earlier: dict[str, list[str]]) -> int:
    with uninterrupted():
        _write_run(folder, plan, "interrupted", earlier)
    done = len(list((folder.path / "jobs").glob("*.json")))
    print(f"interrupted; {done} finished runs in {folder.path}: the same command goes on from there", file=sys.stderr)
    return INTERRUPTED


def _write_run(folder: Folder, plan: _Plan, status: str, files: dict[str, list[str]], **more: Any) -> None:
    summary = ["summary.json"] if "execution" in more else []
    jobs = [f"jobs/{path.name}" for path in (folder.path / "jobs").glob("[!.]*")]
    folder.write_run(
        {
            "title": f"experiments of the paper, sign = {plan.setting.sign:+d}",
            "status": status,
            "setting": plan.setting.as_data(),
            "solutions": [],
            "files": sorted(files),
            "regimes": files,
            **more,
        },
        [*summary, *jobs, *(name for name in files if (folder.path / name).exists())],
    )


def _finish(plan: _Plan, folder: Folder, execution: Execution, earlier: dict[str, list[str]], as_json: bool) -> bool:
    """Write numbers and figures, show them, and return whether every checked statement holds."""
    from jko.cli import paper_tables, screen
    from jko.paper import collect, collect_flows
    from jko.storage import read_json, write_json

    setting, failed = plan.setting, {item.job.regime for item in execution.failed}
    result: FlowsResult | tuple[RegimeResult, ...]
    if plan.what is _What.COMPARISON:
        result = collect_flows(folder.path / "jobs", setting, plan.regimes)
        checks, numbers, tables = result.checks, result.as_data(), paper_tables.flow_tables(result)
    else:
        whole = [regime for regime in plan.regimes if regime not in failed]
        result = tuple(collect(folder.path / "jobs", setting, regime, plan.heads) for regime in whole)
        checks = tuple(check for part in result for check in part.checks)
        numbers = {"regimes": [part.as_data() for part in result], "printed": paper_tables.PRINTED}
        tables = paper_tables.regime_tables(result)
    statements = [{"statement": check.statement, "held": check.held, "detail": check.detail} for check in checks]
    summary = {"what": str(plan.what), "setting": setting.as_data(), **numbers, "checks": statements}
    write_json(folder.path / "summary.json", summary)
    files = _draw(plan, folder.path, result)
    kept = {**earlier, **dict.fromkeys(files, plan.regime_names)}
    run = {"computed": execution.computed, "skipped": execution.skipped, "seconds": execution.seconds}
    held = all(check.held for check in checks)
    code = 0 if held else EXIT_STATEMENT
    _write_run(folder, plan, "failed" if execution.failed else "success", kept, execution=run, exit_status=code)
    folder.clean(list(kept), [])
    if as_json:
        print(json.dumps(read_json(folder.path / "summary.json"), indent=2, allow_nan=False))
    else:
        console = screen.stdout()
        for table in tables:
            console.print(table)
        console.print()
        for note in paper_tables.check_notes(checks):
            console.print(f"- {note}", markup=False)
    return held


def _draw(plan: _Plan, path: Path, result: FlowsResult | tuple[RegimeResult, ...]) -> list[str]:
    from jko import plotting
    from jko.storage import write_tensors

    files: list[str] = []
    if not isinstance(result, tuple):
        figures = {f"comparison-{name}": plotting.flows_figure(result, name) for name in ("energy", "dissipation")}
        figures["comparison-slope"] = plotting.flows_figure(result, "paper_slope2")
        figures["comparison-distance"] = plotting.flows_distance_figure(result)
        figures["comparison-phases"] = plotting.phases_figure(result)
        for name, figure in figures.items():
            files += plotting.save_figure(figure, path / name)
        return files
    if not result:
        return files
    write_tensors(
        path / "curves.safetensors", {name: curve for part in result for name, curve in part.curves().items()}
    )
    files.append("curves.safetensors")
    makers = {
        _What.FIG1: plotting.paper_snapshot_figure,
        _What.FIG2: plotting.paper_slope_figure,
        _What.FIG3: plotting.paper_ledger_figure,
    }
    for what, make in makers.items():
        if plan.what in (what, _What.ALL):
            files += plotting.save_figure(make(result), path / str(what), dpi=200)
    if plan.animation is not None:
        files.append(plotting.animate_clouds(result, path / f"clouds.{plan.animation}"))
    return files
