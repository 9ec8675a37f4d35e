"""`jko verify`: the paper's theory, statement by statement, with verdicts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, final

import typer

from jko.cli import options as o
from jko.cli.exits import EXIT_STATEMENT, INTERRUPTED, uninterrupted

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

    from jko.cli.folder import Folder
    from jko.verify import Finding, Measurement, Report, Setting, Statement

__all__ = ["verify"]

_STYLES = {"HOLDS": "green", "RESTRICTED": "yellow", "FAILS": "red"}


def verify(
    quick: Annotated[bool, typer.Option("--quick", help="Small problems: about a minute for everything.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Statement to test; may be repeated (all unless given).")
    ] = None,
    list_statements: Annotated[bool, typer.Option("--list", help="List the statements and exit.")] = False,
    seed: Annotated[
        int | None,
        typer.Option(metavar="S", help="Seed of every random draw (0 unless given).", rich_help_panel="Common"),
    ] = None,
    out: o.Out = None,
    overwrite: o.Overwrite = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print verify.json instead of the table.", rich_help_panel="Common")
    ] = False,
    verbose: o.Verbose = False,
    quiet: o.Quiet = False,
) -> int:
    """Test the paper's theory on small problems: measured numbers beside bounds, with a verdict computed from them.

    Leaves verify.json and a figure per finding in a folder: jko-verify, or --out. Some statements fail for several
    heads, as theory predicts; the exit status is 1 only when a verdict is not the predicted one.
    """
    from jko.verify import Setting, select

    statements = select(only)
    if list_statements:
        _list(statements)
        return 0
    setting = Setting(quick, 0 if seed is None else seed)
    return _verify(setting, only, Path("jko-verify") if out is None else out, overwrite, as_json, verbose, quiet)


def _list(statements: tuple[Statement, ...]) -> None:
    width = max(len(statement.key) for statement in statements)
    for statement in statements:
        print(f"{statement.key:<{width}}  {statement.title}")


def _verify(
    setting: Setting, only: list[str] | None, out: Path, overwrite: bool, as_json: bool, verbose: bool, quiet: bool
) -> int:
    from pydantic import create_model

    from jko import verify as suite
    from jko.cli import screen
    from jko.cli.folder import Folder
    from jko.cli.threads import threads_for
    from jko.status import Status

    statements = suite.select(only)
    model = create_model("VerifyConfig", quick=(bool, ...), seed=(int, ...), only=(list[str], ...))
    config = model(quick=setting.quick, seed=setting.seed, only=[statement.key for statement in statements])
    folder = Folder.claim(out, "verification", config, overwrite=overwrite)
    if folder.finished:
        return folder.tell(as_json, "verify.json")
    with (
        folder.watched(),
        screen.logging_to_stderr(verbose),
        threads_for(1, 1),
        _bar(len(statements), quiet) as shown,
    ):
        saved = _Saved(folder, [])
        report = suite.verify(setting, only, on_start=shown.start, on_finding=saved.write)
        with uninterrupted():
            saved.close(report)
    _report(report, saved.files, folder, as_json, quiet)
    if report.status is Status.INTERRUPTED:
        return INTERRUPTED
    return _exit_status(report)


def _exit_status(report: Report) -> int:
    return EXIT_STATEMENT if report.unexpected else 0


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Saved:
    """What is on the disk: verify.json is whole after every finding, so that a run that is killed leaves its results.

    `files` lists what was written.
    """

    folder: Folder
    files: list[str]

    def write(self, report: Report) -> None:
        from jko.storage import write_json

        with uninterrupted():
            write_json(self.folder.path / "verify.json", report.as_data())
            self._draw(report.findings[-1])
            self._tell("running", [*self.files, *self.folder.listed()["files"]])

    def _draw(self, finding: Finding) -> None:
        from jko.plotting.verification import finding_png
        from jko.storage import write_bytes

        if finding.figure is not None:
            self.files.append(f"{finding.key}.png")
            write_bytes(self.folder.path / self.files[-1], finding_png(finding))

    def close(self, report: Report) -> None:
        from jko.storage import write_json

        write_json(self.folder.path / "verify.json", report.as_data())
        self._tell(report.status.value, self.files, exit_status=_exit_status(report))
        self.folder.clean(self.files, [])

    def _tell(self, status: str, files: list[str], **more: int) -> None:
        about = {"title": "verification", "status": status, **more, "solutions": [], "files": sorted(set(files))}
        self.folder.write_run(about, ["verify.json", *self.files])


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Shown:
    """The progress bar, moved on before every statement."""

    bar: Progress

    def start(self, statement: Statement) -> None:
        (task,) = self.bar.tasks
        self.bar.update(task.id, completed=task.fields["begun"], begun=task.fields["begun"] + 1, title=statement.title)


@contextmanager
def _bar(total: int, quiet: bool) -> Iterator[_Shown]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[title]}"))
    hidden = quiet or not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=hidden) as bar:
        bar.add_task("", total=total, begun=0, title="")
        yield _Shown(bar)


def _report(report: Report, files: list[str], folder: Folder, as_json: bool, quiet: bool) -> None:
    from jko.cli import screen
    from jko.status import Status
    from jko.storage import read_json

    if as_json:
        print(json.dumps(read_json(folder.path / "verify.json"), indent=2, allow_nan=False))
    else:
        console = screen.stdout()
        if report.findings:
            console.print(_table(report))
            console.print()
        for note in _notes(report):
            console.print(f"- {note}", markup=False)
    if report.status is Status.INTERRUPTED:
        print(f"interrupted; what is complete is saved in {folder.path}", file=sys.stderr)
    if not quiet:
        print(f"Results in {folder.path}: verify.json, {len(files)} figures", file=sys.stderr)


def _table(report: Report) -> Table:
    """One row per finding, 100 columns wide."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    mode = "quick" if report.setting.quick else "full"
    table = Table(
        title=f"Verification, {mode} run, seed {report.setting.seed}, {report.seconds:.0f} s",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
        show_lines=True,
    )
    table.add_column("statement", width=24)
    table.add_column("measured", ratio=1)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("bound or theory", justify="right", no_wrap=True)
    table.add_column("verdict", width=17)
    for finding in report.findings:
        main = finding.main
        verdict = finding.verdict.value if finding.as_expected else f"{finding.verdict.value} (UNEXPECTED)"
        table.add_row(
            Text(f"{finding.statement}\n{finding.key}"),
            Text("" if main is None else main.name),
            "" if main is None else f"{main.value:.6g}",
            "" if main is None else _reference(main),
            Text(verdict, style=_STYLES.get(finding.verdict.name, "")),
        )
    return table


def _reference(measurement: Measurement) -> str:
    if measurement.reference is None:
        return ""
    return f"{measurement.relation.value} {measurement.reference:.6g}"


def _notes(report: Report) -> list[str]:
    from jko.verify import Verdict

    notes = [
        f"{finding.key} {finding.verdict.value}: {finding.explanation}"
        for finding in report.findings
        if finding.verdict is not Verdict.HOLDS
    ]
    numbers = [m for finding in report.findings for m in finding.measurements if m.reference is not None]
    notes.append(
        f"{len(report.findings) - len(report.unexpected)} of {len(report.findings)} verdicts are those that theory "
        f"predicts; {len(numbers)} numbers were compared with a reference (all in verify.json)."
    )
    notes += [
        f"UNEXPECTED: {finding.key} {finding.verdict.value}, theory predicts: {finding.expected.value}"
        for finding in report.unexpected
    ]
    return notes
